use super::words::{RunStatusFacts, attempt_sentence, reason_text, sentence, short_length, waits_for};
use super::*;
use crate::run::{Attempt, RunStatus};
use crate::words::Lang;
use std::sync::Arc;
use std::time::Duration;

fn obstacle(executor: &str, kind: ObstacleKind) -> Obstacle {
    Obstacle { executor: executor.to_owned(), kind, condition: None }
}

fn work(obstacles: Vec<Obstacle>) -> ReasonDetail {
    let (app, handler) = (Some("work".to_owned()), Some("shell".to_owned()));
    ReasonDetail { app, handler, waited_ms: Some(300_000), ..ReasonDetail::default() }.with_obstacles(obstacles)
}

#[track_caller]
fn check(reason: Reason, detail: &ReasonDetail, en: &str, zh: &str) {
    let subject = RunStatusFacts { status: RunStatus::Skipped, reason: Some(reason), detail: Some(detail), attempt: 1 };
    assert_eq!(sentence(subject, Lang::En).as_deref(), Some(en));
    assert_eq!(sentence(subject, Lang::Zh).as_deref(), Some(zh));
}

#[test]
fn each_obstacle_is_named() {
    use ObstacleKind::{Draining, Full, Handler};
    check(
        Reason::NoExecutor,
        &work(vec![]),
        "Skipped: no executor of app work was online for 5 min.",
        "已跳过：5 分钟内应用 work 没有在线的执行器。",
    );
    check(
        Reason::NoExecutor,
        &work(vec![obstacle("w1", Handler), obstacle("w2", Handler)]),
        "Skipped: no executor of app work had handler \"shell\" for 5 min (w1, w2 online without it).",
        "已跳过：5 分钟内应用 work 没有执行器具有处理器 \"shell\"（w1、w2 在线但没有它）。",
    );
    let label = Obstacle { condition: Some("zone=eu".to_owned()), ..obstacle("w3", ObstacleKind::Label) };
    check(
        Reason::NoExecutor,
        &work(vec![obstacle("w1", Handler), obstacle("w2", Draining), label]),
        "Skipped: no executor of app work could take it for 5 min: w1 lacks handler \"shell\"; w3 does not meet label \
         condition zone=eu; w2 is draining.",
        "已跳过：5 分钟内应用 work 没有执行器可以接收它：w1 没有处理器 \"shell\"；w3 不满足标签条件 zone=eu；w2 正在排空。",
    );
    check(
        Reason::NoExecutor,
        &work(vec![obstacle("w1", ObstacleKind::Drained), obstacle("w2", ObstacleKind::Stopped)]),
        "Skipped: no executor of app work could take it for 5 min: w1 is switched to draining; w2 is switched to stopped.",
        "已跳过：5 分钟内应用 work 没有执行器可以接收它：w1 的开关设为排空；w2 的开关设为停用。",
    );
    let only =
        ReasonDetail { only_executor: Some("w2".to_owned()), ..work(vec![obstacle("w2", ObstacleKind::Offline)]) };
    check(
        Reason::NoExecutor,
        &only,
        "Skipped: executor w2, for which alone it was triggered, could not take it for 5 min: w2 is not online.",
        "已跳过：5 分钟内触发时指定的执行器 w2 无法接收它：w2 不在线。",
    );
    let waiting = ReasonDetail { waits_for: Some(WaitFor::Executor), ..only };
    assert_eq!(
        waits_for(&waiting, Lang::En).as_deref(),
        Some("for executor w2, for which alone it was triggered (w2 is not online)")
    );
    assert_eq!(waits_for(&waiting, Lang::Zh).as_deref(), Some("触发时指定的执行器 w2（w2 不在线）"));
    check(
        Reason::Expired,
        &ReasonDetail { waits_for: Some(WaitFor::Slot), ..work(vec![obstacle("w1", Full), obstacle("w2", Full)]) },
        "Skipped: it waited 5 min for a free slot on w1, w2.",
        "已跳过：5 分钟内一直在等待 w1、w2 上的空闲槽位。",
    );
}

#[test]
fn an_open_run_names_its_wait() {
    let behind = ReasonDetail { waits_for: Some(WaitFor::Run), run: Some(RunId::new(7)), ..ReasonDetail::default() };
    let open = |status, reason, attempt| RunStatusFacts { status, reason, detail: Some(&behind), attempt };
    let sentence_of = |subject, lang| sentence(subject, lang).unwrap_or_default();
    let pending = open(RunStatus::Pending, None, 1);
    assert_eq!(sentence_of(pending, Lang::En), "Waits behind run 7 of the job.");
    assert_eq!(sentence_of(pending, Lang::Zh), "正在等待该任务的运行 7 结束。");
    let again = open(RunStatus::Pending, Some(Reason::Retry), 2);
    assert_eq!(sentence_of(again, Lang::En), "Attempt 2: the previous attempt failed. Waits behind run 7 of the job.");
    let sent = ReasonDetail { waits_for: Some(WaitFor::Answer), ..ReasonDetail::default() };
    let sent = sent.with_obstacles([obstacle("w1", ObstacleKind::Silent)]);
    let unanswered = RunStatusFacts { detail: Some(&sent), ..pending };
    assert_eq!(sentence_of(unanswered, Lang::En), "Waits for executor w1 to answer (sent, not answered yet).");
    assert_eq!(sentence_of(unanswered, Lang::Zh), "正在等待执行器 w1 应答（已发送，尚未应答）。");
    // The sentence of a running run no longer names what it waited for, but still has the reason of its attempt.
    let running = open(RunStatus::Running, Some(Reason::NotReceived), 2);
    assert_eq!(sentence_of(running, Lang::En), "Attempt 2: the previous attempt reached no executor.");
    assert_eq!(sentence_of(open(RunStatus::Running, None, 1), Lang::En), "");
}

