//! What an edit of a job changed.

use axum::response::{IntoResponse as _, Response};
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, StatusCode};
use rondel_core::JobSpec;
use rondel_core::diff::{self, Change};
use rondel_store::catalog::JobRecord;
use serde::Serialize;
use serde_json::Value;

use super::jobs::{JobName, find};
use crate::call::Call;
use crate::frame::json;
use crate::problem::{Code, Complaint, Problem};
use crate::query::{FromQuery, Reader};

/// Which two versions: the newest one and the one before it where nothing is said.
#[derive(Debug)]
pub(crate) struct DiffQuery {
    from: Option<i64>,
    to: Option<i64>,
}

impl FromQuery for DiffQuery {
    fn from_query(reader: &mut Reader) -> Self {
        let version = |text: &str| match text.parse::<i64>() {
            Ok(version) if version >= 1 => Ok(version),
            _ => Err(format!("{text:?} is not the number of a version")),
        };
        Self { from: reader.parsed("from", version), to: reader.parsed("to", version) }
    }
}

#[derive(Serialize)]
struct DiffJson {
    from: i64,
    to: i64,
    changes: Vec<ChangeJson>,
    /// The same for people.
    text: String,
}

#[derive(Serialize)]
struct ChangeJson {
    pointer: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<Value>,
}

pub(super) async fn diff(
    call: Call<DiffQuery>,
    JobName(name): JobName,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let record = find(&call, &name).await?;
    let to = call.query.to.unwrap_or(record.version);
    let from = call.query.from.unwrap_or_else(|| (to - 1).max(1));
    let (before, after) =
        (definition(&call, &record, ("from", from)).await?, definition(&call, &record, ("to", to)).await?);
    let changes = diff::changes(&before, &after);
    let text = diff::text(&changes);
    if headers.get(ACCEPT).is_some_and(|accept| accept.as_bytes().starts_with(b"text/plain")) {
        return Ok(([(CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response());
    }
    let changes = changes.into_iter().map(|Change { pointer, from, to }| ChangeJson { pointer, from, to }).collect();
    json(StatusCode::OK, &DiffJson { from, to, changes, text })
}

async fn definition(
    call: &Call<DiffQuery>,
    record: &JobRecord,
    (parameter, version): (&'static str, i64),
) -> Result<Value, Problem> {
    let found = call.engine().store().definitions(&[(record.id, version)]).await?.pop();
    let spec: JobSpec = found.map(|found| found.spec).ok_or_else(|| {
        let message = format!("there is no version {version}; the newest is {}", record.version);
        Problem::of_complaints(Code::InvalidQuery, vec![Complaint::query(parameter, "invalid_value", message)])
    })?;
    Ok(serde_json::to_value(&spec).unwrap_or_default())
}
