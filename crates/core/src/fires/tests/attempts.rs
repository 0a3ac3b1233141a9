//! Runs whose last attempt never began, and runs whose outcome is unknown.

use std::sync::Arc;

use super::*;
use crate::reason::ReasonDetail;
use crate::run::Attempt;

fn attempt(number: i32, status: RunStatus, reason: Reason) -> Attempt {
    Attempt {
        attempt: number,
        status,
        reason: Some(reason),
        detail: Some(Arc::new(ReasonDetail { executor: Some("w-1".to_owned()), ..ReasonDetail::default() })),
        executor: Some("w-1".to_owned()),
        executor_id: None,
        started_at: (status == RunStatus::Failed).then(|| secs(21)),
        finished_at: Some(secs(22)),
        message: (status == RunStatus::Failed).then(|| "exit code 4".to_owned()),
    }
}

fn answer(attempts: &[Attempt], run: Run) -> (String, String) {
    let rows = [Run { attempt: if attempts.is_empty() { 1 } else { 2 }, ..run }];
    let definitions = [Definition { from: Timestamp::EPOCH, job: job(json!({"schedule": {"every": "10s"}})) }];
    let why = why(&FireInput { attempts, ..facts(&definitions, &rows) }, secs(20));
    (why.en, why.zh)
}

#[test]
fn a_run_with_an_attempt_that_ran_is_never_described_as_not_run() {
    let failed = [attempt(1, RunStatus::Failed, Reason::Retry)];
    let by = Some("ann".to_owned());
    for (status, reason) in [
        (RunStatus::Failed, Reason::NoExecutor),
        (RunStatus::Skipped, Reason::NoExecutor),
        (RunStatus::Skipped, Reason::Overlap),
        (RunStatus::Skipped, Reason::Misfire),
        (RunStatus::Skipped, Reason::Expired),
        (RunStatus::Failed, Reason::Stopped),
        (RunStatus::Failed, Reason::NotReceived),
        (RunStatus::Cancelled, Reason::Requested),
    ] {
        let run = Run { cancel_by: by.clone(), ..row(9, secs(20), status, Some(reason)) };
        let (en, zh) = answer(&failed, run);
        let begins =
            "Attempt 1 ran at 1970-01-01 00:00:21 UTC on w-1 and failed: exit code 4; attempt 2 did not begin: ";
        assert!(en.starts_with(begins), "{status} {reason}: {en}");
        let begins = "第 1 次尝试已于 1970-01-01 00:00:21 UTC 执行（执行器 w-1），失败：";
        assert!(zh.starts_with(begins) && zh.contains("；第 2 次尝试没有开始："), "{status} {reason}: {zh}");
        assert!(!en.contains("did not run") && !zh.contains("没有执行"), "{en} {zh}");
    }
}

#[test]
fn a_lost_attempt_may_have_run_and_one_that_was_never_received_did_not() {
    let skipped = || row(9, secs(20), RunStatus::Skipped, Some(Reason::NoExecutor));
    let lost = [attempt(1, RunStatus::Unknown, Reason::ExecutorLost)];
    assert_eq!(
        answer(&lost, skipped()).0,
        "Attempt 1 may have run on w-1, and its outcome is unknown: executor w-1 was lost while it had the run; \
         attempt 2 did not begin: no executor of the app was online until the queue timeout."
    );
    let never = [attempt(1, RunStatus::Unknown, Reason::NotReceived)];
    assert_eq!(
        answer(&never, skipped()).0,
        "It did not run: no executor of the app was online until the queue timeout."
    );
}

