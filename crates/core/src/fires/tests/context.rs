//! Answers that name servers, executors, other runs and first causes.

use std::sync::Arc;

use super::*;
use crate::fires::{AnswerContext, ExecutorState, OtherRun, ServerState};
use crate::homes::Switch;
use crate::reason::{LimitDetail, LimitKind, ReasonDetail, WaitFor};

/// The answer about a run with this context, 90 s after it was due.
fn answer(run: &Run, context: &AnswerContext) -> (String, String) {
    let definitions = [Definition { from: secs(0), job: job(json!({"schedule": {"every": "1m"}})) }];
    let rows = [run.clone()];
    let facts = FireInput { context: Some(context), now: secs(150), rows: &rows, ..facts(&definitions, &rows) };
    let Why { en, zh, .. } = why_run(&facts, &rows[0]);
    (en, zh)
}

fn check_ends(run: &Run, context: &AnswerContext, (en, zh): (&str, &str)) {
    let answer = answer(run, context);
    assert!(answer.0.ends_with(en), "{}", answer.0);
    assert!(answer.1.ends_with(zh), "{}", answer.1);
}

fn other(id: i64, job: &str, change: impl FnOnce(Run) -> Run) -> OtherRun {
    let run = Run {
        executor: Some("l2".to_owned()),
        started_at: Some(secs(10)),
        ..row(id, secs(9), RunStatus::Running, None)
    };
    OtherRun { run: change(run), job: Some(job.to_owned()) }
}

fn with_detail(run: Run, detail: ReasonDetail) -> Run {
    Run { detail: Some(Arc::new(detail)), ..run }
}

fn limit() -> ReasonDetail {
    let limit = LimitDetail { kind: LimitKind::Concurrency, key: Some("db".to_owned()), max: Some(1), per_ms: None };
    ReasonDetail { waits_for: Some(WaitFor::Limit), limit: Some(limit), ..ReasonDetail::default() }
}

#[test]
fn executors_that_take_nothing_are_named() {
    let pending = row(1, secs(60), RunStatus::Pending, None);
    let draining = ExecutorState { name: "l1".to_owned(), silent: None, switch: Switch::Active };
    let silent = ExecutorState { name: "l3".to_owned(), silent: Some((secs(120), secs(180))), switch: Switch::Active };
    let none = AnswerContext { executors: vec![draining.clone()], ..AnswerContext::default() };
    check_ends(
        &pending,
        &none,
        (
            "and waits for an executor. Executor l1 is draining (takes nothing new).",
            "正在等待执行器。执行器 l1 正在排空（不再接收新的运行）。",
        ),
    );
    let drained = ExecutorState { switch: Switch::Draining, ..draining.clone() };
    let switched_off = AnswerContext { executors: vec![drained], ..AnswerContext::default() };
    check_ends(
        &pending,
        &switched_off,
        (
            "Executor l1 is switched to draining (takes nothing new until it is activated).",
            "执行器 l1 的开关设为排空（重新启用前不再接收新的运行）。",
        ),
    );
    let both = AnswerContext { executors: vec![draining, silent], ..AnswerContext::default() };
    check_ends(
        &done(1, secs(60)).running(),
        &both,
        (
            "Executor l3 is silent since 1970-01-01 00:02 UTC, and is given up at 1970-01-01 00:03 UTC if it stays silent.",
            "执行器 l3 自 1970-01-01 00:02 UTC 起没有音讯，若一直如此，将在 1970-01-01 00:03 UTC 视为失联。",
        ),
    );
    // The executors are not named for a run that waits for something else, is not due yet, or has ended.
    let limited = with_detail(pending.clone(), limit());
    for run in [&limited, &Run { due_at: secs(200), ..pending }, &done(1, secs(60))] {
        assert!(!answer(run, &both).0.contains("Executor"), "{}", answer(run, &both).0);
    }
    let many =
        (0..7).map(|at| ExecutorState { name: format!("l{at}"), silent: None, switch: Switch::Active }).collect();
    let many = AnswerContext { executors: many, has_available_executor: true, ..AnswerContext::default() };
    let (en, _) = answer(&row(1, secs(60), RunStatus::Pending, None), &many);
    assert!(
        en.contains("for its turn or for an executor") && en.ends_with("2 more executors are draining or silent."),
        "{en}"
    );
}

