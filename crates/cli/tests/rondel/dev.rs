//! The first minutes with the product: `rondel dev`, and the commands that it proposes.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use rustix::process::Signal;
use serde_json::Value;

use crate::process::{CommandOutput, Program, run, until};

const DEMO_JOBS: [&str; 3] = ["demo-hello", "demo-shell", "demo-http"];

/// A running `rondel dev`, with its folder and URL.
struct Dev {
    program: Program,
    folder: tempfile::TempDir,
    url: String,
}

impl Dev {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (program, url) = listening(folder.path());
        Self { program, folder, url }
    }

    fn command(&self, args: &[&str]) -> CommandOutput {
        let token = self.folder.path().join("data/admin.token");
        run(&[args, &["--server", &self.url, "--token-file", token.to_str().unwrap()]].concat())
    }

    fn json(&self, args: &[&str]) -> Value {
        let ended = self.command(&[args, &["-o", "json"]].concat());
        assert_eq!(ended.code, Some(0), "{args:?}: {}", ended.stderr);
        serde_json::from_str(&ended.stdout).unwrap()
    }

    fn stop(&mut self) {
        self.program.signal(Signal::TERM);
        let status = self.program.end();
        assert_eq!(status.code(), Some(0), "{}", self.program.output("stderr"));
    }
}

fn listening(folder: &Path) -> (Program, String) {
    let data = folder.join("data");
    let mut program = Program::start(&["dev", "--listen", "127.0.0.1:0", "--data-dir", data.to_str().unwrap()]);
    let url = program.url();
    (program, url)
}

fn succeeded(list: &Value) -> Option<&Value> {
    list["items"].as_array().unwrap().iter().find(|run| run["status"] == "succeeded")
}

