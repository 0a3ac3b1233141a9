//! Draws the timeline of a run to scale: the time in the queue, each attempt, and the waits between attempts.
//!
//! Each row is a separate SVG drawing of the same time span. Positions are percentages of the width, so that the rows fit any screen. A
//! time too short to be visible gets a minimum width.

use std::time::Duration;

use rondel_core::misfire::LateBecause;
use rondel_core::route::trace::Trace;
use rondel_core::run::Attempt;
use rondel_core::{Run, RunStatus, Timestamp};

use super::moment::length_text;
use super::texts::Texts;
use super::view::Status;

/// How many of the newest attempts are drawn.
const ATTEMPT_COUNT_MAX: usize = 20;
/// How many shards get a row with bars. If there are more, successful shards are sorted last, and each shard beyond the limit is a small
/// mark.
const SHARD_ROW_COUNT_MAX: usize = 60;
/// Minimum width of a bar, in thousandths of the width.
const WIDTH_MIN: u64 = 4;
/// If the time in the queue is more than this many times as long as the rest, it is drawn shortened.
const QUEUED_RATIO_MAX: u32 = 4;
/// The number of sections of the axis.
const TICK_COUNT: u64 = 4;

pub(super) struct RunTimeline {
    pub(super) ticks: Vec<Tick>,
    pub(super) rows: Vec<TimelineRow>,
    pub(super) shards: Vec<TimelineRow>,
    /// The shards without a row.
    pub(super) small_shards: Vec<SmallShard>,
    /// Whether the time in the queue is drawn shortened.
    pub(super) is_cut: bool,
}

/// A shard that is shown as a small mark.
pub(super) struct SmallShard {
    /// The id of its run.
    pub(super) id: String,
    pub(super) status: Status,
    pub(super) title: String,
}

/// A mark on the axis.
pub(super) struct Tick {
    /// The position as a percentage of the width.
    pub(super) x: String,
    pub(super) label: String,
    pub(super) anchor: &'static str,
}

pub(super) struct TimelineRow {
    pub(super) label: String,
    pub(super) href: Option<String>,
    pub(super) status: Option<Status>,
    /// Where the attempt ran, or what the run waited for.
    pub(super) subtitle: String,
    pub(super) bars: Vec<TimelineBar>,
    pub(super) length: String,
}

/// A bar in the drawing of one row. `x` and `width` are percentages of the drawing's width.
pub(super) struct TimelineBar {
    pub(super) x: String,
    pub(super) width: String,
    pub(super) class: &'static str,
    pub(super) title: String,
}

/// Maps instants to positions on the axis.
#[derive(Clone, Copy, Debug)]
struct Scale {
    from: Timestamp,
    to: Timestamp,
}

impl Scale {
    /// The position of an instant, in thousandths of the width.
    fn position(&self, at: Timestamp) -> u64 {
        let total = self.to.since(self.from).as_micros().max(1);
        let elapsed = at.since(self.from).as_micros().min(total);
        u64::try_from(elapsed * 1000 / total).unwrap_or(1000)
    }

    fn bar(&self, (start, end): (Timestamp, Timestamp), class: &'static str, title: String) -> TimelineBar {
        let x = self.position(start).min(1000 - WIDTH_MIN);
        let width = self.position(end).saturating_sub(x).max(WIDTH_MIN);
        TimelineBar { x: percent(x), width: percent(width), class, title }
    }
}

/// Thousandths of the width as a percentage.
fn percent(thousandths: u64) -> String {
    format!("{}.{}%", thousandths / 10, thousandths % 10)
}

/// An attempt, and the instants between which it is drawn.
struct DrawnAttempt<'a> {
    attempt: &'a Attempt,
    start: Timestamp,
    end: Timestamp,
}

