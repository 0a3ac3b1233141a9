//! Runs and jobs in the form in which pages show them.

use rondel_core::folded_state::FoldedState;
use rondel_core::part::Part;
use rondel_core::plain::{is_control_or_invisible, is_joiner};
use rondel_core::reason::message::in_chinese;
use rondel_core::reason::words::{RunStatusFacts, reason_text, sentence};
use rondel_core::reason::{Reason, ReasonDetail};
use rondel_core::words::Lang;
use rondel_core::{Run, RunId, RunStatus, Timestamp};
use rondel_store::ledger::lateness;

use super::moment::{Moment, length_text};
use super::run_links::{SentencePart, split_at_runs};
use super::texts::Texts;

/// A status with a shape, a colour and a word.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Status {
    /// The CSS class, which decides shape and colour.
    pub(crate) class: &'static str,
    pub(crate) word: &'static str,
    pub(crate) is_open: bool,
}

impl Status {
    pub(crate) const fn new(status: RunStatus, t: &Texts) -> Self {
        Self { class: status.as_str(), word: t.status(status), is_open: !status.is_terminal() }
    }

    /// The status of a run. A run whose first attempt is waiting for its instant is shown as planned.
    pub(crate) fn of_run(run: &Run, t: &Texts) -> Self {
        let status = Self::new(run.shown_status(), t);
        let is_planned = run.status == RunStatus::Waiting && run.attempt == 1;
        if is_planned { Self { word: t.status_planned, ..status } } else { status }
    }
}

/// The state of a job with an icon and a word. It has a colour only if it needs attention.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StateWord {
    pub(crate) icon: &'static str,
    pub(crate) word: &'static str,
    pub(crate) is_error: bool,
    pub(crate) is_paused: bool,
}

