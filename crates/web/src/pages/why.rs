//! The page "Why did this job run, or not, at …?": one box for the question, the verdict, its causes, and what would keep the job from
//! running now.

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
use super::run_links::{Piece, split_at_runs};
use super::shell::{Nav, Page, Shell, html};
use super::texts::Texts;
use super::view::visible_text;
use super::zones::{self, zone_of};
use crate::incident_of_fire::{self, IncidentRef};
use crate::problem::Problem;
use crate::query::{FromQuery, Reader};
use crate::redirect::query_pair;

/// How many job names the box suggests.
const JOB_COUNT: u32 = 300;
/// If no job has the typed name, at most this many job names are searched for similar ones.
const SEARCH_COUNT: u32 = 5_000;
/// How many similar names are shown.
const NEAR_COUNT: usize = 5;
/// Maximum number of instants for one question: when a clock is set back, it shows a time twice.
const ANSWER_COUNT: usize = 2;
/// Maximum length of each text of a question, in characters. Longer texts are cut.
const TEXT_LEN_MAX: usize = 200;

/// The question in the URL's parameters.
#[derive(Debug)]
pub(super) struct WhyQuery {
    job: String,
    at: String,
    zone: Option<String>,
}

impl FromQuery for WhyQuery {
    fn from_query(reader: &mut Reader) -> Self {
        let short = |text: String| text.trim().chars().take(TEXT_LEN_MAX).collect::<String>();
        let mut text = |name: &'static str| reader.single(name).map(short);
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
    near: Vec<(String, String)>,
    /// The note that the local time the user asked about does not exist, or occurs twice, because clocks change.
    note: Option<String>,
    answers: Vec<Answer>,
    checks: Vec<Check>,
    code: Option<AsCode>,
}

/// An instant in UTC, and on the clock of the question.
struct When {
    at: Moment,
    local: Option<String>,
    /// The URL of the question about this instant.
    why: String,
}

struct Answer {
    when: When,
    class: &'static str,
    word: &'static str,
    /// The first sentence of the answer.
    verdict: Vec<Piece>,
    /// The sentences about the causes.
    chain: Vec<Vec<Piece>>,
    run: Option<RunId>,
    /// The name and the page of the run's executor. Executors of other apps may have the same name.
    executor: Option<(String, String)>,
    incident: Option<IncidentRef>,
    /// The previous fire.
    before: Option<When>,
    /// The next fire.
    after: Option<When>,
}

/// A condition that must be met for the job to run now.
struct Check {
    is_good: bool,
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
    let mut shown = WhyPage {
        shell: page.shell(Nav::Why),
        t,
        job: query.job.clone(),
        at: query.at.clone(),
        zone: query.zone.clone().unwrap_or_default(),
        zones: Vec::new(),
        jobs: Vec::new(),
        error: None,
        near: Vec::new(),
        note: None,
        answers: Vec::new(),
        checks: Vec::new(),
        code: None,
    };
    let mut status = StatusCode::OK;
    match &record {
        Some(record) => {
            if !fill_in_answers(&page, record, &mut shown).await? {
                status = StatusCode::UNPROCESSABLE_ENTITY;
            }
        }
        None if query.job.is_empty() => shown.jobs = job_names(&page, JOB_COUNT).await?,
        None => {
            let known = job_names(&page, SEARCH_COUNT).await?;
            let near = near_misses(&query.job, known.iter().map(String::as_str), NEAR_COUNT);
            let link = |name: &&str| format!("{}&{}", question_url(name, None), query_pair("at", &query.at));
            shown.near = near.iter().map(|name| ((*name).to_owned(), link(name))).collect();
            shown.error = Some(t.why_no_job(&query.job));
            shown.jobs = known.into_iter().take(JOB_COUNT as usize).collect();
            status = StatusCode::NOT_FOUND;
        }
    }
    html(status, &shown)
}

async fn job_names(page: &Page<WhyQuery>, limit: u32) -> Result<Vec<String>, Problem> {
    let query = JobQuery { app: None, within: page.call.visible_apps(), name_contains: None, after_name: None, limit };
    let found = page.engine().store().jobs(page.call.namespace.id, &query).await?;
    Ok(found.into_iter().map(|record| record.spec.name).collect())
}

/// Adds the answers to the page. Returns `false` if the question cannot be parsed.
async fn fill_in_answers(page: &Page<WhyQuery>, record: &JobRecord, shown: &mut WhyPage) -> Result<bool, Problem> {
    let (t, now, within) = (page.t, page.engine().now(), page.call.visible_apps());
    let own_zone = zone_of(&record.spec);
    zones::set_job(&record.spec);
    let zone_text = page.query().zone.clone().unwrap_or_else(|| own_zone.name().to_owned());
    shown.zones = vec![own_zone.name().to_owned()];
    if own_zone != Tz::UTC {
        shown.zones.push("UTC".to_owned());
    }
    shown.zone.clone_from(&zone_text);
    let Ok(zone) = parse_zone(&zone_text) else {
        shown.error = Some(t.why_bad_zone(zone_text));
        return Ok(false);
    };
    if !shown.zones.contains(&zone_text) {
        shown.zones.push(zone_text);
    }
    let formatter = AnswerFormatter { job: &record.spec.name, zone, now, t };
    let mut answers = Vec::new();
    if shown.at.is_empty() {
        answers.push(page.engine().why_now(record, within.as_deref()).await?);
    } else {
        let Some(instants) = words::asked_instants(zone, &shown.at, now) else {
            shown.error = Some(t.asked_bad_time.to_owned());
            return Ok(false);
        };
        shown.note = match instants.len() {
            0 => Some(t.why_gap(zone.name())),
            1 => None,
            _ => Some(t.why_twice(zone.name())),
        };
        for at in instants.into_iter().take(ANSWER_COUNT) {
            answers.push(page.engine().why(record, at, within.as_deref()).await?);
        }
    }
    for why in &answers {
        let run = why.entry.as_ref().and_then(|entry| entry.verdict.run());
        let row = match run {
            Some(run) => page.engine().store().runs(&[run]).await?.pop(),
            None => None,
        };
        let executor = row.and_then(|run| {
            let name = run.present_executor()?;
            let app = if run.app == record.app { format!("?app={}", record.spec.app) } else { String::new() };
            Some((name.to_owned(), format!("/executors/{name}{app}")))
        });
        let incident = incident_of_fire::incident_of_answer(&page.call, record.id, why).await?;
        shown.answers.push(Answer { incident, ..formatter.answer(why, run, executor) });
    }
    shown.checks = checks(page, record).await?;
    let at = answers.first().filter(|_| !shown.at.is_empty()).map(|why| why.at.to_string());
    let path = format!("/api/v1/jobs/{}/why", record.spec.name);
    let path = at.as_ref().map_or_else(|| path.clone(), |at| format!("{path}?{}", query_pair("at", at)));
    let flag = at.map(|at| format!(" --at {}", shell_quoted(&at))).unwrap_or_default();
    let command = format!("why {}{flag}", record.spec.name);
    shown.code = Some(page.code(("GET", &path), None, &command));
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
    fn when(&self, at: Timestamp) -> When {
        When {
            at: Moment::new(at, self.now, self.t),
            local: (self.zone != Tz::UTC).then(|| words::instant_text(self.zone, at)),
            why: question_url(self.job, Some(at)),
        }
    }

    fn answer(&self, why: &Why, run: Option<RunId>, executor: Option<(String, String)>) -> Answer {
        let nothing = ("skipped", self.t.why_nothing_planned);
        let (class, word) = why.entry.as_ref().map_or(nothing, |entry| class_and_word(&entry.verdict, self.t));
        let sentences = sentences(&visible_text(why.sentence(self.t.lang())));
        let mut parts = sentences.iter().map(|sentence| split_at_runs(sentence));
        let verdict = parts.next().unwrap_or_default();
        Answer {
            when: self.when(why.at),
            class,
            word,
            verdict,
            chain: parts.collect(),
            run,
            executor,
            incident: None,
            before: why.before.map(|at| self.when(at)),
            after: why.after.map(|at| self.when(at)),
        }
    }
}

/// Splits an answer into sentences. A full stop ends a sentence only at the end of the text, or before a blank and a capital letter: names
/// may contain full stops.
fn sentences(text: &str) -> Vec<String> {
    let mut sentences = Vec::new();
    let mut begin = 0;
    let ends = |at: usize, mark: char| {
        let rest = &text[at + mark.len_utf8()..];
        match mark {
            '。' => true,
            '.' => rest.is_empty() || rest.strip_prefix(' ').is_some_and(|rest| rest.starts_with(char::is_uppercase)),
            _ => false,
        }
    };
    for (at, mark) in text.char_indices() {
        if ends(at, mark) {
            let end = at + mark.len_utf8();
            sentences.push(text[begin..end].trim().to_owned());
            begin = end;
        }
    }
    sentences.push(text[begin..].trim().to_owned());
    sentences.retain(|sentence| !sentence.is_empty());
    sentences
}

/// The conditions for the job to run now, and whether each is met.
async fn checks(page: &Page<WhyQuery>, record: &JobRecord) -> Result<Vec<Check>, Problem> {
    let (t, spec) = (page.t, &record.spec);
    let mut checks = Vec::new();
    let mut add = |is_good, sentence, link| checks.push(Check { is_good, sentence, link });
    if !spec.enabled {
        add(false, t.check_paused.to_owned(), Some(format!("/jobs/{}/activity", spec.name)));
    }
    let mode = ModeFrom { mode: spec.mode, from: spec.mode_from.as_deref().and_then(|from| from.parse().ok()) };
    if mode.is_shadow_at(page.engine().now()) {
        add(false, t.check_shadow.to_owned(), Some(format!("/jobs/{}", spec.name)));
    }
    for parent in paused_parents(page, record).await? {
        let link = format!("/jobs/{parent}");
        add(false, t.check_parent_paused(parent), Some(link));
    }
    let switches = page.engine().store().switches().await?;
    match switches.of_app(record.app) {
        Switch::Active => {}
        Switch::Draining => add(false, t.check_app_draining(&spec.app), Some("/executors".to_owned())),
        Switch::Stopped => add(false, t.check_app_stopped(&spec.app), Some("/executors".to_owned())),
    }
    let mut online = page.engine().online_executors();
    online.retain(|one| one.namespace == record.namespace && one.app == record.app);
    if online.is_empty() {
        add(false, t.check_no_executor(&spec.app), Some("/executors/new".to_owned()));
        return Ok(checks);
    }
    for one in online.iter().filter(|one| one.has_handler(&spec.handler)).take(NEAR_COUNT) {
        if let Some(switch) = switches.of_executor(record.app, given_name(&one.name)) {
            let sentence = match switch.switch {
                Switch::Stopped => t.check_executor_stopped(&one.name),
                _ => t.check_executor_draining(&one.name),
            };
            add(false, sentence, Some(format!("/executors/{}?app={}", one.name, spec.app)));
        }
    }
    let handlers = jobs::handlers(page.engine(), record.app);
    let is_meant = |handler: &&Handler| takes_handler([handler.name.as_str()], &spec.handler);
    match handlers.iter().find(is_meant) {
        Some(handler) => add(true, t.check_handler(joined_names(&handler.executors, t), &spec.handler), None),
        None => {
            let near = near_misses(&spec.handler, handlers.iter().map(|handler| handler.name.as_str()), NEAR_COUNT);
            let near: Vec<String> = near.into_iter().map(str::to_owned).collect();
            let sentence = match near.is_empty() {
                true => t.check_no_handler(&spec.app, &spec.handler),
                false => t.check_near_handler(&spec.app, &spec.handler, joined_names(&near, t)),
            };
            add(false, sentence, Some(format!("/jobs/{}/edit", spec.name)));
        }
    }
    if let Ok(select) = Select::new(&spec.select)
        && !select.is_any()
    {
        // Executors without the handler do not matter if others have it: the check then looks only at those with the handler.
        let mut able: Vec<_> = online.iter().filter(|one| one.has_handler(&spec.handler)).collect();
        if able.is_empty() {
            able = online.iter().collect();
        }
        let admitted = able.iter().filter(|one| select.admits(given_name(&one.name), &one.labels));
        let admitted: Vec<String> = admitted.map(|one| one.name.clone()).collect();
        if admitted.is_empty() {
            for one in able.into_iter().take(NEAR_COUNT) {
                let labels = one.labels.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>();
                match select.unmet_condition(given_name(&one.name), &one.labels) {
                    Some(UnmetCondition::Label(wanted)) => {
                        add(false, t.check_label(&one.name, joined_names(&labels, t), wanted), None)
                    }
                    Some(UnmetCondition::Name) => add(false, t.check_name(&one.name), None),
                    None => {}
                }
            }
        } else {
            add(true, t.check_selected(joined_names(&admitted, t)), None);
        }
    }
    Ok(checks)
}

/// The paused jobs that the job follows from. Without a run of theirs it does not run.
async fn paused_parents(page: &Page<WhyQuery>, record: &JobRecord) -> Result<Vec<String>, Problem> {
    let mut found = Vec::new();
    for parent in record.spec.parents() {
        let parent = page.engine().store().job(record.namespace, parent.name).await?;
        found.extend(parent.filter(|one| !one.spec.enabled && page.call.may_view(one.app)).map(|one| one.spec.name));
    }
    found.truncate(NEAR_COUNT);
    Ok(found)
}

/// The first few names in one text, and how many more there are.
fn joined_names(names: &[String], t: &Texts) -> String {
    let shown = names.iter().take(NEAR_COUNT).map(String::as_str).collect::<Vec<_>>().join(t.list_separator);
    match names.len() {
        0 => t.none.to_owned(),
        count if count > NEAR_COUNT => format!("{shown} +{}", count - NEAR_COUNT),
        _ => shown,
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