impl RunTimeline {
    /// Draws a run and its shards, in chronological order.
    pub(super) fn new(run: &Run, attempts: &[Attempt], shards: &[Run], now: Timestamp, t: &'static Texts) -> Self {
        let has_ended = run.status.is_terminal();
        let is_unfinished = |attempt: &Attempt| attempt.attempt == run.attempt && !has_ended;
        let drawn_attempts: Vec<DrawnAttempt<'_>> = attempts
            .iter()
            .skip(attempts.len().saturating_sub(ATTEMPT_COUNT_MAX))
            .filter_map(|attempt| {
                let end = attempt.finished_at.filter(|_| !is_unfinished(attempt));
                let start = attempt.started_at.or(end)?;
                Some(DrawnAttempt { attempt, start, end: end.unwrap_or(now).max(start) })
            })
            .collect();
        let first_start = drawn_attempts.first().map(|drawn_attempt| drawn_attempt.start);
        let end = run.finished_at.filter(|_| has_ended).unwrap_or(now);
        // The instant of the next attempt, if a retry is pending.
        let retry_at = (!has_ended && run.started_at.is_none() && run.attempt > 1).then_some(run.due_at);
        let to = retry_at.map_or(end, |due| due.max(end)).max(run.fire_at);
        let queued_length = first_start.unwrap_or(to).since(run.fire_at);
        let attempts_length = to.since(first_start.unwrap_or(to));
        let is_cut = !attempts_length.is_zero() && queued_length > attempts_length.saturating_mul(QUEUED_RATIO_MAX);
        let from = if is_cut { first_start.unwrap_or(to) - attempts_length } else { run.fire_at };
        let scale = Scale { from, to: to.max(from + Duration::from_millis(1)) };
        let mut rows = vec![queue_row(run, (first_start.unwrap_or(to), queued_length), scale, t)];
        rows.extend(attempt_rows(run, &drawn_attempts, scale, t));
        if let (Some(due), Some(last)) = (retry_at, drawn_attempts.last()) {
            rows.push(pause_row(run.attempt, (last.end, due), scale, t));
        }
        let (shards, small_shards) = shard_rows(shards, scale, now, t);
        Self { ticks: ticks(scale, t), rows, shards, small_shards, is_cut }
    }
}

/// The marks of the axis, labelled with the time since its beginning.
fn ticks(scale: Scale, t: &Texts) -> Vec<Tick> {
    let total = scale.to.since(scale.from);
    let tick = |section: u64| {
        let section_count = u32::try_from(section).unwrap_or(0);
        let label = if section == 0 {
            "0".to_owned()
        } else {
            length_text(total * section_count / u32::try_from(TICK_COUNT).unwrap_or(1), t)
        };
        let anchor = match section {
            0 => "start",
            TICK_COUNT => "end",
            _ => "middle",
        };
        Tick { x: percent(section * 1000 / TICK_COUNT), label, anchor }
    };
    (0..=TICK_COUNT).map(tick).collect()
}

fn queue_row(
    run: &Run,
    (wait_end, queued_length): (Timestamp, Duration),
    scale: Scale,
    t: &'static Texts,
) -> TimelineRow {
    let mut bars = vec![scale.bar((scale.from.max(run.fire_at), wait_end), "queued", t.way_queued.to_owned())];
    let mut wait_texts = Vec::new();
    let trace = run.trace.as_deref().filter(|_| run.attempt == 1);
    if let Some(trace) = trace.and_then(|trace| serde_json::from_str::<Trace>(trace).ok()) {
        let waits = trace.waits();
        let server = waits.server.map(|delay| {
            let name = if delay.because == LateBecause::Outage { t.run_waited_outage } else { t.run_waited_overload };
            ("late", name, delay.by)
        });
        let waits = [("turn", t.run_waited_turn, waits.turn), ("turn", t.run_waited_executor, waits.executor)];
        // The waits follow one another. The time in the queue that then remains is spent on sending the run to its executor.
        let mut part_start = run.fire_at;
        for (class, name, wait) in server.into_iter().chain(waits) {
            if wait.is_zero() {
                continue;
            }
            let text = format!("{name} {}", length_text(wait, t));
            let end = (part_start + wait).min(wait_end);
            if part_start >= scale.from {
                bars.push(scale.bar((part_start, end), class, text.clone()));
            }
            part_start = end;
            wait_texts.push(text);
        }
    }
    TimelineRow {
        label: t.way_queued.to_owned(),
        href: None,
        status: None,
        subtitle: wait_texts.join(" · "),
        bars,
        length: length_text(queued_length, t),
    }
}

