//! The list of scripts, and the form for a new one.

use askama::Template;
use axum::response::Response;
use http::StatusCode;
use rondel_admin::scripts;
use rondel_core::{Timestamp, name};
use rondel_store::scripts::ScriptRecord;

use super::as_code::AsCode;
use super::calendar_form::error_lines;
use super::form::Fields;
use super::moment::Moment;
use super::script_form::ScriptForm;
use super::shell::{MissingRoles, Nav, PAGE_ITEM_COUNT, Page, Shell, html};
use super::texts::Texts;
use crate::api::scripts::audited_script;
use crate::call::forbidden_problem;
use crate::cursor::{CursorQuery, Listing, cut_to_page};
use crate::problem::{Code, Problem};
use crate::redirect::{query_pair, redirect_to};

struct ScriptRow {
    name: String,
    language: String,
    version: i64,
    author: String,
    note: String,
    updated_at: Moment,
}

#[derive(Template)]
#[template(path = "scripts.html")]
struct ScriptsPage {
    shell: Shell,
    t: &'static Texts,
    missing_roles: MissingRoles,
    rows: Vec<ScriptRow>,
    next_url: Option<String>,
    is_first: bool,
    form: ScriptForm,
    errors: Vec<String>,
    version: Option<i64>,
    action: String,
    code: AsCode,
}

pub(super) async fn list(page: Page<CursorQuery>) -> Result<Response, Problem> {
    let cursor = page.query().0.clone();
    let form = ScriptForm::new("", "shell", String::new());
    render_page(&page, StatusCode::OK, cursor.as_deref(), form, Vec::new()).await
}

pub(super) async fn create(page: Page, fields: Fields) -> Result<Response, Problem> {
    page.call.check(None, forbidden_problem)?;
    let form = ScriptForm::from_fields(fields.get("name"), fields.get("language"), &fields);
    match create_script(&page, &form).await {
        Ok(()) => Ok(redirect_to(&format!("/scripts/{}", form.name))),
        Err(problem) if matches!(problem.code(), Code::Internal | Code::Unavailable) => Err(problem),
        Err(problem) => {
            let errors = error_lines(&problem, page.t.lang());
            render_page(&page, StatusCode::UNPROCESSABLE_ENTITY, None, form, errors).await
        }
    }
}

/// Creates the script in the form. It is an error if the script exists.
async fn create_script(page: &Page, form: &ScriptForm) -> Result<(), Problem> {
    let namespace = page.call.namespace.id;
    if scripts::find(page.engine(), namespace, &form.name).await?.is_some() {
        return Err(Problem::new(Code::EditConflict, page.t.script_exists));
    }
    let author = page.call.caller.name();
    let saved_script = scripts::save(page.engine(), (namespace, &form.name), &form.spec(), Some(0), author).await?;
    page.call.note.set_object(&form.name);
    page.call.note.changed_to(&audited_script(&saved_script.record));
    Ok(())
}

async fn render_page<Q>(
    page: &Page<Q>,
    status: StatusCode,
    cursor: Option<&str>,
    form: ScriptForm,
    errors: Vec<String>,
) -> Result<Response, Problem> {
    let (namespace, now) = (page.call.namespace.id, page.engine().now());
    let listing = Listing::new("scripts page", namespace);
    let after_name = listing.name_after(cursor, name::check)?;
    let mut records = page.engine().store().scripts(namespace, after_name.as_deref(), PAGE_ITEM_COUNT + 1).await?;
    let next_url = cut_to_page(&mut records, PAGE_ITEM_COUNT)
        .map(|last| format!("/scripts?{}", query_pair("cursor", &listing.cursor(&last.name))));
    let template = ScriptsPage {
        shell: page.shell(Nav::Scripts),
        t: page.t,
        missing_roles: page.missing_roles(None),
        rows: records.into_iter().map(|record| row(record, now, page.t)).collect(),
        next_url,
        is_first: cursor.is_none(),
        form,
        errors,
        version: None,
        action: "/scripts".to_owned(),
        code: page.code(("GET", "/api/v1/scripts"), None, "script list"),
    };
    html(status, &template)
}

fn row(record: ScriptRecord, now: Timestamp, t: &Texts) -> ScriptRow {
    let ScriptRecord { name, language, newest, .. } = record;
    let updated_at = Moment::new(newest.created_at, now, t);
    ScriptRow { name, language, version: newest.version, author: newest.author, note: newest.note, updated_at }
}
