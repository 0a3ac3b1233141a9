//! The audit log: one page of it, or an export of all entries, one per line.

use std::convert::Infallible;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream::{StreamExt as _, unfold};
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue};
use rondel_admin::Engine;
use rondel_core::access::Permission::Cluster;
use rondel_core::access::Rights;
use rondel_core::error_chain::chain;
use rondel_core::{AuditId, Timestamp, TokenId};
use rondel_store::access::{AuditEntry, AuditQuery, Verdict};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::page::{LIMIT_DEFAULT, LIMIT_MAX, Page};
use super::page_builder::PageBuilder;
use crate::call::{GlobalCall, quoted_input};
use crate::cursor::{Listing, cut_to_page};
use crate::openapi::Doc;
use crate::parameter::Parameter;
use crate::permits::HeavyWork;
use crate::problem::{Code, Complaint, Problem};
use crate::query::{FromQuery, Reader};
use crate::recheck::RecheckedCaller;
use crate::routes::Routes;
use crate::shares::{self, HeavyWorkShare};
use crate::state::Web;

/// How many entries an export reads at a time.
const EXPORT_BATCH_COUNT: u32 = 500;
/// About how many bytes a batch has.
const EXPORT_BATCH_LEN: usize = 256 * 1024;
/// How many entries the first batch has: few, since the length of the entries is not known yet.
const FIRST_BATCH_COUNT: u32 = 16;
/// Maximum number of namespaces that a refusal names.
const NAMED_NAMESPACE_COUNT_MAX: usize = 20;
/// Maximum length of a filter, in bytes.
const FILTER_LEN_MAX: usize = 255;

const VERDICT_WORDS: [&str; 3] = ["allowed", "denied", "failed"];

const fn filter_parameter(name: &'static str) -> Parameter {
    Parameter::pattern(name, r"^[^\u0000]{1,255}$")
}

/// The query parameters for reading the audit log.
#[derive(Debug)]
pub(crate) struct ReadAudit {
    pub(crate) filter: AuditQuery,
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
            filter: AuditQuery {
                actor: reader.parsed(filter_parameter("actor").about("Only entries of this caller."), text),
                action: reader
                    .parsed(filter_parameter("action").about("Only this action, such as `job.change`."), text),
                object: reader.parsed(filter_parameter("object").about("Only actions on this object."), text),
                namespace: reader.parsed(filter_parameter("in").about("Only entries of this namespace."), text),
                verdict: reader.parsed(
                    Parameter::word("verdict", &VERDICT_WORDS).about("Only entries with this outcome."),
                    |word| word.parse::<Verdict>(),
                ),
                from: reader.parsed(Parameter::instant("from").about("Only entries from this instant on."), instant),
                to: reader.parsed(Parameter::instant("to").about("Only entries before this instant."), instant),
                after: None,
                limit: reader.limit(LIMIT_DEFAULT, LIMIT_MAX),
            },
            cursor: reader.single(Parameter::cursor()),
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
    #[serde(rename = "means")]
    auth_method: &'static str,
    /// The token that the caller used: names of tokens are not unique.
    token_id: Option<TokenId>,
    address: Option<&'a str>,
    request_id: Option<&'a str>,
    action: &'a str,
    object: &'a str,
    namespace: Option<&'a str>,
    #[schemars(extend("enum" = VERDICT_WORDS))]
    verdict: &'static str,
    /// The state before the change, without secrets.
    #[schemars(with = "Option<Value>")]
    before: Option<&'a RawValue>,
    /// The state after the change, without secrets.
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
            auth_method: entry.auth_method.as_str(),
            token_id: entry.token,
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

pub(super) fn routes() -> Routes {
    Routes::new().get(
        "/api/v1/audit",
        Cluster,
        list,
        Doc::new(
            "Read the audit log",
            "Newest first. With `Accept: application/x-ndjson`, the whole log as JSON lines.",
        )
        .json::<Page<EntryJson<'static>>>(200, "A page of entries.")
        .text("application/x-ndjson"),
    )
}

/// Refuses the namespace in the query's filter if [`namespace_error`] returns an error for it.
pub(crate) async fn check_namespace(call: &GlobalCall<ReadAudit>) -> Result<(), Problem> {
    match namespace_error(call.engine(), call.query.filter.namespace.as_deref()).await? {
        Some(message) => {
            Err(Problem::of_complaints(Code::InvalidQuery, vec![Complaint::query("in", "invalid_value", message)]))
        }
        None => Ok(()),
    }
}

/// The error for a namespace that neither exists nor has entries; `None` for any other. A deleted namespace keeps its entries.
pub(crate) async fn namespace_error(engine: &Engine, name: Option<&str>) -> Result<Option<String>, Problem> {
    let Some(name) = name else { return Ok(None) };
    let namespaces = engine.store().namespaces().await?;
    let entries_of_namespace = AuditQuery { namespace: Some(name.to_owned()), limit: 1, ..AuditQuery::default() };
    if namespaces.iter().any(|namespace| namespace.name == name)
        || !engine.store().audit(&entries_of_namespace).await?.is_empty()
    {
        return Ok(None);
    }
    let names: Vec<&str> =
        namespaces.iter().take(NAMED_NAMESPACE_COUNT_MAX).map(|namespace| namespace.name.as_str()).collect();
    let names = names.join(", ");
    Ok(Some(format!("{} is neither a namespace nor in any entry; namespaces: {names}", quoted_input(name))))
}

async fn list(call: GlobalCall<ReadAudit>, headers: HeaderMap) -> Result<Response, Problem> {
    check_namespace(&call).await?;
    let ReadAudit { filter, cursor } = &call.query;
    let listing = Listing::new("audit", AuditQuery { limit: 0, ..filter.clone() });
    let after_id = listing.id_after(cursor.as_deref(), AuditId::get)?;
    let query = AuditQuery { after: after_id, ..filter.clone() };
    let wants_lines = headers.get(ACCEPT).is_some_and(|accept| accept.as_bytes().starts_with(b"application/x-ndjson"));
    if wants_lines {
        return export(&call, query);
    }
    let (mut page, mut query) = (PageBuilder::new(query.limit), query);
    while let Some(count) = page.next_row_count() {
        // Reads one entry more than the page needs, to detect whether there are more.
        query.limit = count + 1;
        let mut entries = call.engine().store().audit(&query).await?;
        let has_more = cut_to_page(&mut entries, count).is_some();
        for entry in &entries {
            if !page.add(&EntryJson::from(entry))? {
                return page.answer(query.after.map(|last| listing.cursor(last)));
            }
            query.after = Some(entry.id);
        }
        if !has_more {
            return page.answer(None);
        }
    }
    page.answer(query.after.map(|last| listing.cursor(last)))
}

/// A running export of the log.
struct LogExport {
    web: Web,
    caller: RecheckedCaller,
    _share: HeavyWorkShare,
    /// The query for the next batch; `None` at the end.
    query: Option<AuditQuery>,
}

impl LogExport {
    async fn next_bytes(&mut self) -> Option<Bytes> {
        let query = self.query.take()?;
        match self.read_batch(&query).await {
            Ok(entries) => {
                let line =
                    |entry: &AuditEntry| serde_json::to_string(&EntryJson::from(entry)).unwrap_or_default() + "\n";
                let text: String = entries.iter().map(line).collect();
                let limit = next_count(entries.len(), text.len());
                self.query = entries.last().map(|last| AuditQuery { after: Some(last.id), limit, ..query });
                Some(text.into())
            }
            Err(problem) => {
                let (code, message) = (problem.code().as_str(), problem.detail());
                let end_line = serde_json::json!({"complete": false, "code": code, "message": message});
                Some(format!("{end_line}\n").into())
            }
        }
    }

