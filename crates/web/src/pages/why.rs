//! The page "Why did this job run, or not, at …?": one box for the question, the verdict, its causes, and the conditions for the job to run
//! now.

use askama::Template;
use axum::response::Response;
use http::StatusCode;
use rondel_admin::{Handler, given_name, jobs};
use rondel_core::cron::{Tz, parse_zone};
use rondel_core::fires::Why;
use rondel_core::homes::Switch;
use rondel_core::name::takes_handler;
use rondel_core::near::near_misses;
use rondel_core::select::{Select, UnmetCondition};
use rondel_core::shadow::ModeFrom;
use rondel_core::{RunId, Timestamp, name, words};
use rondel_store::catalog::{JobQuery, JobRecord};

use super::as_code::{AsCode, shell_quoted};
use super::fires::class_and_word;
use super::moment::Moment;
use super::run_links::{SentencePart, split_at_runs};
use super::shell::{Nav, Page, Shell, html};
use super::texts::Texts;
use super::view::visible_text;
use super::zones::{self, zone_of};
use crate::incident_of_fire::{self, IncidentRef};
use crate::problem::Problem;
use crate::query::{FromQuery, Reader};
use crate::redirect::query_pair;

/// How many job names the box suggests.
const SUGGESTED_JOB_COUNT: u32 = 300;
/// If no job has the typed name, at most this many job names are searched for similar ones.
const SEARCHED_JOB_COUNT: u32 = 5_000;
/// Maximum number of similar names that are shown, and of objects of one kind that a cause names.
const LISTED_NAME_COUNT: usize = 5;
/// Maximum number of instants for one question: when a clock is set back, it shows a time twice.
const ANSWER_COUNT_MAX: usize = 2;
/// Maximum length of each text of a question, in characters. Longer texts are cut.
const TEXT_LEN_MAX: usize = 200;

/// The question in the query.
#[derive(Debug)]
pub(super) struct WhyQuery {
    job: String,
    at: String,
    zone: Option<String>,
}

impl FromQuery for WhyQuery {
    fn from_query(reader: &mut Reader) -> Self {
        let shortened = |text: String| text.trim().chars().take(TEXT_LEN_MAX).collect::<String>();
        let mut text = |name: &'static str| reader.single(name).map(shortened);
        let (job, at) = (text("job").unwrap_or_default(), text("at").unwrap_or_default());
        Self { job, at, zone: text("zone").filter(|zone| !zone.is_empty()) }
    }
}

pub(super) fn question_url(job: &str, at: Option<Timestamp>) -> String {
    match at {
        None => format!("/why?{}", query_pair("job", job)),
        Some(at) => format!("/why?{}&{}", query_pair("job", job), query_pair("at", &at.to_string())),
    }
}

#[derive(Template)]
#[template(path = "why.html")]
struct WhyPage {
    shell: Shell,
    t: &'static Texts,
    job: String,
    at: String,
    zone: String,
    zones: Vec<String>,
    jobs: Vec<String>,
    error: Option<String>,
    /// Jobs whose names are similar to the typed one: the name, and the URL of the same question about that job.
    similar_names: Vec<(String, String)>,
    /// The note that the local time the user asked about does not exist, or occurs twice, because clocks change.
    note: Option<String>,
    answers: Vec<Answer>,
    checks: Vec<Check>,
    code: Option<AsCode>,
}

/// An instant in UTC, and on the clock of the question.
struct ShownInstant {
    at: Moment,
    local: Option<String>,
    /// The URL of the question about this instant.
    url: String,
}

struct Answer {
    instant: ShownInstant,
    class: &'static str,
    word: &'static str,
    /// The first sentence of the answer.
    verdict: Vec<SentencePart>,
    /// The sentences about the causes.
    cause_sentences: Vec<Vec<SentencePart>>,
    run: Option<RunId>,
    /// The name and the page of the run's executor. Executors of other apps may have the same name.
    executor: Option<(String, String)>,
    incident: Option<IncidentRef>,
    previous_fire: Option<ShownInstant>,
    next_fire: Option<ShownInstant>,
}

/// A condition that must be met for the job to run now.
struct Check {
    is_met: bool,
    sentence: String,
    /// The URL of the page on which to change this condition, if there is one.
    link: Option<String>,
}

