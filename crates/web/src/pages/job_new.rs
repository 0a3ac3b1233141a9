//! Creates a job: shows the form, and previews the schedule while the user types.

use askama::Template;
use axum::response::Response;
use http::StatusCode;
use rondel_admin::jobs::{self, JobError};
use rondel_core::cron::Tz;
use rondel_core::preview::{PER_DAY_MAX, PreviewRequest, WarningCode};
use rondel_core::{Job, Timestamp, words};
use serde_json::{Value, json};

use super::edit_effect::EditEffect;
use super::form::Fields;
use super::job_form::{Errors, JobForm};
use super::job_leaf_fields::LeafFields;
use super::job_params;
use super::moment::Moment;
use super::params_form::{FieldKind, ParamField};
use super::sentences::localized;
use super::shell::{Nav, Page, Shell, html};
use super::texts::Texts;
use crate::api::executors;
use crate::api::jobs::body::from_value;
use crate::api::jobs::find;
use crate::api::schedules::compile;
use crate::problem::Problem;
use crate::query::{FromQuery, Reader};
use crate::redirect::redirect_to;

/// How many fires the preview shows.
const FIRE_COUNT: usize = 10;
/// How many calendars are suggested.
const CALENDAR_COUNT: u32 = 200;
/// The zones to select from. Other zones can be typed.
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
    param_fields: Vec<ParamField>,
    errors: Errors,
    suggestions: FieldSuggestions,
    is_new: bool,
    /// The name of the edited job. Always empty on this page, which shares its template with the page that edits a job.
    current_name: String,
}

/// How many executors are read for suggestions.
const EXECUTOR_COUNT: u32 = 200;
/// Maximum number of suggestions for a field.
const SUGGESTION_COUNT_MAX: usize = 500;

