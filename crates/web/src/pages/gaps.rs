//! Explains the empty parts of a job's lane in the timeline: ranges of time, with a sentence each. All ranges of a lane are read in one
//! request.

use std::time::Duration;

use axum::response::Response;
use http::StatusCode;
use rondel_core::fires::{ENTRY_COUNT_MAX, Entry, FireHistory, FireVerdict, Range};
use rondel_core::reason::words::{RunStatusFacts, sentence};
use rondel_core::{RunStatus, Timestamp, words};
use serde::Serialize;

use super::drawing::short_time_text;
use super::fires::class_and_word;
use super::shell::Page;
use super::texts::Texts;
use super::zones;
use crate::answer::json_response;
use crate::api::jobs::find;
use crate::body::refuse_value;
use crate::path::{self, Named};
use crate::problem::Problem;
use crate::query::{FromQuery, Reader};

const DAY: Duration = Duration::from_secs(24 * 3_600);
/// Maximum range of a request: the range of the longest zoom, and one more day.
const SPAN_MAX: Duration = Duration::from_secs(8 * 24 * 3_600);
/// Maximum number of reads. If a range has too many fires, a shorter one is read.
const READ_COUNT_MAX: u32 = 4;
/// Minimum length of a range.
const SHORTEST_RANGE: Duration = Duration::from_secs(60);

/// The beginning and the end of the lane. By default, the lane covers the last 24 hours.
#[derive(Debug)]
pub(crate) struct GapsQuery {
    from: Option<Timestamp>,
    to: Option<Timestamp>,
}

impl FromQuery for GapsQuery {
    fn from_query(reader: &mut Reader) -> Self {
        let instant = |text: &str| text.parse::<Timestamp>().map_err(|error| error.to_string());
        Self { from: reader.parsed("from", instant), to: reader.parsed("to", instant) }
    }
}

impl GapsQuery {
    fn range(&self, now: Timestamp) -> Result<(Timestamp, Timestamp), Problem> {
        let to = self.to.unwrap_or(now);
        let from = self.from.unwrap_or_else(|| to.saturating_sub(DAY));
        if to <= from || to.since(from) > SPAN_MAX {
            let days = SPAN_MAX.as_secs() / DAY.as_secs();
            return Err(refuse_value("/to", format!("{to} is not within {days} days after {from}")));
        }
        Ok((from, to))
    }
}

/// A range of time without a run, or from one run to the next.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Gap {
    from_ms: i64,
    to_ms: i64,
    /// The instant that the link "why" asks about; `None` if no fire was left out.
    at_ms: Option<i64>,
    text: String,
}

#[derive(Debug, Serialize)]
struct Gaps {
    gaps: Vec<Gap>,
}

pub(super) async fn of_job(page: Page<GapsQuery>, Named(name, ..): Named<path::Job>) -> Result<Response, Problem> {
    let record = find(&page.call, &name).await?;
    zones::set_job(&record.spec);
    let now = page.engine().now();
    let (mut from, to) = page.query().range(now)?;
    // Gaps end at the current instant: the lane shows upcoming fires after it.
    let to = to.min(now);
    let visible_apps = page.call.visible_apps();
    let mut history = FireHistory { entries: Vec::new(), next: None };
    let mut searched_from = from;
    for _ in 0..READ_COUNT_MAX {
        if from >= to {
            break;
        }
        let range = Range { from, to, limit: ENTRY_COUNT_MAX };
        history = page.engine().fires(&record, range, visible_apps.as_deref()).await?;
        searched_from = from;
        let Some(next) = history.next.filter(|next| *next <= to) else { break };
        // The range has too many fires for one read, which ended at `next`. Tries again with a later start, since the newest part is
        // shown. If the fires are evenly spread, a part as long as the one that was read fits into one read.
        let step = (to.since(from) / 2).min(next.since(from)).max(SHORTEST_RANGE);
        from = to.saturating_sub(step).max(from);
    }
    let history_end = history.next.map_or(to, |next| next.min(to));
    let gaps = find_gaps(&history, (searched_from, history_end), (now, page.t));
    json_response(StatusCode::OK, &Gaps { gaps })
}

/// Why the lane is empty between an entry and the next one.
#[derive(Clone, Debug, PartialEq, Eq)]
enum GapCause {
    /// The run of the entry took place, and no other fire was planned until the next entry.
    Between,
    /// The fire of the entry did not run, for this reason.
    NotRun(String),
}

