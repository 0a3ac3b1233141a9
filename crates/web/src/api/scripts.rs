//! Scripts stored on the server: lists, saves, compares, restores and deletes their versions.

use axum::response::{IntoResponse as _, Response};
use http::header::{ACCEPT, CONTENT_TYPE, ETAG};
use http::{HeaderMap, StatusCode};
use rondel_admin::scripts::{self, SavedScript, ScriptError};
use rondel_core::access::Permission::{Edit, View};
use rondel_core::diff::{self, Change};
use rondel_core::script::ScriptSpec;
use rondel_core::{Timestamp, name};
use rondel_store::scripts::{ScriptRecord, ScriptVersion};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::page::{Page, PageQuery};
use crate::answer::json_response;
use crate::body::JsonBody;
use crate::call::{Call, forbidden_problem, quoted_input};
use crate::cursor::{Listing, cut_to_page};
use crate::etag::{IfMatch, mismatch_problem, version_tag};
use crate::openapi::Doc;
use crate::parameter::Parameter;
use crate::path::{self, Named};
use crate::problem::{Code, Complaint, Problem};
use crate::query::{FromQuery, Reader};
use crate::routes::Routes;

/// The version that a query names; the newest one if it names none.
#[derive(Debug)]
pub(super) struct VersionQuery(Option<i64>);

impl FromQuery for VersionQuery {
    fn from_query(reader: &mut Reader) -> Self {
        Self(reader.parsed(version_parameter("version", "The newest if left out."), parse_version))
    }
}

/// The two versions to compare. The default is the newest one and the one before it.
#[derive(Debug)]
pub(crate) struct DiffQuery {
    pub(super) from: Option<i64>,
    pub(super) to: Option<i64>,
}

impl FromQuery for DiffQuery {
    fn from_query(reader: &mut Reader) -> Self {
        Self {
            from: reader.parsed(
                version_parameter("from", "The older version; the one before `to` if left out."),
                parse_version,
            ),
            to: reader.parsed(version_parameter("to", "The newest if left out."), parse_version),
        }
    }
}

fn version_parameter(name: &'static str, about: &'static str) -> Parameter {
    Parameter::number(name, 1..=i32::MAX.unsigned_abs()).about(about)
}

pub(crate) fn parse_version(text: &str) -> Result<i64, String> {
    match text.parse::<i64>() {
        Ok(version) if (1..=i64::from(i32::MAX)).contains(&version) => Ok(version),
        _ => Err(format!("{text:?} is not the number of a version")),
    }
}

/// A version without its source.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ScriptVersion")]
pub(super) struct VersionJson<'a> {
    version: i64,
    /// SHA-256 of the source, in hex.
    hash: &'a str,
    size_bytes: u64,
    note: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    signature: Option<&'a str>,
    author: &'a str,
    updated_at: Timestamp,
}

impl<'a> From<&'a ScriptVersion> for VersionJson<'a> {
    fn from(version: &'a ScriptVersion) -> Self {
        Self {
            version: version.version,
            hash: &version.hash,
            size_bytes: version.size,
            note: &version.note,
            signature: version.signature.as_deref(),
            author: &version.author,
            updated_at: version.created_at,
        }
    }
}

/// A script in a list.
#[derive(Serialize, JsonSchema)]
pub(super) struct ScriptItem<'a> {
    name: &'a str,
    namespace: &'a str,
    language: &'a str,
    created_at: Timestamp,
    #[serde(flatten)]
    version: VersionJson<'a>,
}

/// A script with the source of one version.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Script")]
pub(super) struct ScriptJson<'a> {
    #[serde(flatten)]
    item: ScriptItem<'a>,
    source: &'a str,
}

/// The differences between two versions.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ScriptDiff")]
struct DiffJson {
    from: i64,
    to: i64,
    /// Lines of the old version begin with `-`, those of the new one with `+`. Empty if the sources are equal.
    text: String,
}

/// The body of a request to restore a version.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ScriptVersionToRestore")]
pub(super) struct RestoreRequest {
    #[schemars(range(min = 1))]
    version: i64,
    /// The note of the new version; if left out, it names the restored version.
    #[serde(default)]
    note: Option<String>,
}

