//! The past and upcoming fires of a job with their outcomes, and the answer to "why did it not run at …?".

use std::collections::HashMap;
use std::time::Duration;

use askama::Template;
use axum::response::Response;
use http::StatusCode;
use rondel_core::cron::{Tz, parse_zone};
use rondel_core::fires::{Entry, FireHistory, FireVerdict, Range, Why};
use rondel_core::reason::words::{RunStatusFacts, sentence};
use rondel_core::{JobSpec, Run, RunId, RunStatus, Timestamp, words};
use rondel_store::StoreError;
use rondel_store::catalog::JobRecord;

use super::moment::Moment;
use super::run_links::{SentencePart, split_at_runs};
use super::shell::{Nav, Page, Shell, html};
use super::texts::Texts;
use super::view::{own_message, visible_text};
use super::zones::{self, zone_of};
use crate::api::jobs::find;
use crate::path::{self, Named};
use crate::problem::Problem;
use crate::query::{FromQuery, Reader};
use crate::redirect::query_pair;

const DAY: Duration = Duration::from_secs(24 * 3600);
/// How many entries of the past the page shows.
const PAST_ROW_COUNT: usize = 50;
/// How many entries of the future the page shows.
const UPCOMING_ROW_COUNT: usize = 25;
/// Longer messages are cut to this length, in characters. The page of the run shows them whole.
const MESSAGE_LEN_MAX: usize = 200;
/// If a day has too many fires, shorter ranges are read; this is the shortest.
const SHORTEST_RANGE: Duration = Duration::from_secs(1);
/// If a range of the length [`SHORTEST_RANGE`] has too many entries, at most this many further pages of it are read.
const FURTHER_PAGE_COUNT_MAX: usize = 20;

/// The query parameters of the page: up to when to show past fires, and the question "why".
#[derive(Debug)]
pub(crate) struct FiresQuery {
    to: Option<Timestamp>,
    at: Option<String>,
    zone: Option<String>,
}

impl FromQuery for FiresQuery {
    fn from_query(reader: &mut Reader) -> Self {
        let to = reader.parsed("to", |text| {
            let at = text.parse::<Timestamp>().map_err(|error| error.to_string())?;
            let is_valid = (Timestamp::EPOCH..Timestamp::from_secs(7_258_118_400)).contains(&at);
            is_valid.then_some(at).ok_or_else(|| format!("{at} is outside the years 1970 to 2199"))
        });
        Self { to, at: reader.single("at"), zone: reader.single("zone") }
    }
}

/// The form that asks why the job did or did not run at an instant.
pub(super) struct WhyForm {
    pub(super) name: String,
    pub(super) at: String,
    /// The time zones to select from; `true` for the selected one.
    pub(super) zones: Vec<(String, bool)>,
}

impl WhyForm {
    /// The form before a question is asked. Its zone is that of the first schedule, or UTC.
    pub(super) fn new(spec: &JobSpec) -> Self {
        let zone = zone_of(spec);
        let zones = [(zone, true), (Tz::UTC, false)];
        let count = if zone == Tz::UTC { 1 } else { 2 };
        let zones =
            zones.into_iter().take(count).map(|(zone, is_chosen)| (zone.name().to_owned(), is_chosen)).collect();
        Self { name: spec.name.clone(), at: String::new(), zones }
    }

    /// The form with the question that was asked.
    fn with_question(mut self, at: &str, zone: &str) -> Self {
        at.clone_into(&mut self.at);
        if !self.zones.iter().any(|(name, _)| name == zone) && parse_zone(zone).is_ok() {
            self.zones.push((zone.to_owned(), false));
        }
        if self.zones.iter().any(|(name, _)| name == zone) {
            self.zones.iter_mut().for_each(|(name, is_chosen)| *is_chosen = name == zone);
        }
        self
    }
}

/// An instant in UTC, and on the clock of the schedule if that differs.
struct ShownInstant {
    at: Moment,
    local: Option<String>,
    /// The URL that asks "why" about the instant.
    why_url: String,
}

/// A fire, or several consecutive fires with the same verdict.
struct FireRow {
    instant: ShownInstant,
    /// The number of fires and the last one, if there are several.
    repetition: Option<(u64, ShownInstant)>,
    class: &'static str,
    word: &'static str,
    run: Option<RunId>,
    /// The explanation of the verdict; empty if there is none.
    explanation: String,
}

