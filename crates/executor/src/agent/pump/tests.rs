use std::path::Path;
use std::time::Duration;

use rondel_core::RunStatus;
use serde_json::{Value, json};

use super::*;
use crate::agent::config::AgentConfig;
use crate::pump::{PumpOutcome, TestPump};

fn pump(config: &AgentConfig, params: &Value) -> TestPump {
    let base = config.work_dir.clone().unwrap();
    let agent_folder = Arc::new(AgentFolder::open(&base, false, None, None).unwrap());
    let confinement = Arc::new(Confinement::new(config));
    TestPump::of(ProgramPump::new(&agent_folder, &confinement)).params(params)
}

fn in_dir(dir: &Path) -> AgentConfig {
    AgentConfig { work_dir: Some(dir.to_owned()), ..AgentConfig::default() }
}

fn sh(script: &str) -> Value {
    json!(["sh", "-c", script])
}

/// A select program that runs `script` on its first call, and prints no rows on later calls.
fn once(dir: &Path, script: &str) -> Value {
    sh(&format!("test -e {0}/selected && exit 0; cat > {0}/selected; {script}", dir.display()))
}

async fn run(dir: &Path, select: &str, execute: &str) -> PumpOutcome {
    let params = json!({"select": once(dir, select), "execute": sh(execute)});
    pump(&in_dir(&dir.join("work")), &params).item("eu", 7).run().await
}

