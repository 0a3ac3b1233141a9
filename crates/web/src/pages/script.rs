//! The page of a script: a form for the next version, the list of versions, a comparison of two versions, and the jobs that use the
//! script.

use askama::Template;
use axum::response::Response;
use http::StatusCode;
use rondel_admin::scripts;
use rondel_store::scripts::{ScriptRecord, ScriptVersion};
use serde_json::json;

use super::activity_rows::{ChangeRow, change_row};
use super::as_code::AsCode;
use super::calendar_form::error_lines;
use super::form::Fields;
use super::moment::Moment;
use super::script_form::ScriptForm;
use super::script_try;
use super::shell::{MissingRoles, Nav, PAGE_ITEM_COUNT, Page, Shell, html};
use super::texts::Texts;
use super::versions::VersionsQuery;
use crate::api::scripts::{audited_script, diff_versions, find, parse_version, restore_version};
use crate::cursor::cut_to_page;
use crate::path::{self, Named};
use crate::problem::{Code, Problem};
use crate::redirect::redirect_to;

/// How many versions the page lists.
const VERSION_COUNT: u32 = 30;

/// The state of the page: the outcome of its form, the comparison, and where the list of versions continues.
#[derive(Default)]
struct PageState {
    errors: Vec<String>,
    /// The version that another caller has saved since the form was loaded.
    conflict_version: Option<i64>,
    comparison: Option<Comparison>,
    before_version: Option<i64>,
    /// Why the script could not be tried.
    try_errors: Vec<String>,
}

/// The comparison of two versions.
struct Comparison {
    from: i64,
    to: i64,
    changes: Vec<ChangeRow>,
    restore_code: AsCode,
}

struct VersionRow {
    version: i64,
    author: String,
    at: Moment,
    note: String,
    is_signed: bool,
    is_from: bool,
    is_to: bool,
}

#[derive(Template)]
#[template(path = "script.html")]
struct ScriptPage {
    shell: Shell,
    t: &'static Texts,
    missing_roles: MissingRoles,
    name: String,
    language: String,
    newest_version: i64,
    jobs: Vec<String>,
    has_more_jobs: bool,
    /// The apps in which the user can try the script.
    apps: Vec<String>,
    can_check: bool,
    try_errors: Vec<String>,
    rows: Vec<VersionRow>,
    /// The version before which the list continues on the next page; `None` on the last page.
    older_than: Option<i64>,
    comparison: Option<Comparison>,
    form: ScriptForm,
    errors: Vec<String>,
    /// The version on which the next save will be based.
    version: Option<i64>,
    /// The version that another caller has saved since the form was loaded.
    conflict_version: Option<i64>,
    action: String,
    code: AsCode,
}

pub(super) async fn page(page: Page<VersionsQuery>, Named(name, ..): Named<path::Script>) -> Result<Response, Problem> {
    let record = find(&page.call, &name).await?;
    let newest_version = record.newest.version;
    let query = page.query();
    let comparison = match (query.from, query.to.unwrap_or(newest_version)) {
        (Some(from), to) if from != to => Some(compare(&page, &record, from, to).await?),
        _ => None,
    };
    let state = PageState { comparison, before_version: query.before_version, ..PageState::default() };
    let (_, source) = scripts::version_of(page.engine(), &record, newest_version).await?;
    let form = ScriptForm::new(&name, &record.language, source);
    render_page(&page, StatusCode::OK, &record, form, state).await
}

async fn compare<Q>(
    page: &Page<Q>,
    record: &ScriptRecord,
    from_version: i64,
    to_version: i64,
) -> Result<Comparison, Problem> {
    let changes = diff_versions(&page.call, record, from_version, to_version).await?;
    let name = &record.name;
    Ok(Comparison {
        from: from_version,
        to: to_version,
        changes: changes.iter().map(change_row).collect(),
        restore_code: page.code(
            ("POST", &format!("/api/v1/scripts/{name}/restore")),
            Some(&json!({"version": from_version})),
            &format!("script restore {name} {from_version}"),
        ),
    })
}