/// The answer to the question about an instant.
struct InstantAnswer {
    instant: ShownInstant,
    sentence: Vec<SentencePart>,
    class: &'static str,
    run: Option<RunId>,
    previous_fire: Option<ShownInstant>,
    next_fire: Option<ShownInstant>,
}

#[derive(Template)]
#[template(path = "fires.html")]
struct FiresPage {
    shell: Shell,
    t: &'static Texts,
    name: String,
    form: WhyForm,
    error: Option<String>,
    /// The note that the local time the user asked about does not exist, or occurs twice, because clocks change.
    note: Option<String>,
    answers: Vec<InstantAnswer>,
    from: ShownInstant,
    to: ShownInstant,
    past_rows: Vec<FireRow>,
    upcoming_rows: Vec<FireRow>,
    has_more: bool,
    /// The URL of the page with earlier fires.
    earlier_url: String,
    /// Whether the past fires reach up to now, because the user chose no other end. Only then does the page reload its lists.
    is_live: bool,
}

/// Formats instants, entries and answers of one job.
struct FireFormatter<'a> {
    name: &'a str,
    zone: Tz,
    now: Timestamp,
    t: &'static Texts,
}

impl FireFormatter<'_> {
    fn shown_instant(&self, at: Timestamp) -> ShownInstant {
        ShownInstant {
            at: Moment::new(at, self.now, self.t),
            local: (self.zone != Tz::UTC).then(|| words::instant_text(self.zone, at)),
            why_url: super::why::question_url(self.name, Some(at)),
        }
    }

    fn row(&self, entry: &Entry, messages: &HashMap<RunId, String>) -> FireRow {
        let t = self.t;
        let (class, word) = class_and_word(&entry.verdict, t);
        let repetition = (entry.count > 1).then(|| (entry.count, self.shown_instant(entry.last)));
        let (run, explanation) = match &entry.verdict {
            FireVerdict::Row { run, status, reason, detail, is_planned } => {
                // The sentence for attempt 1 does not mention the attempt; the page of the run shows it.
                let facts = RunStatusFacts { status: *status, reason: *reason, detail: detail.as_deref(), attempt: 1 };
                let unplanned_note = (!is_planned).then(|| t.fires_unplanned.to_owned());
                let reason_sentence = sentence(facts, t.lang()).or_else(|| messages.get(run).cloned());
                let sentences = reason_sentence.into_iter().chain(unplanned_note);
                (Some(*run), sentences.collect::<Vec<_>>().join(" "))
            }
            FireVerdict::Span { run, reason, detail } => {
                let status = RunStatus::Skipped;
                let facts = RunStatusFacts { status, reason: *reason, detail: detail.as_deref(), attempt: 1 };
                (Some(*run), sentence(facts, t.lang()).unwrap_or_else(|| t.fires_span.to_owned()))
            }
            FireVerdict::Calendar { calendar, day, moved_to } => {
                let moved_note = moved_to.map(|at| t.fires_moved(words::instant_text(self.zone, at)));
                let sentences = [Some(calendar.clone()), day.clone(), moved_note];
                (None, sentences.into_iter().flatten().collect::<Vec<_>>().join(" · "))
            }
            FireVerdict::Maintenance { ends_at, .. } => {
                (None, format!("{} {}", t.alerts_ends, words::instant_text(self.zone, *ends_at)))
            }
            FireVerdict::Paused
            | FireVerdict::Undecided
            | FireVerdict::Planned
            | FireVerdict::Removed
            | FireVerdict::Missing => (None, String::new()),
        };
        FireRow { instant: self.shown_instant(entry.first), repetition, class, word, run, explanation }
    }

    fn answer(&self, at: Timestamp, why: &Why) -> InstantAnswer {
        let verdict = why.entry.as_ref().map(|entry| &entry.verdict);
        let run = verdict.and_then(FireVerdict::run);
        InstantAnswer {
            instant: self.shown_instant(at),
            sentence: split_at_runs(&visible_text(why.sentence(self.t.lang()))),
            class: verdict.map_or("skipped", |verdict| class_and_word(verdict, self.t).0),
            run,
            previous_fire: why.before.map(|at| self.shown_instant(at)),
            next_fire: why.after.map(|at| self.shown_instant(at)),
        }
    }
}