impl StateWord {
    pub(crate) fn new(state: FoldedState, t: &Texts) -> Self {
        let icon = match state {
            FoldedState::Error => "failed",
            FoldedState::Complete => "succeeded",
            FoldedState::Running | FoldedState::Paused | FoldedState::Waiting => state.as_str(),
        };
        Self {
            icon,
            word: t.job_state(state),
            is_error: state == FoldedState::Error,
            is_paused: state == FoldedState::Paused,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct RunRow {
    pub(crate) id: RunId,
    pub(crate) job: String,
    pub(crate) status: Status,
    pub(crate) fire_at: Moment,
    /// How long the run took, or has been running; `None` if it has not begun.
    pub(crate) length: Option<String>,
    /// How much later than planned the handler was started.
    pub(crate) lateness: Option<String>,
    pub(crate) trigger: &'static str,
    pub(crate) reason: Option<String>,
    pub(crate) executor: Option<String>,
    pub(crate) attempt: i32,
    /// The number of the shard, counted from 1, and the number of shards.
    pub(crate) shard: Option<(i32, i32)>,
    /// The word for the part of its fire that the run is; `None` for a run without other parts, and for a shard, which `shard` shows.
    pub(crate) part: Option<&'static str>,
    pub(crate) message: Option<String>,
}

impl RunRow {
    pub(crate) fn new(run: &Run, job: String, now: Timestamp, t: &Texts) -> Self {
        let message = own_message(run.message.as_deref(), run.reason, run.detail.as_deref(), t.lang());
        Self {
            id: run.id,
            job,
            status: Status::of_run(run, t),
            fire_at: Moment::new(run.fire_at, now, t),
            length: run_length(run, now, t),
            lateness: lateness(run).map(|late| length_text(late, t)),
            trigger: t.trigger(run.trigger),
            reason: sentence(RunStatusFacts::of(run), t.lang()),
            attempt: run.attempt,
            shard: run.shard_total.filter(|total| *total > 1 && run.shard_index >= 0).map(|n| (run.shard_index + 1, n)),
            executor: run.present_executor().map(str::to_owned),
            message,
            part: None,
        }
    }

    /// Adds the word for this part to the row.
    pub(crate) fn with_part(self, part: Option<Part>, t: &Texts) -> Self {
        let part = part.and_then(|part| match part {
            Part::Whole => Some(t.run_part_whole),
            Part::Root => Some(t.run_part_root),
            Part::Group => Some(t.run_part_group),
            Part::Shard => None,
        });
        Self { part, ..self }
    }

    /// The reason, with the runs that it names.
    pub(crate) fn linked_reason(&self) -> Vec<SentencePart> {
        self.reason.as_deref().map(split_at_runs).unwrap_or_default()
    }
}

/// A text of a handler or a user as pages show it: characters that cannot be seen, or that change the direction of the text around them,
/// are replaced. Line breaks (also those of Windows), tabs, and the joiners that some languages need stay.
pub(crate) fn visible_text(text: &str) -> String {
    let is_kept = |c: char| matches!(c, '\n' | '\r' | '\t') || is_joiner(c) || !is_control_or_invisible(c);
    text.chars().map(|c| if is_kept(c) { c } else { char::REPLACEMENT_CHARACTER }).collect()
}

/// The message of the handler or of a user. The server's own messages are left out, since the page already shows the reason in the
/// reader's language. Messages that executors compose are translated.
pub(crate) fn own_message(
    message: Option<&str>,
    reason: Option<Reason>,
    detail: Option<&ReasonDetail>,
    lang: Lang,
) -> Option<String> {
    let no_detail = ReasonDetail::default();
    let is_server_message = |message: &&str| {
        reason.is_some_and(|reason| *message == reason_text(reason, detail.unwrap_or(&no_detail), Lang::En))
    };
    let message = message.filter(|message| !is_server_message(message))?;
    let translated_message = (lang == Lang::Zh).then(|| in_chinese(message)).flatten();
    Some(visible_text(translated_message.as_deref().unwrap_or(message)))
}

/// How long a run took, or has been running.
fn run_length(run: &Run, now: Timestamp, t: &Texts) -> Option<String> {
    let end = if run.status.is_terminal() { run.finished_at? } else { now };
    Some(length_text(end.since(run.started_at?), t))
}

/// The bar of a run.
#[derive(Clone, Debug)]
pub(crate) struct Bar {
    pub(crate) id: RunId,
    pub(crate) class: &'static str,
    pub(crate) title: String,
    pub(crate) x: usize,
    pub(crate) y: u64,
    pub(crate) height: u64,
}

/// The height of the highest bar.
pub(crate) const BAR_HEIGHT: u64 = 20;
/// Maximum number of bars shown for a job, one per run.
pub(crate) const BAR_COUNT: usize = 24;
/// The width of a bar, including the gap after it.
pub(crate) const BAR_WIDTH: usize = 5;
const BAR_HEIGHT_MIN: u64 = 4;

/// The newest runs as bars, with the newest on the right. The height of a bar shows the duration.
pub(crate) fn bars(newest_first: &[Run], now: Timestamp, t: &Texts) -> Vec<Bar> {
    let duration_ms = |run: &Run| {
        let end = run.finished_at.unwrap_or(now);
        run.started_at.map_or(0, |start| u64::try_from(end.since(start).as_millis()).unwrap_or(u64::MAX))
    };
    let shown_runs = &newest_first[..newest_first.len().min(BAR_COUNT)];
    let longest_ms = shown_runs.iter().map(duration_ms).max().unwrap_or(0).max(1);
    let bar = |(index, run): (usize, &Run)| {
        // The height is proportional to the square root of the duration, so that short runs remain distinguishable next to a long one.
        let share = u64::isqrt(duration_ms(run).saturating_mul(10_000) / longest_ms);
        let height = BAR_HEIGHT_MIN + (BAR_HEIGHT - BAR_HEIGHT_MIN) * share.min(100) / 100;
        let title = match run_length(run, now, t) {
            Some(length) => format!("{} · {} · {length}", run.fire_at, t.status(run.status)),
            None => format!("{} · {}", run.fire_at, t.status(run.status)),
        };
        let x = (BAR_COUNT - 1 - index) * BAR_WIDTH;
        Bar { id: run.id, class: run.status.as_str(), title, x, y: BAR_HEIGHT - height, height }
    };
    shown_runs.iter().enumerate().map(bar).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_turns_no_text_around() {
        let message = |text: &str| own_message(Some(text), None, None, Lang::En).unwrap_or_default();
        assert_eq!(message("a\u{202e}b \u{1b}[31m\u{200b}\n\tc"), "a\u{fffd}b \u{fffd}[31m\u{fffd}\n\tc");
        assert_eq!(message("\u{645}\u{6cc}\u{200c}\u{62e}"), "\u{645}\u{6cc}\u{200c}\u{62e}", "a joiner");
        assert_eq!(message("java.io.IOException\r\n\tat A.b(A.java:1)"), "java.io.IOException\r\n\tat A.b(A.java:1)");
    }
}
