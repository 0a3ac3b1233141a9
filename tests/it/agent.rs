//! The agent with programs that ignore signals, and with programs that print without end.

use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use rondel_tests::{Agent, Api, Backend, ScratchDb, Server, has_interpreter, scratch, wait_until};
use serde_json::{Value, json};

use crate::verdicts::{trigger, wait_for_verdict};

const SCRIPTS: &[&str] = &["--allow-scripts"];
/// A run that is stopped has a grace of 10 s; the rest is for a slow machine.
const GONE_LIMIT: Duration = Duration::from_secs(20);

/// Creates the app `scripts`, and starts an agent of it.
async fn agent(server: &Server, args: &[&str]) -> Agent {
    server.api().post("/api/v1/apps", json!({"name": "scripts"})).await.expect(201);
    Agent::start_with(server, "scripts", args).await
}

async fn create(api: &Api, name: &str, handler: &str, params: Value, extra_fields: Value) {
    let mut job = json!({"name": name, "app": "scripts", "handler": handler, "params": params});
    job.as_object_mut().expect("an object").extend(extra_fields.as_object().expect("an object").clone());
    api.post("/api/v1/jobs", job).await.expect(201);
}

async fn wait_until_running(api: &Api, run: &str) {
    wait_until(Duration::from_secs(30), "the run is seen running", async || {
        let run = api.get(&format!("/api/v1/runs/{run}")).await.expect(200);
        if run["status"] == "running" { Ok(()) } else { Err(run) }
    })
    .await;
}

/// Waits until the file has this many lines with process ids, and returns them.
async fn pids(path: &Path, count: usize) -> Vec<String> {
    wait_until(Duration::from_secs(30), "the processes have reported their ids", async || {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let pids: Vec<String> = text.lines().map(str::to_owned).collect();
        if pids.len() >= count { Ok(pids) } else { Err(text) }
    })
    .await
}

async fn wait_until_gone(pids: &[String]) {
    wait_until(GONE_LIMIT, "the processes are gone", async || {
        let is_alive = |pid: &&String| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.trim_start().starts_with('Z'))
        };
        let left: Vec<&String> = pids.iter().filter(is_alive).collect();
        if left.is_empty() { Ok(()) } else { Err(left) }
    })
    .await;
}

/// A script that ignores SIGTERM, like its two children. Each child has a session of its own; the parent of one child
/// has exited.
fn stubborn(pids: &Path) -> String {
    let pids = pids.display();
    format!(
        "trap '' TERM; echo $$ >> {pids}; (setsid sh -c 'echo $$ >> {pids}; sleep 300; sleep 300' &); \
         setsid sh -c 'echo $$ >> {pids}; sleep 300; sleep 300'; sleep 300"
    )
}

#[tokio::test]
async fn processes_that_ignore_the_signal_are_gone_after_cancel_and_timeout() {
    let db = scratch(Backend::Sqlite).await.expect("SQLite is always there");
    let server = Server::start(&db).await;
    let api = server.api();
    let _agent = agent(&server, SCRIPTS).await;
    let folder = tempfile::tempdir().expect("make a folder");
    let (cancelled, timed_out) = (folder.path().join("cancelled"), folder.path().join("timed-out"));
    create(&api, "cancelled", "shell", json!({"script": stubborn(&cancelled)}), json!({})).await;
    create(&api, "late", "shell", json!({"script": stubborn(&timed_out)}), json!({"timeout": "2s"})).await;
    let (first, second) = (trigger(&api, "cancelled").await, trigger(&api, "late").await);
    let (mut all, others) = (pids(&cancelled, 3).await, pids(&timed_out, 3).await);
    all.extend(others);
    wait_until_running(&api, &first).await;
    api.post(&format!("/api/v1/runs/{first}/cancel"), json!({})).await.expect(202);
    wait_until_gone(&all).await;
    let (first, second) = (wait_for_verdict(&api, &first).await, wait_for_verdict(&api, &second).await);
    assert_eq!((&first["status"], &second["status"]), (&json!("cancelled"), &json!("timed_out")), "{first:#}");
}

