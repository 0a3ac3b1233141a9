//! Shows the changes between versions of a job's definition, and restores earlier versions.

use std::collections::BTreeSet;

use axum::response::{IntoResponse as _, Response};
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, StatusCode};
use rondel_core::JobSpec;
use rondel_core::access::Permission::{Edit, View};
use rondel_core::diff::{self, Change};
use rondel_core::disclosure::changes_for_viewer;
use rondel_store::catalog::JobRecord;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::change::{EDIT_REFUSALS, Origin, save_edit};
use super::find::find;
use super::job_json::{JobJson, job_response};
use crate::answer::json_response;
use crate::api::scripts::DiffQuery;
use crate::body::{JsonBody, refuse_value};
use crate::call::Call;
use crate::etag::IfMatch;
use crate::openapi::Doc;
use crate::path::{self, Named};
use crate::problem::{Code, Complaint, Problem};
use crate::routes::Routes;

/// The differences between two versions.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "VersionDiff")]
pub(super) struct DiffJson {
    from: i64,
    to: i64,
    changes: Vec<ChangeJson>,
    /// The differences as text.
    text: String,
}

/// A field that differs.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "FieldChange")]
pub(super) struct ChangeJson {
    pointer: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<Value>,
}

impl From<Change> for ChangeJson {
    fn from(Change { pointer, from, to }: Change) -> Self {
        Self { pointer, from, to }
    }
}

pub(super) fn routes() -> Routes {
    Routes::new()
        .post(
            "/api/v1/jobs/{name}/restore",
            Edit,
            restore,
            Doc::new(
                "Restore an earlier version",
                "Creates a new version with the definition of an earlier one. The job keeps its name and its `enabled`.",
            )
            .json::<JobJson<'static>>(200, "The job under its new definition.")
            .with("ETag")
            .refuses(EDIT_REFUSALS)
            .example(json!({"version": 1})),
        )
        .get(
            "/api/v1/jobs/{name}/versions/diff",
            View,
            diff,
            Doc::new(
                "Compare two versions of a job",
                "The fields that differ; `text` shows scripts line by line. With `Accept: text/plain`, only the text.",
            )
            .json::<DiffJson>(200, "The differences.")
            .text("text/plain"),
        )
}

async fn diff(
    call: Call<DiffQuery>,
    Named(name, ..): Named<path::Job>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let record = find(&call, &name).await?;
    let to = call.query.to.unwrap_or(record.version);
    let from = call.query.from.unwrap_or_else(|| (to - 1).max(1));
    let changes = diff_versions(&call, &record, from, to).await?;
    let text = diff::changes_text(&changes);
    if headers.get(ACCEPT).is_some_and(|accept| accept.as_bytes().starts_with(b"text/plain")) {
        return Ok(([(CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response());
    }
    let changes = changes.into_iter().map(ChangeJson::from).collect();
    json_response(StatusCode::OK, &DiffJson { from, to, changes, text })
}

/// The differences between two versions, limited to values that the caller may see.
pub(crate) async fn diff_versions<Q>(
    call: &Call<Q>,
    record: &JobRecord,
    from_version: i64,
    to_version: i64,
) -> Result<Vec<Change>, Problem> {
    let (definition_before, definition_after) =
        (definition(call, record, ("from", from_version)).await?, definition(call, record, ("to", to_version)).await?);
    let apps = [&definition_before, &definition_after]
        .into_iter()
        .filter_map(|spec| spec["app"].as_str().map(str::to_owned))
        .collect();
    let may_edit = call.apps_without(Edit, apps).await?.is_empty();
    Ok(if may_edit {
        diff::changes(&definition_before, &definition_after)
    } else {
        changes_for_viewer(&definition_before, &definition_after)
    })
}

/// The body of a request to restore a version.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "VersionToRestore")]
pub(super) struct RestoreRequest {
    #[schemars(range(min = 1))]
    version: i64,
}

/// Saves an earlier version as the newest one. The job's name, and whether it is enabled, do not change.
async fn restore(
    call: Call,
    Named(name, ..): Named<path::Job>,
    if_match: IfMatch,
    body: JsonBody<RestoreRequest>,
) -> Result<Response, Problem> {
    let request = body.read()?;
    let record = restore_version(&call, &name, &if_match, request.version).await?;
    job_response(&call, StatusCode::OK, &record, None).await
}

/// Saves an earlier version as the newest one, for the API and the console. Does nothing if the job already has that definition.
pub(crate) async fn restore_version<Q>(
    call: &Call<Q>,
    name: &str,
    if_match: &IfMatch,
    version: i64,
) -> Result<JobRecord, Problem> {
    let record = find(call, name).await?;
    let old_spec = spec_of_version(call, &record, version).await?;
    let old_spec = old_spec.map_err(|message| refuse_value("/version", message))?;
    save_edit(call, name, if_match, Origin::Stored, |record| {
        let spec = JobSpec { name: record.spec.name.clone(), enabled: record.spec.enabled, ..old_spec.clone() };
        Ok(Some(spec).filter(|spec| *spec != record.spec))
    })
    .await
}

/// The definition of a version that the caller may see.
pub(crate) async fn version_spec<Q>(call: &Call<Q>, record: &JobRecord, version: i64) -> Result<JobSpec, Problem> {
    let spec = spec_of_version(call, record, version).await?;
    spec.map_err(|message| {
        Problem::of_complaints(Code::InvalidQuery, vec![Complaint::query("from", "invalid_value", message)])
    })
}

async fn definition<Q>(
    call: &Call<Q>,
    record: &JobRecord,
    (parameter, version): (&'static str, i64),
) -> Result<Value, Problem> {
    let spec_or_message = spec_of_version(call, record, version).await?;
    let spec = spec_or_message.map_err(|message| {
        Problem::of_complaints(Code::InvalidQuery, vec![Complaint::query(parameter, "invalid_value", message)])
    })?;
    Ok(serde_json::to_value(&spec).unwrap_or_default())
}

/// The definition of a version, or a message that it does not exist. A version counts as missing if it was saved while the job belonged to
/// an app that the caller does not see.
async fn spec_of_version<Q>(
    call: &Call<Q>,
    record: &JobRecord,
    version: i64,
) -> Result<Result<JobSpec, String>, Problem> {
    let record_of_version = call.engine().store().definitions(&[(record.id, version)]).await?.pop();
    let not_found_text = || format!("there is no version {version}; the newest is {}", record.version);
    let Some(spec) = record_of_version.map(|record_of_version| record_of_version.spec) else {
        return Ok(Err(not_found_text()));
    };
    let is_hidden = !call.hidden_apps(BTreeSet::from([spec.app.clone()])).await?.is_empty();
    Ok(if is_hidden { Err(not_found_text()) } else { Ok(spec) })
}