#[test]
fn a_run_with_an_unknown_outcome_may_have_run() {
    let detail = || Some(Arc::new(ReasonDetail { executor: Some("w-1".to_owned()), ..ReasonDetail::default() }));
    let sent = |status, reason| Run {
        executor: Some("w-1".to_owned()),
        detail: detail(),
        started_at: (reason == Reason::NotReceived).then(|| secs(20)),
        ..row(9, secs(20), status, Some(reason))
    };
    let (en, zh) = answer(&[], sent(RunStatus::Unknown, Reason::NotReceived));
    assert!(en.starts_with("It may have run on w-1, and its outcome is unknown: "), "{en}");
    assert!(zh.starts_with("可能执行过（执行器 w-1），结果未知："), "{zh}");
    let (en, _) = answer(&[], sent(RunStatus::Failed, Reason::ExecutorLost));
    assert!(en.starts_with("It may have run on w-1: "), "{en}");
}

#[test]
fn a_run_that_runs_late_names_its_wait() {
    let detail = ReasonDetail { waits_for: Some(crate::reason::WaitFor::Run), ..ReasonDetail::default() };
    let started_at = Some(secs(20 + 20 * 60));
    let run = Run { started_at, detail: Some(Arc::new(detail)), ..row(9, secs(20), RunStatus::Running, None) };
    let (en, zh) = answer(&[], run.clone());
    assert!(en.ends_with(", 20 min late (waited 20 min behind an earlier run of the job)."), "{en}");
    assert!(zh.ends_with("，晚了 20 分钟（等待该任务较早的运行结束用了 20 分钟）。"), "{zh}");
    let unknown = answer(&[], Run { detail: None, ..run }).0;
    assert!(unknown.ends_with(", 20 min late."), "{unknown}");
}

/// A run that was adopted, and of which no executor has reported yet whether it began.
#[test]
fn a_run_with_an_unknown_start_is_not_described_as_running() {
    let run = Run { executor: Some("w1".to_owned()), ..row(9, secs(20), RunStatus::Running, None) };
    let (en, zh) = answer(&[], run);
    assert!(en.ends_with("It may be running on w1: it was sent, and when it began is not known."), "{en}");
    assert!(zh.ends_with("可能正在执行（执行器 w1）：已发送，尚不知何时开始。"), "{zh}");
}

/// The trace of the routing does not include the wait in the executor's queue.
#[test]
fn the_wait_in_the_executors_queue_is_named() {
    use crate::reason::{Obstacle, ObstacleKind, WaitFor};
    let full = Obstacle { executor: "w1".to_owned(), kind: ObstacleKind::Full, condition: None };
    let detail = ReasonDetail { waits_for: Some(WaitFor::Slot), ..ReasonDetail::default() }.with_obstacles([full]);
    let trace = serde_json::json!({"route": "round", "waited": {"executor": 1}}).to_string();
    let run = Run {
        started_at: Some(secs(20 + 20 * 60)),
        detail: Some(Arc::new(detail)),
        trace: Some(trace),
        ..row(9, secs(20), RunStatus::Succeeded, None)
    };
    let (en, _) = answer(&[], run);
    assert!(en.contains(", 20 min late (waited 20 min for a free slot on w1)"), "{en}");
}

#[test]
fn a_cancel_that_no_executor_confirmed_is_described_as_one() {
    let definitions =
        [Definition { from: at("06-01T00:00:00"), job: job(json!({"schedule": {"cron": "0 30 2 * * ?"}})) }];
    let night = at("06-08T02:30:00");
    let lost = Run { status: RunStatus::Cancelled, reason: Some(Reason::ExecutorLost), ..done(8, night) };
    let rows = [Run { cancel_by: Some("li".to_owned()), ..lost }];
    check_why(
        &facts(&definitions, &rows),
        night,
        "It ran at 2026-06-08 02:30:00.004 UTC on w-1, and a cancel was requested by li: its executor was lost before it \
         reported how the run ended. A late report replaces this verdict.",
        "已于 2026-06-08 02:30:00.004 UTC 执行（执行器 w-1），已请求取消（操作人 li）：执行器在报告运行如何结束之前失联。迟到的\
         报告会更正这一结论。",
    );
}