/// The CSS class of a verdict, which decides shape and colour, and its word.
pub(super) const fn class_and_word(verdict: &FireVerdict, t: &Texts) -> (&'static str, &'static str) {
    match verdict {
        FireVerdict::Row { status, .. } => (status.as_str(), t.status(*status)),
        FireVerdict::Span { .. } => ("skipped", t.status_skipped),
        FireVerdict::Calendar { .. } => ("cancelled", t.verdict_calendar),
        FireVerdict::Paused => ("skipped", t.verdict_paused),
        FireVerdict::Maintenance { .. } => ("skipped", t.verdict_maintenance),
        FireVerdict::Undecided => ("waiting", t.verdict_undecided),
        FireVerdict::Planned => ("pending", t.verdict_planned),
        FireVerdict::Removed => ("cancelled", t.verdict_removed),
        FireVerdict::Missing => ("unknown", t.verdict_missing),
    }
}

/// The instants that the user asks about, and their zone.
struct Question {
    instants: Vec<Timestamp>,
    zone: Tz,
}

fn parse_question(at: &str, zone: &str, t: &Texts) -> Result<Question, String> {
    let zone = parse_zone(zone).map_err(|error| t.why_bad_zone(error.name))?;
    let instants = words::instants(zone, at).ok_or_else(|| t.why_bad_time.to_owned())?;
    Ok(Question { instants, zone })
}

pub(super) async fn page(page: Page<FiresQuery>, Named(name, ..): Named<path::Job>) -> Result<Response, Problem> {
    // Reads the job before its fires: a fire that is claimed in between has a run and is shown with it.
    let record = find(&page.call, &name).await?;
    zones::set_job(&record.spec);
    let (now, t, query) = (page.engine().now(), page.t, page.query());
    let formatter = FireFormatter { name: &record.spec.name, zone: zone_of(&record.spec), now, t };
    let mut form = WhyForm::new(&record.spec);
    let (mut answers, mut note, mut error) = (Vec::new(), None, None);
    let visible_apps = page.call.visible_apps();
    if query.at.as_deref().is_some_and(|at| at.trim().is_empty()) {
        let answer = page.engine().why_now(&record, visible_apps.as_deref()).await?;
        answers.push(formatter.answer(answer.at, &answer));
    } else if let Some(at) = query.at.as_deref() {
        let zone = query.zone.as_deref().unwrap_or(formatter.zone.name());
        form = form.with_question(at, zone);
        match parse_question(at, zone, t) {
            Ok(Question { instants, zone }) => {
                for at in &instants {
                    answers
                        .push(formatter.answer(*at, &page.engine().why(&record, *at, visible_apps.as_deref()).await?));
                }
                note = match instants.len() {
                    0 => Some(t.why_gap(zone.name())),
                    1 => None,
                    _ => Some(t.why_twice(zone.name())),
                };
            }
            Err(message) => error = Some(message),
        }
    }
    let to = query.to.unwrap_or(now);
    let (from, history) = past_day(&page, &record, to).await?;
    let messages = failure_messages(&page, &history).await?;
    let upcoming_range = Range { from: now + Duration::from_millis(1), to: now + DAY, limit: UPCOMING_ROW_COUNT };
    let upcoming_fires = page.engine().fires(&record, upcoming_range, visible_apps.as_deref()).await?;
    let status = if error.is_some() { StatusCode::UNPROCESSABLE_ENTITY } else { StatusCode::OK };
    let template = FiresPage {
        shell: page.shell(Nav::Jobs),
        t,
        name: record.spec.name.clone(),
        form,
        error,
        note,
        answers,
        from: formatter.shown_instant(from),
        to: formatter.shown_instant(to),
        past_rows: history.entries.iter().rev().map(|entry| formatter.row(entry, &messages)).collect(),
        upcoming_rows: upcoming_fires.entries.iter().map(|entry| formatter.row(entry, &messages)).collect(),
        has_more: upcoming_fires.next.is_some(),
        earlier_url: format!(
            "/jobs/{}/fires?{}",
            record.spec.name,
            query_pair("to", &millisecond_before(from).to_string())
        ),
        is_live: query.to.is_none(),
    };
    html(status, &template)
}

