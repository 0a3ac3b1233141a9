//! A server and an agent, each a process of its own.

use rustix::process::Signal;

use crate::process::{Program, run};

#[test]
fn a_server_and_an_agent_finish_what_is_under_way() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (database, token) = (format!("sqlite://{}", path("rondel.db")), path("admin.token"));
    let data_dir = folder.path().to_str().unwrap();
    let mut server =
        Program::start(&["server", "--database", &database, "--listen", "127.0.0.1:0", "--data-dir", data_dir]);
    let url = server.url();
    let client = ["--server", &url, "--token-file", &token];
    let say = |args: &[&str]| run(&[args, &client].concat());
    let create = ["job", "create", "--name", "slow", "--app", "work", "--handler", "shell", "--params"];
    assert_eq!(say(&[&create[..], &["{\"argv\": [\"sleep\", \"2\"]}"]].concat()).code, Some(0));
    let agent = ["agent", "--app", "work", "--name", "worker", "--label", "zone=a", "--data-dir", &path("agent")];
    let mut agent = Program::start(&[&agent[..], &client].concat());

    let made = say(&["job", "trigger", "slow", "-o", "name"]);
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    let id = made.stdout.trim().to_owned();
    agent.wait_for("the run runs", |_| {
        let ended = run(&[&["run", "get", &id, "-o", "json"][..], &client].concat());
        ended.stdout.contains("\"status\":\"running\"").then_some(())
    });
    assert!(say(&["executor", "list"]).stdout.contains("zone=a"));
    agent.signal(Signal::TERM);
    assert_eq!(agent.end().code(), Some(0), "{}", agent.said("stderr"));
    let ended = say(&["run", "get", &id, "-o", "json"]);
    assert!(ended.stdout.contains("\"status\":\"succeeded\""), "{}", ended.stdout);
    server.signal(Signal::TERM);
    assert_eq!(server.end().code(), Some(0), "{}", server.said("stderr"));
}

#[test]
fn an_agent_needs_a_token_file_that_holds_a_token() {
    let agent = ["agent", "--server", "http://127.0.0.1:1", "--app", "work", "--token-file"];
    run(&[&agent[..], &["/nowhere/token"]].concat()).refused(1, &["there is no token file /nowhere/token"]);
    run(&[&agent[..], &["/dev/null"]].concat()).refused(1, &["/dev/null holds no token"]);
}
