use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use rondel_core::RunStatus;
use rondel_proto::v1::Trigger;
use serde_json::{Value, json};

use super::*;
use crate::agent::confine::Confinement;
use crate::agent::program::ProgramResult;
use crate::extract::{Cancel, FromRun as _, Log, Params};
use crate::run::{RunContext, StopCause};
use crate::secrets::Secrets;
use crate::setup::{Setup, States, Timing};
use crate::test_run::{TestOutcome, TestRun};

async fn run(
    mut params: ShellParams,
    allow: bool,
    run: RunContext,
    cancel: Cancel,
    log: Log,
) -> Result<ProgramResult, JobError> {
    let code = match params.take_command(allow)? {
        RequestedCommand::Program(argv) => ResolvedCommand::Program(argv),
        RequestedCommand::Script(Script::Text(text)) => ResolvedCommand::Script(text),
        RequestedCommand::Script(Script::Stored(named)) => return Err(JobError::failed(named)),
    };
    program(params, code, run.shard(), tempfile::tempdir()?)?.run(&Confinement::default(), run, cancel, log).await
}

/// How long a program may take. A program that a test stops would run for longer than this.
const LIMIT: Duration = Duration::from_secs(40);

fn shell(params: Value) -> TestRun {
    let handler = |Params(params): Params<ShellParams>, context: RunContext, cancel: Cancel, log: Log| {
        run(params, true, context, cancel, log)
    };
    TestRun::of(handler).params(params)
}

