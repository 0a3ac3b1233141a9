//! The audit log: a page of it, or all of it as lines.

use std::convert::Infallible;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream::unfold;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, StatusCode};
use rondel_core::{AuditId, Timestamp};
use rondel_store::access::{AuditEntry, AuditQuery, Verdict};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::{LIMIT_DEFAULT, LIMIT_MAX, Page};
use crate::app::Web;
use crate::call::Person;
use crate::cursor::{Listing, invalid};
use crate::frame::json;
use crate::parameter::Parameter;
use crate::problem::Problem;
use crate::query::{FromQuery, Reader};
use rondel_core::error_chain::chain;

/// How many entries an export reads at a time.
const EXPORT_BATCH: u32 = 500;
/// The longest filter, in bytes.
const FILTER_LEN_MAX: usize = 255;

const VERDICTS: [&str; 3] = ["allowed", "denied", "failed"];

const fn filter(name: &'static str) -> Parameter {
    Parameter::pattern(name, r"^[^\u0000]{1,255}$")
}

/// The query of the log.
#[derive(Debug)]
pub(crate) struct ReadAudit {
    wanted: AuditQuery,
    cursor: Option<String>,
}

impl FromQuery for ReadAudit {
    fn from_query(reader: &mut Reader) -> Self {
        let text = |text: &str| match text.len() {
            1..=FILTER_LEN_MAX if !text.contains('\0') => Ok(text.to_owned()),
            _ => Err(format!("must have 1 to {FILTER_LEN_MAX} bytes, none of them NUL")),
        };
        let instant = |text: &str| text.parse::<Timestamp>().map_err(|error| error.to_string());
        Self {
            wanted: AuditQuery {
                actor: reader.parsed(filter("actor").about("Only by this one."), text),
                action: reader.parsed(filter("action").about("Only this: `job.change`."), text),
                object: reader.parsed(filter("object").about("Only to this."), text),
                namespace: reader.parsed(filter("in").about("Only in this namespace."), text),
                verdict: reader
                    .parsed(Parameter::word("verdict", &VERDICTS).about("Only with this outcome."), |word| {
                        word.parse::<Verdict>()
                    }),
                from: reader.parsed(Parameter::instant("from").about("From when on."), instant),
                to: reader.parsed(Parameter::instant("to").about("Until when."), instant),
                after: None,
                limit: reader.limit(LIMIT_DEFAULT, LIMIT_MAX),
            },
            cursor: reader.one(Parameter::cursor()),
        }
    }
}

/// An entry as the API shows it.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "AuditEntry")]
pub(super) struct EntryJson<'a> {
    id: AuditId,
    at: Timestamp,
    actor: &'a str,
    #[schemars(extend("enum" = ["session", "token", "executor", "system", "anonymous"]))]
    means: &'static str,
    address: Option<&'a str>,
    request_id: Option<&'a str>,
    action: &'a str,
    object: &'a str,
    namespace: Option<&'a str>,
    #[schemars(extend("enum" = VERDICTS))]
    verdict: &'static str,
    /// What it was, without secrets.
    #[schemars(with = "Option<Value>")]
    before: Option<&'a RawValue>,
    /// What it has become, without secrets.
    #[schemars(with = "Option<Value>")]
    after: Option<&'a RawValue>,
}

impl<'a> From<&'a AuditEntry> for EntryJson<'a> {
    fn from(entry: &'a AuditEntry) -> Self {
        let document = |text: &'a Option<String>| text.as_deref().and_then(|text| serde_json::from_str(text).ok());
        Self {
            id: entry.id,
            at: entry.at,
            actor: &entry.actor,
            means: entry.means.as_str(),
            address: entry.address.as_deref(),
            request_id: entry.request_id.as_deref(),
            action: &entry.action,
            object: &entry.object,
            namespace: entry.namespace.as_deref(),
            verdict: entry.verdict.as_str(),
            before: document(&entry.before),
            after: document(&entry.after),
        }
    }
}

pub(super) async fn list(person: Person<ReadAudit>, headers: HeaderMap) -> Result<Response, Problem> {
    let ReadAudit { wanted, cursor } = &person.query;
    let listing = Listing::new("audit", AuditQuery { limit: 0, ..wanted.clone() });
    let after = cursor.as_deref().map(|cursor| listing.position::<AuditId>(cursor)).transpose()?;
    if after.is_some_and(|after| after.get() <= 0) {
        return Err(invalid("does not hold an id"));
    }
    let query = AuditQuery { after, ..wanted.clone() };
    let wants_lines = headers.get(ACCEPT).is_some_and(|accept| accept.as_bytes().starts_with(b"application/x-ndjson"));
    if wants_lines {
        return Ok(export(person.web.clone(), query));
    }
    let limit = usize::try_from(query.limit).unwrap_or(usize::MAX);
    let mut found = person.engine().store().audit(&AuditQuery { limit: query.limit + 1, ..query }).await?;
    let has_more = found.len() > limit;
    found.truncate(limit);
    let next_cursor = found.last().filter(|_| has_more).map(|last| listing.cursor(last.id));
    json(StatusCode::OK, &Page { items: found.iter().map(EntryJson::from).collect(), next_cursor })
}

/// All that is asked for, one entry in each line, the newest first. A store that fails ends it with a line that says so.
fn export(web: Web, query: AuditQuery) -> Response {
    let query = AuditQuery { limit: EXPORT_BATCH, ..query };
    let lines = unfold((web, Some(query)), async |(web, query)| {
        let query = query.filter(|_| !web.config.shutdown.is_cancelled())?;
        let (text, next) = match web.engine.store().audit(&query).await {
            Ok(found) => {
                let next = found.last().map(|last| AuditQuery { after: Some(last.id), ..query });
                let line =
                    |entry: &AuditEntry| serde_json::to_string(&EntryJson::from(entry)).unwrap_or_default() + "\n";
                (found.iter().map(line).collect::<String>(), next)
            }
            Err(error) => {
                tracing::warn!(target: "http", error = chain(&error), "the export of the audit log broke off");
                ("{\"complete\":false}\n".to_owned(), None)
            }
        };
        Some((Ok::<_, Infallible>(Bytes::from(text)), (web, next)))
    });
    let mut response = Response::new(Body::from_stream(lines));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    response
}
