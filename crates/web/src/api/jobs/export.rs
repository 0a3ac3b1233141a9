//! Exports jobs as documents that `apply` accepts unchanged.

use std::io;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream::{Stream, StreamExt as _, unfold};
use http::HeaderValue;
use http::header::CONTENT_TYPE;
use rondel_core::access::Permission::View;
use rondel_core::access::{PermittedApps, Rights};
use rondel_core::document::Document;
use rondel_core::error_chain::chain;
use rondel_core::{AppId, JobSpec, NamespaceId};
use rondel_store::StoreError;
use rondel_store::catalog::{JobQuery, ListedJob};
use serde_json::json;

use super::find::{find, find_app};
use super::list::unreadable_message;
use crate::call::Call;
use crate::openapi::Doc;
use crate::parameter::Parameter;
use crate::permits::HeavyWork;
use crate::problem::{Code, Problem};
use crate::query::{FromQuery, Reader};
use crate::recheck::RecheckedCaller;
use crate::routes::Routes;
use crate::shares::{self, HeavyWorkShare};
use crate::state::Web;
use crate::yaml;

/// Maximum number of jobs in a page.
const PAGE_JOB_COUNT_MAX: u32 = 200;
/// About how many bytes a page has.
const PAGE_LEN: usize = 256 * 1024;
/// How many jobs the first page has: few, since the length of the jobs is not known yet.
const FIRST_PAGE_JOB_COUNT: u32 = 8;

