//! Explains schedules before they are saved: what they mean, and when they would fire.

use axum::response::Response;
use http::StatusCode;
use rondel_admin::jobs::{self, JobError};
use rondel_core::access::Permission::View;
use rondel_core::preview::{PER_DAY_MAX, PreviewRequest, Warning, WarningCode, preview};
use rondel_core::schedule::{Kind, Schedule};
use rondel_core::spec::{CalendarUse, OneOrMany};
use rondel_core::words::{self, Lang};
use rondel_core::{FieldError, Job, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::jobs::body;
use crate::answer::json_response;
use crate::body::{JsonBody, refuse_value};
use crate::call::Call;
use crate::openapi::Doc;
use crate::problem::Problem;
use crate::routes::Routes;

/// How many fires an answer has if the caller gives no number.
const FIRE_COUNT_DEFAULT: u32 = 10;
/// Maximum number of fires in an answer.
const FIRE_COUNT_MAX: u32 = 100;

/// The fields of a job that define its fires.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "PreviewOrder")]
pub(super) struct PreviewBody {
    /// As in a job.
    #[schemars(with = "Option<OneOrMany>")]
    schedule: Value,
    /// As in a job.
    #[serde(default)]
    #[schemars(with = "Option<CalendarUse>")]
    calendar: Value,
    /// The number of fires to list, 10 if left out.
    #[serde(default)]
    #[schemars(range(min = 1, max = 100))]
    count: Option<u32>,
    /// The instant from which fires are listed; now if left out.
    #[serde(default)]
    after: Option<Timestamp>,
}

/// A sentence in each language.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Sentence {
    /// English.
    pub(super) en: String,
    /// Chinese.
    pub(super) zh: String,
}

/// The meaning of a schedule.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Preview")]
pub(super) struct PreviewJson {
    /// One for each schedule.
    sentences: Vec<Sentence>,
    /// The cron dialect of each schedule; null if it is not a cron expression.
    dialects: Vec<Option<rondel_core::cron::Dialect>>,
    /// The zone of the first schedule.
    time_zone: &'static str,
    fires: Vec<FireJson>,
    warnings: Vec<WarningJson>,
}

/// An upcoming fire.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "PreviewFire")]
struct FireJson {
    at: Timestamp,
    /// The local time in that zone.
    local: String,
}

/// A warning.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "PreviewWarning")]
struct WarningJson {
    #[schemars(with = "WarningCode")]
    code: &'static str,
    at: Option<Timestamp>,
    #[serde(flatten)]
    sentence: Sentence,
}

pub(super) fn routes() -> Routes {
    Routes::new().post(
        "/api/v1/schedules/preview",
        View,
        post,
        Doc::new(
            "Explain a schedule",
            "Describes the schedule in sentences, with its next fires and warnings. Nothing is saved.",
        )
        .json::<PreviewJson>(200, "The meaning of the schedule.")
        .example(json!({"schedule": {"cron": "0 30 2 * * ?", "time_zone": "Europe/Berlin"}, "count": 3})),
    )
}

async fn post(call: Call, body: JsonBody<PreviewBody>) -> Result<Response, Problem> {
    let body = body.read()?;
    let count = body.count.unwrap_or(FIRE_COUNT_DEFAULT);
    if !(1..=FIRE_COUNT_MAX).contains(&count) {
        return Err(refuse_value("/count", format!("{count} fires; 1 to {FIRE_COUNT_MAX} can be had")));
    }
    let now = call.engine().now();
    let job = compile(&call, body.schedule, body.calendar).await?;
    let request = PreviewRequest {
        timetable: &job.timetable,
        anchor: now.ceil_second(),
        after: body.after.unwrap_or(now),
        count: usize::try_from(count).unwrap_or(usize::MAX),
        per_day_max: PER_DAY_MAX,
    };
    json_response(StatusCode::OK, &preview_json(request))
}

/// Compiles a job definition that has only this schedule and this calendar.
pub(crate) async fn compile<Q>(call: &Call<Q>, schedule: Value, calendar: Value) -> Result<Job, Problem> {
    let mut document = json!({"name": "a", "app": "a", "handler": "a", "schedule": schedule});
    if !calendar.is_null() {
        document["calendar"] = calendar;
    }
    let spec = body::from_value(document)?;
    let calendar = match &spec.calendar {
        Some(calendar_use) => match jobs::calendar(call.engine(), call.namespace.id, &calendar_use.name).await? {
            Some((_, calendar)) => Some(calendar),
            None => {
                let message = format!("there is no calendar {:?} in this namespace", calendar_use.name);
                return Err(JobError::Invalid(vec![FieldError::new("/calendar/name", message)]).into());
            }
        },
        None => None,
    };
    spec.compile_with(calendar).map_err(|errors| JobError::Invalid(errors).into())
}

fn preview_json(request: PreviewRequest<'_>) -> PreviewJson {
    let [en, zh] = [Lang::En, Lang::Zh].map(|lang| words::timetable(request.timetable, lang));
    let preview_of_job = preview(request);
    PreviewJson {
        sentences: en.into_iter().zip(zh).map(|(en, zh)| Sentence { en, zh }).collect(),
        dialects: request.timetable.schedules.iter().map(dialect).collect(),
        time_zone: preview_of_job.zone.name(),
        fires: preview_of_job.fires.into_iter().map(|fire| FireJson { at: fire.at, local: fire.local }).collect(),
        warnings: preview_of_job.warnings.into_iter().map(warning_json).collect(),
    }
}

fn dialect(schedule: &Schedule) -> Option<rondel_core::cron::Dialect> {
    match &schedule.kind {
        Kind::Cron { expr, .. } => Some(expr.dialect()),
        Kind::Every(_) | Kind::Delay(_) | Kind::At(_) | Kind::After(_) => None,
    }
}

fn warning_json(Warning { code, at, en, zh }: Warning) -> WarningJson {
    WarningJson { code: code.as_str(), at, sentence: Sentence { en, zh } }
}