#[test]
fn a_server_that_leaves_is_switched_off_or_came_late_is_named() {
    let server_of = |is_leaving, switch, since| {
        let server = Some(ServerState { name: "n1".to_owned(), is_leaving, switch, since: secs(since) });
        AnswerContext { server, ..AnswerContext::default() }
    };
    let server = |is_leaving, since| server_of(is_leaving, Switch::Active, since);
    let waiting = row(1, secs(60), RunStatus::Pending, None);
    check_ends(
        &waiting,
        &server(true, 0),
        (
            "Server n1, which has the run, is stopping: it gives its jobs to other servers, and sends nothing new.",
            "负责该运行的服务器 n1 正在停止：它把任务交给其他服务器，不再发送新的运行。",
        ),
    );
    // A server that is switched off continues if it is the only one.
    check_ends(
        &waiting,
        &server_of(false, Switch::Draining, 0),
        (
            "is switched to draining: it gives its jobs to other servers, and continues with those that no other can take.",
            "负责该运行的服务器 n1 的开关设为排空：它把任务交给其他服务器，其他服务器无法接手的仍由它执行。",
        ),
    );
    let stopped = answer(&waiting, &server_of(false, Switch::Stopped, 0)).0;
    assert!(stopped.ends_with("it gives its jobs and its executors to other servers."), "{stopped}");
    let late = Run { started_at: Some(secs(130)), ..done(1, secs(60)).running() };
    check_ends(
        &late,
        &server(false, 125),
        (
            "Server n1, which sent it, began its work at 1970-01-01 00:02:05 UTC.",
            "发送它的服务器 n1 于 1970-01-01 00:02:05 UTC 才开始工作。",
        ),
    );
    for since in [59, 131] {
        assert!(!answer(&late, &server(false, since)).0.contains("Server"), "{since}");
    }
}

#[test]
fn holders_of_a_limit_and_the_run_ahead_are_named() {
    let pending = row(1, secs(60), RunStatus::Pending, None);
    let holders = vec![other(7, "o.long", |run| run), OtherRun { job: None, ..other(8, "secret", |run| run) }];
    let held_limit =
        AnswerContext { limit: Some("db".to_owned()), holders, more_holder_count: 3, ..AnswerContext::default() };
    check_ends(
        &with_detail(pending.clone(), limit()),
        &held_limit,
        (
            "Limit \"db\" is held by run 7 of job o.long on l2 since 1970-01-01 00:00:10 UTC; a run of a job that you may not see \
             since 1970-01-01 00:00:10 UTC; 3 more.",
            "限制 \"db\" 被占用：任务 o.long 的运行 7（执行器 l2），自 1970-01-01 00:00:10 UTC 起；您无权查看的任务的一个运行，自 \
             1970-01-01 00:00:10 UTC 起；另外 3 个。",
        ),
    );
    let behind = ReasonDetail { waits_for: Some(WaitFor::Run), run: Some(RunId::new(6)), ..ReasonDetail::default() };
    let behind = with_detail(pending, behind);
    let waits = |run: Run| with_detail(Run { started_at: None, status: RunStatus::Pending, ..run }, limit());
    let ahead = AnswerContext { ahead: Some(other(6, "a", waits)), ..held_limit.clone() };
    let (en, zh) = answer(&behind, &ahead);
    let (wanted, wanted_zh) = (
        "Run 6 itself has been due since 1970-01-01 00:00:09 UTC, and waits for concurrency limit \"db\" (1 at a time). Limit",
        "运行 6 本身已于 1970-01-01 00:00:09 UTC 到期，正在等待",
    );
    assert!(en.contains(wanted) && zh.contains(wanted_zh), "{en} {zh}");
    let retries = |run: Run| Run { status: RunStatus::Pending, attempt: 3, due_at: secs(170), started_at: None, ..run };
    let ahead = AnswerContext { ahead: Some(other(6, "a", retries)), ..AnswerContext::default() };
    check_ends(
        &behind,
        &ahead,
        (
            "Run 6 waits for its attempt 3, which is due at 1970-01-01 00:02:50 UTC.",
            "运行 6 正在等待第 3 次尝试，将于 1970-01-01 00:02:50 UTC 到期。",
        ),
    );
    let ahead = AnswerContext { ahead: Some(other(6, "a", |run| run)), ..AnswerContext::default() };
    check_ends(
        &behind,
        &ahead,
        (
            "Run 6 has been running since 1970-01-01 00:00:10 UTC on l2.",
            "运行 6 自 1970-01-01 00:00:10 UTC 起一直在执行（执行器 l2）。",
        ),
    );
}