#[test]
fn the_demo_jobs_run_and_their_logs_can_be_read() {
    let mut dev = Dev::start();
    let token = dev.folder.path().join("data/admin.token");
    assert_eq!(token.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let runs = DEMO_JOBS.map(|job| {
        let (url, folder) = (dev.url.clone(), token.clone());
        dev.program.wait_for(&format!("{job} has succeeded"), |_| {
            let args = ["run", "list", "--job", job, "-o", "json", "--server", &url, "--token-file"];
            let ended = run(&[&args[..], &[folder.to_str().unwrap()]].concat());
            assert_eq!(ended.code, Some(0), "{}", ended.stderr);
            succeeded(&serde_json::from_str(&ended.stdout).unwrap()).cloned()
        })
    });
    let logs = runs.each_ref().map(|run| dev.command(&["run", "logs", run["id"].as_str().unwrap(), "-f"]));
    for log in &logs {
        assert_eq!(log.code, Some(0), "{}", log.stderr);
    }
    assert!(logs[0].stdout.contains("hello, world"), "{}", logs[0].stdout);
    assert!(logs[1].stdout.lines().next().is_some_and(|line| line.contains("stdout")), "{}", logs[1].stdout);
    dev.stop();
}

#[test]
fn commands_change_and_show_jobs_and_runs() {
    let mut dev = Dev::start();
    let create = ["job", "create", "--name", "once", "--app", "demo", "--handler", "shell", "--params"];
    dev.command(&[&create[..], &["{}"]].concat()).refused(2, &["/params: ", "argv", "is missing"]);
    let params = "{\"argv\": [\"echo\", \"hi\"]}";
    let created = dev.json(&[&create[..], &[params, "--overrides", "/argv"]].concat());
    assert_eq!(created["overrides"], serde_json::json!(["/argv"]));
    assert_eq!(created["name"], "once");
    dev.command(&[&create[..], &[params]].concat()).refused(6, &["name"]);
    let bad = ["job", "create", "--name", "bad", "--app", "demo", "--handler", "shell", "--cron", "0 0 24 * * ?"];
    dev.command(&[&bad[..], &["--params", params]].concat()).refused(2, &["/schedule/cron: ", "hour", "\"24\""]);

    let triggered = dev.command(&["job", "trigger", "once", "--wait", "-o", "name"]);
    assert_eq!(triggered.code, Some(0), "{}{}", triggered.stdout, triggered.stderr);
    let log = dev.command(&["run", "logs", triggered.stdout.trim(), "-f"]);
    assert!(log.stdout.contains(" hi"), "{}", log.stdout);
    let lines = "{\"argv\": [\"sh\", \"-c\", \"seq 1 20; echo ERROR broken; echo end\"]}";
    let counted = dev.command(&["job", "trigger", "once", "--params", lines, "--wait", "-o", "name"]);
    let logs =
        |extra_args: &[&str]| dev.command(&[&["run", "logs", counted.stdout.trim()], extra_args].concat()).stdout;
    let texts = |extra_args: &[&str]| -> Vec<String> {
        logs(extra_args).lines().filter_map(|line| line.split(" stdout ").nth(1)).map(str::to_owned).collect()
    };
    assert_eq!(texts(&["-f", "--tail", "2"]), ["ERROR broken", "end"]);
    assert_eq!(texts(&["--from-line", "20", "--tail", "1"]), [""; 0], "one place to begin at");
    assert_eq!(texts(&["--from-line", "20"]), ["20", "ERROR broken", "end"]);
    assert_eq!(texts(&["--grep", "broke"]), ["ERROR broken"]);
    assert_eq!(texts(&["--severity", "error"]), ["ERROR broken"]);
    let failing = dev.command(&["job", "trigger", "once", "--params", "{\"argv\": [\"false\"]}", "--wait"]);
    assert_eq!(failing.code, Some(3), "{}{}", failing.stdout, failing.stderr);
    dev.command(&["job", "trigger", "once", "--params", "{\"cwd\": \"/\"}"])
        .refused(2, &["/params/cwd: cannot be changed"]);
    let slow = ["job", "trigger", "once", "--params", "{\"argv\": [\"sleep\", \"60\"]}", "-o", "name"];
    let id = dev.command(&slow).stdout.trim().to_owned();
    assert_eq!(dev.command(&["run", "cancel", &id]).code, Some(0));

    assert_eq!(dev.json(&["job", "pause", "once"])["enabled"], false);
    assert_eq!(dev.json(&["job", "resume", "once"])["enabled"], true);
    assert_eq!(dev.command(&["job", "delete", "once"]).code, Some(0));
    dev.command(&["job", "get", "once"]).refused(5, &["once"]);
    dev.command(&["run", "get", "1"]).refused(5, &["run"]);
    assert!(dev.command(&["job", "list", "-o", "name"]).stdout.contains("demo-hello\n"));
    assert!(dev.command(&["node", "list"]).stdout.contains("active"));
    assert!(dev.command(&["executor", "list"]).stdout.contains("dev"));
    assert!(dev.command(&["app", "list"]).stdout.contains("demo"));
    run(&["job", "list", "--server", &dev.url]).refused(4, &["token"]);
    dev.stop();
}

#[test]
fn a_restart_keeps_token_and_jobs() {
    let mut dev = Dev::start();
    let token = dev.folder.path().join("data/admin.token");
    let before = std::fs::read_to_string(&token).unwrap();
    assert_eq!(dev.command(&["job", "pause", "demo-shell"]).code, Some(0));
    dev.stop();
    (dev.program, dev.url) = listening(dev.folder.path());
    assert_eq!(std::fs::read_to_string(&token).unwrap(), before);
    assert_eq!(dev.json(&["job", "get", "demo-shell"])["enabled"], false, "a change by hand stays");
    let url = dev.json(&["job", "get", "demo-http"])["params"]["url"].as_str().unwrap().to_owned();
    assert_eq!(url, format!("{}/livez", dev.url), "the check follows the port");
    dev.stop();
}

#[test]
fn a_second_signal_ends_it_at_once_with_all_that_it_started() {
    let mut dev = Dev::start();
    // A unique duration, by which the test finds its process.
    let params = format!("{{\"argv\": [\"sleep\", \"600.{}\"]}}", std::process::id());
    let create = ["job", "create", "--name", "sleeper", "--app", "demo", "--handler", "shell", "--params", &params];
    assert_eq!(dev.command(&create).code, Some(0));
    let wanted = format!("sleep\0600.{}\0", std::process::id());
    assert_eq!(dev.command(&["job", "trigger", "sleeper"]).code, Some(0));
    dev.program.wait_for("the command sleeps", |_| is_running(&wanted).then_some(()));
    dev.program.signal(Signal::TERM);
    dev.program.wait_for("it drains", |program| program.output("stderr").contains("a second signal").then_some(()));
    dev.program.signal(Signal::TERM);
    assert_eq!(dev.program.end().code(), Some(143), "{}", dev.program.output("stderr"));
    until("the command has ended as well", || !is_running(&wanted));
}

fn is_running(wanted: &str) -> bool {
    let processes = std::fs::read_dir("/proc").unwrap().map_while(Result::ok);
    processes
        .into_iter()
        .any(|process| std::fs::read(process.path().join("cmdline")).is_ok_and(|it| it == wanted.as_bytes()))
}
