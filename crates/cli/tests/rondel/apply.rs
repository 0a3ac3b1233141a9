//! Files of jobs against a real server.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;

use crate::golden::open_terminal;
use crate::process::{CommandOutput, Program, end, rondel};

/// A server, and a folder in which commands run.
struct Fixture {
    server: Program,
    url: String,
    folder: tempfile::TempDir,
}

impl Fixture {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let database = format!("sqlite://{}", folder.path().join("jobs.db").display());
        let settings = ["--database", &database, "--data-dir", data.to_str().unwrap(), "--listen", "127.0.0.1:0"];
        let mut server = Program::start(&[&["server"][..], &settings].concat());
        let url = server.url();
        Self { server, url, folder }
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap_or(Path::new("."))).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn run(&self, args: &[&str]) -> CommandOutput {
        self.run_with(args, &[])
    }

    fn run_with(&self, args: &[&str], variables: &[(&str, &str)]) -> CommandOutput {
        end(self.command(args).envs(variables.iter().copied()))
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = rondel();
        command.args(args).current_dir(self.folder.path()).env("RONDEL_SERVER", &self.url);
        command.env("RONDEL_TOKEN_FILE", self.folder.path().join("data/admin.token"));
        command.env("XDG_CONFIG_HOME", self.folder.path().join("config"));
        command
    }

    fn stop(mut self) {
        self.server.signal(Signal::TERM);
        assert_eq!(self.server.end().code(), Some(0), "{}", self.server.output("stderr"));
    }
}

fn many(count: usize, cron: &str) -> String {
    let mut text = String::new();
    for number in 0..count {
        writeln!(text, "- name: job-{number:04}\n  app: billing\n  handler: report\n  schedule: {{cron: {cron}}}")
            .unwrap();
    }
    text
}

#[test]
fn a_thousand_jobs_are_applied_once() {
    let fixture = Fixture::start();
    fixture.write("jobs.yaml", &many(1_000, "0 30 2 1 1 ?"));
    let first = fixture.run(&["job", "apply", "-f", "jobs.yaml"]);
    assert_eq!(first.code, Some(0), "{}", first.stderr);
    assert!(first.stderr.ends_with("1000 created\n"), "{}", first.stderr);
    assert_eq!(first.stdout.lines().filter(|line| line.starts_with("+ ")).count(), 1_000);
    let again = fixture.run(&["job", "apply", "-f", "jobs.yaml"]);
    assert_eq!(
        (again.code, again.stdout.as_str(), again.stderr.as_str()),
        (Some(0), "", "nothing changed: 1000 unchanged\n")
    );
    let listed = fixture.run(&["job", "list", "-o", "name"]);
    assert_eq!((listed.stdout.lines().count(), listed.stderr.contains("--all")), (50, true), "{}", listed.stderr);
    let listed = fixture.run(&["job", "list", "-o", "name", "--all"]);
    assert_eq!((listed.stdout.lines().count(), listed.stderr.as_str()), (1_000, ""));
    let same = fixture.run(&["job", "plan", "-f", "jobs.yaml", "--exit-code"]);
    assert_eq!((same.code, same.stdout.as_str()), (Some(0), ""), "{}", same.stderr);

    fixture.write("jobs.yaml", &many(1_000, "0 0 3 * * ?"));
    let planned = fixture.run(&["job", "plan", "-f", "jobs.yaml", "--exit-code"]);
    assert_eq!(planned.code, Some(10), "{}", planned.stderr);
    assert!(planned.stdout.contains("7 appear"), "{}", &planned.stdout[..400]);
    assert_eq!(fixture.run(&["job", "apply", "-f", "jobs.yaml", "-o", "name"]).stdout.lines().count(), 1_000);
    let exported = fixture.run(&["job", "export"]).stdout;
    fixture.write("exported.yaml", &exported);
    let again = fixture.run(&["job", "apply", "-f", "exported.yaml"]);
    assert_eq!((again.code, again.stderr.as_str()), (Some(0), "nothing changed: 1000 unchanged\n"));
    fixture.write("few.yaml", &many(2, "0 0 3 * * ?"));
    let unasked = fixture.run(&["job", "apply", "-f", "few.yaml", "--prune-app", "billing"]);
    unasked.refused(2, &["--prune-app billing removes jobs", "no terminal", "add --yes", "nothing was saved"]);
    let pruned = fixture.run(&["job", "apply", "-f", "few.yaml", "--prune-app", "billing", "--yes"]);
    assert!(pruned.stderr.ends_with("998 removed, 2 unchanged\n"), "{}", pruned.stderr);
    fixture.stop();
}