pub(super) async fn page(page: Page<WhyQuery>) -> Result<Response, Problem> {
    let (t, query) = (page.t, page.query());
    let record = match name::check(&query.job) {
        Ok(()) => page.engine().store().job(page.call.namespace.id, &query.job).await?,
        Err(_) => None,
    };
    let record = record.filter(|record| page.call.may_view(record.app));
    // The frame of the page has instants too, so the zone is set before the frame is made.
    if let Some(record) = &record {
        zones::set_job(&record.spec);
    }
    let mut template = WhyPage {
        shell: page.shell(Nav::Why),
        t,
        job: query.job.clone(),
        at: query.at.clone(),
        zone: query.zone.clone().unwrap_or_default(),
        zones: Vec::new(),
        jobs: Vec::new(),
        error: None,
        similar_names: Vec::new(),
        note: None,
        answers: Vec::new(),
        checks: Vec::new(),
        code: None,
    };
    let mut status = StatusCode::OK;
    match &record {
        Some(record) => {
            if !fill_in_answers(&page, record, &mut template).await? {
                status = StatusCode::UNPROCESSABLE_ENTITY;
            }
        }
        None if query.job.is_empty() => template.jobs = job_names(&page, SUGGESTED_JOB_COUNT).await?,
        None => {
            let all_names = job_names(&page, SEARCHED_JOB_COUNT).await?;
            let similar_names = near_misses(&query.job, all_names.iter().map(String::as_str), LISTED_NAME_COUNT);
            let link = |name: &&str| format!("{}&{}", question_url(name, None), query_pair("at", &query.at));
            template.similar_names = similar_names.iter().map(|name| ((*name).to_owned(), link(name))).collect();
            template.error = Some(t.why_no_job(&query.job));
            template.jobs = all_names.into_iter().take(SUGGESTED_JOB_COUNT as usize).collect();
            status = StatusCode::NOT_FOUND;
        }
    }
    html(status, &template)
}

async fn job_names(page: &Page<WhyQuery>, limit: u32) -> Result<Vec<String>, Problem> {
    let query = JobQuery { app: None, within: page.call.visible_apps(), name_contains: None, after_name: None, limit };
    let jobs = page.engine().store().jobs(page.call.namespace.id, &query).await?;
    Ok(jobs.into_iter().map(|record| record.spec.name).collect())
}

/// Adds the answers to the page. Returns `false` if the question cannot be parsed.
async fn fill_in_answers(page: &Page<WhyQuery>, record: &JobRecord, template: &mut WhyPage) -> Result<bool, Problem> {
    let (t, now, visible_apps) = (page.t, page.engine().now(), page.call.visible_apps());
    let own_zone = zone_of(&record.spec);
    let zone_text = page.query().zone.clone().unwrap_or_else(|| own_zone.name().to_owned());
    template.zones = vec![own_zone.name().to_owned()];
    if own_zone != Tz::UTC {
        template.zones.push("UTC".to_owned());
    }
    template.zone.clone_from(&zone_text);
    let Ok(zone) = parse_zone(&zone_text) else {
        template.error = Some(t.why_bad_zone(zone_text));
        return Ok(false);
    };
    if !template.zones.contains(&zone_text) {
        template.zones.push(zone_text);
    }
    let formatter = AnswerFormatter { job: &record.spec.name, zone, now, t };
    let mut answers = Vec::new();
    if template.at.is_empty() {
        answers.push(page.engine().why_now(record, visible_apps.as_deref()).await?);
    } else {
        let Some(instants) = words::asked_instants(zone, &template.at, now) else {
            template.error = Some(t.asked_bad_time.to_owned());
            return Ok(false);
        };
        template.note = match instants.len() {
            0 => Some(t.why_gap(zone.name())),
            1 => None,
            _ => Some(t.why_twice(zone.name())),
        };
        for explained_instant in instants.into_iter().take(ANSWER_COUNT_MAX) {
            answers.push(page.engine().why(record, explained_instant, visible_apps.as_deref()).await?);
        }
    }
    for why in &answers {
        let run = why.entry.as_ref().and_then(|entry| entry.verdict.run());
        let run_record = match run {
            Some(run) => page.engine().store().runs(&[run]).await?.pop(),
            None => None,
        };
        let executor = run_record.and_then(|run| {
            let name = run.present_executor()?;
            let app = if run.app == record.app { format!("?app={}", record.spec.app) } else { String::new() };
            Some((name.to_owned(), format!("/executors/{name}{app}")))
        });
        let incident = incident_of_fire::incident_of_answer(&page.call, record.id, why).await?;
        template.answers.push(Answer { incident, ..formatter.answer(why, run, executor) });
    }
    template.checks = checks(page, record).await?;
    let explained_instant = answers.first().filter(|_| !template.at.is_empty()).map(|why| why.at.to_string());
    let path = format!("/api/v1/jobs/{}/why", record.spec.name);
    let path = explained_instant
        .as_ref()
        .map_or_else(|| path.clone(), |explained_instant| format!("{path}?{}", query_pair("at", explained_instant)));
    let flag = explained_instant
        .map(|explained_instant| format!(" --at {}", shell_quoted(&explained_instant)))
        .unwrap_or_default();
    let command = format!("why {}{flag}", record.spec.name);
    template.code = Some(page.code(("GET", &path), None, &command));
    Ok(true)
}