/// While the database cannot be written to, no server can renew its lease, so no run is taken up or started.
#[test]
fn a_server_without_a_lease_is_named() {
    let context = AnswerContext { lease_ended: Some(("n1".to_owned(), secs(90))), ..AnswerContext::default() };
    let (en, zh) = answer(&row(1, secs(60), RunStatus::Pending, None), &context);
    assert!(en.contains("and waits for a server with a lease. Server n1, which has the run, has had no lease since "));
    assert!(
        zh.contains("正在等待持有租约的服务器。负责该运行的服务器 n1 自 1970-01-01 00:01:30 UTC 起没有租约"),
        "{zh}"
    );

    let definitions = [Definition { from: secs(0), job: job(json!({"schedule": {"every": "1m"}})) }];
    let facts = FireInput { now: secs(150), next_fire_at: Some(secs(120)), ..facts(&definitions, &[]) };
    let due = why(&FireInput { context: Some(&context), ..facts }, secs(120));
    assert!(due.en.contains("so far. No server holds a lease: that of server n1 ended at 1970-01-01 00:01:30 UTC."));
    assert!(due.zh.contains("没有服务器持有租约：服务器 n1 的租约已于 1970-01-01 00:01:30 UTC 结束。"), "{}", due.zh);
    assert!(why(&facts, secs(120)).en.ends_with("no server has taken it up so far."));
}

#[test]
fn the_shards_that_gave_the_verdict_are_named() {
    let message = Some("1 of 2 shards failed".to_owned());
    let started_at = Some(secs(60));
    let whole = Run { message, started_at, ..row(1, secs(60), RunStatus::Failed, None).for_all_shards() };
    let failed = other(2, "a", |run| {
        let (status, message) = (RunStatus::Failed, Some("exit code 3".to_owned()));
        Run { status, message, shard_index: 1, shard_total: Some(2), ..run }
    });
    check_ends(
        &whole,
        &AnswerContext { shards: vec![failed], ..AnswerContext::default() },
        (
            "1 of 2 shards failed. Shard 2/2 (run 2) on l2 ended as failed: exit code 3.",
            "2 个分片中有 1 个失败。分片 2/2（运行 2）（执行器 l2）：失败：退出码 3。",
        ),
    );
    // Only the rows of the shards know which executors the shards waited for, so the answer does not state that none was
    // online.
    let message = Some("2 of 2 shards were skipped".to_owned());
    let skipped = row(1, secs(60), RunStatus::Skipped, Some(Reason::NoExecutor)).for_all_shards();
    check_ends(
        &Run { message, started_at, ..skipped },
        &AnswerContext::default(),
        ("UTC, and 2 of 2 shards were skipped.", "开始，2 个分片中有 2 个被跳过。"),
    );
}

#[test]
fn the_first_cause_is_named() {
    let skipped = |run: Run| Run { started_at: None, ..with_reason(run, RunStatus::Skipped, Reason::Parent) };
    let by = |parent: &str, status| ReasonDetail {
        parent: Some(parent.to_owned()),
        parent_status: Some(status),
        ..ReasonDetail::default()
    };
    let run = with_detail(skipped(row(3, secs(60), RunStatus::Skipped, None)), by("o.b", RunStatus::Skipped));
    let b = other(2, "o.b", |run| with_detail(skipped(run), by("o.a", RunStatus::Failed)));
    let a = other(1, "o.a", |run| Run { status: RunStatus::Failed, message: Some("exit code 3".to_owned()), ..run });
    let context = AnswerContext { causes: vec![b.clone(), a.clone()], ..AnswerContext::default() };
    check_ends(
        &run,
        &context,
        (
            "parent job o.b ended as skipped. The first cause is run 1 of job o.a, which ended as failed: exit code 3 (by way of o.b).",
            "上游任务 o.b 已跳过。最初的原因是任务 o.a 的运行 1：失败：退出码 3（经由 o.b）。",
        ),
    );
    let cut = AnswerContext { causes: vec![b], ..AnswerContext::default() };
    let (en, zh) = answer(&run, &cut);
    assert!(en.contains("The chain of causes goes on beyond run 2 of job o.b") && zh.contains("原因链"), "{en} {zh}");
    let direct = AnswerContext { causes: vec![a], ..AnswerContext::default() };
    assert!(answer(&run, &direct).0.ends_with("which ended as failed: exit code 3."));
    let unknown = other(1, "o.a", |run| {
        let sent = ReasonDetail { executor: Some("w1".to_owned()), ..ReasonDetail::default() };
        with_detail(with_reason(run, RunStatus::Unknown, Reason::NotReceived), sent)
    });
    let (en, _) = answer(&run, &AnswerContext { causes: vec![unknown], ..AnswerContext::default() });
    assert!(en.contains("which ended as unknown: it was sent to executor w1, which did not acknowledge it"), "{en}");
}

fn with_reason(run: Run, status: RunStatus, reason: Reason) -> Run {
    Run { status, reason: Some(reason), ..run }
}

trait InState {
    fn running(self) -> Self;
}

impl InState for Run {
    fn running(self) -> Self {
        Self { status: RunStatus::Running, ..self }
    }
}