/// The messages of the runs that did not succeed: a failure is explained by its message, not by a reason of the server.
async fn failure_messages(
    page: &Page<FiresQuery>,
    history: &FireHistory,
) -> Result<HashMap<RunId, String>, StoreError> {
    let failed_run = |entry: &Entry| match &entry.verdict {
        FireVerdict::Row { run, status, .. } => {
            (*status != RunStatus::Succeeded && status.is_terminal()).then_some(*run)
        }
        _ => None,
    };
    let ids: Vec<RunId> = history.entries.iter().filter_map(failed_run).collect();
    if ids.is_empty() {
        return Ok(HashMap::new());
    }
    let message = |run: &Run| {
        let text = own_message(run.message.as_deref(), run.reason, run.detail.as_deref(), page.t.lang())?;
        let cut_message = text.char_indices().nth(MESSAGE_LEN_MAX).map(|(end, _)| format!("{}…", &text[..end]));
        Some((run.id, cut_message.unwrap_or(text)))
    };
    Ok(page.engine().store().runs(&ids).await?.iter().filter_map(message).collect())
}

fn millisecond_before(at: Timestamp) -> Timestamp {
    at.saturating_sub(Duration::from_millis(1)).max(Timestamp::EPOCH)
}

/// The history of the day up to `to`, and where its range begins. If the day has more fires than a page shows, the range is shorter. The
/// history always has the newest entries: if the fires become much denser towards the end of the day, ever shorter ranges are read.
async fn past_day(
    page: &Page<FiresQuery>,
    record: &JobRecord,
    to: Timestamp,
) -> Result<(Timestamp, FireHistory), StoreError> {
    let mut searched_length = DAY;
    loop {
        let from = to.saturating_sub(searched_length).max(Timestamp::EPOCH);
        let history = read_history(page, record, from, to).await?;
        match history.next.filter(|next| *next <= to) {
            None => return Ok((from, history)),
            // The range has too many fires for one page, and the read ended at `next`. Tries again with a shorter range. If the fires are
            // evenly spread, a range as long as the part that was read fits into one page.
            Some(next) if searched_length > SHORTEST_RANGE => {
                searched_length = (searched_length / 2).min(next.since(from)).max(SHORTEST_RANGE)
            }
            Some(next) => return newest_entries(page, record, (next, to), history).await,
        }
    }
}

/// The newest entries of a range that is as short as possible and still has more entries than a page shows.
async fn newest_entries(
    page: &Page<FiresQuery>,
    record: &JobRecord,
    (mut from, to): (Timestamp, Timestamp),
    mut history: FireHistory,
) -> Result<(Timestamp, FireHistory), StoreError> {
    for _ in 0..FURTHER_PAGE_COUNT_MAX {
        let mut older_entries = read_history(page, record, from, to).await?;
        history.entries.append(&mut older_entries.entries);
        history.next = older_entries.next;
        match history.next.filter(|next| *next <= to && *next > from) {
            Some(next) => from = next,
            None => break,
        }
    }
    history.entries.drain(..history.entries.len().saturating_sub(PAST_ROW_COUNT));
    Ok((history.entries.first().map_or(from, |entry| entry.first), history))
}

async fn read_history(
    page: &Page<FiresQuery>,
    record: &JobRecord,
    from: Timestamp,
    to: Timestamp,
) -> Result<FireHistory, StoreError> {
    let visible_apps = page.call.visible_apps();
    page.engine().fires(record, Range { from, to, limit: PAST_ROW_COUNT }, visible_apps.as_deref()).await
}

#[cfg(test)]
mod tests {
    use rondel_core::reason::Reason;

    use super::super::texts::Lang;
    use super::*;

    #[test]
    fn a_failure_without_a_reason_is_explained_by_its_message() {
        let formatter = FireFormatter { name: "a", zone: Tz::UTC, now: Timestamp::EPOCH, t: Lang::En.texts() };
        let (run, at) = (RunId::new(7), Timestamp::from_secs(60));
        let messages = HashMap::from([(run, "exit code 7".to_owned())]);
        let why = |status, reason| {
            let verdict = FireVerdict::Row { run, status, reason, detail: None, is_planned: true };
            formatter.row(&Entry { first: at, last: at, count: 1, verdict }, &messages).explanation
        };
        assert_eq!(why(RunStatus::Failed, None), "exit code 7");
        assert_ne!(why(RunStatus::Skipped, Some(Reason::Paused)), "exit code 7");
    }
}