#[test]
fn consent_is_for_the_removals_that_were_shown() {
    let fixture = Fixture::start();
    fixture.write("jobs.yaml", &many(2, "0 30 2 1 1 ?"));
    assert_eq!(fixture.run(&["job", "apply", "-f", "jobs.yaml"]).code, Some(0));
    fixture.write("few.yaml", &many(1, "0 30 2 1 1 ?"));
    let (mut terminal, side) = open_terminal();
    let mut command = fixture.command(&["job", "apply", "-f", "few.yaml", "--prune-app", "billing"]);
    command.stdin(side.try_clone().unwrap()).stdout(side.try_clone().unwrap()).stderr(side);
    let mut child = command.spawn().unwrap();
    // Closes the command's end here, so that reading ends with the process.
    drop(command);
    let (mut shown, mut bytes) = (String::new(), [0; 1_024]);
    while !shown.contains("[y/N]") {
        let count = terminal.read(&mut bytes).expect(&shown);
        shown.push_str(&String::from_utf8_lossy(&bytes[..count]));
    }
    assert!(shown.contains("remove 1 job: job-0001?"), "{shown}");
    fixture.write("later.yaml", "- name: later\n  app: billing\n  handler: report\n");
    assert_eq!(fixture.run(&["job", "apply", "-f", "later.yaml"]).code, Some(0));
    terminal.write_all(b"y\n").unwrap();
    let mut rest = Vec::new();
    // Linux returns an error once the last end is closed.
    terminal.read_to_end(&mut rest).ok();
    let rest = String::from_utf8_lossy(&rest);
    assert_eq!(child.wait().unwrap().code(), Some(2), "{rest}");
    assert!(rest.contains("would remove other jobs now"), "{rest}");
    let listed = fixture.run(&["job", "list", "-o", "name", "--all"]);
    assert_eq!(listed.stdout, "job-0000\njob-0001\nlater\n");
    fixture.stop();
}

#[test]
fn an_error_is_reported_with_its_position() {
    let fixture = Fixture::start();
    fixture.write("jobs/a.yaml", &many(2, "0 30 2 * * ?"));
    fixture.write("jobs/b.yaml", "- name: x\n  app: billing\n  handler: report\n  schedule:\n    cron: 0 0 24 * * ?\n");
    fixture
        .run(&["job", "apply", "-f", "jobs"])
        .refused(2, &["jobs/b.yaml:5:11: /schedule/cron: ", "\"24\"", "nothing was saved"]);
    fixture.run(&["job", "get", "job-0000"]).refused(5, &["job-0000"]);
    fixture.run(&["run", "ack", "1"]).refused(5, &["there is no run 1"]);
    fixture.write("jobs/b.yaml", "name: x\n  app: [\n");
    fixture.run(&["job", "apply", "-f", "jobs"]).refused(2, &["jobs/b.yaml:2:"]);
    fixture.run(&["job", "apply", "-f", "nosuch"]).refused(2, &["cannot read nosuch"]);
    fixture.write("empty.yaml", "# nothing\n");
    fixture.run(&["job", "apply", "-f", "empty.yaml"]).refused(2, &["contains no job"]);
    fixture.stop();
}