fn attempt_rows(run: &Run, drawn_attempts: &[DrawnAttempt<'_>], scale: Scale, t: &'static Texts) -> Vec<TimelineRow> {
    let mut rows = Vec::new();
    let mut previous_end = None::<Timestamp>;
    for drawn_attempt in drawn_attempts {
        let (start, end) = (drawn_attempt.start, drawn_attempt.end);
        let status = Status::new(drawn_attempt.attempt.status, t);
        let mut bars = Vec::new();
        let mut executor = drawn_attempt.attempt.executor.clone().unwrap_or_default();
        if let Some(last) = previous_end {
            let backoff_text = t.way_backoff(length_text(start.since(last), t));
            bars.push(scale.bar((last, start), "pause", backoff_text.clone()));
            executor = if executor.is_empty() { backoff_text } else { format!("{executor} · {backoff_text}") };
        }
        // The length of an attempt that never started, or whose start was not reported, is unknown.
        let length_of_attempt = drawn_attempt.attempt.started_at.map(|_| length_text(end.since(start), t));
        let title = length_of_attempt.as_ref().map_or_else(
            || status.word.to_owned(),
            |length_of_attempt| format!("{} · {length_of_attempt}", status.word),
        );
        bars.push(scale.bar((start, end), status.class, title));
        let label = if run.attempt > 1 { t.way_attempt(drawn_attempt.attempt.attempt) } else { t.way_run.to_owned() };
        let href =
            (run.attempt > 1).then(|| format!("/runs/{}?attempt={}#log-title", run.id, drawn_attempt.attempt.attempt));
        let length = length_of_attempt.unwrap_or_default();
        rows.push(TimelineRow { label, href, status: Some(status), subtitle: executor, bars, length });
        previous_end = Some(end);
    }
    rows
}

/// The row of the next attempt, which is still pending.
fn pause_row(attempt: i32, (last_end, due_at): (Timestamp, Timestamp), scale: Scale, t: &'static Texts) -> TimelineRow {
    let backoff_text = t.way_backoff(length_text(due_at.since(last_end), t));
    TimelineRow {
        label: t.way_attempt(attempt),
        href: None,
        status: Some(Status::new(RunStatus::Pending, t)),
        subtitle: backoff_text.clone(),
        bars: vec![scale.bar((last_end, due_at), "pause", backoff_text)],
        length: String::new(),
    }
}

fn shard_rows(shards: &[Run], scale: Scale, now: Timestamp, t: &'static Texts) -> (Vec<TimelineRow>, Vec<SmallShard>) {
    let mut sorted_shards: Vec<&Run> = shards.iter().collect();
    if sorted_shards.len() > SHARD_ROW_COUNT_MAX {
        // Shards that did not succeed come first.
        sorted_shards.sort_by_key(|shard| (shard.status == RunStatus::Succeeded, shard.shard_index));
    }
    let (mut rows, mut small_shards) = (Vec::new(), Vec::new());
    for shard in sorted_shards {
        let status = Status::new(shard.shown_status(), t);
        let executor = shard.present_executor().unwrap_or_default().to_owned();
        let end = shard.finished_at.filter(|_| shard.status.is_terminal()).unwrap_or(now);
        let length = shard.started_at.map(|start| length_text(end.since(start), t)).unwrap_or_default();
        let number = format!("{}/{}", shard.shard_index + 1, shard.shard_total.unwrap_or(1));
        if rows.len() >= SHARD_ROW_COUNT_MAX {
            let title = format!("{number} · {} · {executor} · {length}", status.word);
            small_shards.push(SmallShard { id: shard.id.to_string(), status, title });
            continue;
        }
        let bar = shard.started_at.map(|start| scale.bar((start, end.max(start)), status.class, length.clone()));
        rows.push(TimelineRow {
            label: number,
            href: Some(format!("/runs/{}", shard.id)),
            status: Some(status),
            subtitle: executor,
            bars: bar.into_iter().collect(),
            length,
        });
    }
    (rows, small_shards)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_to_scale_and_never_vanish() {
        let at = Timestamp::from_secs;
        let scale = Scale { from: at(1_000), to: at(1_420) };
        let whole = scale.bar((at(1_000), at(1_420)), "failed", String::new());
        assert_eq!((whole.x.as_str(), whole.width.as_str()), ("0.0%", "100.0%"));
        let half = scale.bar((at(1_210), at(1_420)), "failed", String::new());
        assert_eq!((half.x.as_str(), half.width.as_str()), ("50.0%", "50.0%"));
        let moment = scale.bar((at(1_420), at(1_420)), "failed", String::new());
        assert_eq!((moment.x.as_str(), moment.width.as_str()), ("99.6%", "0.4%"));
    }
}
