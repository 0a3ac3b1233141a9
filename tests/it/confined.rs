//! The programs that an agent starts see neither its token nor its secrets, and only as much of the host as its
//! settings allow.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rondel_tests::{Agent, Api, Backend, Process, Server, binary, rondel, scratch, wait_until};
use serde_json::{Value, json};

use crate::agent::log;
use crate::verdicts::{trigger, wait_for_verdict};

const SECRET: &str = "correct-horse-battery";
/// The id of the user `nobody` on every system that runs the tests.
const NOBODY: u32 = 65534;

async fn create(api: &Api, name: &str, params: Value) {
    let job = json!({"name": name, "app": "files", "handler": "shell", "params": params});
    api.post("/api/v1/jobs", job).await.expect(201);
}

/// Runs the job; returns the verdict and the log as one text.
async fn run(api: &Api, name: &str) -> (Value, String) {
    let run = trigger(api, name).await;
    let ended_run = wait_for_verdict(api, &run).await;
    (ended_run, log(api, &run).await.join("\n"))
}

fn is_root() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").expect("read this process's status");
    status.lines().any(|line| line.split_whitespace().take(2).eq(["Uid:", "0"]))
}

#[tokio::test]
async fn a_run_finds_neither_token_nor_secrets_of_its_agent() {
    let db = scratch(Backend::Sqlite).await.expect("SQLite is always there");
    let server = Server::start(&db).await;
    let api = server.api();
    let token = std::fs::read_to_string(server.token_file()).expect("the token").trim().to_owned();
    let mut command = Command::new(binary());
    command.args(["agent", "--server", server.url(), "--app", "files", "--allow-scripts", "--pass-env", "GREETING"]);
    command.env("RONDEL_TOKEN", &token).env("RONDEL_SECRET_DB", SECRET).env("GREETING", "hello");
    command.env("AWS_SECRET_ACCESS_KEY", "stolen");
    let mut agent = Process::start("the agent", command);

    create(&api, "env", json!({"script": "env"})).await;
    let peek = "tr '\\0' '\\n' < /proc/$PPID/environ; tr '\\0' '\\n' < /proc/$PPID/cmdline\n\
                for fd in /proc/self/fd/* /proc/$PPID/fd/*; do [ -f \"$fd\" ] && head -c 100000 \"$fd\"; done\n\
                ls -l /proc/self/fd; echo looked";
    create(&api, "peek", json!({"script": peek})).await;
    let use_it = json!({"script": format!("[ \"$DB\" = {SECRET} ] && echo \"it is $DB\" && printf %s \"$DB\" | base64"),
        "env": {"DB": "{{secret.DB}}"}});
    create(&api, "use", use_it).await;

    let (ended_run, env) = run(&api, "env").await;
    assert_eq!(ended_run["status"], "succeeded", "{ended_run:#}");
    assert!(env.contains("RONDEL_JOB=env") && env.contains("GREETING=hello"), "{env}");
    let (_, peeked) = run(&api, "peek").await;
    assert!(peeked.contains("looked") && peeked.contains("--allow-scripts"), "{peeked}");
    for secret in [token.as_str(), SECRET] {
        assert!(!env.contains(secret) && !peeked.contains(secret), "{env}\n{peeked}");
    }
    assert!(!env.contains("stolen"), "{env}");
    // The program can use the secret. The log masks it, both plain and encoded.
    let (ended_run, used) = run(&api, "use").await;
    assert_eq!((&ended_run["status"], used.as_str()), (&json!("succeeded"), "it is ***\n***"), "{ended_run:#}");
    agent.terminate(Duration::from_secs(30)).await;
}

/// Whether others than root can start the binary under test.
fn is_open_to_all(path: &Path) -> bool {
    let is_open = |path: &Path| path.metadata().is_ok_and(|meta| meta.permissions().mode() & 0o001 != 0);
    path.ancestors().all(is_open)
}