/// A job that uses a script.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ScriptUser")]
pub(super) struct ScriptUserJson {
    name: String,
}

pub(super) fn routes() -> Routes {
    let routes = Routes::new()
        .get(
            "/api/v1/scripts",
            View,
            list,
            Doc::new("List scripts", "By name, without their sources.")
                .json::<Page<ScriptItem<'static>>>(200, "A page of scripts."),
        )
        .get(
            "/api/v1/scripts/{name}",
            View,
            get,
            Doc::new("Get a script", "The script with the source of its newest version, or of the one that `version` names.")
                .json::<ScriptJson<'static>>(200, "The script.")
                .with("ETag"),
        )
        .put(
            "/api/v1/scripts/{name}",
            Edit,
            put,
            Doc::new(
                "Save a script",
                "Creates a new version, unless the newest one has this source. Jobs that name no version run it from their next attempt \
                 on. The language cannot change.",
            )
            .json::<ScriptJson<'static>>(200, "The changed script.")
            .with("ETag")
            .json::<ScriptJson<'static>>(201, "The new script.")
            .with("ETag")
            .refuses(&[Code::TooManyScripts])
            .example(json!({"language": "shell", "source": "echo closing orders of $1\n", "note": "first version"})),
        )
        .delete(
            "/api/v1/scripts/{name}",
            Edit,
            delete,
            Doc::new("Delete a script", "Deletes the script with all its versions. Refused while a job uses it.")
                .empty("It was deleted.")
                .refuses(&[Code::ScriptUsed]),
        );
    add_version_routes(routes)
}

fn add_version_routes(routes: Routes) -> Routes {
    routes
        .get(
            "/api/v1/scripts/{name}/versions",
            View,
            list_versions,
            Doc::new("List the versions of a script", "The stored versions, the newest first, without their sources.")
                .json::<Page<VersionJson<'static>>>(200, "A page of versions."),
        )
        .get(
            "/api/v1/scripts/{name}/diff",
            View,
            diff,
            Doc::new(
                "Compare two versions of a script",
                "The differences line by line; with `Accept: text/plain`, only the text.",
            )
            .json::<DiffJson>(200, "The differences.")
            .text("text/plain"),
        )
        .post(
            "/api/v1/scripts/{name}/restore",
            Edit,
            restore,
            Doc::new(
                "Restore a version of a script",
                "Creates a new version with the source and the signature of an earlier one.",
            )
            .json::<ScriptJson<'static>>(200, "The script under its new version.")
            .with("ETag")
            .example(json!({"version": 1})),
        )
        .get(
            "/api/v1/scripts/{name}/jobs",
            View,
            list_jobs,
            Doc::new("List the jobs that use a script", "The jobs by name.")
                .json::<Page<ScriptUserJson>>(200, "A page of jobs."),
        )
}

async fn list(call: Call<PageQuery>) -> Result<Response, Problem> {
    let listing = Listing::new("scripts", call.namespace.id);
    let after_name = listing.name_after(call.query.cursor.as_deref(), name::check)?;
    let limit = call.query.limit;
    let mut records = call.engine().store().scripts(call.namespace.id, after_name.as_deref(), limit + 1).await?;
    let next_cursor = cut_to_page(&mut records, limit).map(|last: &ScriptRecord| listing.cursor(&last.name));
    let items = records.iter().map(|record| script_item(&call, record, &record.newest)).collect();
    json_response(StatusCode::OK, &Page { items, next_cursor })
}

fn script_item<'a, Q>(call: &'a Call<Q>, record: &'a ScriptRecord, version: &'a ScriptVersion) -> ScriptItem<'a> {
    ScriptItem {
        name: &record.name,
        namespace: &call.namespace.name,
        language: &record.language,
        created_at: record.created_at,
        version: version.into(),
    }
}

async fn get(call: Call<VersionQuery>, Named(name, ..): Named<path::Script>) -> Result<Response, Problem> {
    let record = find(&call, &name).await?;
    let (version, source) =
        version_in_query(&call, &record, ("version", call.query.0.unwrap_or(record.newest.version))).await?;
    script_response(&call, StatusCode::OK, &record, (&version, &source))
}

