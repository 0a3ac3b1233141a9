//! The output of every command, in a pipe and on a terminal, against a real server on SQLite with fixed jobs.
//!
//! The expected outputs are in `tests/golden`; `RONDEL_BLESS=1 cargo test -p rondel-cli --test rondel golden` writes
//! them anew.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::process::{CommandOutput, Program, end, rondel};

/// The jobs on the server. None of them fires while the test runs.
const JOBS: &str = include_str!("../golden/jobs.yaml");
/// The same jobs with changes.
const CHANGED: &str = include_str!("../golden/changed.yaml");
/// A file with a wrong definition.
const WRONG: &str = include_str!("../golden/wrong.yaml");

/// The commands in the order in which they run: each has a name for its expected output, and its arguments.
const COMMANDS: &[(&str, &[&str])] = &[
    ("version", &["version"]),
    ("help-job-apply", &["job", "apply", "--help"]),
    ("job-list-empty", &["job", "list"]),
    ("job-plan-new", &["job", "plan", "-f", "jobs.yaml"]),
    ("job-plan-exit-code", &["job", "plan", "-f", "jobs.yaml", "--exit-code", "-o", "name"]),
    ("job-apply", &["job", "apply", "-f", "jobs.yaml"]),
    ("job-apply-again", &["job", "apply", "-f", "jobs.yaml"]),
    ("job-plan-same", &["job", "plan", "-f", "jobs.yaml", "--exit-code"]),
    ("job-plan-changed", &["job", "plan", "-f", "changed.yaml", "--prune-app", "billing"]),
    ("job-plan-wrong", &["job", "plan", "-f", "wrong.yaml"]),
    ("job-apply-missing", &["job", "apply", "-f", "nowhere.yaml"]),
    ("job-list", &["job", "list"]),
    ("job-list-wide", &["job", "list", "-o", "wide"]),
    ("job-list-columns", &["job", "list", "--columns", "name,retry.max,next_fire", "--no-headers"]),
    ("job-list-columns-wrong", &["job", "list", "--columns", "nosuch"]),
    ("job-list-name", &["job", "list", "-o", "name"]),
    ("job-list-jsonl", &["job", "list", "--limit", "1", "-o", "jsonl"]),
    ("job-get", &["job", "get", "report.daily"]),
    ("job-get-yaml", &["job", "get", "report.daily", "-o", "yaml"]),
    ("job-get-missing", &["job", "get", "report.dayli"]),
    ("job-export", &["job", "export"]),
    ("job-export-json", &["job", "export", "report.daily", "-o", "json"]),
    ("job-get-pump", &["job", "get", "orders.close"]),
    ("job-items", &["job", "items", "orders.close"]),
    ("job-items-names", &["job", "items", "orders.close", "--state", "free", "-o", "name"]),
    ("job-items-none", &["job", "items", "manual"]),
    ("job-items-watch-json", &["job", "items", "orders.close", "--watch", "-o", "json"]),
    ("job-pause", &["job", "pause", "report.daily"]),
    ("job-resume", &["job", "resume", "report.daily"]),
    ("job-versions", &["job", "versions", "report.daily"]),
    ("job-diff", &["job", "diff", "report.daily"]),
    ("job-fires", &["job", "fires", "report.daily", "--from", "2099-01-01T00:00:00Z", "--to", "2099-01-03T00:00:00Z"]),
    ("why", &["why", "report.daily", "--at", "2099-01-01T02:30:00Z"]),
    ("job-create-wrong", &["job", "create", "--name", "x", "--app", "a", "--handler", "h", "--cron", "99 * * * * ?"]),
    ("job-create-exists", &["job", "create", "--name", "manual", "--app", "tools", "--handler", "report"]),
    ("why-usage", &["why"]),
    ("token-create-kind", &["token", "create", "x", "--role", "executor:default/billing"]),
    ("token-create-place", &["token", "create", "x", "--kind", "executor", "--role", "executor:billing"]),
    ("token-revoke-missing", &["token", "revoke", "nosuch"]),
    ("token-unknown", &["job", "list", "--token-file", "wrong.token"]),
    ("doctor-unreachable", &["doctor", "--server", "http://127.0.0.1:1"]),
    ("job-trigger", &["job", "trigger", "manual"]),
    ("job-cancel", &["job", "cancel", "manual"]),
    ("run-list-empty", &["run", "list", "--job", "report.daily"]),
    ("run-get-missing", &["run", "get", "1"]),
    ("help-events", &["events", "--help"]),
    ("events-wrong", &["events", "--kind", "nosuch"]),
    ("executor-list", &["executor", "list"]),
    ("node-list", &["node", "list"]),
    ("app-list", &["app", "list"]),
    ("calendar-list", &["calendar", "list"]),
    ("status", &["status"]),
    ("doctor", &["doctor"]),
    ("api-get", &["api", "GET", "/jobs?limit=1&app=tools"]),
    ("api-missing", &["api", "GET", "/nosuch"]),
    ("cron-next", &["cron", "next", "0 30 2 * * ?", "--after", "2026-03-08T00:00:00Z", "--count", "2"]),
    ("cron-explain", &["cron", "explain", "0 30 2 * * ?", "--after", "2026-03-08T00:00:00Z"]),
    ("job-delete", &["job", "delete", "manual", "--yes"]),
    ("context-list-empty", &["context", "list"]),
    ("context-add", &["context", "add", "prod", "--url", "https://rondel.example.com", "--namespace", "team"]),
    ("context-list", &["context", "list"]),
    ("context-show", &["context", "show"]),
    ("context-use-missing", &["context", "use", "nosuch"]),
    ("context-remove", &["context", "remove", "prod"]),
    ("unreachable", &["job", "list", "--server", "http://127.0.0.1:1"]),
    ("no-token", &["job", "list", "--token-file", "/dev/null"]),
];