#[derive(Debug)]
pub(crate) struct ExportQuery {
    app: Option<String>,
    /// Exports only this job.
    name: Option<String>,
    format: Format,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Format {
    #[default]
    Json,
    Yaml,
}

impl FromQuery for ExportQuery {
    fn from_query(reader: &mut Reader) -> Self {
        let format = |text: &str| match text {
            "json" => Ok(Format::Json),
            "yaml" => Ok(Format::Yaml),
            word => Err(format!("{word:?} is neither json nor yaml")),
        };
        Self {
            app: reader.single(Parameter::name("app").about("Only jobs of this app.")),
            name: reader.single(Parameter::name("name").about("Only this job.")),
            format: reader
                .parsed(Parameter::word("format", &["json", "yaml"]).about("`json` if left out."), format)
                .unwrap_or_default(),
        }
    }
}

struct Exporter {
    web: Web,
    caller: RecheckedCaller,
    _share: HeavyWorkShare,
    namespace: NamespaceId,
    app: Option<AppId>,
    format: Format,
    /// Maximum number of jobs in the next page.
    page_job_count_max: u32,
    after_name: Option<String>,
    has_begun: bool,
    has_ended: bool,
}

pub(super) fn routes() -> Routes {
    Routes::new().get(
        "/api/v1/jobs/export",
        View,
        get,
        Doc::new(
            "Export jobs",
            "The jobs as a list that `apply` accepts unchanged. Fields that have their default are left out. A job whose definition this \
             server cannot read has `unreadable` in place of its other fields, and `apply` refuses it.",
        )
        .short::<Vec<JobSpec>>(200, "The jobs by name.")
        .yaml::<Vec<JobSpec>>()
        .refuses(&[Code::AppNotFound, Code::JobNotFound]),
    )
}

async fn get(call: Call<ExportQuery>) -> Result<Response, Problem> {
    let app = match &call.query.app {
        Some(app) => Some(find_app(&call, app).await?),
        None => None,
    };
    let format = call.query.format;
    if let Some(name) = &call.query.name {
        let record = find(&call, name).await?;
        let job = ListedJob::Readable(Box::new(record));
        return Ok(export_response(format, Body::from(format.document(&[job]))));
    }
    let mut exporter = Exporter {
        web: call.web.clone(),
        _share: shares::take_heavy_work_share(&call.web, HeavyWork::Export, call.caller.key())?,
        caller: RecheckedCaller::new(call.caller.clone()),
        namespace: call.namespace.id,
        app,
        format,
        page_job_count_max: FIRST_PAGE_JOB_COUNT,
        after_name: None,
        has_begun: false,
        has_ended: false,
    };
    // Reads the first page before the answer begins, so that a failure of the database is still answered with a problem.
    let first_page = exporter.read_page().await?;
    // The stream is fused because compression polls it once more after its end.
    Ok(export_response(format, Body::from_stream(stream(exporter, first_page).fuse())))
}

fn export_response(format: Format, body: Body) -> Response {
    let mut response = Response::new(body);
    let content_type = match format {
        Format::Json => "application/json",
        Format::Yaml => "application/yaml",
    };
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

impl Format {
    /// The last piece of an incomplete export, with the reason: a comment in YAML; in JSON, an object after the unclosed list, so that the
    /// text does not parse.
    fn incomplete_end(self, problem: &Problem) -> Bytes {
        let reason = serde_json::json!({"code": problem.code().as_str(), "message": problem.detail()});
        match self {
            Self::Json => format!("\n{{\"ended\": {reason}}}\n").into(),
            Self::Yaml => format!("# not whole: {reason}\n").into(),
        }
    }

    fn document(self, jobs: &[ListedJob]) -> String {
        match self {
            Self::Json => jobs_as_json(jobs, true, true),
            Self::Yaml => jobs_as_yaml(jobs),
        }
    }
}

/// Streams the pages. An export that fails sends the reason and then breaks the connection, so that the client cannot mistake it for
/// complete.
fn stream(exporter: Exporter, first_page: Bytes) -> impl Stream<Item = Result<Bytes, io::Error>> {
    unfold((exporter, Some(Ok(first_page))), async |(mut exporter, ready_piece)| {
        if let Some(ready_piece) = ready_piece {
            return Some((ready_piece, (exporter, None)));
        }
        if exporter.has_ended {
            return None;
        }
        match exporter.next_page().await {
            Ok(page) => Some((Ok(page), (exporter, None))),
            Err(problem) => {
                exporter.has_ended = true;
                let reason = exporter.format.incomplete_end(&problem);
                Some((Ok(reason), (exporter, Some(Err(io::Error::other("the export broke off"))))))
            }
        }
    })
}

impl Exporter {
    /// The next page, if the caller may still see the jobs.
    async fn next_page(&mut self) -> Result<Bytes, Problem> {
        let (namespace, app) = (self.namespace, self.app);
        let may_export = |rights: &Rights| match app {
            Some(_) => rights.allow(View, namespace, app),
            None => !rights.permitted_apps(View, namespace).is_empty(),
        };
        if let Some(loss) = self.caller.access_loss_unless(&self.web, may_export).await {
            return Err(loss.problem("so the export ends here"));
        }
        let _turn = shares::wait_for_turn(&self.web, self.caller.caller().key()).await?;
        self.read_page().await.map_err(|error| {
            tracing::warn!(target: "http", error = chain(&error), "the export of jobs was aborted");
            Problem::new(Code::Unavailable, "the database did not answer, so the export ends here")
        })
    }

    async fn read_page(&mut self) -> Result<Bytes, StoreError> {
        let permitted_apps = match self.caller.caller().rights.permitted_apps(View, self.namespace) {
            PermittedApps::All => None,
            PermittedApps::Apps(apps) => Some(apps.into_iter().collect()),
        };
        let query = JobQuery {
            app: self.app,
            within: permitted_apps,
            after_name: self.after_name.take(),
            limit: self.page_job_count_max,
            ..JobQuery::default()
        };
        let jobs = self.web.engine.store().listed_jobs(self.namespace, &query).await?;
        self.has_ended = jobs.len() < usize::try_from(self.page_job_count_max).unwrap_or(usize::MAX);
        self.after_name = jobs.last().map(|job| job.name().to_owned());
        let is_first = !std::mem::replace(&mut self.has_begun, true);
        let text = match self.format {
            Format::Json => jobs_as_json(&jobs, is_first, self.has_ended),
            // Only an export without any jobs writes an empty list.
            Format::Yaml if jobs.is_empty() && !is_first => String::new(),
            Format::Yaml => jobs_as_yaml(&jobs),
        };
        self.page_job_count_max = next_page_count(jobs.len(), text.len());
        Ok(text.into())
    }
}

/// How many jobs to read next, after a page of `count` jobs with `len` bytes. Assumes that the mean length stays the same.
fn next_page_count(count: usize, len: usize) -> u32 {
    let count = PAGE_LEN.saturating_mul(count) / len.max(1);
    u32::try_from(count).unwrap_or(PAGE_JOB_COUNT_MAX).clamp(1, PAGE_JOB_COUNT_MAX)
}

fn jobs_as_json(jobs: &[ListedJob], is_first: bool, is_last: bool) -> String {
    let mut text = if is_first { "[".to_owned() } else { String::new() };
    for (index, job) in jobs.iter().enumerate() {
        text.push_str(if is_first && index == 0 { "\n" } else { ",\n" });
        text.push_str(&serde_json::to_string(&document(job)).unwrap_or_default());
    }
    if is_last {
        text.push_str("\n]\n");
    }
    text
}

/// The jobs as a YAML list that `apply` accepts.
pub(crate) fn jobs_as_yaml(jobs: &[ListedJob]) -> String {
    let documents: Vec<_> = jobs.iter().map(document).collect();
    let items: Vec<Vec<_>> =
        documents.iter().map(|document| document.fields.iter().map(|(name, value)| (*name, value)).collect()).collect();
    yaml::write(&items)
}

/// The entry of a job. A job that this server cannot read has an entry that `apply` refuses: without an entry, a list that is applied with
/// `prune` would remove the job.
fn document(job: &ListedJob) -> Document {
    match job {
        ListedJob::Readable(record) => record.spec.document(),
        ListedJob::Unreadable(job) => Document {
            fields: vec![
                ("name", json!(job.name)),
                ("app", json!(job.app_name)),
                ("handler", json!(job.handler)),
                ("unreadable", json!(unreadable_message(job))),
            ],
        },
    }
}