async fn put(
    call: Call,
    Named(name, ..): Named<path::Script>,
    if_match: IfMatch,
    body: JsonBody<ScriptSpec>,
) -> Result<Response, Problem> {
    let spec = body.read()?;
    call.check(None, forbidden_problem)?;
    let existing_script = scripts::find(call.engine(), call.namespace.id, &name).await?;
    let expected_version = match &existing_script {
        Some(record) => {
            call.note.before(&audited_script(record));
            if_match.expected_version(record.newest.version)?
        }
        None if if_match.is_given() => return Err(mismatch_problem(0)),
        None => None,
    };
    let namespace_and_name = (call.namespace.id, name.as_str());
    let saved_script =
        scripts::save(call.engine(), namespace_and_name, &spec, expected_version, call.caller.name()).await?;
    answer_saved(&call, &saved_script, &spec.source)
}

async fn restore(
    call: Call,
    Named(name, ..): Named<path::Script>,
    if_match: IfMatch,
    body: JsonBody<RestoreRequest>,
) -> Result<Response, Problem> {
    let RestoreRequest { version, note } = body.read()?;
    let record = find(&call, &name).await?;
    let expected_version = if_match.expected_version(record.newest.version)?;
    let saved_script = restore_version(&call, &record, (version, note), expected_version).await?;
    let (_, source) =
        scripts::version_of(call.engine(), &saved_script.record, saved_script.record.newest.version).await?;
    answer_saved(&call, &saved_script, &source)
}

/// Saves an earlier version as the newest one, for the API and the console.
pub(crate) async fn restore_version<Q>(
    call: &Call<Q>,
    record: &ScriptRecord,
    (version, note): (i64, Option<String>),
    expected_version: Option<i64>,
) -> Result<SavedScript, Problem> {
    let result = scripts::restore(call.engine(), record, (version, note), expected_version, call.caller.name()).await;
    let saved_script = result.map_err(|error| match error {
        ScriptError::NoVersion(_) => crate::body::refuse_value("/version", error.to_string()),
        error => error.into(),
    })?;
    call.note.changed_to(&audited_script(&saved_script.record));
    Ok(saved_script)
}