/// Whether a command changes something. It then runs only once, in a pipe and not on a terminal.
fn runs_once(name: &str) -> bool {
    matches!(
        name,
        "job-apply"
            | "job-apply-again"
            | "job-cancel"
            | "job-trigger"
            | "job-delete"
            | "job-pause"
            | "job-resume"
            | "context-add"
            | "context-remove"
    )
}

struct Fixture {
    server: Program,
    url: String,
    folder: tempfile::TempDir,
}

impl Fixture {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let token = "rondel_pat_of_nobody_at_all\n";
        for (name, text) in
            [("jobs.yaml", JOBS), ("changed.yaml", CHANGED), ("wrong.yaml", WRONG), ("wrong.token", token)]
        {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(folder.path().join("wrong.token"), private).unwrap();
        let data = folder.path().join("data");
        let database = format!("sqlite://{}", folder.path().join("golden.db").display());
        let mut server = Program::start(&[
            "server",
            "--database",
            &database,
            "--data-dir",
            data.to_str().unwrap(),
            "--node-name",
            "node-1",
            "--listen",
            "127.0.0.1:0",
        ]);
        let url = server.url();
        Self { server, url, folder }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = rondel();
        command.args(args).current_dir(self.folder.path());
        command.env("XDG_CONFIG_HOME", self.folder.path().join("config"));
        command.env("RONDEL_SERVER", &self.url).env("TZ", "UTC").env("TERM", "xterm").env_remove("NO_COLOR");
        command.env("RONDEL_TOKEN_FILE", self.folder.path().join("data/admin.token"));
        for name in ["LC_ALL", "LC_MESSAGES", "LANG"] {
            command.env(name, "C.UTF-8");
        }
        command
    }

    /// The output of the command. Values that differ between runs are replaced.
    fn shown(&self, name: &str, args: &[&str]) -> String {
        let CommandOutput { code, stdout, stderr } = end(&mut self.command(args));
        let mut text = format!("$ rondel {}\nexit code {}\n", args.join(" "), code.unwrap_or(-1));
        for (title, part) in [("stdout", stdout), ("stderr", stderr)] {
            if !part.is_empty() {
                text.push_str(&format!("--- {title}\n{part}"));
            }
        }
        if !runs_once(name) {
            text.push_str(&format!("--- terminal\n{}", on_terminal(&mut self.command(args))));
        }
        normal(&text.replace(&self.url, "<url>").replace(self.folder.path().to_str().unwrap(), "<dir>"))
    }
}