pub(super) async fn save(
    page: Page,
    Named(name, ..): Named<path::Script>,
    fields: Fields,
) -> Result<Response, Problem> {
    let record = find(&page.call, &name).await?;
    let form = ScriptForm::from_fields(&name, &record.language, &fields);
    let Ok(seen_version) = fields.get("version").parse::<i64>() else {
        let state = PageState { conflict_version: Some(record.newest.version), ..PageState::default() };
        return render_page(&page, StatusCode::CONFLICT, &record, form, state).await;
    };
    let namespace_and_name = (record.namespace, name.as_str());
    let saved_script =
        scripts::save(page.engine(), namespace_and_name, &form.spec(), Some(seen_version), page.call.caller.name())
            .await;
    let problem = match saved_script.map_err(Problem::from) {
        Ok(saved_script) => {
            page.call.note.changed_to(&audited_script(&saved_script.record));
            return Ok(redirect_to(&format!("/scripts/{name}")));
        }
        Err(problem) => problem,
    };
    match problem.code() {
        Code::Internal | Code::Unavailable => Err(problem),
        Code::VersionMismatch => {
            let state = PageState { conflict_version: Some(record.newest.version), ..PageState::default() };
            render_page(&page, StatusCode::CONFLICT, &record, form, state).await
        }
        _ => {
            let state = PageState { errors: error_lines(&problem, page.t.lang()), ..PageState::default() };
            render_page(&page, StatusCode::UNPROCESSABLE_ENTITY, &record, form, state).await
        }
    }
}

pub(super) async fn restore(
    page: Page,
    Named(name, ..): Named<path::Script>,
    fields: Fields,
) -> Result<Response, Problem> {
    let record = find(&page.call, &name).await?;
    let version =
        parse_version(fields.get("version")).map_err(|message| crate::body::refuse_value("/version", message))?;
    // The restore fails if another version was saved after the page was shown.
    restore_version(&page.call, &record, (version, None), fields.get("newest").parse().ok()).await?;
    Ok(redirect_to(&format!("/scripts/{name}")))
}

pub(super) async fn try_script(
    page: Page,
    Named(name, ..): Named<path::Script>,
    fields: Fields,
) -> Result<Response, Problem> {
    let record = find(&page.call, &name).await?;
    let problem = match script_try::start(&page, &record, &fields).await {
        Ok(run) => return Ok(redirect_to(&format!("/runs/{run}"))),
        Err(problem) if matches!(problem.code(), Code::Internal | Code::Unavailable | Code::Forbidden) => {
            return Err(problem);
        }
        Err(problem) => problem,
    };
    let (_, source) = scripts::version_of(page.engine(), &record, record.newest.version).await?;
    let form = ScriptForm::new(&name, &record.language, source);
    let state = PageState { try_errors: error_lines(&problem, page.t.lang()), ..PageState::default() };
    render_page(&page, StatusCode::UNPROCESSABLE_ENTITY, &record, form, state).await
}

pub(super) async fn delete(page: Page, Named(name, ..): Named<path::Script>) -> Result<Response, Problem> {
    let record = find(&page.call, &name).await?;
    scripts::delete(page.engine(), (record.namespace, &name), None).await?;
    Ok(redirect_to("/scripts"))
}

async fn render_page<Q>(
    page: &Page<Q>,
    status: StatusCode,
    record: &ScriptRecord,
    form: ScriptForm,
    state: PageState,
) -> Result<Response, Problem> {
    let (name, newest_version, store) = (record.name.clone(), record.newest.version, page.engine().store());
    let visible_apps = page.call.visible_apps();
    let mut jobs =
        store.jobs_with_script(record.namespace, &name, visible_apps.as_deref(), None, PAGE_ITEM_COUNT + 1).await?;
    let has_more_jobs = cut_to_page(&mut jobs, PAGE_ITEM_COUNT).is_some();
    let mut versions = store.script_versions(record.id, state.before_version, VERSION_COUNT + 1).await?;
    let older_than = cut_to_page(&mut versions, VERSION_COUNT).map(|last| last.version);
    let compared_versions = state.comparison.as_ref().map(|comparison| (comparison.from, comparison.to));
    let version_pair = compared_versions.unwrap_or(((newest_version - 1).max(1), newest_version));
    let template = ScriptPage {
        shell: page.shell(Nav::Scripts),
        t: page.t,
        missing_roles: page.missing_roles(None),
        language: record.language.clone(),
        newest_version,
        jobs,
        has_more_jobs,
        apps: script_try::apps_for_language(page, &record.language).await?,
        can_check: script_try::can_check(&record.language),
        try_errors: state.try_errors,
        rows: versions.into_iter().map(|version| version_row(page, version, version_pair)).collect(),
        older_than,
        comparison: state.comparison,
        form,
        errors: state.errors,
        version: Some(state.conflict_version.unwrap_or(newest_version)),
        conflict_version: state.conflict_version,
        action: format!("/scripts/{name}"),
        code: page.code(("GET", &format!("/api/v1/scripts/{name}")), None, &format!("script show {name}")),
        name,
    };
    html(status, &template)
}

fn version_row<Q>(page: &Page<Q>, version: ScriptVersion, (from_version, to_version): (i64, i64)) -> VersionRow {
    VersionRow {
        version: version.version,
        author: version.author,
        at: Moment::new(version.created_at, page.engine().now(), page.t),
        note: version.note,
        is_signed: version.signature.is_some(),
        is_from: version.version == from_version,
        is_to: version.version == to_version,
    }
}