async fn delete(call: Call, Named(name, ..): Named<path::Script>, if_match: IfMatch) -> Result<Response, Problem> {
    let record = find(&call, &name).await?;
    let expected_version = if_match.expected_version(record.newest.version)?;
    scripts::delete(call.engine(), (call.namespace.id, &name), expected_version).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn list_versions(call: Call<PageQuery>, Named(name, ..): Named<path::Script>) -> Result<Response, Problem> {
    let record = find(&call, &name).await?;
    let listing = Listing::new("script versions", record.id);
    let before_version = call.query.cursor.as_deref().map(|cursor| listing.position::<i64>(cursor)).transpose()?;
    let limit = call.query.limit;
    let mut versions = call.engine().store().script_versions(record.id, before_version, limit + 1).await?;
    let next_cursor = cut_to_page(&mut versions, limit).map(|last: &ScriptVersion| listing.cursor(last.version));
    let items = versions.iter().map(VersionJson::from).collect();
    json_response(StatusCode::OK, &Page { items, next_cursor })
}

async fn diff(
    call: Call<DiffQuery>,
    Named(name, ..): Named<path::Script>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let record = find(&call, &name).await?;
    let to = call.query.to.unwrap_or(record.newest.version);
    let from = call.query.from.unwrap_or_else(|| (to - 1).max(1));
    let text = diff::changes_text(&diff_versions(&call, &record, from, to).await?);
    if headers.get(ACCEPT).is_some_and(|accept| accept.as_bytes().starts_with(b"text/plain")) {
        return Ok(([(CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response());
    }
    json_response(StatusCode::OK, &DiffJson { from, to, text })
}

/// The differences between the sources of two versions.
pub(crate) async fn diff_versions<Q>(
    call: &Call<Q>,
    record: &ScriptRecord,
    from_version: i64,
    to_version: i64,
) -> Result<Vec<Change>, Problem> {
    let (_, source_before) = version_in_query(call, record, ("from", from_version)).await?;
    let (_, source_after) = version_in_query(call, record, ("to", to_version)).await?;
    Ok(diff::changes(&json!({"source": source_before}), &json!({"source": source_after})))
}

async fn list_jobs(call: Call<PageQuery>, Named(name, ..): Named<path::Script>) -> Result<Response, Problem> {
    let record = find(&call, &name).await?;
    let listing = Listing::new("script jobs", record.id);
    let after_name = listing.name_after(call.query.cursor.as_deref(), name::check)?;
    let (limit, visible_apps) = (call.query.limit, call.visible_apps());
    let store = call.engine().store();
    let mut jobs = store
        .jobs_with_script(record.namespace, &name, visible_apps.as_deref(), after_name.as_deref(), limit + 1)
        .await?;
    let next_cursor = cut_to_page(&mut jobs, limit).map(|last| listing.cursor(last));
    json_response(
        StatusCode::OK,
        &Page { items: jobs.into_iter().map(|name| ScriptUserJson { name }).collect(), next_cursor },
    )
}

/// A version of the script, and its source. The refusal of a version that does not exist names this query parameter.
async fn version_in_query<Q>(
    call: &Call<Q>,
    record: &ScriptRecord,
    (parameter, version): (&'static str, i64),
) -> Result<(ScriptVersion, String), Problem> {
    scripts::version_of(call.engine(), record, version).await.map_err(|error| match error {
        ScriptError::NoVersion(_) => Problem::of_complaints(
            Code::InvalidQuery,
            vec![Complaint::query(parameter, "invalid_value", error.to_string())],
        ),
        error => error.into(),
    })
}

fn answer_saved<Q>(call: &Call<Q>, saved_script: &SavedScript, source: &str) -> Result<Response, Problem> {
    call.note.changed_to(&audited_script(&saved_script.record));
    let status = if saved_script.is_new { StatusCode::CREATED } else { StatusCode::OK };
    script_response(call, status, &saved_script.record, (&saved_script.record.newest, source))
}

fn script_response<Q>(
    call: &Call<Q>,
    status: StatusCode,
    record: &ScriptRecord,
    (version, source): (&ScriptVersion, &str),
) -> Result<Response, Problem> {
    let mut response = json_response(status, &ScriptJson { item: script_item(call, record, version), source })?;
    response.headers_mut().insert(ETAG, version_tag(record.newest.version));
    Ok(response)
}

/// A script in the audit log. The source is not stored there; the hash identifies it.
#[derive(Serialize)]
pub(crate) struct AuditedScript<'a> {
    language: &'a str,
    version: i64,
    hash: &'a str,
    note: &'a str,
}

pub(crate) fn audited_script(record: &ScriptRecord) -> AuditedScript<'_> {
    AuditedScript {
        language: &record.language,
        version: record.newest.version,
        hash: &record.newest.hash,
        note: &record.newest.note,
    }
}

/// The script with this name in the namespace of the call.
pub(crate) async fn find<Q>(call: &Call<Q>, name: &str) -> Result<ScriptRecord, Problem> {
    let record = scripts::find(call.engine(), call.namespace.id, name).await?;
    let detail = || format!("there is no script {} in namespace {}", quoted_input(name), call.namespace.name);
    let not_found = || Problem::new(Code::ScriptNotFound, detail());
    let record = record.ok_or_else(not_found)?;
    call.check(None, not_found)?;
    call.note.before(&audited_script(&record));
    Ok(record)
}

impl From<ScriptError> for Problem {
    fn from(error: ScriptError) -> Self {
        match error {
            ScriptError::Invalid(errors) => {
                Self::of_complaints(Code::InvalidBody, errors.into_iter().map(Complaint::from).collect())
            }
            ScriptError::Conflict { version } => mismatch_problem(version),
            ScriptError::Used { ref jobs, job_count } => {
                let names_all_jobs = u64::try_from(jobs.len()).is_ok_and(|count| count == job_count);
                let suffix = if names_all_jobs { "" } else { ", …" };
                Self::new(Code::ScriptUsed, format!("{error} ({}{suffix})", jobs.join(", ")))
            }
            error @ ScriptError::TooMany => Self::new(Code::TooManyScripts, error.to_string()),
            ScriptError::NotFound => Self::new(Code::ScriptNotFound, "the script was deleted meanwhile"),
            error @ ScriptError::NoVersion(_) => Self::new(Code::ScriptNotFound, error.to_string()),
            ScriptError::Store(error) => error.into(),
        }
    }
}