#[test]
fn a_definition_is_edited() {
    let fixture = Fixture::start();
    fixture.write("jobs.yaml", &many(1, "0 30 2 * * ?"));
    assert_eq!(fixture.run(&["job", "apply", "-f", "jobs.yaml"]).code, Some(0));
    let edit = |editor: &str| fixture.run_with(&["job", "edit", "job-0000"], &[("EDITOR", editor)]);
    let same = edit("true");
    assert_eq!((same.code, same.stderr.as_str()), (Some(0), "nothing changed\n"));
    let changed = edit("sed -i 's/handler: report/handler: other/'");
    assert_eq!(changed.code, Some(0), "{}", changed.stderr);
    let job = fixture.run(&["job", "get", "job-0000", "-o", "json"]).stdout;
    assert!(job.contains("\"handler\":\"other\"") && job.contains("\"version\":2"), "{job}");
    for bounds in [&["--all"][..], &["--limit", "51"]] {
        let versions = fixture.run(&[&["job", "versions", "job-0000", "-o", "name"][..], bounds].concat());
        assert_eq!((versions.code, versions.stdout.lines().count()), (Some(0), 2), "{}", versions.stderr);
    }
    // The editor opens again after the refusal, and leaves the file unchanged.
    let left = edit("sed -i 's/handler: .*/handler: \"\"/'");
    left.refused(2, &["nothing was saved", "/handler", "the edited file is "]);
    let kept = Path::new(left.stderr.trim_end().rsplit(' ').next().unwrap());
    assert!(std::fs::read_to_string(kept).unwrap().contains("handler: \"\""));
    std::fs::remove_dir_all(kept.parent().unwrap()).unwrap();
    edit("false").refused(1, &["the editor \"false\" ended"]);
    // Another caller saves the job while the editor is open.
    let other = format!("{} job apply -f jobs.yaml >/dev/null 2>&1", env!("CARGO_BIN_EXE_rondel"));
    fixture.write("edit.sh", &format!("{other} && sed -i 's/handler: .*/handler: third/' \"$1\"\n"));
    let conflict = edit("sh edit.sh");
    conflict.refused(6, &["the edited file is "]);
    let kept = Path::new(conflict.stderr.trim_end().rsplit(' ').next().unwrap());
    assert!(std::fs::read_to_string(kept).unwrap().contains("handler: third"));
    std::fs::remove_dir_all(kept.parent().unwrap()).unwrap();
    // Ctrl-C is meant for the editor: the command must not end before it.
    let command = "p=$PPID; while [ \"$(cat /proc/$p/comm)\" != rondel ]; do p=$(cut -d' ' -f4 /proc/$p/stat); done";
    let change = "sed -i 's/handler: .*/handler: fourth/' \"$1\"";
    fixture.write("interrupt.sh", &format!("{command}\nkill -INT $p\nsleep 1\n{change}\n"));
    let interrupted = edit("sh interrupt.sh");
    assert_eq!(interrupted.code, Some(0), "{}", interrupted.stderr);
    assert!(fixture.run(&["job", "get", "job-0000", "-o", "json"]).stdout.contains("\"handler\":\"fourth\""));
    fixture.stop();
}

#[test]
fn a_calendar_that_was_printed_can_be_applied() {
    let fixture = Fixture::start();
    fixture.write("cn.json", r#"{"name": "cn", "description": "days off", "rule": {"days": ["2026-10-01"]}}"#);
    assert_eq!(fixture.run(&["calendar", "apply", "-f", "cn.json"]).code, Some(0));
    let printed = fixture.run(&["calendar", "get", "cn", "-o", "json"]).stdout;
    fixture.write("printed.json", &printed.replace("2026-10-01", "2026-10-02"));
    let applied = fixture.run(&["calendar", "apply", "-f", "printed.json"]);
    assert_eq!(applied.code, Some(0), "{}", applied.stderr);
    let after = fixture.run(&["calendar", "get", "cn", "-o", "json"]).stdout;
    assert!(after.contains("2026-10-02") && after.contains("days off"), "{after}");
    fixture.write("other.json", r#"{"name": "cn", "rule": {"days": ["2026-10-01"]}, "colour": "red"}"#);
    fixture.run(&["calendar", "apply", "-f", "other.json"]).refused(2, &["/colour"]);
    fixture.stop();
}

#[test]
fn a_change_prints_the_servers_answer() {
    let fixture = Fixture::start();
    fixture.write("jobs.yaml", &many(2, "0 30 2 * * ?"));
    assert_eq!(fixture.run(&["job", "apply", "-f", "jobs.yaml"]).code, Some(0));
    assert_eq!(fixture.run(&["job", "trigger", "job-0000"]).code, Some(0));
    let deleted = fixture.run(&["job", "delete", "job-0000", "--yes", "-o", "json"]);
    assert_eq!(deleted.code, Some(0), "{}", deleted.stderr);
    assert!(deleted.stdout.contains("\"queued\""), "{}", deleted.stdout);
    let deleted = fixture.run(&["job", "delete", "job-0001", "--yes", "-o", "json"]);
    assert_eq!((deleted.code, deleted.stdout.as_str()), (Some(0), ""), "nothing was queued");
    fixture.run(&["job", "pause", "--filter", " ", "--yes"]).refused(2, &["every job passes", "app:*"]);
    let none = fixture.run(&["job", "pause", "--filter", "label:nosuch", "--yes", "-o", "json"]);
    assert!(none.code == Some(0) && none.stdout.contains("\"matched\":0"), "{}{}", none.stdout, none.stderr);
    fixture.stop();
}

#[test]
fn a_context_brings_its_server_and_token() {
    let fixture = Fixture::start();
    let plain = |args: &[&str], input: &str| {
        let mut command = rondel();
        command.args(args).current_dir("/").env("XDG_CONFIG_HOME", fixture.folder.path().join("config"));
        command
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped());
        let mut child = command.spawn().unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), input.as_bytes()).unwrap();
        CommandOutput::from(child.wait_with_output().unwrap())
    };
    plain(&["login"], "").refused(1, &["there is no context", "rondel context add"]);
    assert_eq!(plain(&["context", "add", "here", "--url", &fixture.url], "").code, Some(0));
    plain(&["job", "list"], "").refused(4, &["no token was sent", "rondel login"]);
    plain(&["login"], "not-a-good-token-at-all\n").refused(4, &["token"]);
    let token = std::fs::read_to_string(fixture.folder.path().join("data/admin.token")).unwrap();
    let signed_in = plain(&["login"], &token);
    assert_eq!(signed_in.code, Some(0), "{}", signed_in.stderr);
    assert_eq!(plain(&["job", "list", "-o", "json"], "").code, Some(0));
    // A context that a flag names takes precedence over variables, which may belong to another server.
    let variables = [("RONDEL_SERVER", "http://127.0.0.1:1"), ("RONDEL_TOKEN", "a-token-of-another-server")];
    let with_variables = |args: &[&str]| {
        let mut command = rondel();
        command.args(args).current_dir("/").env("XDG_CONFIG_HOME", fixture.folder.path().join("config"));
        end(command.envs(variables))
    };
    let named = with_variables(&["job", "list", "-o", "json", "--context", "here"]);
    assert_eq!(named.code, Some(0), "{}", named.stderr);
    with_variables(&["job", "list"]).refused(8, &["cannot reach the server http://127.0.0.1:1"]);
    let chosen = with_variables(&["context", "use", "here"]);
    assert!(chosen.stderr.contains("the variable RONDEL_SERVER decides here"), "{}", chosen.stderr);
    // The token is for the context's server alone.
    let elsewhere = plain(&["job", "list", "--server", &fixture.url.replace("127.0.0.1", "localhost")], "");
    assert_eq!(elsewhere.code, Some(4), "{}", elsewhere.stderr);
    assert_eq!(plain(&["logout"], "").code, Some(0));
    assert_eq!(plain(&["job", "list"], "").code, Some(4));
    fixture.stop();
}