/// Formats the answers about one job.
struct AnswerFormatter<'a> {
    job: &'a str,
    zone: Tz,
    now: Timestamp,
    t: &'static Texts,
}

impl AnswerFormatter<'_> {
    fn shown_instant(&self, at: Timestamp) -> ShownInstant {
        ShownInstant {
            at: Moment::new(at, self.now, self.t),
            local: (self.zone != Tz::UTC).then(|| words::instant_text(self.zone, at)),
            url: question_url(self.job, Some(at)),
        }
    }

    fn answer(&self, why: &Why, run: Option<RunId>, executor: Option<(String, String)>) -> Answer {
        let nothing_planned = ("skipped", self.t.why_nothing_planned);
        let (class, word) = why.entry.as_ref().map_or(nothing_planned, |entry| class_and_word(&entry.verdict, self.t));
        let sentences = sentences(&visible_text(why.sentence(self.t.lang())));
        let mut linked_sentences = sentences.iter().map(|sentence| split_at_runs(sentence));
        let verdict = linked_sentences.next().unwrap_or_default();
        Answer {
            instant: self.shown_instant(why.at),
            class,
            word,
            verdict,
            cause_sentences: linked_sentences.collect(),
            run,
            executor,
            incident: None,
            previous_fire: why.before.map(|at| self.shown_instant(at)),
            next_fire: why.after.map(|at| self.shown_instant(at)),
        }
    }
}

/// Splits an answer into sentences. A full stop ends a sentence only at the end of the text, or before a blank and a capital letter: names
/// may contain full stops.
fn sentences(text: &str) -> Vec<String> {
    let mut sentences = Vec::new();
    let mut start_index = 0;
    let ends_sentence = |mark_index: usize, mark: char| {
        let following_text = &text[mark_index + mark.len_utf8()..];
        match mark {
            '。' => true,
            '.' => {
                following_text.is_empty()
                    || following_text
                        .strip_prefix(' ')
                        .is_some_and(|following_text| following_text.starts_with(char::is_uppercase))
            }
            _ => false,
        }
    };
    for (mark_index, mark) in text.char_indices() {
        if ends_sentence(mark_index, mark) {
            let end_index = mark_index + mark.len_utf8();
            sentences.push(text[start_index..end_index].trim().to_owned());
            start_index = end_index;
        }
    }
    sentences.push(text[start_index..].trim().to_owned());
    sentences.retain(|sentence| !sentence.is_empty());
    sentences
}