#[tokio::test]
async fn an_agent_is_closed_to_other_processes_of_its_user() {
    if !is_root() || !is_open_to_all(binary()) {
        rondel_tests::left_out_without(
            "root",
            "only root starts an agent as another user, who must be able to start it",
        );
        return;
    }
    let db = scratch(Backend::Sqlite).await.expect("SQLite is always there");
    let server = Server::start(&db).await;
    let api = server.api();
    let token = std::fs::read_to_string(server.token_file()).expect("the token").trim().to_owned();
    let folder = tempfile::tempdir().expect("make a folder");
    std::os::unix::fs::chown(folder.path(), Some(NOBODY), Some(NOBODY)).expect("change the owner");
    let mut command = Command::new(binary());
    command.args(["agent", "--server", server.url(), "--app", "files", "--allow-scripts", "--work-dir"]);
    command.arg(folder.path().join("work")).env("RONDEL_TOKEN", &token).uid(NOBODY).gid(NOBODY).current_dir("/");
    let mut agent = Process::start("the agent", command);
    let peek = "id -u; for file in environ mem maps; do cat /proc/$PPID/$file | head -c 100; done; ls /proc/$PPID/fd; echo looked";
    create(&api, "peek", json!({"script": peek})).await;
    let (ended_run, printed) = run(&api, "peek").await;
    assert_eq!(ended_run["status"], "succeeded", "{ended_run:#}");
    assert!(printed.contains(&NOBODY.to_string()) && printed.contains("looked"), "{printed}");
    assert_eq!(printed.lines().filter(|line| line.contains("ermission denied")).count(), 4, "{printed}");
    agent.terminate(Duration::from_secs(30)).await;
}

#[tokio::test]
async fn another_user_runs_the_programs_and_reads_nothing_of_the_agent() {
    if !is_root() {
        rondel_tests::left_out_without("root", "only root starts programs as another user");
        return;
    }
    let db = scratch(Backend::Sqlite).await.expect("SQLite is always there");
    let server = Server::start(&db).await;
    let api = server.api();
    api.post("/api/v1/apps", json!({"name": "files"})).await.expect(201);
    let folder = tempfile::tempdir().expect("make a folder");
    let data = folder.path().join("data");
    let data_dir = data.to_str().expect("a path in UTF-8");
    let token = server.token_file().display().to_string();
    let _agent =
        Agent::start_with(&server, "files", &["--allow-scripts", "--run-as", "nobody", "--data-dir", data_dir]).await;

    let script = format!(
        "id -un; id -G; echo \"$HOME $USER\"; pwd; echo written > here && cat here; echo \"$GREETING $1\"\n\
         cat {token} {data_dir}/state.json {data_dir}/results.jsonl; ls {data_dir}; ls $(dirname $PWD); \
         cat /proc/$PPID/environ; kill -0 $PPID; echo end"
    );
    let params = json!({"script": script, "args": "x", "env": {"GREETING": "hello", "LD_LIBRARY_PATH": "/tmp"}});
    create(&api, "who", params).await;
    let (ended_run, printed) = run(&api, "who").await;
    assert_eq!(ended_run["status"], "succeeded", "{ended_run:#} {printed}");
    let groups = Command::new("id").args(["-G", "nobody"]).output().expect("ask for groups");
    let lines: Vec<&str> = printed.lines().collect();
    assert!(lines.contains(&"nobody") && lines.contains(&String::from_utf8_lossy(&groups.stdout).trim()), "{printed}");
    assert!(lines.iter().any(|line| line.ends_with(" nobody")) && lines.contains(&"written"), "{printed}");
    assert!(lines.contains(&"hello x") && lines.contains(&"end"), "{printed}");
    assert!(lines.iter().filter(|line| line.contains("ermission denied")).count() >= 6, "{printed}");
    let secret = std::fs::read_to_string(&token).expect("the token");
    assert!(!printed.contains(secret.trim()) && !printed.contains("incarnation"), "{printed}");

    create(&api, "there", json!({"argv": ["nosuchprogram"]})).await;
    let (ended_run, _) = run(&api, "there").await;
    let message = ended_run["attempts"][0]["message"].as_str().unwrap_or_default();
    assert!(message.contains("error: cannot start nosuchprogram"), "{ended_run:#}");
    create(&api, "inside", json!({"argv": ["pwd"], "cwd": data_dir})).await;
    let (ended_run, _) = run(&api, "inside").await;
    assert!(
        ended_run["attempts"][0]["message"].as_str().is_some_and(|text| text.contains("cannot enter")),
        "{ended_run:#}"
    );

    // The agent does not start if that user could reach the agent's files.
    let open = folder.path().join("open");
    std::fs::create_dir(&open).expect("make a folder");
    for path in [folder.path(), &open] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("open it");
    }
    let closed = folder.path().join("closed");
    std::fs::create_dir(&closed).expect("make a folder");
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o700)).expect("close it");
    let start = async |extra_args: &[&str]| {
        let base = ["agent", "--server", server.url(), "--app", "files", "--token-file", &token];
        rondel(&[&base[..], extra_args].concat(), &[]).await
    };
    let text = |path: &Path| path.display().to_string();
    for (extra_args, words) in [
        (vec!["--run-as", "nobody", "--data-dir", &text(&open)], "can read"),
        (vec!["--run-as", "nobody", "--work-dir", &text(&closed.join("work"))], "cannot work in"),
        (vec!["--run-as", "nobody-at-all"], "there is no user \"nobody-at-all\""),
        (vec!["--run-as", "root"], "is root"),
    ] {
        let refusal = start(&extra_args).await;
        assert!(
            refusal.code.is_some_and(|code| code != 0) && refusal.stderr.contains(words),
            "{extra_args:?}: {refusal:?}"
        );
    }
}

