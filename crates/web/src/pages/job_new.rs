//! A new job: the form, what its schedule means while it is typed, and its creation.

use askama::Template;
use axum::response::Response;
use http::StatusCode;
use rondel_admin::jobs::JobError;
use rondel_core::JobSpec;
use rondel_core::preview::{Ask, PER_DAY_MAX, WarningCode};
use serde_json::json;

use super::form::Fields;
use super::job_form::{Errors, JobForm};
use super::moment::Moment;
use super::schedule_text;
use super::shell::{Nav, Page, Shell, html};
use super::texts::Texts;
use crate::api::executors;
use crate::problem::Problem;
use crate::query::{FromQuery, Reader};
use crate::redirect::to;

/// How many fires the preview shows.
const FIRE_COUNT: usize = 10;
/// Zones to choose from; any other can be typed.
const ZONES: [&str; 9] = [
    "UTC",
    "Asia/Shanghai",
    "Asia/Tokyo",
    "Asia/Kolkata",
    "Europe/Berlin",
    "Europe/London",
    "America/New_York",
    "America/Los_Angeles",
    "Australia/Sydney",
];

#[derive(Template)]
#[template(path = "job_new.html")]
struct NewJobPage {
    shell: Shell,
    t: &'static Texts,
    form: JobForm,
    errors: Errors,
    /// What the executors of the last hour offer.
    apps: Vec<String>,
    handlers: Vec<String>,
    zones: [&'static str; 9],
}

pub(super) async fn page(page: Page) -> Result<Response, Problem> {
    form(&page, StatusCode::OK, JobForm::default(), Errors::default()).await
}

pub(super) async fn create(page: Page, fields: Fields) -> Result<Response, Problem> {
    let sent = JobForm::from(&fields);
    let spec = match sent.spec(page.t) {
        Ok(spec) => spec,
        Err(errors) => return form(&page, StatusCode::UNPROCESSABLE_ENTITY, sent, errors).await,
    };
    match page.engine().create_job(page.call.namespace.id, spec, page.call.caller.name()).await {
        Ok(record) => Ok(to(&format!("/jobs/{}", record.spec.name))),
        Err(JobError::Store(error)) => Err(error.into()),
        Err(refused) => {
            let mut errors = Errors::default();
            errors.add_problem(&refused.into(), page.t);
            form(&page, StatusCode::UNPROCESSABLE_ENTITY, sent, errors).await
        }
    }
}

async fn form(page: &Page, status: StatusCode, form: JobForm, errors: Errors) -> Result<Response, Problem> {
    let executors = executors::all(&page.call).await?;
    let sorted = |mut words: Vec<String>| {
        words.sort();
        words.dedup();
        words
    };
    let apps = sorted(executors.iter().map(|one| one.app.clone()).collect());
    let handlers = sorted(executors.into_iter().flat_map(|one| one.handlers).collect());
    let template = NewJobPage { shell: page.shell(Nav::Jobs), t: page.t, form, errors, apps, handlers, zones: ZONES };
    html(status, &template)
}

/// The query of the preview: the schedule's fields of the form.
#[derive(Debug)]
pub(crate) struct Preview(JobForm);

impl FromQuery for Preview {
    fn from_query(reader: &mut Reader) -> Self {
        let mut text = |name| reader.one(name).unwrap_or_default().trim().to_owned();
        Self(JobForm {
            kind: text("kind"),
            cron: text("cron"),
            time_zone: text("time_zone"),
            every: text("every"),
            at: text("at"),
            ..JobForm::default()
        })
    }
}

#[derive(Template)]
#[template(path = "preview.html")]
struct PreviewPart {
    t: &'static Texts,
    words: Option<String>,
    fires: Vec<Moment>,
    warnings: Vec<String>,
    error: Option<String>,
}

/// The next fires of a schedule, or what is wrong with it. Half a schedule is no mistake while somebody types: always 200.
pub(super) async fn preview(page: Page<Preview>) -> Result<Response, Problem> {
    let (now, t) = (page.engine().now(), page.t);
    let document = json!({"name": "a", "app": "a", "handler": "a", "schedule": page.query().0.schedule()});
    let spec = serde_json::from_value::<JobSpec>(document).map_err(|error| error.to_string());
    let compiled = spec.and_then(|spec| match spec.compile() {
        Ok(job) => Ok((spec, job)),
        Err(errors) => Err(errors.into_iter().map(|error| error.message).collect::<Vec<_>>().join("; ")),
    });
    let part = match compiled {
        Ok((spec, job)) => {
            let anchor = now.ceil_second();
            let (timetable, per_day_max) = (&job.timetable, PER_DAY_MAX);
            let found =
                rondel_core::preview::preview(Ask { timetable, anchor, after: now, count: FIRE_COUNT, per_day_max });
            let words = schedule_text::of_job(&spec, t).into_iter().next().map(|text| text.words);
            let warnings = found
                .warnings
                .iter()
                .filter(|found| found.code != WarningCode::NeverFires)
                .map(|warning| warning.sentence(t.lang()).to_owned())
                .collect();
            let fires = found.fires.iter().map(|fire| Moment::new(fire.at, now, t)).collect();
            PreviewPart { t, words, fires, warnings, error: None }
        }
        Err(error) => PreviewPart { t, words: None, fires: Vec::new(), warnings: Vec::new(), error: Some(error) },
    };
    html(StatusCode::OK, &part)
}