/// The conditions for the job to run now, and whether each is met.
async fn checks(page: &Page<WhyQuery>, record: &JobRecord) -> Result<Vec<Check>, Problem> {
    let (t, spec) = (page.t, &record.spec);
    let mut checks = Vec::new();
    let mut add_check = |is_met, sentence, link| checks.push(Check { is_met, sentence, link });
    if !spec.enabled {
        add_check(false, t.check_paused.to_owned(), Some(format!("/jobs/{}/activity", spec.name)));
    }
    let mode = ModeFrom { mode: spec.mode, from: spec.mode_from.as_deref().and_then(|from| from.parse().ok()) };
    if mode.is_shadow_at(page.engine().now()) {
        add_check(false, t.check_shadow.to_owned(), Some(format!("/jobs/{}", spec.name)));
    }
    for parent in paused_parents(page, record).await? {
        let link = format!("/jobs/{parent}");
        add_check(false, t.check_parent_paused(parent), Some(link));
    }
    let switches = page.engine().store().switches().await?;
    match switches.of_app(record.app) {
        Switch::Active => {}
        Switch::Draining => add_check(false, t.check_app_draining(&spec.app), Some("/executors".to_owned())),
        Switch::Stopped => add_check(false, t.check_app_stopped(&spec.app), Some("/executors".to_owned())),
    }
    let mut online_executors = page.engine().online_executors();
    online_executors.retain(|executor| executor.namespace == record.namespace && executor.app == record.app);
    if online_executors.is_empty() {
        add_check(false, t.check_no_executor(&spec.app), Some("/executors/new".to_owned()));
        return Ok(checks);
    }
    for executor in
        online_executors.iter().filter(|executor| executor.has_handler(&spec.handler)).take(LISTED_NAME_COUNT)
    {
        if let Some(switch) = switches.of_executor(record.app, given_name(&executor.name)) {
            let sentence = match switch.switch {
                Switch::Stopped => t.check_executor_stopped(&executor.name),
                _ => t.check_executor_draining(&executor.name),
            };
            add_check(false, sentence, Some(format!("/executors/{}?app={}", executor.name, spec.app)));
        }
    }
    let handlers = jobs::handlers(page.engine(), record.app);
    let is_handler_of_job = |handler: &&Handler| takes_handler([handler.name.as_str()], &spec.handler);
    match handlers.iter().find(is_handler_of_job) {
        Some(handler) => add_check(true, t.check_handler(joined_names(&handler.executors, t), &spec.handler), None),
        None => {
            let similar_names =
                near_misses(&spec.handler, handlers.iter().map(|handler| handler.name.as_str()), LISTED_NAME_COUNT);
            let similar_names: Vec<String> = similar_names.into_iter().map(str::to_owned).collect();
            let sentence = match similar_names.is_empty() {
                true => t.check_no_handler(&spec.app, &spec.handler),
                false => t.check_near_handler(&spec.app, &spec.handler, joined_names(&similar_names, t)),
            };
            add_check(false, sentence, Some(format!("/jobs/{}/edit", spec.name)));
        }
    }
    if let Ok(select) = Select::new(&spec.select)
        && !select.is_any()
    {
        // Executors without the handler do not matter if others have it: the check then looks only at those with the handler.
        let mut capable_executors: Vec<_> =
            online_executors.iter().filter(|executor| executor.has_handler(&spec.handler)).collect();
        if capable_executors.is_empty() {
            capable_executors = online_executors.iter().collect();
        }
        let admitted_names =
            capable_executors.iter().filter(|executor| select.admits(given_name(&executor.name), &executor.labels));
        let admitted_names: Vec<String> = admitted_names.map(|executor| executor.name.clone()).collect();
        if admitted_names.is_empty() {
            for executor in capable_executors.into_iter().take(LISTED_NAME_COUNT) {
                let labels = executor.labels.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>();
                match select.unmet_condition(given_name(&executor.name), &executor.labels) {
                    Some(UnmetCondition::Label(wanted)) => {
                        add_check(false, t.check_label(&executor.name, joined_names(&labels, t), wanted), None)
                    }
                    Some(UnmetCondition::Name) => add_check(false, t.check_name(&executor.name), None),
                    None => {}
                }
            }
        } else {
            add_check(true, t.check_selected(joined_names(&admitted_names, t)), None);
        }
    }
    Ok(checks)
}

/// The paused jobs that the job follows. Without a run of such a job, this job does not run.
async fn paused_parents(page: &Page<WhyQuery>, record: &JobRecord) -> Result<Vec<String>, Problem> {
    let mut parent_names = Vec::new();
    for parent in record.spec.parents() {
        let parent = page.engine().store().job(record.namespace, parent.name).await?;
        parent_names.extend(
            parent
                .filter(|parent| !parent.spec.enabled && page.call.may_view(parent.app))
                .map(|parent| parent.spec.name),
        );
    }
    parent_names.truncate(LISTED_NAME_COUNT);
    Ok(parent_names)
}

/// The first few names in one text, and how many more there are.
fn joined_names(names: &[String], t: &Texts) -> String {
    let name_list = names.iter().take(LISTED_NAME_COUNT).map(String::as_str).collect::<Vec<_>>().join(t.list_separator);
    match names.len() {
        0 => t.none.to_owned(),
        count if count > LISTED_NAME_COUNT => format!("{name_list} +{}", count - LISTED_NAME_COUNT),
        _ => name_list,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_taken_apart_at_its_full_stops() {
        let text = "It did not run: no executor had \"report.daily\". W1 was online. It runs 2.5 s later";
        let found = sentences(text);
        assert_eq!(
            found,
            ["It did not run: no executor had \"report.daily\".", "W1 was online.", "It runs 2.5 s later"]
        );
        assert_eq!(sentences("没有执行。下次在 02:30。"), ["没有执行。", "下次在 02:30。"]);
        assert!(sentences("").is_empty());
    }
}