#[tokio::test]
async fn a_killed_agent_leaves_neither_processes_nor_directories() {
    let db = scratch(Backend::Sqlite).await.expect("SQLite is always there");
    let server = Server::start(&db).await;
    let api = server.api();
    let folder = tempfile::tempdir().expect("make a folder");
    let (ids, work) = (folder.path().join("ids"), folder.path().join("work"));
    let args = ["--allow-scripts", "--work-dir", work.to_str().expect("a path in UTF-8")];
    let mut agent = agent(&server, &args).await;
    create(&api, "long", "shell", json!({"script": stubborn(&ids)}), json!({})).await;
    trigger(&api, "long").await;
    let ids = pids(&ids, 3).await;
    agent.kill().await;
    wait_until_gone(&ids).await;
    wait_until(GONE_LIMIT, "the working directories are gone", async || {
        let left: Vec<_> = std::fs::read_dir(&work).expect("list it").flatten().map(|entry| entry.path()).collect();
        if left.is_empty() { Ok(()) } else { Err(left) }
    })
    .await;
}

#[tokio::test]
async fn scripts_get_what_xxl_job_gives_them() {
    let db = scratch(Backend::Sqlite).await.expect("SQLite is always there");
    let server = Server::start(&db).await;
    let api = server.api();
    let agent = agent(&server, SCRIPTS).await;
    let executors = api.get("/api/v1/executors").await.expect(200);
    let handlers: Vec<&str> =
        executors["items"][0]["handlers"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    assert!(handlers.contains(&"shell"), "{}: {executors:#}", agent.name());
    for (language, script) in [
        ("shell", "echo \"$1|$2|$3|$RONDEL_JOB\""),
        ("python", "import os, sys; print('|'.join([*sys.argv[1:], os.environ['RONDEL_JOB']]))"),
        ("node", "console.log([...process.argv.slice(2), process.env.RONDEL_JOB].join('|'))"),
        ("php", "<?php echo implode('|', [...array_slice($argv, 1), getenv('RONDEL_JOB')]), PHP_EOL;"),
        ("powershell", "Write-Output (($args + $env:RONDEL_JOB) -join '|')"),
    ] {
        // A language without an interpreter on this host is skipped; `tests/uncovered.rs` reports it.
        assert_eq!(handlers.contains(&language), has_interpreter(language), "{language}: {handlers:?}");
        if !has_interpreter(language) {
            continue;
        }
        let name = format!("in-{language}");
        create(&api, &name, language, json!({"script": script, "args": "a b"}), json!({})).await;
        let run = trigger(&api, &name).await;
        assert_eq!(wait_for_verdict(&api, &run).await["status"], "succeeded");
        assert_eq!(log(&api, &run).await, [format!("a b|0|1|{name}")]);
    }
}

/// Every line of a run's log, once it is complete.
pub(crate) async fn log(api: &Api, run: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut after = String::new();
    wait_until(Duration::from_secs(60), "the log is complete", async || {
        let page = api.get(&format!("/api/v1/runs/{run}/logs?limit=5000{after}")).await.expect(200);
        let items = page["items"].as_array().expect("items").iter();
        lines.extend(items.map(|item| item["line"].as_str().expect("a line").to_owned()));
        match page["next_cursor"].as_str() {
            None => Ok(()),
            Some(cursor) => {
                after = format!("&after={cursor}");
                Err(lines.len())
            }
        }
    })
    .await;
    lines
}

/// How much a flood prints, in MiB: 64 by default.
pub(crate) fn flood_mib() -> u64 {
    rondel_tests::variable("TEST_FLOOD_MIB").and_then(|text| text.parse().ok()).unwrap_or(64)
}

/// The peak memory of a process since `forget_peak`, in KiB.
pub(crate) fn peak_kib(id: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).expect("read a process's status");
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("its peak");
    line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).expect("a number")
}

pub(crate) fn forget_peak(id: u32) {
    std::fs::write(format!("/proc/{id}/clear_refs"), "5").expect("forget the peak");
}