/// Runs a script, and stops the run once the script's two processes have written their ids into a file.
async fn stopped(pids: &Path, (text, grace): (&str, Duration), cause: StopCause) -> TestOutcome {
    let pids = pids.to_owned();
    let handler = move |Params(params): Params<ShellParams>, context: RunContext, cancel: Cancel, log: Log| {
        let (pids, cause) = (pids.clone(), cause.clone());
        async move {
            let stop = async {
                while std::fs::read_to_string(&pids).unwrap_or_default().lines().count() < 2 {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                context.stop(cause);
            };
            futures_util::future::join(run(params, true, context.clone(), cancel, log), stop).await.0
        }
    };
    let run = TestRun::of(handler).params(json!({"script": text})).cancel_grace(grace).run();
    tokio::time::timeout(LIMIT, run).await.unwrap()
}

async fn script(text: &str) -> TestOutcome {
    shell(json!({"script": text})).run().await
}

#[tokio::test]
async fn the_output_of_a_program_is_its_log() {
    let outcome = script("echo one; echo two >&2; printf three").await;
    assert_eq!(outcome.result(), Some(&json!({"exit_code": 0})), "{outcome:?}");
    assert_eq!(outcome.lines("stdout").collect::<Vec<_>>(), ["one", "three"]);
    assert_eq!(outcome.lines("stderr").collect::<Vec<_>>(), ["two"]);
}

#[tokio::test]
async fn an_exit_code_is_a_failure_with_the_last_words() {
    let outcome = script("echo out; echo first >&2; echo last words >&2; echo >&2; exit 3").await;
    assert_eq!((outcome.status(), outcome.message()), (RunStatus::Failed, "exit code 3: last words"));
    assert!(outcome.is_retryable());
    assert_eq!(script("kill -9 $$").await.message(), "killed by signal 9");
}

#[tokio::test]
async fn a_check_runs_nothing_of_a_script() {
    let check = async |script: &str| shell(json!({"script": script, "check": true})).run().await;
    let outcome = check("echo run; exit 3").await;
    assert_eq!((outcome.status(), outcome.lines("stdout").count()), (RunStatus::Succeeded, 0), "{outcome:?}");
    let outcome = check("echo run; if true; then").await;
    assert_eq!(outcome.status(), RunStatus::Failed, "{outcome:?}");
    assert!(outcome.message().starts_with("exit code 2"), "{outcome:?}");
    let outcome = shell(json!({"argv": ["true"], "check": true})).run().await;
    assert_eq!(outcome.message(), "params: check applies to script, not to argv");
}

#[tokio::test]
async fn it_knows_its_run_and_nothing_of_the_agent() {
    let text = "echo $RONDEL_RUN_ID $RONDEL_JOB $RONDEL_ATTEMPT $RONDEL_FIRE_AT $RONDEL_SHARD_INDEX $RONDEL_SHARD_TOTAL; env | grep -c '^RONDEL_'";
    let fire_at = "2026-03-08T07:00:00Z".parse().unwrap();
    let run = shell(json!({"script": text})).job("nightly").attempt(2).shard(1, 3).fire_at(fire_at);
    let outcome = run.run().await;
    let lines: Vec<&str> = outcome.lines("stdout").collect();
    assert_eq!(lines, ["1 nightly 2 2026-03-08T07:00:00Z 1 3", "12"]);
}

#[tokio::test]
async fn it_knows_the_runs_that_it_follows_from() {
    let text = "printf '%s' \"${RONDEL_PARENTS-none}\"";
    assert_eq!(script(text).await.lines("stdout").collect::<Vec<_>>(), ["none"]);
    let parents = json!({"b": {"run_id": "7", "status": "succeeded", "params": null, "result": {"rows": "3 'x'"}}});
    let outcome = shell(json!({"script": text, "parents": parents})).run().await;
    let line = outcome.lines("stdout").next().map(str::to_owned).unwrap_or_default();
    assert_eq!(serde_json::from_str::<Value>(&line).ok(), Some(parents), "{outcome:?}");
}

#[tokio::test]
async fn argv_env_cwd_and_stdin_are_passed_on() {
    let params = json!({"argv": ["sh", "-c", "cat; echo \" $GREETING\"; pwd"], "env": {"GREETING": "hi"},
        "cwd": "/", "stdin": "from stdin"});
    let outcome = shell(params).run().await;
    assert_eq!(outcome.lines("stdout").collect::<Vec<_>>(), ["from stdin hi", "/"]);
    let other = shell(json!({"script": "print 1+1", "interpreter": ["cat"]})).run().await;
    assert_eq!(other.lines("stdout").collect::<Vec<_>>(), ["print 1+1"]);
}

#[tokio::test]
async fn params_that_make_no_sense_are_refused_by_name() {
    for (params, expected) in [
        (json!({}), "either argv or script"),
        (json!({"argv": []}), "begin with a program"),
        (json!({"argv": ["true"], "script": "x"}), "either argv or script"),
        (json!({"argv": ["true"], "interpreter": ["sh"]}), "interpreter applies to script"),
        (json!({"argv": ["true"], "args": "x"}), "args applies to script"),
        (json!({"argv": ["true"], "env": {"RONDEL_TOKEN": "x"}}), "RONDEL_TOKEN is reserved for the agent"),
        (json!({"argv": ["true"], "shell": true}), "unknown field `shell`"),
    ] {
        let outcome = shell(params).run().await;
        assert!(outcome.message().contains(expected), "{outcome:?}");
        assert!(!outcome.is_retryable());
    }
    let missing = shell(json!({"argv": ["/nonexistent/program"]})).run().await;
    assert!(missing.message().starts_with("cannot start \"/nonexistent/program\": "), "{missing:?}");
}

#[tokio::test]
async fn the_text_of_scripts_is_off_by_default() {
    let handler = |Params(params): Params<ShellParams>, context: RunContext, cancel: Cancel, log: Log| {
        run(params, false, context, cancel, log)
    };
    let outcome = TestRun::of(handler).params(json!({"script": "echo no"})).run().await;
    assert!(outcome.message().contains("--allow-scripts") && !outcome.is_retryable(), "{outcome:?}");
}

#[tokio::test]
async fn the_group_ends_with_the_run_within_the_grace() {
    let dir = tempfile::tempdir().unwrap();
    let pids = dir.path().join("pids");
    let text = format!("sh -c 'echo $$ >> {0}; sleep 60' & echo $$ >> {0}; wait", pids.display());
    let cause = StopCause::TimedOut { timeout: Duration::from_millis(300) };
    let outcome = stopped(&pids, (&text, LIMIT * 2), cause).await;
    assert_eq!(outcome.status(), RunStatus::TimedOut);
    assert_all_gone(&pids).await;
}

#[tokio::test]
async fn a_group_that_ignores_the_signal_is_killed_after_the_grace() {
    let dir = tempfile::tempdir().unwrap();
    let pids = dir.path().join("pids");
    let text =
        format!("trap '' TERM; echo $$ >> {0}; sh -c 'echo $$ >> {0}; sleep 60; sleep 60'; sleep 60", pids.display());
    let cause = StopCause::Cancelled { by: "the test".to_owned() };
    let outcome = stopped(&pids, (&text, Duration::from_millis(300)), cause).await;
    assert_eq!(outcome.status(), RunStatus::Cancelled);
    assert!(outcome.message().contains("aborted"), "{outcome:?}");
    assert_all_gone(&pids).await;
}

#[tokio::test]
async fn processes_of_a_stopped_program_have_time_to_end() {
    // The worker has one second, but a busy machine may not run it in that time, so it gets several tries.
    for _ in 0..5 {
        if leaves_a_worker_that_ends_in_time().await {
            return;
        }
    }
    unreachable!("the worker was killed each time");
}

/// Whether the worker of a stopped program had the time to run its trap.
async fn leaves_a_worker_that_ends_in_time() -> bool {
    let dir = tempfile::tempdir().unwrap();
    let [ready, cleaned] = ["ready", "cleaned"].map(|name| dir.path().join(name));
    let worker = format!("trap 'sleep 0.2; touch {}; exit' TERM; touch {}", cleaned.display(), ready.display());
    let text = format!("({worker}; while :; do sleep 0.05; done) >/dev/null 2>&1 & wait");
    let params = serde_json::from_value(json!({"script": text})).unwrap();
    let timing = Timing { cancel_grace: LIMIT * 2, ..Timing::default() };
    let setup = Arc::new(Setup::new(States::default(), timing));
    let context = RunContext::new(&setup, Trigger::default(), 0);
    let (cancel, log) = (Cancel::from_run(&context).unwrap(), Log::of(&context));
    let stop_once_ready = async {
        while !ready.exists() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        context.stop(StopCause::Cancelled { by: "the test".to_owned() });
    };
    let both = futures_util::future::join(run(params, true, context.clone(), cancel, log), stop_once_ready);
    let (ended, ()) = tokio::time::timeout(LIMIT, both).await.unwrap();
    assert_eq!(ended.unwrap_err().message(), "stopped");
    cleaned.exists()
}

async fn assert_all_gone(pids: &Path) {
    let text = std::fs::read_to_string(pids).unwrap();
    assert_eq!(text.lines().count(), 2, "{text}");
    for pid in text.lines() {
        let gone = async {
            while is_alive(pid) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(LIMIT, gone).await.unwrap_or_else(|_| panic!("{pid} lives"));
    }
}

fn is_alive(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.trim().is_empty() && !rest.trim_start().starts_with('Z'))
}

#[tokio::test]
async fn processes_that_left_the_group_and_ignore_the_signal_are_killed() {
    let dir = tempfile::tempdir().unwrap();
    let pids = dir.path().join("pids");
    // The first process has its own session, and its parent is gone. The second also has a clean environment, but its
    // parents are alive.
    let text = format!(
        "trap '' TERM; (setsid sh -c 'echo $$ >> {0}; sleep 60' &); setsid env -i sh -c 'echo $$ >> {0}; exec sleep 60'",
        pids.display()
    );
    let cause = StopCause::TimedOut { timeout: Duration::from_millis(500) };
    let outcome = stopped(&pids, (&text, Duration::from_millis(300)), cause).await;
    assert_eq!(outcome.status(), RunStatus::TimedOut);
    assert_all_gone(&pids).await;
}

#[tokio::test]
async fn each_run_has_a_directory_that_is_removed_with_it() {
    let outcome = script("pwd; echo $RONDEL_WORK_DIR; touch left; mkdir -p a/b").await;
    let lines: Vec<&str> = outcome.lines("stdout").collect();
    assert_eq!(lines[0], lines[1]);
    // A run waits for the removal, but not for long.
    wait_until(|| !Path::new(lines[0]).exists()).await;
}

#[tokio::test]
async fn the_directory_of_a_killed_run_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("place");
    let text = format!(
        "trap '' TERM; mkdir mod; touch mod/file; chmod 555 mod; (pwd; pwd) > {0}.new; mv {0}.new {0}; sleep 60; sleep 60",
        place.display()
    );
    let cause = StopCause::Cancelled { by: "the test".to_owned() };
    let outcome = stopped(&place, (&text, Duration::from_millis(300)), cause).await;
    assert!(outcome.message().contains("aborted"), "{outcome:?}");
    let places = std::fs::read_to_string(&place).unwrap();
    let folder = Path::new(places.lines().next().unwrap());
    wait_until(|| !folder.exists()).await;
}

