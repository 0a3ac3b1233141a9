//! Why a job ran or did not run: at an instant, or at its last fire.

use std::time::Duration;

use super::history::{Entry, FireHistory, FireInput, FireVerdict, Range};
use super::sentence_writer::SentenceWriter;
use super::walk::{Walk, fire_history, next_millisecond};
use crate::run::Run;
use crate::schedule::just_before;
use crate::status::Trigger;
use crate::time::Timestamp;
use crate::words::Lang;

/// Distances from an instant, in seconds. The nearest fires are searched within the shortest distance, then within the next
/// one, and so on.
const WINDOWS_SECS: [u64; 5] = [60, 3_600, 86_400, 32 * 86_400, 366 * 86_400];
/// Maximum number of steps of the search for the nearest fires in one answer, counted as in a history. A fire that is not found within
/// these steps is left out.
pub(super) const SEARCH_STEP_COUNT_MAX: usize = 40_000;

/// What an answer is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerSubject {
    /// The instant that was asked about.
    Instant,
    /// A run that no schedule planned, at or near the instant that was asked about.
    NearRun(Trigger),
    /// A run that has not ended.
    OpenRun,
    /// The last fire so far.
    LastFire,
    /// The next fire, because the job has not fired so far.
    NextFire,
    /// Nothing: the job has not run so far, and nothing is planned.
    Nothing,
}

/// What is known about one instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Why {
    pub at: Timestamp,
    /// How `at` was chosen.
    pub subject: AnswerSubject,
    /// The verdict of the fire at this instant; `None` if nothing was planned and nothing ran.
    pub entry: Option<Entry>,
    /// The nearest earlier fire within a year, if nothing was planned.
    pub before: Option<Timestamp>,
    /// The nearest later fire within a year, if nothing was planned.
    pub after: Option<Timestamp>,
    /// The answer in English.
    pub en: String,
    /// The answer in Chinese.
    pub zh: String,
}

impl Why {
    /// The answer in a language.
    #[must_use]
    pub fn sentence(&self, lang: Lang) -> &str {
        match lang {
            Lang::En => &self.en,
            Lang::Zh => &self.zh,
        }
    }

    /// Adapts the answer to a question that named no instant: its sentence then begins by naming the fire.
    #[must_use]
    pub fn with_subject(self, subject: AnswerSubject, facts: &FireInput<'_>) -> Self {
        let (en, zh) = SentenceWriter::new(facts, self.at).opening_text(subject);
        Self { subject, en: en + &self.en, zh: zh + &self.zh, ..self }
    }
}

/// Why a job ran or did not run at an instant.
///
/// The facts need only the rows of the instant and a row whose span covers it; nearby fires are found from the definitions
/// alone.
#[must_use]
pub fn why(facts: &FireInput<'_>, at: Timestamp) -> Why {
    let entry = fire_history(facts, Range { from: at, to: at, limit: 1 }).entries.into_iter().next();
    let writer = SentenceWriter::new(facts, at);
    let subject = AnswerSubject::Instant;
    if let Some(entry) = entry {
        let (en, zh) = writer.verdict_sentence(&entry.verdict);
        return Why { at, subject, entry: Some(entry), before: None, after: None, en, zh };
    }
    let mut steps = SEARCH_STEP_COUNT_MAX;
    let before = nearest_before(facts, at, FireVerdict::is_fire, &mut steps);
    let after = nearest_after(facts, at, &mut steps);
    let (en, zh) = writer.nothing_planned_sentence(before, after);
    Why { at, subject, entry: None, before, after, en, zh }
}

/// Why a run has its status, whatever triggered it. The run must be among the rows of the facts.
#[must_use]
pub fn why_run(facts: &FireInput<'_>, run: &Run) -> Why {
    let verdict = FireVerdict::of_run(run, true);
    let (en, zh) = SentenceWriter::new(facts, run.fire_at).verdict_sentence(&verdict);
    let entry = Some(Entry { first: run.fire_at, last: run.fire_at, count: 1, verdict });
    Why { at: run.fire_at, subject: AnswerSubject::Instant, entry, before: None, after: None, en, zh }
}

/// If nothing was planned at an instant, an answer may be about a run that is at most this far from it.
pub const NEAREST_RUN_WITHIN: Duration = Duration::from_secs(60);
/// As [`NEAREST_RUN_WITHIN`], but for the start of a run that the schedule planned. Such a run is found by its planned instant
/// anyway.
const NEAREST_START_WITHIN: Duration = Duration::from_secs(1);

