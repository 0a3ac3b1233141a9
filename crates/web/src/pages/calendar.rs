//! A calendar's page: its days by year, its users, and the form to change it.

use askama::Template;
use axum::response::Response;
use chrono::{Days, NaiveDate};
use http::StatusCode;
use rondel_admin::calendars::{self, CalendarDependent, CalendarError};
use rondel_core::Timestamp;
use rondel_core::calendar::{Calendar, CalendarSpec};
use rondel_store::calendars::CalendarRecord;

use super::as_code::AsCode;
use super::calendar_form::{CalendarForm, CalendarTrial, Month, error_lines, month_tables, this_year, try_calendar};
use super::form::Fields;
use super::shell::{MissingRoles, Nav, PAGE_ITEM_COUNT, Page, Shell, html};
use super::texts::Texts;
use crate::api::calendars::find;
use crate::cursor::cut_to_page;
use crate::path::{self, Named};
use crate::problem::{Code, Problem};
use crate::query::{FromQuery, Reader};
use crate::redirect::redirect_to;

/// The query parameter of the page: the year to show; `None` for the current year.
#[derive(Debug)]
pub(crate) struct YearQuery(Option<i32>);

impl FromQuery for YearQuery {
    fn from_query(reader: &mut Reader) -> Self {
        Self(reader.parsed("year", |text| match text.parse() {
            Ok(year) if (1970..=2199).contains(&year) => Ok(year),
            _ => Err(format!("{text:?} is not a year from 1970 to 2199")),
        }))
    }
}

/// The state of the page: the year that is shown, and the outcome of the form.
#[derive(Default)]
struct PageState {
    year: Option<i32>,
    errors: Vec<String>,
    trial: Option<CalendarTrial>,
    /// The version that another caller has saved since the form was loaded.
    conflict_version: Option<i64>,
}

#[derive(Template)]
#[template(path = "calendar.html")]
struct CalendarPage {
    shell: Shell,
    t: &'static Texts,
    missing_roles: MissingRoles,
    name: String,
    description: String,
    year: i32,
    months: Vec<Month>,
    /// The URL and the name of each job or calendar that uses this calendar.
    dependents: Vec<(String, String)>,
    has_more_dependents: bool,
    /// The last listed day, if it has passed in every time zone.
    passed_last_day: Option<NaiveDate>,
    form: CalendarForm,
    errors: Vec<String>,
    trial: Option<CalendarTrial>,
    /// The version on which the next save will be based.
    version: Option<i64>,
    /// The version that another caller has saved since the form was loaded.
    conflict_version: Option<i64>,
    /// The URL to which the form is sent.
    action: String,
    /// The API request and the command that save this calendar.
    code: AsCode,
}

fn calendar_code<Q>(page: &Page<Q>, spec: &CalendarSpec) -> AsCode {
    let document = serde_json::to_value(spec).unwrap_or_default();
    let path = format!("/api/v1/calendars/{}", spec.name);
    AsCode::with_document(
        &page.call.namespace.name,
        ("PUT", &path),
        &document,
        ("calendar apply", &super::job::pretty_json(&document)),
    )
}

pub(super) async fn page(page: Page<YearQuery>, Named(name, ..): Named<path::Calendar>) -> Result<Response, Problem> {
    let record = find(&page.call, &name).await?;
    let form = CalendarForm::new(&record.spec.name, Some(&record.spec));
    let state = PageState { year: page.query().0, ..PageState::default() };
    render_page(&page, StatusCode::OK, &record, form, state).await
}

pub(super) async fn save(
    page: Page,
    Named(name, ..): Named<path::Calendar>,
    fields: Fields,
) -> Result<Response, Problem> {
    let record = find(&page.call, &name).await?;
    let form = CalendarForm::from_fields(&name, &fields);
    if fields.get("version").parse() != Ok(record.version) {
        let state = PageState { conflict_version: Some(record.version), ..PageState::default() };
        return render_page(&page, StatusCode::CONFLICT, &record, form, state).await;
    }
    match save_or_try(&page, &record, &form).await {
        Ok(None) => Ok(redirect_to(&format!("/calendars/{name}"))),
        Ok(trial) => {
            render_page(&page, StatusCode::OK, &record, form, PageState { trial, ..PageState::default() }).await
        }
        Err(problem) if matches!(problem.code(), Code::Internal | Code::Unavailable) => Err(problem),
        Err(problem) => {
            let state = PageState { errors: error_lines(&problem, page.t.lang()), ..PageState::default() };
            render_page(&page, StatusCode::UNPROCESSABLE_ENTITY, &record, form, state).await
        }
    }
}

/// Saves the calendar in the form or, for a trial, only checks it.
async fn save_or_try(
    page: &Page,
    record: &CalendarRecord,
    form: &CalendarForm,
) -> Result<Option<CalendarTrial>, Problem> {
    let spec = form.spec(&record.spec.description)?;
    if form.is_trial {
        return try_calendar(page, &spec, this_year(page.engine().now())).await.map(Some);
    }
    let author = page.call.caller.name();
    let outcome = calendars::save(page.engine(), record.namespace, &spec, Some(record.version), author).await?;
    page.call.note.changed_to(&outcome.record.spec);
    Ok(None)
}

pub(super) async fn delete(page: Page, Named(name, ..): Named<path::Calendar>) -> Result<Response, Problem> {
    let record = find(&page.call, &name).await?;
    calendars::delete(page.engine(), record.namespace, &name, None).await?;
    Ok(redirect_to("/calendars"))
}

/// Whether a day has passed in every time zone.
fn has_passed(day: NaiveDate, now: Timestamp) -> bool {
    now.to_utc().is_some_and(|now| day + Days::new(1) < now.date_naive())
}

async fn render_page<Q>(
    page: &Page<Q>,
    status: StatusCode,
    record: &CalendarRecord,
    form: CalendarForm,
    state: PageState,
) -> Result<Response, Problem> {
    let name = record.spec.name.clone();
    let calendar = Calendar::of_rule(&name, &record.expanded_rule).map_err(CalendarError::Invalid)?;
    let year = state.year.unwrap_or_else(|| this_year(page.engine().now()));
    let visible_apps = page.call.visible_apps();
    let mut dependents =
        calendars::dependents(page.engine(), record, visible_apps.as_deref(), None, PAGE_ITEM_COUNT as usize + 1)
            .await?;
    let has_more_dependents = cut_to_page(&mut dependents, PAGE_ITEM_COUNT).is_some();
    let url_and_name = |user| match user {
        CalendarDependent::Calendar(name) => (format!("/calendars/{name}"), name),
        CalendarDependent::Job(name) => (format!("/jobs/{name}"), name),
    };
    let template = CalendarPage {
        shell: page.shell(Nav::Calendars),
        t: page.t,
        missing_roles: page.missing_roles(None),
        description: record.spec.description.clone(),
        year,
        months: month_tables(&calendar, year),
        dependents: dependents.into_iter().map(url_and_name).collect(),
        has_more_dependents,
        passed_last_day: calendar.last_listed_day().filter(|day| has_passed(*day, page.engine().now())),
        form,
        errors: state.errors,
        trial: state.trial,
        version: Some(state.conflict_version.unwrap_or(record.version)),
        conflict_version: state.conflict_version,
        action: format!("/calendars/{name}"),
        code: calendar_code(page, &record.spec),
        name,
    };
    html(status, &template)
}
