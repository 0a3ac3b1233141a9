//! The audit log as a page: who did what to which object, from where, and which fields changed.

use std::time::Duration;

use askama::Template;
use axum::response::Response;
use http::header::CONTENT_DISPOSITION;
use http::{HeaderValue, StatusCode};
use rondel_core::{AuditId, Timestamp, words};
use rondel_store::access::{AuditEntry, AuditQuery, Verdict};

use super::activity_rows::{ActivityFormatter, ActivityRow, action_words};
use super::as_code::{AsCode, shell_quoted};
use super::prefs::Prefs;
use super::sentences::localized;
use super::shell::{Nav, PAGE_ITEM_COUNT, Page, Shell, User, WithLang, html};
use super::texts::Texts;
use super::zones;
use crate::api::audit::{ReadAudit, check_namespace, export as export_of, namespace_error};
use crate::api::jobs::find;
use crate::call::GlobalCall;
use crate::cursor::Listing;
use crate::path::{self, Named};
use crate::problem::Problem;
use crate::query::{FromQuery, Reader};
use crate::redirect::query_pair;

/// Maximum length of a filter, in bytes.
const FILTER_LEN_MAX: usize = 255;
/// How many entries a job's page shows.
const JOB_ENTRY_COUNT: u32 = 20;
/// How many entries are read for a job's page. Some of them are left out, since they are about other objects with the same name.
const JOB_ENTRY_READ_COUNT: u32 = 60;
/// The longest time that a call to create a job is assumed to take. Its audit entry has the instant at which the call began, so the entry
/// is older than the job.
const CREATE_CALL_LENGTH_MAX: Duration = Duration::from_secs(60);
/// The actions in the selection. Others can be entered in the page's URL.
const ACTIONS: [&str; 41] = [
    "job.create",
    "job.change",
    "job.bulk",
    "job.apply",
    "job.restore",
    "job.reset",
    "job.pause",
    "job.resume",
    "job.trigger",
    "job.cancel",
    "job.delete",
    "run.cancel",
    "run.retry",
    "run.bulk",
    "incident.acknowledge",
    "silence.create",
    "silence.delete",
    "maintenance.create",
    "maintenance.delete",
    "alert-rule.change",
    "alert-rule.delete",
    "channel.change",
    "channel.delete",
    "app.set-state",
    "executor.set-state",
    "node.set-state",
    "calendar.change",
    "calendar.delete",
    "script.change",
    "script.delete",
    "namespace.create",
    "namespace.delete",
    "namespace.set-failure-webhook",
    "user.create",
    "user.change",
    "user.delete",
    "user.password",
    "token.create",
    "token.rotate",
    "token.delete",
    "session.create",
];

/// The filters as the user typed them.
#[derive(Clone, Debug, Default)]
pub(super) struct Filters {
    actor: String,
    action: String,
    object: String,
    namespace: String,
    verdict: String,
    from: String,
    to: String,
    cursor: Option<String>,
}

impl FromQuery for Filters {
    fn from_query(reader: &mut Reader) -> Self {
        let mut text = |name: &'static str| reader.single(name).map(|text| text.trim().to_owned()).unwrap_or_default();
        Self {
            actor: text("actor"),
            action: text("action"),
            object: text("object"),
            namespace: text("in"),
            verdict: text("verdict"),
            from: text("from"),
            to: text("to"),
            cursor: reader.single("cursor"),
        }
    }
}

