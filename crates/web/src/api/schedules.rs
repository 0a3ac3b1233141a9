//! Schedules: what one means and when it would fire, before it is saved.

use axum::response::Response;
use http::StatusCode;
use rondel_admin::jobs::JobError;
use rondel_core::preview::{Ask, PER_DAY_MAX, Warning, preview};
use rondel_core::schedule::{Kind, Schedule};
use rondel_core::words::{self, Lang};
use rondel_core::{FieldError, Job, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::job_body;
use crate::body::{JsonBody, read, refuse_value};
use crate::call::Call;
use crate::frame::json;
use crate::problem::Problem;

/// How many fires an answer has if the caller does not say.
const COUNT_DEFAULT: u32 = 10;
/// How many it can have.
const COUNT_MAX: u32 = 100;

/// What is asked: the fields of a job that say when.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PreviewBody {
    schedule: Value,
    #[serde(default)]
    calendar: Value,
    #[serde(default)]
    count: Option<u32>,
    #[serde(default)]
    after: Option<Timestamp>,
}

/// A sentence in each language.
#[derive(Serialize)]
struct Sentence {
    en: String,
    zh: String,
}

#[derive(Serialize)]
struct PreviewJson {
    /// One for each schedule.
    sentences: Vec<Sentence>,
    /// How each was read: null where it is no cron expression.
    dialects: Vec<Option<rondel_core::cron::Dialect>>,
    time_zone: &'static str,
    fires: Vec<FireJson>,
    warnings: Vec<WarningJson>,
}

#[derive(Serialize)]
struct FireJson {
    at: Timestamp,
    local: String,
}

#[derive(Serialize)]
struct WarningJson {
    code: &'static str,
    at: Option<Timestamp>,
    #[serde(flatten)]
    sentence: Sentence,
}

pub(super) async fn post(call: Call, JsonBody(body): JsonBody) -> Result<Response, Problem> {
    let body: PreviewBody = read(&body)?;
    let count = body.count.unwrap_or(COUNT_DEFAULT);
    if !(1..=COUNT_MAX).contains(&count) {
        return Err(refuse_value("/count", format!("{count} fires; 1 to {COUNT_MAX} can be had")));
    }
    let now = call.engine().now();
    let job = compile(&call, body.schedule, body.calendar).await?;
    let ask = Ask {
        timetable: &job.timetable,
        anchor: now.ceil_second(),
        after: body.after.unwrap_or(now),
        count: usize::try_from(count).unwrap_or(usize::MAX),
        per_day_max: PER_DAY_MAX,
    };
    json(StatusCode::OK, &answer(ask))
}

/// The definition of a job that has nothing but these schedules.
pub(crate) async fn compile<Q>(call: &Call<Q>, schedule: Value, calendar: Value) -> Result<Job, Problem> {
    let mut document = json!({"name": "a", "app": "a", "handler": "a", "schedule": schedule});
    if !calendar.is_null() {
        document["calendar"] = calendar;
    }
    let spec = job_body::from_value(document)?;
    let calendar = match &spec.calendar {
        Some(used) => match call.engine().calendar(call.namespace.id, &used.name).await? {
            Some((_, calendar)) => Some(calendar),
            None => {
                let message = format!("there is no calendar {:?} in this namespace", used.name);
                return Err(JobError::Invalid(vec![FieldError::new("/calendar/name", message)]).into());
            }
        },
        None => None,
    };
    spec.compile_with(calendar).map_err(|errors| JobError::Invalid(errors).into())
}

fn answer(ask: Ask<'_>) -> PreviewJson {
    let [en, zh] = [Lang::En, Lang::Zh].map(|lang| words::timetable(ask.timetable, lang));
    let found = preview(ask);
    PreviewJson {
        sentences: en.into_iter().zip(zh).map(|(en, zh)| Sentence { en, zh }).collect(),
        dialects: ask.timetable.schedules.iter().map(dialect).collect(),
        time_zone: found.zone.name(),
        fires: found.fires.into_iter().map(|fire| FireJson { at: fire.at, local: fire.local }).collect(),
        warnings: found.warnings.into_iter().map(warning).collect(),
    }
}

fn dialect(schedule: &Schedule) -> Option<rondel_core::cron::Dialect> {
    match &schedule.kind {
        Kind::Cron { expr, .. } => Some(expr.dialect()),
        Kind::Every(_) | Kind::Delay(_) | Kind::At(_) | Kind::After(_) => None,
    }
}

fn warning(Warning { code, at, en, zh }: Warning) -> WarningJson {
    WarningJson { code: code.as_str(), at, sentence: Sentence { en, zh } }
}