/// The suggestions for the fields.
pub(super) struct FieldSuggestions {
    /// The apps and handlers of executors that were seen within the last hour.
    pub(super) apps: Vec<String>,
    pub(super) handlers: Vec<String>,
    pub(super) calendars: Vec<String>,
    pub(super) zones: [&'static str; 9],
}

impl FieldSuggestions {
    pub(super) async fn read(page: &Page) -> Result<Self, Problem> {
        let executors = executors::page(&page.call, None, EXECUTOR_COUNT).await?.0;
        let sorted_words = |mut words: Vec<String>| {
            words.sort();
            words.dedup();
            words.truncate(SUGGESTION_COUNT_MAX);
            words
        };
        let apps = sorted_words(executors.iter().map(|executor| executor.app.clone()).collect());
        let handlers = sorted_words(executors.into_iter().flat_map(|executor| executor.handlers).collect());
        let calendars = page.engine().store().calendar_outlines(page.call.namespace.id, None, CALENDAR_COUNT).await?;
        let calendars = calendars.into_iter().map(|outline| outline.name).collect();
        Ok(Self { apps, handlers, calendars, zones: ZONES })
    }
}

pub(super) async fn page(page: Page) -> Result<Response, Problem> {
    render_page(&page, StatusCode::OK, (JobForm::default(), None), Errors::default()).await
}

pub(super) async fn create(page: Page, fields: Fields) -> Result<Response, Problem> {
    let sent_form = JobForm::from(&fields);
    let spec = match sent_form.spec(json!({}), page.t) {
        Ok(spec) => spec,
        Err(errors) => {
            return render_page(&page, StatusCode::UNPROCESSABLE_ENTITY, (sent_form, Some(&fields)), errors).await;
        }
    };
    page.call.check_definition(&spec).await?;
    page.call.note.set_object(&spec.name);
    match jobs::create(page.engine(), page.call.namespace.id, spec, page.call.caller.name()).await {
        Ok(record) => {
            page.call.note.changed_to(&record.spec);
            Ok(redirect_to(&format!("/jobs/{}", record.spec.name)))
        }
        Err(JobError::Store(error)) => Err(error.into()),
        Err(error) => {
            let mut errors = Errors::default();
            sent_form.add_problem(&mut errors, &page.call.job_problem(error).await, page.t);
            render_page(&page, StatusCode::UNPROCESSABLE_ENTITY, (sent_form, Some(&fields)), errors).await
        }
    }
}

async fn render_page(
    page: &Page,
    status: StatusCode,
    (form, sent_fields): (JobForm, Option<&Fields>),
    errors: Errors,
) -> Result<Response, Problem> {
    let suggestions = FieldSuggestions::read(page).await?;
    let param_fields = job_params::fields_with_input(page, &form, sent_fields).await?;
    let shell = page.shell(Nav::Jobs);
    let template = NewJobPage {
        shell,
        t: page.t,
        form,
        param_fields,
        errors,
        suggestions,
        is_new: true,
        current_name: String::new(),
    };
    html(status, &template)
}

/// The query parameters of the preview: the fields that define the schedule.
#[derive(Debug)]
pub(crate) struct PreviewQuery {
    form: JobForm,
    /// The name of the edited job; empty for a new one.
    current_name: String,
}

impl FromQuery for PreviewQuery {
    fn from_query(reader: &mut Reader) -> Self {
        let mut text = |name| reader.single(name).unwrap_or_default().trim().to_owned();
        let form = JobForm {
            kind: text("kind"),
            cron: text("cron"),
            time_zone: text("time_zone"),
            every: text("every"),
            at: text("at"),
            schedule_json: text("schedule_json"),
            calendar: text("calendar"),
            calendar_rule: text("calendar_rule"),
            leaf_fields: LeafFields::read(|field| Some(text(field))),
            ..JobForm::default()
        };
        // The other fields of this part of the form are accepted and ignored.
        for ignored_field in ["misfire", "notify"] {
            drop(text(ignored_field));
        }
        Self { form, current_name: text("was") }
    }
}

#[derive(Template)]
#[template(path = "preview.html")]
struct PreviewPart {
    t: &'static Texts,
    /// The schedule in words.
    words: Option<String>,
    /// The instants in UTC, and on the clock of the schedule if that differs.
    fires: Vec<(Moment, Option<String>)>,
    warnings: Vec<String>,
    error: Option<String>,
    /// Whether nothing has been typed yet.
    is_empty: bool,
    /// For an edited job: its fires before and after the edit.
    edit_effect: Option<EditEffect>,
}

/// The next fires of a schedule, or its errors. The status is always 200, since an incomplete schedule is normal while the user types.
pub(super) async fn preview(page: Page<PreviewQuery>) -> Result<Response, Problem> {
    let PreviewQuery { form, current_name } = page.query();
    let schedule = match form.kind.as_str() {
        "json" if !form.schedule_json.is_empty() => {
            serde_json::from_str(&form.schedule_json).map_err(|error| page.t.error_json(error.column(), error.line()))
        }
        _ => Ok(form.schedule()),
    };
    let part = match schedule {
        _ if form.lacks_schedule() => PreviewPart { is_empty: true, error: None, ..error_part(page.t, String::new()) },
        Ok(schedule) => match compile(&page.call, schedule.clone(), form.calendar_use()).await {
            Ok(job) => {
                let edit_effect = edit_effect(&page, current_name, (schedule, form.calendar_use())).await;
                PreviewPart { edit_effect, ..preview_part(&job, page.engine().now(), page.t) }
            }
            Err(problem) => problem_part(page.t, &problem),
        },
        Err(message) => error_part(page.t, message),
    };
    html(StatusCode::OK, &part)
}

/// The effect of the edit on the upcoming fires; `None` for a new job, or while the definition has errors.
async fn edit_effect(
    page: &Page<PreviewQuery>,
    current_name: &str,
    (schedule, calendar): (Value, Value),
) -> Option<EditEffect> {
    if current_name.is_empty() {
        return None;
    }
    let record = find(&page.call, current_name).await.ok()?;
    let mut document = serde_json::to_value(&record.spec).ok()?;
    document["schedule"] = schedule;
    if calendar.is_null() {
        drop(document.as_object_mut().map(|fields| fields.remove("calendar")));
    } else {
        document["calendar"] = calendar;
    }
    let spec = from_value(document).ok()?;
    EditEffect::compare(&page.call, Some(&record), &spec, page.t).await.ok()
}

fn preview_part(job: &Job, now: Timestamp, t: &'static Texts) -> PreviewPart {
    let (timetable, anchor) = (&job.timetable, now.ceil_second());
    let request = PreviewRequest { timetable, anchor, after: now, count: FIRE_COUNT, per_day_max: PER_DAY_MAX };
    let preview = rondel_core::preview::preview(request);
    let schedule_texts = words::timetable(timetable, t.lang());
    let warnings = preview.warnings.iter().filter(|warning| warning.code != WarningCode::NeverFires);
    let fire = |at| (Moment::new(at, now, t), (preview.zone != Tz::UTC).then(|| words::instant_text(preview.zone, at)));
    PreviewPart {
        t,
        words: (!schedule_texts.is_empty()).then(|| schedule_texts.join("; ")),
        fires: preview.fires.iter().map(|upcoming_fire| fire(upcoming_fire.at)).collect(),
        warnings: warnings.map(|warning| warning.sentence(t.lang()).to_owned()).collect(),
        error: None,
        is_empty: false,
        edit_effect: None,
    }
}

fn problem_part(t: &'static Texts, problem: &Problem) -> PreviewPart {
    let localized = |sentence| localized(t.lang(), sentence);
    let messages: Vec<_> = problem.complaints().iter().map(|complaint| localized(&complaint.message)).collect();
    error_part(t, if messages.is_empty() { localized(problem.detail()).into_owned() } else { messages.join("; ") })
}

const fn error_part(t: &'static Texts, message: String) -> PreviewPart {
    PreviewPart {
        t,
        words: None,
        fires: Vec::new(),
        warnings: Vec::new(),
        error: Some(message),
        is_empty: false,
        edit_effect: None,
    }
}