/// A terminal of 100 columns: the test's end, and the command's.
pub(crate) fn open_terminal() -> (File, OwnedFd) {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap();
    let slave = open(name.as_c_str(), OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).unwrap();
    tcsetwinsize(&slave, Winsize { ws_row: 40, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
    (File::from(master), slave)
}

/// Runs a command on a terminal; escapes are shown as `<esc>`.
fn on_terminal(command: &mut Command) -> String {
    let (mut master, slave) = open_terminal();
    let side = || Stdio::from(slave.try_clone().unwrap());
    let mut child = command.stdin(side()).stdout(side()).stderr(side()).spawn().unwrap();
    // `command` keeps its ends of the terminal open. They are closed too, because the read below waits until all ends
    // are closed.
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    drop(slave);
    let mut bytes = Vec::new();
    // Linux returns an error once the last end is closed.
    master.read_to_end(&mut bytes).ok();
    child.wait().unwrap();
    String::from_utf8(bytes).unwrap().replace("\r\n", "\n").replace('\u{1b}', "<esc>")
}

/// Replaces ids, instants and distances from now, and makes columns of any width equal.
fn normal(text: &str) -> String {
    let mut lines = Vec::new();
    for line in text.lines() {
        let indent = line.len() - line.trim_start().len();
        let mut words = Vec::new();
        for cell in line[indent..].split("  ").map(str::trim).filter(|cell| !cell.is_empty()) {
            words.push(whole_cells(&request_ids(&distances(&instants(&long_numbers(cell))))));
        }
        lines.push(format!("{}{}", &line[..indent], words.join("  ")));
    }
    lines.join("\n") + "\n"
}

fn long_numbers(text: &str) -> String {
    let mut out = String::new();
    let mut digits = String::new();
    let flush = |digits: &mut String, out: &mut String| {
        out.push_str(if digits.len() >= 15 { "<id>" } else { digits });
        digits.clear();
    };
    for c in text.chars() {
        if c.is_ascii_digit() {
            digits.push(c);
        } else {
            flush(&mut digits, &mut out);
            out.push(c);
        }
    }
    flush(&mut digits, &mut out);
    out
}

/// Replaces instants of this decade, such as `2026-11-20T11:00:00.250Z`. Instants of March 2026 stay, because the
/// commands of the test name them.
fn instants(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(start) = rest.find("T").filter(|_| rest.len() > 18) {
        let begin = start.saturating_sub(10);
        let is_instant = rest.is_char_boundary(begin)
            && rest[begin..].starts_with("202")
            && rest.as_bytes().get(start + 3) == Some(&b':')
            && rest.as_bytes().get(begin + 4) == Some(&b'-')
            && !rest[begin..].starts_with("2026-03");
        if !is_instant {
            out.push_str(&rest[..=start]);
            rest = &rest[start + 1..];
            continue;
        }
        out.push_str(&rest[..begin]);
        out.push_str("<time>");
        let end = rest[start..].find('Z').map_or(rest.len(), |end| start + end + 1);
        rest = &rest[end..];
    }
    out + rest
}

/// Replaces a cell that is nothing but a distance or a clock's skew.
fn whole_cells(cell: &str) -> String {
    let is_distance =
        cell.ends_with(" ago") || (cell.starts_with("in ") && cell[3..].starts_with(|c: char| c.is_ascii_digit()));
    let is_skew = cell.starts_with(['+', '-']) && cell.ends_with("ms") && !cell.contains(' ');
    match cell {
        _ if is_distance => "<when>".to_owned(),
        _ if is_skew => "<skew>".to_owned(),
        other => other.to_owned(),
    }
}

/// Replaces a request id: `"request_id":"54da3cb08400000"`.
fn request_ids(text: &str) -> String {
    const KEY: &str = "\"request_id\":\"";
    let Some((before, rest)) = text.split_once(KEY) else { return text.to_owned() };
    let end = rest.find('"').unwrap_or(rest.len());
    format!("{before}{KEY}<id>{}", &rest[end..])
}

/// Replaces distances in brackets: `(in 3d4h)`, `(5s ago)`, `(now)`.
fn distances(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(start) = rest.find('(') {
        let Some(end) = rest[start..].find(')').map(|end| start + end) else { break };
        let inside = &rest[start + 1..end];
        let is_distance =
            inside == "now" || inside.ends_with(" ago") || (inside.starts_with("in ") && inside.len() < 14);
        out.push_str(&rest[..=start]);
        out.push_str(if is_distance { "<when>" } else { inside });
        out.push(')');
        rest = &rest[end + 1..];
    }
    out + rest
}

#[test]
fn golden() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let is_blessed = std::env::var_os("RONDEL_BLESS").is_some();
    let mut fixture = Fixture::start();
    let mut wrong = Vec::new();
    for (name, args) in COMMANDS {
        let path: PathBuf = folder.join(format!("{name}.txt"));
        let shown = fixture.shown(name, args);
        if is_blessed {
            std::fs::write(&path, &shown).unwrap();
            continue;
        }
        let kept = std::fs::read_to_string(&path).unwrap_or_default();
        if kept != shown {
            wrong.push(format!("==== {}\n---- kept\n{kept}---- now\n{shown}", path.display()));
        }
    }
    fixture.server.signal(rustix::process::Signal::TERM);
    fixture.server.end();
    assert!(wrong.is_empty(), "RONDEL_BLESS=1 writes them anew:\n{}", wrong.join("\n"));
}

#[test]
fn values_that_differ_between_runs_are_replaced() {
    let text = "| 7301234567890123456  now (5s ago)    2026-11-20T11:00:00.250Z (in 3h) 2099-01-01T00:00:00Z (kept)\n";
    assert_eq!(normal(text), "| <id>  now (<when>)  <time> (<when>) 2099-01-01T00:00:00Z (kept)\n");
}