/// The executor received the attempt, so it is no lost message. A later wait does not replace the reason.
#[test]
fn an_attempt_that_its_executor_handed_back_is_explained_by_the_executor() {
    let executor = Some("w1".to_owned());
    let silenced = ReasonDetail { executor: executor.clone(), silent_ms: Some(15_000), ..ReasonDetail::default() };
    let handed_back = ReasonDetail { executor, shutting_down: true, ..ReasonDetail::default() };
    let behind = ReasonDetail { waits_for: Some(WaitFor::Run), run: Some(RunId::new(7)), ..ReasonDetail::default() };
    for (detail, en, zh) in [
        (
            handed_back,
            "Attempt 2: executor w1 was shutting down, and the handler had not begun.",
            "第 2 次尝试：执行器 w1 正在退出，处理器尚未开始执行。",
        ),
        (
            silenced,
            "Attempt 2: executor w1 heard no server for 15 s, and the handler had not begun.",
            "第 2 次尝试：执行器 w1 有 15 秒收不到任何服务器的应答，处理器尚未开始执行。",
        ),
    ] {
        assert_eq!(ReasonDetail::from_json(&detail.to_json().unwrap()), detail);
        let waiting = detail.with_wait(behind.clone());
        let facts = |detail, status| {
            let reason = Some(Reason::NotReceived);
            RunStatusFacts { status, reason, detail: Some(detail), attempt: 2 }
        };
        for (detail, status) in [(&detail, RunStatus::Running), (&waiting, RunStatus::Running)] {
            assert_eq!(sentence(facts(detail, status), Lang::En).as_deref(), Some(en));
            assert_eq!(sentence(facts(detail, status), Lang::Zh).as_deref(), Some(zh));
        }
        let waits = format!("{en} Waits behind run 7 of the job.");
        assert_eq!(sentence(facts(&waiting, RunStatus::Waiting), Lang::En), Some(waits));
        let attempt_words = reason_text(Reason::NotReceived, &detail, Lang::En);
        assert!(en.ends_with(&format!(": {attempt_words}.")), "{attempt_words}");
    }
}

#[test]
fn no_sentence_has_a_hole_where_a_name_is_not_known() {
    let none = ReasonDetail { executor: Some(String::new()), ..ReasonDetail::default() };
    for reason in Reason::ALL {
        for lang in [Lang::En, Lang::Zh] {
            for text in [reason_text(*reason, &none, lang), words::retry_text(*reason, &none, lang)] {
                assert!(!text.is_empty() && !text.contains("  ") && !text.contains("\"\""), "{reason}: {text:?}");
            }
        }
        assert_ne!(reason_text(*reason, &none, Lang::En), reason_text(*reason, &none, Lang::Zh));
    }
    for kind in WaitFor::ALL {
        let detail = ReasonDetail { waits_for: Some(*kind), ..ReasonDetail::default() };
        assert!(Lang::ALL.iter().all(|lang| waits_for(&detail, *lang).is_some_and(|text| !text.contains("  "))));
    }
    let attempt = Attempt {
        attempt: 1,
        status: RunStatus::Unknown,
        reason: Some(Reason::ExecutorLost),
        detail: Some(Arc::new(ReasonDetail { executor: Some("w1".to_owned()), ..ReasonDetail::default() })),
        executor: None,
        executor_id: None,
        started_at: None,
        finished_at: None,
        message: None,
    };
    assert_eq!(attempt_sentence(&attempt, Lang::En).as_deref(), Some("Executor w1 was lost while it had the run."));
}

