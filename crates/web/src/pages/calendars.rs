//! The list of calendars, with the form for a new one.

use askama::Template;
use axum::response::Response;
use http::StatusCode;
use rondel_admin::calendars;
use rondel_core::{Timestamp, name};
use rondel_store::calendars::CalendarOutline;

use super::as_code::AsCode;
use super::calendar_form::{CalendarForm, CalendarTrial, error_lines, this_year, try_calendar};
use super::form::Fields;
use super::moment::Moment;
use super::shell::{MissingRoles, Nav, PAGE_ITEM_COUNT, Page, Shell, html};
use super::texts::Texts;
use crate::call::forbidden_problem;
use crate::cursor::{CursorQuery, Listing, cut_to_page};
use crate::problem::{Code, Problem};
use crate::redirect::{query_pair, redirect_to};

struct CalendarRow {
    name: String,
    description: String,
    version: i64,
    updated_at: Moment,
}

#[derive(Template)]
#[template(path = "calendars.html")]
struct CalendarsPage {
    shell: Shell,
    t: &'static Texts,
    missing_roles: MissingRoles,
    rows: Vec<CalendarRow>,
    next_url: Option<String>,
    is_first: bool,
    form: CalendarForm,
    errors: Vec<String>,
    trial: Option<CalendarTrial>,
    version: Option<i64>,
    action: String,
    code: AsCode,
}

pub(super) async fn list(page: Page<CursorQuery>) -> Result<Response, Problem> {
    let cursor = page.query().0.clone();
    render_page(&page, StatusCode::OK, cursor.as_deref(), CalendarForm::new("", None), (Vec::new(), None)).await
}

pub(super) async fn create(page: Page, fields: Fields) -> Result<Response, Problem> {
    page.call.check(None, forbidden_problem)?;
    let form = CalendarForm::from_fields(fields.get("name"), &fields);
    match create_or_try(&page, &form).await {
        Ok(None) => Ok(redirect_to(&format!("/calendars/{}", form.name))),
        Ok(trial) => render_page(&page, StatusCode::OK, None, form, (Vec::new(), trial)).await,
        Err(problem) if matches!(problem.code(), Code::Internal | Code::Unavailable) => Err(problem),
        Err(problem) => {
            render_page(
                &page,
                StatusCode::UNPROCESSABLE_ENTITY,
                None,
                form,
                (error_lines(&problem, page.t.lang()), None),
            )
            .await
        }
    }
}

/// Creates the calendar in the form or, for a trial, only checks it.
async fn create_or_try(page: &Page, form: &CalendarForm) -> Result<Option<CalendarTrial>, Problem> {
    let namespace = page.call.namespace.id;
    let spec = form.spec("")?;
    if form.is_trial {
        return try_calendar(page, &spec, this_year(page.engine().now())).await.map(Some);
    }
    if calendars::find(page.engine(), namespace, &spec.name).await?.is_some() {
        return Err(Problem::new(Code::EditConflict, page.t.calendar_exists));
    }
    page.call.note.set_object(&spec.name);
    let outcome = calendars::save(page.engine(), namespace, &spec, None, page.call.caller.name()).await?;
    page.call.note.changed_to(&outcome.record.spec);
    Ok(None)
}

async fn render_page<Q>(
    page: &Page<Q>,
    status: StatusCode,
    cursor: Option<&str>,
    form: CalendarForm,
    (errors, trial): (Vec<String>, Option<CalendarTrial>),
) -> Result<Response, Problem> {
    let (namespace, now) = (page.call.namespace.id, page.engine().now());
    let listing = Listing::new("calendars page", namespace);
    let after_name = listing.name_after(cursor, name::check)?;
    let store = page.engine().store();
    let mut outlines = store.calendar_outlines(namespace, after_name.as_deref(), PAGE_ITEM_COUNT + 1).await?;
    let next_url = cut_to_page(&mut outlines, PAGE_ITEM_COUNT)
        .map(|last| format!("/calendars?{}", query_pair("cursor", &listing.cursor(&last.name))));
    let template = CalendarsPage {
        shell: page.shell(Nav::Calendars),
        t: page.t,
        missing_roles: page.missing_roles(None),
        rows: outlines.into_iter().map(|outline| row(outline, now, page.t)).collect(),
        next_url,
        is_first: cursor.is_none(),
        form,
        errors,
        trial,
        version: None,
        action: "/calendars".to_owned(),
        code: page.code(("GET", "/api/v1/calendars"), None, "calendar list"),
    };
    html(status, &template)
}

fn row(outline: CalendarOutline, now: Timestamp, t: &Texts) -> CalendarRow {
    let CalendarOutline { name, description, version, is_readable, updated_at, .. } = outline;
    let description = if is_readable { description } else { t.job_unreadable(version) };
    CalendarRow { name, description, version, updated_at: Moment::new(updated_at, now, t) }
}