#[test]
fn a_closed_pipe_hides_no_changes() {
    let fixture = Fixture::start();
    fixture.write("jobs.yaml", &many(1, "0 30 2 * * ?"));
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut plan = rondel();
    plan.args(["job", "plan", "-f", "jobs.yaml", "--exit-code"]).current_dir(fixture.folder.path()).stdout(writer);
    plan.env("RONDEL_SERVER", &fixture.url).env("RONDEL_TOKEN_FILE", fixture.folder.path().join("data/admin.token"));
    let planned = end(&mut plan);
    assert_eq!(planned.code, Some(10), "{}", planned.stderr);
    fixture.stop();
}

#[test]
fn a_shell_completes_names_of_jobs() {
    let fixture = Fixture::start();
    fixture.write("jobs.yaml", &many(3, "0 30 2 * * ?"));
    assert_eq!(fixture.run(&["job", "apply", "-f", "jobs.yaml"]).code, Some(0));
    let script = fixture.run(&["completions", "bash"]);
    assert!(script.stdout.contains("RONDEL_COMPLETE"), "{}", script.stdout);
    let variables = [("RONDEL_COMPLETE", "bash"), ("_CLAP_COMPLETE_INDEX", "3"), ("_CLAP_IFS", "\n")];
    let found = fixture.run_with(&["--", "rondel", "job", "get", "job-00"], &variables);
    let names: Vec<_> = found.stdout.lines().collect();
    assert_eq!(names, ["job-0000", "job-0001", "job-0002"], "{}", found.stderr);
    let found =
        fixture.run_with(&["--", "rondel", "job", "app"], &[("_CLAP_COMPLETE_INDEX", "2"), variables[0], variables[2]]);
    assert_eq!(found.stdout.lines().collect::<Vec<_>>(), ["apply"], "{}", found.stderr);
    assert_eq!(fixture.run(&["context", "add", "here", "--url", &fixture.url]).code, Some(0));
    for (name, args) in [("here", ["context", "use", "h"]), ("billing", ["app", "drain", "b"])] {
        let found = fixture.run_with(&[&["--", "rondel"][..], &args].concat(), &variables);
        assert_eq!(found.stdout.lines().collect::<Vec<_>>(), [name], "{}", found.stderr);
    }
    fixture.stop();
}

#[test]
fn manual_pages_are_written() {
    let folder = tempfile::tempdir().unwrap();
    let written = end(rondel().arg("man").arg(folder.path().join("man1")));
    assert_eq!(written.code, Some(0), "{}", written.stderr);
    let page = std::fs::read_to_string(folder.path().join("man1/rondel-job-apply.1")).unwrap();
    assert!(page.contains("rondel job apply") || page.contains("rondel\\-job\\-apply"), "{page}");
}