#[tokio::test]
async fn a_script_gets_arguments_as_xxl_job_passes_them() {
    let params = json!({"script": "echo \"$#:$1:$2:$3\"", "args": "from params"});
    let outcome = shell(params).shard(1, 3).run().await;
    assert_eq!(outcome.lines("stdout").collect::<Vec<_>>(), ["3:from params:1:3"]);
}

#[tokio::test]
async fn exit_codes_may_mean_more_than_failed() {
    let skipped = script("echo nothing to do >&2; exit 77").await;
    assert_eq!((skipped.status(), skipped.message()), (RunStatus::Skipped, "exit code 77: nothing to do"));
    let hopeless = script("exit 99").await;
    assert_eq!((hopeless.status(), hopeless.is_retryable()), (RunStatus::Failed, false));
}

#[tokio::test]
async fn odd_output_becomes_lines_and_a_flood_has_a_beginning_and_an_end() {
    let odd = script(r"printf 'a\0b\033[31mred\n\377\376\nlast'").await;
    let lines: Vec<&str> = odd.lines("stdout").collect();
    assert_eq!(lines, ["a\u{fffd}b\u{1b}[31mred", "\u{fffd}\u{fffd}", "last"]);

    let flood = shell(json!({"script": "echo first; yes | head -c 40000000; echo; echo last"})).run().await;
    let lines: Vec<&str> = flood.lines("stdout").collect();
    assert_eq!((lines[0], lines[1], *lines.last().unwrap()), ("first", "y", "last"));
    assert!(lines.len() <= 100_000, "{}", lines.len());
    let marks: Vec<&str> = flood.lines("warn").collect();
    assert!(marks.len() == 2 && marks[1].contains("are left out here"), "{marks:?}");
    let left_out: usize = marks[1].split(' ').nth(1).unwrap().parse().unwrap();
    assert_eq!(left_out + lines.len(), 20_000_003, "every line is shown or counted");

    let endless = script("head -c 40000000 /dev/zero | tr '\\0' x").await;
    assert_eq!(endless.lines("stdout").count(), 1);
    assert!(endless.log().ends_with("[line cut]\n"), "{}", endless.log().len());
}