impl Filters {
    /// The query for the store. If a filter is wrong, returns the name of its field and a message.
    fn query(&self, now: Timestamp, t: &Texts) -> Result<AuditQuery, (&'static str, String)> {
        let text = |field: &'static str, text: &str| match text {
            "" => Ok(None),
            text if text.len() > FILTER_LEN_MAX || text.contains('\0') => Err((field, t.activity_bad_text.to_owned())),
            text => Ok(Some(text.to_owned())),
        };
        let instant = |field: &'static str, text: &str| match text {
            "" => Ok(None),
            text => {
                let instants = words::asked_instants(zones::clock_and_zone().1, text, now);
                let first_instant = instants.and_then(|instants| instants.first().copied());
                first_instant.map(Some).ok_or_else(|| (field, t.asked_bad_time.to_owned()))
            }
        };
        let verdict = match self.verdict.as_str() {
            "" => None,
            word => Some(word.parse::<Verdict>().map_err(|_| ("verdict", t.activity_bad_text.to_owned()))?),
        };
        Ok(AuditQuery {
            actor: text("actor", &self.actor)?,
            action: text("action", &self.action)?,
            object: text("object", &self.object)?,
            namespace: text("in", &self.namespace)?,
            verdict,
            from: instant("from", &self.from)?,
            to: instant("to", &self.to)?,
            after: None,
            limit: PAGE_ITEM_COUNT,
        })
    }

    fn pairs(&self) -> Vec<String> {
        let pairs = [
            ("actor", &self.actor),
            ("action", &self.action),
            ("object", &self.object),
            ("in", &self.namespace),
            ("verdict", &self.verdict),
            ("from", &self.from),
            ("to", &self.to),
        ];
        pairs.into_iter().filter(|(_, value)| !value.is_empty()).map(|(key, value)| query_pair(key, value)).collect()
    }

    fn is_empty(&self) -> bool {
        self.pairs().is_empty()
    }
}

/// The filters as parameters of the API, with exact instants.
fn api_pairs(query: &AuditQuery) -> Vec<(&'static str, String)> {
    let pairs = [
        ("actor", query.actor.clone()),
        ("action", query.action.clone()),
        ("object", query.object.clone()),
        ("in", query.namespace.clone()),
        ("verdict", query.verdict.map(|verdict| verdict.as_str().to_owned())),
        ("from", query.from.map(|at| at.to_string())),
        ("to", query.to.map(|at| at.to_string())),
    ];
    pairs.into_iter().filter_map(|(key, value)| Some((key, value?))).collect()
}

fn url_with_pairs(path: &str, pairs: &[String]) -> String {
    if pairs.is_empty() { path.to_owned() } else { format!("{path}?{}", pairs.join("&")) }
}