/// The run nearest to an instant, by its planned instant or its start; `None` if no run is within [`NEAREST_RUN_WITHIN`]. A run that the
/// schedule planned counts only by its start, and only within a second.
#[must_use]
pub fn nearest_run(runs: Vec<Run>, at: Timestamp) -> Option<Run> {
    let distance_to = |other: Timestamp| if other > at { other.since(at) } else { at.since(other) };
    let distance = |run: &Run| {
        let start_distance = run.started_at.map(distance_to);
        match run.cause {
            0 => start_distance.filter(|distance| *distance <= NEAREST_START_WITHIN),
            _ => start_distance
                .into_iter()
                .chain([distance_to(run.fire_at)])
                .min()
                .filter(|distance| *distance <= NEAREST_RUN_WITHIN),
        }
    };
    let distances = runs.into_iter().filter_map(|run| Some((distance(&run)?, run)));
    distances.min_by_key(|(distance, run)| (*distance, std::cmp::Reverse(run.id))).map(|(_, run)| run)
}

/// Why a job has not run so far, and will not run unless a caller triggers it.
#[must_use]
pub fn why_never(facts: &FireInput<'_>) -> Why {
    let (en, zh) = SentenceWriter::new(facts, facts.now).never_run_sentence();
    Why { at: facts.now, subject: AnswerSubject::Nothing, entry: None, before: None, after: None, en, zh }
}

/// The last instant up to now that the definitions plan or a calendar removes, and the first fire after now. Both follow from
/// the definitions alone, without rows.
#[must_use]
pub fn nearest_fires(facts: &FireInput<'_>) -> (Option<Timestamp>, Option<Timestamp>) {
    let mut steps = SEARCH_STEP_COUNT_MAX;
    let after_now = Timestamp::from_millis(facts.now.as_millis().saturating_add(1));
    (nearest_before(facts, after_now, |_| true, &mut steps), nearest_after(facts, after_now, &mut steps))
}

/// Searches the stretch of each definition, the newest first, backwards in growing windows: if a definition fires often, a small window
/// already has its last fire.
fn nearest_before(
    facts: &FireInput<'_>,
    at: Timestamp,
    is_counted: fn(&FireVerdict) -> bool,
    steps: &mut usize,
) -> Option<Timestamp> {
    let earliest = at.saturating_sub(window_length(WINDOWS_SECS[4]));
    let changes = facts.definitions.iter().map(|definition| definition.from).chain(facts.deleted_at);
    let mut edges: Vec<Timestamp> = changes.filter(|edge| (earliest..at).contains(edge)).collect();
    edges.push(earliest);
    edges.sort_unstable();
    let mut end = just_before(at);
    for edge in edges.into_iter().rev() {
        let mut to = end;
        for from in WINDOWS_SECS.map(|seconds| end.saturating_sub(window_length(seconds)).max(next_millisecond(edge))) {
            if from > to {
                break;
            }
            if let Some(fire) = last_fire_in(facts, (from, to), is_counted, steps) {
                return Some(fire);
            }
            to = just_before(from);
        }
        end = edge;
    }
    None
}

fn last_fire_in(
    facts: &FireInput<'_>,
    (mut from, to): (Timestamp, Timestamp),
    is_counted: fn(&FireVerdict) -> bool,
    steps: &mut usize,
) -> Option<Timestamp> {
    let mut last_fire = None;
    while *steps > 0 {
        let range = Range { from, to, limit: usize::MAX };
        let FireHistory { entries, next } = Walk::new(facts, range).with_steps_max(steps).run_within(steps);
        last_fire = entries.iter().rfind(|entry| is_counted(&entry.verdict)).map(|entry| entry.last).or(last_fire);
        match next.filter(|next| *next > from && *next <= to) {
            Some(next) => from = next,
            None => return last_fire,
        }
    }
    // The steps are used up, so the fire that was found need not be the last one.
    None
}

fn nearest_after(facts: &FireInput<'_>, at: Timestamp, steps: &mut usize) -> Option<Timestamp> {
    let mut from = at;
    for seconds in WINDOWS_SECS {
        let range = Range { from, to: at.saturating_add(window_length(seconds)), limit: usize::MAX };
        let history = Walk::new(facts, range).with_steps_max(steps).until_first_fire().run_within(steps);
        let fire = history.entries.iter().find(|entry| entry.verdict.is_fire());
        if fire.is_some() || *steps == 0 {
            return fire.map(|entry| entry.first);
        }
        from = next_millisecond(range.to);
    }
    None
}

const fn window_length(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}