#[tokio::test]
async fn background_processes_do_not_delay_the_end_of_a_run() {
    let run = script("sleep 60 & echo started");
    let outcome = tokio::time::timeout(LIMIT, run).await.unwrap();
    assert!(outcome.is_succeeded());
    assert!(outcome.log().contains("in the background"), "{}", outcome.log());
}

#[tokio::test]
async fn background_processes_that_print_are_not_ended() {
    let dir = tempfile::tempdir().unwrap();
    let [over, done] = ["over", "done"].map(|name| dir.path().join(name));
    let wait = format!("while test -d {} && ! test -e {}; do sleep 0.05; done", dir.path().display(), over.display());
    let outcome = script(&format!("({wait}; echo late; touch {}) & echo started", done.display())).await;
    assert!(outcome.is_succeeded() && !outcome.log().contains("late"), "{}", outcome.log());
    std::fs::write(&over, "").unwrap();
    wait_until(|| done.exists()).await;
}

/// Runs a script that begins with `text`, and stops the run just after the script's end. The second value is whether
/// the handler has read that it must stop.
async fn stopped_after_its_end(text: &str) -> (Result<ProgramResult, JobError>, bool) {
    let dir = tempfile::tempdir().unwrap();
    let pid = dir.path().join("pid");
    let params = json!({"script": format!("{text} echo $$ > {0}.new; mv {0}.new {0}", pid.display())});
    let setup = Arc::new(Setup::new(States::default(), Timing::default()));
    let context = RunContext::new(&setup, Trigger::default(), 0);
    let (cancel, log) = (Cancel::from_run(&context).unwrap(), Log::of(&context));
    let running = run(serde_json::from_value(params).unwrap(), true, context.clone(), cancel, log);
    let mut running = Box::pin(running);
    assert!(running.as_mut().now_or_never().is_none());
    wait_until(|| std::fs::read_to_string(&pid).is_ok_and(|pid| !is_alive(pid.trim()))).await;
    // Gives the runtime time to notice that the process has ended and that its pipes are closed.
    tokio::time::sleep(Duration::from_millis(50)).await;
    context.stop(StopCause::Drained);
    let result = running.await;
    (result, context.has_read_stop())
}

#[tokio::test]
async fn a_program_that_has_ended_is_not_stopped_any_more() {
    // The program ends and the stop arrives at nearly the same time. Either may be noticed first, so the test repeats.
    for _ in 0..10 {
        assert!(stopped_after_its_end("").await.0.is_ok());
    }
}

#[tokio::test]
async fn a_program_that_has_ended_is_not_stopped_while_its_background_processes_hold_the_output_open() {
    let (result, has_read_stop) = stopped_after_its_end("sleep 60 &").await;
    assert!(result.is_ok() && !has_read_stop, "{result:?} {has_read_stop}");
}

async fn wait_until(holds: impl Fn() -> bool) {
    let waiting = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(LIMIT, waiting).await.unwrap();
}

#[tokio::test]
async fn secrets_are_in_the_environment_and_not_in_the_log() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("key"), "opensesame\n").unwrap();
    let params = json!({"argv": ["sh", "-c", "echo key=$KEY; echo $KEY >&2; test \"$KEY\" = opensesame && exit 4"],
        "env": {"KEY": "{{secret.key}}"}});
    let outcome = shell(params).secrets(Secrets::from_env().dir(dir.path())).run().await;
    assert_eq!(outcome.message(), "exit code 4: ***");
    assert_eq!(outcome.log(), "stdout key=***\nstderr ***\n");
}