    async fn read_batch(&mut self, query: &AuditQuery) -> Result<Vec<AuditEntry>, Problem> {
        if self.web.config.shutdown.is_cancelled() {
            return Err(Problem::new(Code::Unavailable, "the server stops, so the export ends here"));
        }
        let may_read = |rights: &Rights| rights.allow_somewhere(Cluster);
        if let Some(loss) = self.caller.access_loss_unless(&self.web, may_read).await {
            return Err(loss.problem("so the export ends here"));
        }
        let _turn = shares::wait_for_turn(&self.web, self.caller.caller().key()).await?;
        self.web.engine.store().audit(query).await.map_err(|error| {
            tracing::warn!(target: "http", error = chain(&error), "the export of the audit log was aborted");
            Problem::new(Code::Unavailable, "the database did not answer, so the export ends here")
        })
    }
}

/// How many entries to read next, after a batch of `count` entries with `len` bytes. Assumes that the mean length stays the same.
fn next_count(count: usize, len: usize) -> u32 {
    let count = EXPORT_BATCH_LEN.saturating_mul(count) / len.max(1);
    u32::try_from(count).unwrap_or(EXPORT_BATCH_COUNT).clamp(1, EXPORT_BATCH_COUNT)
}

/// Exports all entries that match the query, one per line, the newest first. If the export ends early, its last line has the reason.
pub(crate) fn export(call: &GlobalCall<ReadAudit>, query: AuditQuery) -> Result<Response, Problem> {
    let export = LogExport {
        web: call.web.clone(),
        _share: shares::take_heavy_work_share(&call.web, HeavyWork::Export, call.caller.key())?,
        caller: RecheckedCaller::new(call.caller.clone()),
        query: Some(AuditQuery { limit: FIRST_BATCH_COUNT, ..query }),
    };
    let batches = unfold(export, async |mut export| {
        let bytes = export.next_bytes().await?;
        Some((Ok::<_, Infallible>(bytes), export))
    });
    let mut response = Response::new(Body::from_stream(batches.fuse()));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    Ok(response)
}
