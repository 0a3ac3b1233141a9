//! The agent's handlers, through a whole executor.

use std::path::Path;
use std::time::Duration;

use rondel::Timing;
use rondel::agent::{AgentConfig, add_handlers};
use rondel_proto::v1::reply::Kind;
use rondel_proto::v1::result::Status as End;
use rondel_proto::v1::server_message::Body as ToExecutor;
use rondel_proto::v1::{Cancel, Cancels, Trigger};
use serde_json::{Value, json};

use super::fake::{FakeServer, trigger};
use super::{LIMIT, RunningExecutor, builder, quick};

fn start(server: &FakeServer, config: &AgentConfig) -> RunningExecutor {
    // Processes take longer to end on a busy machine.
    let patient = Timing { cancel_grace: LIMIT, ..quick() };
    RunningExecutor::start(add_handlers(builder(server).timing(patient), config).unwrap())
}

fn shell(run_id: i64, params: &Value) -> Trigger {
    Trigger { params: params.to_string(), ..trigger(run_id, "shell") }
}

#[tokio::test]
async fn output_is_the_log_and_the_exit_code_the_result() {
    let server = FakeServer::start().await;
    let executor = start(&server, &AgentConfig { allow_scripts: true, ..AgentConfig::default() });
    server.trigger(shell(1, &json!({"argv": ["sh", "-c", "echo out; echo err >&2"]}))).await;
    server.trigger(shell(2, &json!({"script": "echo no >&2\nexit 3"}))).await;
    let (good, bad) = (server.result(1).await, server.result(2).await);
    assert_eq!((good.status(), good.result.as_str()), (End::Succeeded, "{\"exit_code\":0}"));
    assert_eq!((bad.status(), bad.message.as_str(), bad.retryable), (End::Failed, "exit code 3: no", true));
    let mut lines: Vec<String> = server.log(1).into_iter().map(|line| line.level + " " + &line.text).collect();
    lines.sort();
    assert_eq!(lines, ["stderr err", "stdout out"]);
    executor.stop().await;
}

#[tokio::test]
async fn scripts_are_refused_unless_they_are_allowed() {
    let server = FakeServer::start().await;
    let executor = start(&server, &AgentConfig::default());
    server.trigger(shell(1, &json!({"script": "true"}))).await;
    let result = server.result(1).await;
    assert_eq!((result.status(), result.retryable), (End::Failed, false));
    assert!(result.message.contains("--allow-scripts"), "{result:?}");
    executor.stop().await;
}

#[tokio::test]
async fn secrets_are_resolved_here_and_hidden() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("db.password"), "correct horse\n").unwrap();
    let server = FakeServer::start().await;
    let config = AgentConfig { secrets_dir: Some(dir.path().to_owned()), ..AgentConfig::default() };
    let executor = start(&server, &config);
    let command = "test \"$PW\" = 'correct horse' && echo \"pw is $PW\" && echo \"$PW\" >&2 && exit 9";
    let params = json!({"argv": ["sh", "-c", command], "env": {"PW": "{{secret.db.password}}"}});
    server.trigger(shell(1, &params)).await;
    assert_eq!(server.result(1).await.message, "exit code 9: ***");
    assert!(server.log(1).iter().any(|line| line.text == "pw is ***"), "{:?}", server.log(1));
    server.trigger(shell(2, &json!({"argv": ["echo", "{{secret.other}}"]}))).await;
    let unknown = server.result(2).await;
    assert_eq!(
        (unknown.message.as_str(), unknown.retryable),
        ("secret \"other\" is not known to this executor", false)
    );
    executor.stop().await;
}

#[tokio::test]
async fn a_cancel_ends_the_whole_group() {
    let dir = tempfile::tempdir().unwrap();
    let pids = dir.path().join("pids");
    let server = FakeServer::start().await;
    let executor = start(&server, &AgentConfig::default());
    // A child that starts a sleeping grandchild and waits for it.
    let command = format!("sh -c 'echo $$ >> {0}; sleep 60; true' & echo $$ >> {0}; wait", pids.display());
    server.trigger(shell(1, &json!({"argv": ["sh", "-c", command]}))).await;
    server.reply(1, Kind::Started).await;
    let pids = wait_for_pids(&pids).await;
    let cancels = vec![Cancel { run_id: 1, attempt: 1, by: "bob".to_owned() }];
    server.send(ToExecutor::Cancels(Cancels { cancels })).await;
    let result = server.result(1).await;
    assert_eq!((result.status(), result.message.as_str()), (End::Cancelled, "cancelled by bob"));
    for pid in pids {
        wait_until(|| !is_alive(&pid)).await;
    }
    executor.stop().await;
}

#[tokio::test]
async fn a_dropped_executor_leaves_no_process_behind() {
    let dir = tempfile::tempdir().unwrap();
    let pids = dir.path().join("pids");
    let server = FakeServer::start().await;
    let executor = start(&server, &AgentConfig::default());
    let command =
        format!("trap '' TERM; sh -c 'echo $$ >> {0}; sleep 60; true' & echo $$ >> {0}; wait", pids.display());
    server.trigger(shell(1, &json!({"argv": ["sh", "-c", command]}))).await;
    let pids = wait_for_pids(&pids).await;
    executor.crash().await;
    for pid in pids {
        wait_until(|| !is_alive(&pid)).await;
    }
}

async fn wait_for_pids(path: &Path) -> Vec<String> {
    let read = || std::fs::read_to_string(path).unwrap_or_default();
    wait_until(|| read().lines().count() == 2).await;
    read().lines().map(str::to_owned).collect()
}

async fn wait_until(holds: impl Fn() -> bool) {
    let waiting = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(LIMIT, waiting).await.expect("in time");
}

/// Whether the process is there and is no zombie.
fn is_alive(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.trim().is_empty() && !rest.trim_start().starts_with('Z'))
}