#[test]
fn a_stored_detail_is_small_and_is_read_back() {
    assert_eq!(ReasonDetail::default().to_json(), None);
    assert_eq!(ReasonDetail::from_json("not json"), ReasonDetail::default());
    assert_eq!(ReasonDetail::from_json(r#"{"waits_for": "slot", "later": 1}"#).waits_for, Some(WaitFor::Slot));
    let many = (0..500).map(|i| Obstacle {
        condition: Some("值".repeat(1_000)),
        ..obstacle(&format!("{i}{}", "\u{1}".repeat(1_000)), ObstacleKind::Label)
    });
    let text = work(many.collect()).to_json().unwrap();
    assert!(text.len() <= DETAIL_LEN_MAX, "{} bytes", text.len());
    let read = ReasonDetail::from_json(&text);
    assert_eq!(read.obstacles.len() + read.obstacles_more, 500);
    let plain = work(vec![obstacle("w1", ObstacleKind::Full)]);
    assert_eq!(ReasonDetail::from_json(&plain.to_json().unwrap()), plain);
}

#[test]
fn lengths_have_their_two_largest_units() {
    for (ms, en, zh) in [
        (1, "1 ms", "1 毫秒"),
        (38_200, "38 s", "38 秒"),
        (90_000, "1 min 30 s", "1 分钟 30 秒"),
        (300_000, "5 min", "5 分钟"),
        (7_500_000, "2 h 5 min", "2 小时 5 分钟"),
        (86_400_000 + 5_000, "1 d", "1 天"),
    ] {
        let length = Duration::from_millis(ms);
        assert_eq!((short_length(length, Lang::En).as_str(), short_length(length, Lang::Zh).as_str()), (en, zh));
    }
}

#[test]
fn a_length_is_written_in_its_two_largest_units() {
    for (ms, expected) in [
        (0, "0 ms"),
        (999, "999 ms"),
        (1_000, "1 s"),
        (1_499, "1 s"),
        (1_500, "2 s"),
        (59_500, "1 min"),
        (90_000, "1 min 30 s"),
        (3_661_000, "1 h 1 min"),
        (86_400_000, "1 d"),
        (90_061_000, "1 d 1 h"),
    ] {
        assert_eq!(short_length(Duration::from_millis(ms), Lang::En), expected);
    }
}

#[test]
fn the_first_attempt_has_no_number() {
    let attempt_sentence = |attempt, lang| {
        let subject = RunStatusFacts { status: RunStatus::Waiting, reason: Some(Reason::Retry), detail: None, attempt };
        sentence(subject, lang).unwrap()
    };
    assert!(
        !attempt_sentence(1, Lang::En).contains("Attempt") && attempt_sentence(2, Lang::En).starts_with("Attempt 2: ")
    );
    assert!(
        !attempt_sentence(1, Lang::Zh).starts_with("第") && attempt_sentence(2, Lang::Zh).starts_with("第 2 次尝试：")
    );
}

#[test]
fn a_detail_is_cut_at_its_bounds() {
    let with = |count: usize| {
        ReasonDetail::default().with_obstacles((0..count).map(|n| obstacle(&format!("w{n}"), ObstacleKind::Full)))
    };
    let kept = with(OBSTACLE_COUNT_MAX);
    assert_eq!((kept.obstacles.len(), kept.obstacles_more), (OBSTACLE_COUNT_MAX, 0));
    let more = with(OBSTACLE_COUNT_MAX + 1);
    assert_eq!((more.obstacles.len(), more.obstacles_more), (OBSTACLE_COUNT_MAX, 1));
}

#[test]
fn a_stored_detail_is_as_long_as_its_bound_and_no_longer() {
    let detail_json = |len: usize| {
        let condition = Some("c".repeat(len));
        let obstacles = (0..OBSTACLE_COUNT_MAX)
            .map(|n| Obstacle { condition: condition.clone(), ..obstacle(&format!("w{n}"), ObstacleKind::Full) });
        ReasonDetail::default().with_obstacles(obstacles).to_json().unwrap()
    };
    for len in 0..200 {
        let text = detail_json(len);
        assert!(text.len() <= DETAIL_LEN_MAX, "{}", text.len());
        let read = ReasonDetail::from_json(&text);
        assert_eq!(read.obstacles.len() + read.obstacles_more, OBSTACLE_COUNT_MAX);
    }
}

#[test]
fn the_groups_that_failed_at_the_end_of_a_pump_are_named() {
    for (reason, en, zh) in [
        (Reason::Dry, "Failed: the rows that were left had failed for good.", "失败：剩余的行都已最终失败。"),
        (
            Reason::WindowOver,
            "Failed: at the end of the window, rows were left that had failed for good, or no rows could be selected.",
            "失败：窗口结束时仍有最终失败的行，或无法查询行。",
        ),
    ] {
        let subject = RunStatusFacts { status: RunStatus::Failed, reason: Some(reason), detail: None, attempt: 1 };
        assert_eq!(sentence(subject, Lang::En).as_deref(), Some(en));
        assert_eq!(sentence(subject, Lang::Zh).as_deref(), Some(zh));
    }
}

#[test]
fn a_pump_that_ended_because_of_an_edit_begins_again_if_the_job_still_has_one() {
    let facts = |status| RunStatusFacts { status, reason: Some(Reason::Changed), detail: None, attempt: 1 };
    assert_eq!(
        sentence(facts(RunStatus::Succeeded), Lang::En).as_deref(),
        Some("Succeeded: the job was changed, which ended the pump; if the new definition has a pump, it begins anew.")
    );
    assert_eq!(
        sentence(facts(RunStatus::Succeeded), Lang::Zh).as_deref(),
        Some("成功：任务已修改，泵任务因此结束；新的定义若仍是泵任务，将重新开始。")
    );
    let skipped = sentence(facts(RunStatus::Skipped), Lang::En);
    assert_eq!(
        skipped.as_deref(),
        Some("Skipped: the job was changed, and its new definition does not fire at this instant.")
    );
}
