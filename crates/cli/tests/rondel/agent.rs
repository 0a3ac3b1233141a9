//! A server and an agent, each a process of its own.

use std::os::unix::fs::PermissionsExt;

use rustix::process::Signal;

use crate::process::{Program, run};

#[test]
fn a_server_and_an_agent_finish_open_work_before_they_stop() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (database, token) = (format!("sqlite://{}", path("rondel.db")), path("admin.token"));
    let data_dir = folder.path().to_str().unwrap();
    let mut server =
        Program::start(&["server", "--database", &database, "--listen", "127.0.0.1:0", "--data-dir", data_dir]);
    let url = server.url();
    let client = ["--server", &url, "--token-file", &token];
    let call = |args: &[&str]| run(&[args, &client].concat());
    let create = ["job", "create", "--name", "slow", "--app", "work", "--handler", "shell", "--params"];
    let gate = path("gate");
    let params = format!(r#"{{"argv": ["sh", "-c", "while [ ! -e {gate} ]; do sleep 0.1; done"]}}"#);
    assert_eq!(call(&[&create[..], &[params.as_str()]].concat()).code, Some(0));
    let agent = ["agent", "--app", "work", "--name", "worker", "--label", "zone=a", "--data-dir", &path("agent")];
    let mut agent = Program::start(&[&agent[..], &client].concat());

    let made = call(&["job", "trigger", "slow", "-o", "name"]);
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    let id = made.stdout.trim().to_owned();
    agent.wait_for("the run runs", |_| {
        let ended = run(&[&["run", "get", &id, "-o", "json"][..], &client].concat());
        ended.stdout.contains("\"status\":\"running\"").then_some(())
    });
    assert!(call(&["executor", "list"]).stdout.contains("zone=a"));
    let create = ["job", "create", "--name", "night", "--app", "work", "--handler", "report", "--every", "1h"];
    assert_eq!(call(&create).code, Some(0));
    let doctor = call(&["doctor"]);
    let warning = "job night of app work cannot run: no executor online has handler \"report\"";
    assert!(doctor.stdout.contains(warning), "{}", doctor.stdout);
    assert!(doctor.stdout.contains("rondel app handlers work lists the handlers online"), "{}", doctor.stdout);
    agent.signal(Signal::TERM);
    agent.wait_for("it drains", |agent| agent.output("stderr").contains("a second signal").then_some(()));
    std::fs::write(&gate, "").unwrap();
    assert_eq!(agent.end().code(), Some(0), "{}", agent.output("stderr"));
    let ended = call(&["run", "get", &id, "-o", "json"]);
    assert!(ended.stdout.contains("\"status\":\"succeeded\""), "{}", ended.stdout);
    server.signal(Signal::TERM);
    assert_eq!(server.end().code(), Some(0), "{}", server.output("stderr"));
}

/// Writes a file that its owner alone can read.
fn secret_file(path: &str, text: &str) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

#[test]
fn an_agent_needs_a_token_file_that_holds_a_token() {
    let agent = ["agent", "--server", "http://127.0.0.1:1", "--app", "work", "--token-file"];
    run(&[&agent[..], &["/nowhere/token"]].concat()).refused(1, &["there is no token file /nowhere/token"]);
    run(&agent[..5]).refused(2, &["no token: give --token-file", "RONDEL_TOKEN", "rondel token create"]);
    run(&[&agent[..], &["/dev/null"]].concat()).refused(1, &["/dev/null holds no token"]);
}

#[test]
fn waiting_runs_and_refused_agents_are_reported_with_the_cause() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (database, token) = (format!("sqlite://{}", path("rondel.db")), path("admin.token"));
    let mut server = Program::start(&[
        "server",
        "--database",
        &database,
        "--listen",
        "127.0.0.1:0",
        "--advertise",
        "https://rondel.example.com/",
        "--data-dir",
        folder.path().to_str().unwrap(),
    ]);
    let url = server.url();
    let entry = server.wait_for("it prints how to sign in", |server| {
        server.output("stderr").lines().find(|line| line.starts_with("set up: ")).map(str::to_owned)
    });
    assert!(entry.starts_with("set up: https://rondel.example.com/set-up?token="), "{entry}");
    let client = ["--server", &url, "--token-file", &token];
    let call = |args: &[&str]| run(&[args, &client].concat());

    let create = [
        "job",
        "create",
        "--name",
        "lonely",
        "--app",
        "misspelt",
        "--handler",
        "shell",
        "--params",
        r#"{"argv": ["true"]}"#,
    ];
    assert_eq!(call(&create).code, Some(0));
    let waited = call(&["job", "trigger", "lonely", "--wait", "--wait-timeout", "5s", "-o", "name"]);
    assert_eq!(waited.code, Some(7), "{}", waited.stderr);
    assert!(
        waited.stderr.contains("still waiting: app misspelt of job lonely has no executor online"),
        "{}",
        waited.stderr
    );
    let doctor = call(&["doctor"]);
    assert!(
        doctor.stdout.contains("app misspelt has no executor online; 1 overdue run of lonely waits for one"),
        "{}",
        doctor.stdout
    );
    assert_eq!(call(&["job", "cancel", "lonely", "--reason", "not needed"]).code, Some(0));
    let id = call(&["run", "list", "-o", "name"]).stdout.trim().to_owned();
    let logs = call(&["run", "logs", &id]);
    assert_eq!((logs.code, logs.stdout.as_str()), (Some(0), ""), "{}", logs.stderr);
    assert!(logs.stderr.contains("the run never began, so it wrote nothing; cancelled"), "{}", logs.stderr);

    let make = ["token", "create", "rv", "--kind", "executor", "--role", "executor:default/fresh"];
    let made = call(&make);
    assert!(made.stderr.contains("note: app default/fresh was not there and was made"), "{}", made.stderr);
    assert!(!call(&make).stderr.contains("was not there"), "the app is there by now");
    call(&["token", "revoke", "rv"]).refused(2, &["several tokens are called \"rv\""]);
    let known = call(&["token", "create", "billing", "--kind", "executor", "--role", "executor:default/misspelt"]);
    secret_file(&path("agent.token"), &known.stdout);
    let revoked = call(&["token", "revoke", "billing"]);
    assert_eq!(revoked.code, Some(0), "{}", revoked.stderr);
    assert!(revoked.stderr.contains("ends within a minute"), "{}", revoked.stderr);
    let mut agent =
        Program::start(&["agent", "--app", "misspelt", "--server", &url, "--token-file", &path("agent.token")]);
    let refused = agent.wait_for("it reports the refusal", |agent| {
        agent.output("stderr").lines().find(|line| line.contains("refused by the server")).map(str::to_owned)
    });
    for words in [
        "unknown, expired or revoked",
        &format!("that of {} and begins with {}", path("agent.token"), &known.stdout[..17]),
        "--kind executor --role executor:default/misspelt creates one",
        "keeps trying, every 2s",
    ] {
        assert!(refused.contains(words), "{words:?} is not in {refused:?}");
    }
    assert!(!refused.contains(known.stdout.trim()), "{refused}");
    agent.signal(Signal::TERM);
    agent.end();
    server.signal(Signal::TERM);
    server.end();
}
