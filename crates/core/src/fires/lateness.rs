//! Describes how late a run began, and what it waited for.

use std::time::Duration;

use super::bilingual::{Bilingual, bilingual, empty_text};
use crate::misfire::{LateBecause, Lateness};
use crate::reason::words::{short_length, wait_zh, waits_for};
use crate::reason::{ReasonDetail, WaitFor};
use crate::route::trace::{Trace, WaitTimes};
use crate::run::Run;
use crate::words::Lang;

/// A run that begins this much after its due time is late.
pub(super) const LATE_FROM: Duration = Duration::from_secs(1);
/// A shorter wait does not explain why a run is late.
const WAIT_FROM: Duration = Duration::from_millis(500);

/// How late the run began, and what it waited for; empty if it was not late, or has not begun.
pub(super) fn lateness_text(row: Option<&Run>) -> Bilingual {
    let Some((row, started_at)) = row.and_then(|row| Some((row, row.started_at?))) else { return empty_text() };
    let start_delay = started_at.since(row.due_at);
    if started_at <= row.due_at || start_delay < LATE_FROM {
        return empty_text();
    }
    let trace: Option<Trace> = row.trace.as_deref().and_then(|trace| serde_json::from_str(trace).ok());
    // The trace is stored when the run ends. For a run that has not ended, all of its delay counts as a wait for an executor.
    let mut waits = trace.map_or(WaitTimes { executor: start_delay, ..WaitTimes::default() }, |trace| trace.waits());
    let is_for_slot = row.detail.as_ref().is_some_and(|detail| detail.waits_for == Some(WaitFor::Slot));
    if is_for_slot && waits.turn + waits.executor < WAIT_FROM {
        // The trace ends when the run is sent; the rest of the delay was a wait in the queue of its executor.
        waits.executor = start_delay;
    }
    let is_known = row.trace.is_some() || row.detail.as_ref().is_some_and(|detail| detail.waits_for.is_some());
    let cause_text = if is_known { wait_text(waits, row.detail.as_deref()) } else { empty_text() };
    bilingual(
        format!(", {} late{}", short_length(start_delay, Lang::En), cause_text.0),
        format!("，晚了 {}{}", short_length(start_delay, Lang::Zh), cause_text.1),
    )
}

fn wait_text(WaitTimes { server, turn, executor }: WaitTimes, detail: Option<&ReasonDetail>) -> Bilingual {
    if let Some(Lateness { because: LateBecause::Overload, by }) =
        server.filter(|lateness| lateness.by > turn + executor)
    {
        return bilingual(
            format!(
                " (servers had more fires to start than they could, and took it up {} after it was due)",
                short_length(by, Lang::En)
            ),
            format!("（同时到期的触发过多，服务器在到期 {}后才处理它）", short_length(by, Lang::Zh)),
        );
    }
    let turn = turn + server.map_or(Duration::ZERO, |lateness| lateness.by);
    let wait_words = |lang| detail.and_then(|detail| waits_for(detail, lang));
    if let Some((en, zh)) = wait_words(Lang::En).zip(wait_words(Lang::Zh)) {
        let is_before_routing = detail.is_some_and(|detail| matches!(detail.waits_for, Some(WaitFor::Run)));
        let length = if is_before_routing { turn } else { executor };
        let length = if length < WAIT_FROM { turn + executor } else { length };
        return bilingual(
            format!(" (waited {} {en})", short_length(length, Lang::En)),
            format!("（{}用了 {}）", wait_zh(&zh), short_length(length, Lang::Zh)),
        );
    }
    match (turn >= WAIT_FROM, executor >= WAIT_FROM) {
        (_, true) => bilingual(
            format!(" (waited {} for an executor)", short_length(executor, Lang::En)),
            format!("（等待执行器用了 {}）", short_length(executor, Lang::Zh)),
        ),
        (true, false) => bilingual(
            format!(" (the server took it up {} after it was due)", short_length(turn, Lang::En)),
            format!("（服务器在到期 {}后才处理它）", short_length(turn, Lang::Zh)),
        ),
        (false, false) => empty_text(),
    }
}