#[tokio::test]
async fn an_agent_with_a_list_starts_no_other_program() {
    let db = scratch(Backend::Sqlite).await.expect("SQLite is always there");
    let server = Server::start(&db).await;
    let api = server.api();
    api.post("/api/v1/apps", json!({"name": "files"})).await.expect(201);
    let found = Command::new("sh").args(["-c", "command -v date"]).output().expect("find a program");
    let date = String::from_utf8(found.stdout).expect("a path").trim().to_owned();
    let args = ["--allow-scripts", "--allow-program", &date];
    let _agent = Agent::start_with(&server, "files", &args).await;
    for (name, params, word) in [
        ("named", json!({"argv": ["date"]}), ""),
        ("whole", json!({"argv": [date]}), ""),
        ("other", json!({"argv": ["sh", "-c", "date"]}), "--allow-program"),
        ("script", json!({"script": "date"}), "--allow-program"),
        ("interpreter", json!({"script": "date", "interpreter": ["env", "sh"]}), "--allow-program"),
        ("linker", json!({"argv": ["date"], "env": {"LD_PRELOAD": "/tmp/x.so"}}), "LD_PRELOAD"),
    ] {
        create(&api, name, params).await;
        let (ended_run, printed) = run(&api, name).await;
        let message = ended_run["attempts"][0]["message"].as_str().unwrap_or_default();
        let expected = if word.is_empty() { "succeeded" } else { "failed" };
        assert!(ended_run["status"] == expected && message.contains(word), "{name}: {ended_run:#} {printed}");
    }
    let handlers = wait_until(Duration::from_secs(20), "the agent is listed", async || {
        let all = api.get("/api/v1/apps/files/handlers").await.expect(200);
        if all["items"].as_array().is_some_and(|items| !items.is_empty()) { Ok(all) } else { Err(all) }
    })
    .await;
    assert!(!handlers.to_string().contains("\"python\""), "{handlers:#}");
}