/// `TEST_FLOOD_MIB=1024` makes each of the two floods print a gibibyte. The figures go to stderr.
async fn a_flood_is_bounded(db: ScratchDb) {
    let mut server = Server::start(&db).await;
    let api = server.api();
    let mut agent = agent(&server, SCRIPTS).await;
    let bytes = flood_mib() << 20;
    let lines = format!("echo first; yes 'all work and no play' | head -c {bytes}; echo; echo last");
    let one_line = format!("head -c {bytes} /dev/zero | tr '\\0' x; echo; echo last");
    create(&api, "lines", "shell", json!({"script": lines}), json!({})).await;
    create(&api, "one-line", "shell", json!({"script": one_line}), json!({})).await;
    create(&api, "beside", "shell", json!({"argv": ["true"]}), json!({})).await;
    // The first run allocates the memory that every run uses.
    let warm_up = trigger(&api, "beside").await;
    assert_eq!(wait_for_verdict(&api, &warm_up).await["status"], "succeeded");
    let (agent_id, server_id) = (agent.process().id(), server.process().id());
    [agent_id, server_id].into_iter().for_each(forget_peak);
    let before = (peak_kib(agent_id), peak_kib(server_id));

    for job in ["lines", "one-line"] {
        let flood = trigger(&api, job).await;
        let beside = trigger(&api, "beside").await;
        assert_eq!(wait_for_verdict(&api, &beside).await["status"], "succeeded");
        let run = wait_for_verdict(&api, &flood).await;
        assert_eq!(run["status"], "succeeded", "{run:#}");
        let logged = log(&api, &flood).await;
        assert_eq!(logged.last().map(String::as_str), Some("last"));
        let size: usize = logged.iter().map(String::len).sum();
        assert!(size <= 10 << 20, "{job}: {size} bytes were kept");
        if job == "lines" {
            assert_eq!(logged[0], "first");
            assert_eq!(logged.iter().filter(|line| line.contains("are left out here")).count(), 1);
        } else {
            assert!(logged[0].ends_with("[line cut]"), "{}", logged[0].len());
        }
    }
    let after = (peak_kib(agent_id), peak_kib(server_id));
    let mib = |kib: u64| kib / 1024;
    let summary = format!(
        "{} MiB printed twice: agent {} → {} MiB, server {} → {} MiB",
        flood_mib(),
        mib(before.0),
        mib(after.0),
        mib(before.1),
        mib(after.1)
    );
    std::io::stdout().write_all(format!("{summary}\n").as_bytes()).expect("print the summary");
    // The server's peak includes the memory for reading the pages of the log.
    let limit = 32 * 1024;
    assert!(after.0 - before.0 < limit && after.1 - before.1 < limit, "{before:?} KiB → {after:?} KiB");
}
crate::on_each_database!(a_flood_is_bounded);

#[tokio::test]
async fn the_oldest_logs_are_removed_beyond_the_size_limit_with_a_notice() {
    let db = scratch(Backend::Sqlite).await.expect("SQLite is always there");
    let server = Server::start_with(&db, &["--log-size-max", "100KiB", "--log-retention", "1m"]).await;
    let api = server.api();
    let _agent = agent(&server, SCRIPTS).await;
    // Random hexadecimal digits compress to no less than half their size: the limit has room for one such log, not for
    // two.
    let script = "head -c 70000 /dev/urandom | od -An -tx1 | tr -d ' '";
    create(&api, "loud", "shell", json!({"script": script}), json!({})).await;
    let first = trigger(&api, "loud").await;
    assert_eq!(wait_for_verdict(&api, &first).await["status"], "succeeded");
    assert!(log(&api, &first).await.len() > 1_000);
    let second = trigger(&api, "loud").await;
    assert_eq!(wait_for_verdict(&api, &second).await["status"], "succeeded");
    wait_until(Duration::from_secs(30), "the first log is removed", async || {
        let lines = log(&api, &first).await;
        if lines.len() == 1 && lines[0].contains("removed by the log retention") { Ok(()) } else { Err(lines.len()) }
    })
    .await;
    assert_eq!(wait_for_verdict(&api, &first).await["status"], "succeeded", "the run itself stays");
}