fn read(path: impl AsRef<Path>) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// Waits until a killed process is gone. If it were not killed, it would run for longer than this wait.
async fn wait_until_gone(pid: &str) {
    let gone = async {
        loop {
            let stat = read(format!("/proc/{pid}/stat"));
            if stat.is_empty() || stat.contains(") Z ") {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(40), gone).await.unwrap_or_else(|_| panic!("{pid} lives"));
}

/// Runs a pump for longer and longer until its log contains these words, because a busy machine needs more time.
async fn wait_for_log(config: &AgentConfig, params: &Value, words: &str) {
    let mut log = String::new();
    for limit in [300, 3_000, 30_000].map(Duration::from_millis) {
        let outcome = pump(config, params).item("eu", 1).time_limit(limit).run().await;
        outcome.log().clone_into(&mut log);
        if log.contains(words) {
            return;
        }
    }
    panic!("{words:?} is not in {log}");
}

/// The blank line between the two rows does not count towards the limit of two lines.
#[tokio::test]
async fn rows_go_from_one_program_to_the_other() {
    let dir = tempfile::tempdir().unwrap();
    let (path, out) = (dir.path(), dir.path().join("out"));
    let select = r#"echo "{\"item\": \"eu\", \"key\": \"1\", \"row\": {\"limit\": $RONDEL_PUMP_LIMIT}}"
        echo; echo '{"item": "eu", "key": "2", "checkpoint": "two"}'"#;
    let execute = format!(
        "echo \"$RONDEL_PUMP_ITEM $RONDEL_PUMP_EPOCH $RONDEL_JOB\" >> {0}; cat >> {0}; echo done",
        out.display()
    );
    let params = json!({"select": once(path, select), "execute": sh(&execute)});
    let test = pump(&in_dir(&path.join("work")), &params).item("eu", 7).item_params(json!({"schema": "e"}));
    let outcome = test.item_checkpoint("one").batch(2).fetch(2).run().await;
    assert_eq!((outcome.is_complete(), outcome.fetched(), outcome.done()), (true, 2, 2), "{outcome:?}");
    assert_eq!(
        read(path.join("selected")),
        "{\"name\":\"eu\",\"params\":{\"schema\": \"e\"},\"epoch\":7,\"checkpoint\":\"one\"}\n".replace(": ", ":")
    );
    let rows = "{\"item\":\"eu\",\"key\":\"1\",\"row\":{\"limit\": 2}}\n{\"item\":\"eu\",\"key\":\"2\",\"row\":null}\n";
    assert_eq!(read(&out), format!("eu 7 test\n{rows}"));
    assert_eq!(outcome.checkpoint("eu"), "two");
    assert!(outcome.log().contains("stdout done\n") && !outcome.log().contains("limit"), "{}", outcome.log());
    assert_eq!(std::fs::read_dir(path.join("work")).unwrap().count(), 0, "working directories are removed");
}

#[tokio::test]
async fn a_row_is_passed_on_as_it_was_printed() {
    let dir = tempfile::tempdir().unwrap();
    let (row, out) = (r#"{"b":12345678901234567890.12345678901234567890,"a":1.10}"#, dir.path().join("out"));
    let select = format!(r#"printf '%s\n' '{{"item": "eu", "key": "1", "row": {row}}}'"#);
    let outcome = run(dir.path(), &select, &format!("cat > {}", out.display())).await;
    assert_eq!((outcome.is_complete(), outcome.done()), (true, 1), "{outcome:?}");
    assert_eq!(read(&out), format!("{{\"item\":\"eu\",\"key\":\"1\",\"row\":{row}}}\n"));
}

#[tokio::test]
async fn a_program_that_fails_is_a_failed_row_or_a_failed_select() {
    let dir = tempfile::tempdir().unwrap();
    let outcome = run(dir.path(), r#"echo '{"item": "eu", "key": "1"}'"#, "echo no such order >&2; exit 3").await;
    assert_eq!((outcome.done(), outcome.failed()), (0, 1));
    assert!(outcome.log().contains("warn row 1 of item eu failed: exit code 3: no such order\n"), "{}", outcome.log());
    for (select, words) in [
        ("exit 9", "select failed: exit code 9;"),
        ("echo '{\"item\": \"eu\"}'", "line 1 of the select is not a row: missing field `key`"),
        ("echo; echo rows", "line 2 of the select is not a row: expected value"),
        (
            r#"printf '{"item": "eu", "key": "1", "checkpoint": "%05000d"}' 0"#,
            "line 1 of the select is not a row: a checkpoint of 5000 bytes; at most 4096 are kept",
        ),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let outcome = run(dir.path(), select, "true").await;
        assert!(outcome.log().contains(words), "{}", outcome.log());
    }
}

#[tokio::test]
async fn a_select_that_prints_too_much_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let many = format!("echo $$ > {}/pid; yes '{{\"item\": \"eu\", \"key\": \"1\"}}'", dir.path().display());
    let outcome = run(dir.path(), &many, "true").await;
    assert!(outcome.log().contains("it printed more than the requested 500 lines and was killed"), "{}", outcome.log());
    wait_until_gone(read(dir.path().join("pid")).trim()).await;
    let dir = tempfile::tempdir().unwrap();
    let outcome = run(dir.path(), "yes x | tr -d '\\n' | head -c 1000000000", "true").await;
    assert!(outcome.log().contains("it printed more than 64 MiB and was killed"), "{}", outcome.log());
}

#[tokio::test]
async fn a_select_that_prints_too_much_and_does_not_end_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let outcome = run(dir.path(), &format!("echo $$ > {}/pid; seq 1000; sleep 60", dir.path().display()), "true").await;
    assert!(outcome.is_complete(), "{outcome:?}");
    assert!(outcome.log().contains("it printed more than the requested 500 lines and was killed"), "{outcome:?}");
    wait_until_gone(read(dir.path().join("pid")).trim()).await;
}

#[tokio::test]
async fn a_pump_that_follows_a_job_gets_that_jobs_run() {
    let dir = tempfile::tempdir().unwrap();
    let parents = json!({"load": {"run_id": "7", "status": "succeeded", "params": null, "result": 3}});
    let given = dir.path().join("given");
    let select =
        format!("printf '%s' \"$RONDEL_PARENTS\" > {}; echo '{{\"item\": \"eu\", \"key\": \"1\"}}'", given.display());
    let params = json!({"select": once(dir.path(), &select), "execute": sh("true"), "parents": parents});
    let outcome = pump(&in_dir(&dir.path().join("work")), &params).item("eu", 7).run().await;
    assert_eq!((outcome.is_complete(), outcome.done()), (true, 1), "{outcome:?}");
    assert_eq!(serde_json::from_str::<Value>(&read(&given)).ok(), Some(parents));
}

#[tokio::test]
async fn an_execution_that_is_aborted_leaves_no_process() {
    for limit in [1, 5, 25].map(Duration::from_secs) {
        let dir = tempfile::tempdir().unwrap();
        let pids = dir.path().join("pids");
        let execute = format!(
            "trap '' TERM; echo $$ >> {0}; sh -c 'echo $$ >> {0}; sleep 60; sleep 60'; sleep 60",
            pids.display()
        );
        let select = once(dir.path(), r#"echo '{"item": "eu", "key": "1"}'"#);
        let params = json!({"select": select, "execute": sh(&execute)});
        let test = pump(&in_dir(&dir.path().join("work")), &params).item("eu", 7).hand_over(Duration::from_secs(1));
        let outcome = test.time_limit(limit).run().await;
        let pids = read(&pids);
        for pid in pids.lines() {
            wait_until_gone(pid).await;
        }
        // On a busy machine, the program may not have begun by then.
        if pids.lines().count() == 2 {
            assert_eq!((outcome.status(), outcome.done(), outcome.failed()), (RunStatus::Cancelled, 0, 1));
            return;
        }
    }
    panic!("the program did not begin");
}

#[tokio::test]
async fn only_allowed_programs_are_started() {
    let dir = tempfile::tempdir().unwrap();
    let allow_programs = Some(vec!["/usr/bin/true".into()]);
    let config = AgentConfig { allow_programs, ..in_dir(dir.path()) };
    let params = json!({"select": ["sh", "-c", "true"], "execute": ["true"]});
    wait_for_log(&config, &params, "this agent does not start ").await;
    wait_for_log(&in_dir(dir.path()), &json!({"select": ["true"]}), "params: missing field `execute`").await;
}