#[derive(Template)]
#[template(path = "activity.html")]
struct ActivityPage {
    shell: Shell,
    t: &'static Texts,
    filters: Filters,
    /// Each action with its description.
    actions: Vec<(&'static str, &'static str)>,
    /// The name of the filter that is wrong, and a message.
    error: Option<(&'static str, String)>,
    rows: Vec<ActivityRow>,
    first_url: String,
    next_url: Option<String>,
    /// The URL of the file with all entries that match.
    export_url: String,
    is_first: bool,
    /// Whether the URL has a filter.
    is_filtered: bool,
    code: AsCode,
}

type PageCall = GlobalCall<WithLang<Filters>>;

pub(super) async fn page(call: PageCall, prefs: Prefs) -> Result<Response, Problem> {
    let (engine, filters) = (call.engine(), call.query.0.clone());
    let (t, now) = (prefs.lang.texts(), engine.now());
    let page_url = url_with_pairs("/activity", &filters.pairs());
    let shell = Shell::new(prefs, Nav::Activity, Some(User::of_global_call(&call).await), &page_url);
    let (query, error) = match filters.query(now, t) {
        Ok(query) => (query, None),
        Err(error) => (AuditQuery { limit: PAGE_ITEM_COUNT, ..AuditQuery::default() }, Some(error)),
    };
    let error = match error {
        Some(error) => Some(error),
        None => {
            let message = namespace_error(engine, query.namespace.as_deref()).await?;
            message.map(|message| ("in", localized(t.lang(), &message).into_owned()))
        }
    };
    // Contains the filters as typed: an instant such as `8h ago` would resolve to another value on the next page.
    let listing = Listing::new("activity", filters.pairs());
    let after_id = listing.id_after(filters.cursor.as_deref(), AuditId::get)?;
    let entries = match &error {
        None => {
            engine.store().audit(&AuditQuery { after: after_id, limit: PAGE_ITEM_COUNT + 1, ..query.clone() }).await?
        }
        Some(_) => Vec::new(),
    };
    let has_more = entries.len() > PAGE_ITEM_COUNT as usize;
    let shown_entries = &entries[..entries.len().min(PAGE_ITEM_COUNT as usize)];
    let next_url = shown_entries.last().filter(|_| has_more).map(|last| {
        let cursor = query_pair("cursor", &listing.cursor(last.id));
        url_with_pairs("/activity", &[filters.pairs(), vec![cursor]].concat())
    });
    let api_filters = api_pairs(&query);
    let flags = api_filters.iter().map(|(key, value)| format!(" --{key} {}", shell_quoted(value))).collect::<String>();
    let api_filters: Vec<String> = api_filters.iter().map(|(key, value)| query_pair(key, value)).collect();
    let formatter = ActivityFormatter { t, now, may_see_secrets: true, may_see_origin: true };
    let status = if error.is_some() { StatusCode::UNPROCESSABLE_ENTITY } else { StatusCode::OK };
    let template = ActivityPage {
        t,
        actions: ACTIONS.iter().map(|action| (*action, action_words(t, action).unwrap_or(action))).collect(),
        rows: shown_entries.iter().map(|entry| formatter.row(entry)).collect(),
        first_url: page_url,
        next_url,
        export_url: url_with_pairs("/activity.ndjson", &api_filters),
        is_first: filters.cursor.is_none(),
        is_filtered: !filters.is_empty(),
        code: AsCode::without_namespace(
            ("GET", &url_with_pairs("/api/v1/audit", &api_filters)),
            None,
            &format!("audit{flags}"),
        ),
        error,
        filters,
        shell,
    };
    html(status, &template)
}

/// Downloads all entries that match the filters, as JSON lines.
pub(super) async fn export(call: GlobalCall<ReadAudit>) -> Result<Response, Problem> {
    check_namespace(&call).await?;
    let query = call.query.filter.clone();
    let mut response = export_of(&call, query)?;
    let content_disposition = HeaderValue::from_static("attachment; filename=\"activity.ndjson\"");
    response.headers_mut().insert(CONTENT_DISPOSITION, content_disposition);
    Ok(response)
}

#[derive(Template)]
#[template(path = "job_activity.html")]
struct JobActivityPage {
    shell: Shell,
    t: &'static Texts,
    name: String,
    rows: Vec<ActivityRow>,
    code: AsCode,
    may_see_all: bool,
}

/// Selects the entries about this job from the entries about all objects with its name, the newest first. Entries of an earlier, deleted
/// job are left out.
fn entries_about_job(mut entries: Vec<AuditEntry>) -> Vec<AuditEntry> {
    let is_deletion = |entry: &AuditEntry| entry.action == "job.delete" && entry.verdict == Verdict::Allowed;
    entries.truncate(entries.iter().position(is_deletion).unwrap_or(entries.len()));
    entries.retain(|entry| entry.action.starts_with("job."));
    entries.truncate(JOB_ENTRY_COUNT as usize);
    entries
}

/// The entries about a job since it was created. Secrets in parameters are hidden from callers who may not edit the job; addresses are
/// shown only to administrators.
pub(super) async fn of_job(page: Page, Named(name, ..): Named<path::Job>) -> Result<Response, Problem> {
    use rondel_core::access::Permission::{Cluster, Edit};
    let record = find(&page.call, &name).await?;
    zones::set_job(&record.spec);
    let query = AuditQuery {
        object: Some(name.clone()),
        namespace: Some(page.call.namespace.name.clone()),
        from: Some(record.created_at - CREATE_CALL_LENGTH_MAX),
        limit: JOB_ENTRY_READ_COUNT,
        ..AuditQuery::default()
    };
    let entries = entries_about_job(page.engine().store().audit(&query).await?);
    let rights = &page.call.caller.rights;
    let may_see_all = rights.allow_somewhere(Cluster);
    let formatter = ActivityFormatter {
        t: page.t,
        now: page.engine().now(),
        may_see_secrets: rights.allow(Edit, page.call.namespace.id, Some(record.app)),
        may_see_origin: may_see_all,
    };
    let api_filters = [query_pair("object", &name), query_pair("in", &page.call.namespace.name)];
    let command = format!("audit --object {name} --in {}", page.call.namespace.name);
    let template = JobActivityPage {
        shell: page.shell(Nav::Jobs),
        t: page.t,
        rows: entries.iter().map(|entry| formatter.row(entry)).collect(),
        code: AsCode::without_namespace(("GET", &url_with_pairs("/api/v1/audit", &api_filters)), None, &command),
        may_see_all,
        name,
    };
    html(StatusCode::OK, &template)
}