fn find_gaps(
    history: &FireHistory,
    (from, to): (Timestamp, Timestamp),
    (now, t): (Timestamp, &'static Texts),
) -> Vec<Gap> {
    let zone = zones::clock_and_zone().1;
    let mut gaps: Vec<Gap> = Vec::new();
    let mut last_cause: Option<GapCause> = None;
    let past_entries: Vec<&Entry> = history.entries.iter().filter(|entry| entry.first <= to).collect();
    let first_fire = past_entries.first().map_or(to, |entry| entry.first);
    if first_fire > from {
        gaps.push(Gap {
            from_ms: from.as_millis(),
            to_ms: first_fire.as_millis(),
            at_ms: None,
            text: t.gap_none.to_owned(),
        });
    }
    for (index, entry) in past_entries.iter().enumerate() {
        let entry_end = past_entries.get(index + 1).map_or(to, |next| next.first);
        let cause = gap_cause(entry, t);
        match gaps.last_mut() {
            Some(gap) if last_cause.as_ref() == Some(&cause) => gap.to_ms = entry_end.as_millis(),
            _ => {
                let (at_ms, text) = match &cause {
                    GapCause::Between => (None, t.gap_between.to_owned()),
                    GapCause::NotRun(reason) => (
                        Some(entry.first.as_millis()),
                        format!("{} · {reason}", short_time_text(entry.first, now, zone)),
                    ),
                };
                gaps.push(Gap { from_ms: entry.first.as_millis(), to_ms: entry_end.as_millis(), at_ms, text });
            }
        }
        last_cause = Some(cause);
    }
    gaps
}

fn gap_cause(entry: &Entry, t: &'static Texts) -> GapCause {
    let (_, word) = class_and_word(&entry.verdict, t);
    match &entry.verdict {
        FireVerdict::Row { status: RunStatus::Skipped, reason, detail, .. }
        | FireVerdict::Span { reason, detail, .. } => {
            let facts =
                RunStatusFacts { status: RunStatus::Skipped, reason: *reason, detail: detail.as_deref(), attempt: 1 };
            GapCause::NotRun(sentence(facts, t.lang()).unwrap_or_else(|| word.to_owned()))
        }
        FireVerdict::Row { .. } | FireVerdict::Planned => GapCause::Between,
        FireVerdict::Calendar { calendar, day, moved_to } => {
            let moved_note = moved_to.map(|at| t.fires_moved(words::instant_text(zones::clock_and_zone().1, at)));
            let facts = [Some(word.to_owned()), Some(calendar.clone()), day.clone(), moved_note];
            GapCause::NotRun(facts.into_iter().flatten().collect::<Vec<_>>().join(" · "))
        }
        FireVerdict::Paused
        | FireVerdict::Maintenance { .. }
        | FireVerdict::Undecided
        | FireVerdict::Removed
        | FireVerdict::Missing => GapCause::NotRun(word.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use rondel_core::{Reason, RunId};

    use super::super::texts::Lang;
    use super::*;

    #[test]
    fn stretches_are_joined_while_the_reason_is_the_same() {
        let at = |minute: u64| Timestamp::from_secs(1_900_000_800) + Duration::from_secs(minute * 60);
        let entry = |minute, verdict| Entry { first: at(minute), last: at(minute), count: 1, verdict };
        let ran = |minute: u64| {
            let (run, status) = (RunId::new(i64::try_from(minute).unwrap()), RunStatus::Succeeded);
            entry(minute, FireVerdict::Row { run, status, reason: None, detail: None, is_planned: true })
        };
        let run = RunId::new(7);
        let late = FireVerdict::Span { run, reason: Some(Reason::Misfire), detail: None };
        let calendar = FireVerdict::Calendar {
            calendar: "holidays".to_owned(),
            day: Some("<b>New Year".to_owned()),
            moved_to: None,
        };
        let entries = vec![
            ran(10),
            ran(20),
            entry(30, FireVerdict::Paused),
            entry(40, FireVerdict::Paused),
            entry(50, late),
            entry(60, calendar),
        ];
        let history = FireHistory { entries, next: None };
        let found = find_gaps(&history, (at(0), at(70)), (at(70), Lang::En.texts()));
        let spans: Vec<(i64, i64, bool)> = found
            .iter()
            .map(|gap| {
                let minute = |ms: i64| (ms - at(0).as_millis()) / 60_000;
                (minute(gap.from_ms), minute(gap.to_ms), gap.at_ms.is_some())
            })
            .collect();
        assert_eq!(spans, [(0, 10, false), (10, 30, false), (30, 50, true), (50, 60, true), (60, 70, true)]);
        assert!(found[2].text.ends_with("paused") || found[2].text.contains("aused"), "{}", found[2].text);
        assert!(found[4].text.contains("holidays · <b>New Year"), "{}", found[4].text);
        let nothing =
            find_gaps(&FireHistory { entries: Vec::new(), next: None }, (at(0), at(70)), (at(70), Lang::En.texts()));
        assert_eq!(nothing.len(), 1, "a job without fires has one gap");
    }
}
