//! pyxxl, an executor in Python that many users have, unchanged.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rondel_tests::{Backend, Process, Server, left_out_without, scratch, variable, wait_until};
use serde_json::{Value, json};

use super::{job, online, server, start, token, wait_for_log, wait_for_status};

const LIMIT: Duration = Duration::from_secs(60);

const PROGRAM: &str = r#"
import asyncio, sys, time
from pyxxl import ExecutorConfig, PyxxlRunner
from pyxxl.ctx import g

url, app, token, port = sys.argv[1:]
config = ExecutorConfig(
    xxl_admin_baseurl=url + "/xxl-job-admin/api/",
    executor_app_name=app,
    access_token=token,
    executor_listen_host="127.0.0.1",
    executor_listen_port=int(port),
    dotenv_try=False,
)
runner = PyxxlRunner(config)

@runner.register(name="echo")
async def echo():
    g.logger.info("echo of %s" % g.xxl_run_data.executorParams)
    data = g.xxl_run_data
    return "%s %s/%s" % (data.executorParams, data.broadcastIndex, data.broadcastTotal)

@runner.register(name="fail")
async def fail():
    raise ValueError("asked to fail")

@runner.register(name="sleep")
async def sleep():
    await asyncio.sleep(600)

runner.run_executor()
"#;

fn launch(python: &str, folder: &Path, server: &Server, (app, token, port): (&str, &str, u16)) -> Process {
    std::fs::write(folder.join("executor.py"), PROGRAM).expect("a file");
    let mut command = Command::new(python);
    command.args(["executor.py", server.url(), app, token, &port.to_string()]).current_dir(folder);
    Process::start("pyxxl", command)
}

pub(super) fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("it listens").port()
}

/// Runs, a broadcast, logs, a stop, a timeout, and a kill of either side.
#[tokio::test]
async fn pyxxl_works_as_it_is() {
    let Some(python) = variable("RONDEL_TEST_PYXXL") else {
        return left_out_without("pyxxl", "there is no Python with pyxxl");
    };
    let Some(db) = scratch(Backend::Sqlite).await else { return };
    let mut server = server(&db, &[]).await;
    let api = server.api();
    for (name, handler, extra_fields) in [
        ("echo", "echo", json!({})),
        ("fail", "fail", json!({})),
        ("none", "nosuch", json!({})),
        ("sleep", "sleep", json!({})),
        ("short", "sleep", json!({"timeout": "1s"})),
        ("all", "echo", json!({"route": "broadcast"})),
    ] {
        job(&api, (name, "pyxxl", handler), extra_fields).await;
    }
    let token = token(&api, "pyxxl").await;
    let folders = [tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder")];
    let ports = [free_port(), free_port()];
    let begin =
        |index: usize, server: &Server| launch(&python, folders[index].path(), server, ("pyxxl", &token, ports[index]));
    let mut one = begin(0, &server);
    online(&api, "pyxxl", 1).await;
    let run = start(&api, "echo", json!("你好")).await;
    assert_eq!(wait_for_status(&api, &run, "succeeded").await["message"], "你好 0/1", "{}", one.last_words());
    wait_for_log(&api, &run, "echo of 你好").await;
    let failed = start(&api, "fail", Value::Null).await;
    let ended_run = wait_for_status(&api, &failed, "failed").await;
    assert!(ended_run["message"].as_str().is_some_and(|text| text.contains("asked to fail")), "{ended_run:#}");
    let none = start(&api, "none", Value::Null).await;
    let ended_run = wait_for_status(&api, &none, "failed").await;
    assert!(
        ended_run["message"].as_str().is_some_and(|text| text.contains("handler nosuch not found")),
        "{ended_run:#}"
    );
    let short = start(&api, "short", Value::Null).await;
    let ended_run = wait_for_status(&api, &short, "failed").await;
    assert!(ended_run["message"].as_str().is_some_and(|text| text.contains("Timeout")), "{ended_run:#}");
    let sleep = start(&api, "sleep", Value::Null).await;
    wait_for_status(&api, &sleep, "running").await;
    api.post(&format!("/api/v1/runs/{sleep}/cancel"), json!({})).await;
    wait_for_status(&api, &sleep, "cancelled").await;

    let two = begin(1, &server);
    online(&api, "pyxxl", 2).await;
    let all = start(&api, "all", json!("x")).await;
    wait_for_status(&api, &all, "succeeded").await;
    drop(two);

    // The server dies during a run, and the run continues.
    let sleep = start(&api, "sleep", Value::Null).await;
    wait_for_status(&api, &sleep, "running").await;
    server.kill().await;
    server.restart().await;
    let api = server.api();
    wait_for_status(&api, &sleep, "running").await;
    api.post(&format!("/api/v1/runs/{sleep}/cancel"), json!({})).await;
    wait_for_status(&api, &sleep, "cancelled").await;

    // The executor dies, and runs jobs again once it is back.
    one.kill().await;
    one = begin(0, &server);
    wait_until(LIMIT, "it runs again", async || {
        let run = start(&api, "echo", json!("again")).await;
        let found = super::wait_for_end(&api, &run).await;
        if found["status"] == "succeeded" { Ok(()) } else { Err((found, one.last_words())) }
    })
    .await;
}
