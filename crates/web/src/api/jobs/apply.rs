//! Applies a list of jobs: compares it with the existing jobs, then creates, changes and removes jobs so that they match it.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream::{Stream, StreamExt as _, unfold};
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue};
use rondel_admin::jobs::{self, Action, ApplyError, ApplyPlan, ApplyRequest, PlannedJob, SavedJob, Saving};
use rondel_core::access::Permission::Edit;
use rondel_core::access::Rights;
use rondel_core::shape::{self, Document};
use rondel_core::{AppId, JobSpec, NamespaceId};
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

use super::applied::{ApplyReport, Item, Summary, action_word};
use super::applied_body::Items;
use super::body;
use super::find::find_app;
use super::list_errors::{ListErrors, split_item_index};
use crate::body::{collect_within, is_json, parse};
use crate::call::{AdmittedCaller, Call, quoted_input};
use crate::limits::{APPLY_LEN_MAX, APPLY_PATH};
use crate::openapi::{Doc, HandlerInputs, Input, Listed, RequestBodyDoc, schema_of};
use crate::parameter::Parameter;
use crate::permits::HeavyWork;
use crate::problem::{Code, Complaint, Problem};
use crate::query::{FromQuery, Reader};
use crate::recheck::RecheckedCaller;
use crate::routes::Routes;
use crate::shares::{self, ApplyRoom, DryRunAnswer, HeavyWorkShare};
use crate::state::Web;
use crate::yaml::{Node, documents};

/// Maximum number of jobs in one list.
const JOB_COUNT_MAX: usize = 5_000;
/// Maximum number of jobs of a list that the audit log names.
const AUDITED_JOB_COUNT_MAX: usize = 500;

#[derive(Debug)]
pub(crate) struct ApplyQuery {
    is_dry_run: bool,
    /// The app whose jobs are removed if they are not in the list.
    prune: Option<String>,
    /// The digest of the removals that an earlier dry run returned.
    removals: Option<String>,
}

impl FromQuery for ApplyQuery {
    fn from_query(reader: &mut Reader) -> Self {
        Self {
            is_dry_run: reader.flag("dry_run", "Returns the plan, and saves nothing."),
            prune: reader
                .single(Parameter::name("prune_app").about("Removes the jobs of this app that are not in the list.")),
            removals: reader
                .single(Parameter::text("removals").about("`removals` of a dry run: other removals are refused.")),
        }
    }
}

/// The definitions in the body of a request.
#[derive(Default)]
pub(crate) struct Documents {
    specs: Vec<JobSpec>,
    /// The YAML nodes of the definitions, with their positions in the text. Empty if the body is JSON.
    nodes: Vec<Node>,
    permits: (Option<HeavyWorkShare>, Option<ApplyRoom>),
}

impl Input for Documents {
    fn describe(inputs: &mut HandlerInputs) {
        let media_types = &["application/json", "application/yaml"];
        inputs.body = Some(RequestBodyDoc { media_types, schema: schema_of::<Listed<JobSpec>>(), is_required: true });
        inputs.refusals.extend([Code::InvalidJson, Code::InvalidYaml, Code::RequestTimeout, Code::BodyTooLarge]);
        inputs.refusals.extend([Code::UnsupportedMediaType, Code::InvalidBody]);
    }
}

impl FromRequest<Web> for Documents {
    type Rejection = Problem;

    async fn from_request(request: Request, web: &Web) -> Result<Self, Problem> {
        let (is_json, is_yaml) = (is_json(request.headers()), is_yaml(request.headers()));
        if !is_json && !is_yaml {
            let message = "send \"Content-Type: application/json\" or \"application/yaml\"";
            return Err(Problem::new(Code::UnsupportedMediaType, message));
        }
        let caller = request.extensions().get::<AdmittedCaller>().map(|admitted| admitted.caller.key());
        let share = caller.map(|caller| shares::take_heavy_work_share(web, HeavyWork::Apply, caller)).transpose()?;
        let bytes = collect_within(request, APPLY_LEN_MAX).await?;
        // Waits for room in memory, since the parsed definitions take several times the memory of their text.
        let apply_room = match caller {
            Some(caller) => Some(shares::apply_room(web, caller, bytes.len()).await?),
            None => None,
        };
        // Parses on a thread for blocking work: a large list would delay other requests on this thread. The permits go with it, since the
        // thread continues when the client disconnects.
        let parse = move || {
            let documents = if is_json { Self::of_json(&bytes) } else { Self::of_yaml(&bytes) };
            documents.map(|documents| Self { permits: (share, apply_room), ..documents })
        };
        match tokio::task::spawn_blocking(parse).await {
            Ok(documents) => documents,
            Err(error) => Err(Problem::new(Code::Internal, "the body could not be read").with_cause(error.to_string())),
        }
    }
}

fn check_count(count: usize) -> Result<(), Problem> {
    match count {
        0 => Err(refuse_at("", "has no jobs; to remove all jobs of an app, delete them")),
        1..=JOB_COUNT_MAX => Ok(()),
        count => Err(refuse_at("", format!("has {count} jobs, of which one list can have {JOB_COUNT_MAX}"))),
    }
}

fn refuse_at(pointer: &str, message: impl Into<String>) -> Problem {
    Problem::of_complaints(Code::InvalidBody, vec![Complaint::body(pointer, "invalid_value", message)])
}

fn is_yaml(headers: &HeaderMap) -> bool {
    let Some(value) = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()) else { return false };
    let media_type = value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    matches!(media_type.as_str(), "application/yaml" | "application/x-yaml" | "text/yaml" | "text/x-yaml")
}

impl Documents {
    fn of_json(bytes: &[u8]) -> Result<Self, Problem> {
        let Document { value, duplicates } = parse(bytes)?;
        let mut documents: Vec<Document> = match value {
            Value::Array(items) => items.into_iter().map(Document::from).collect(),
            one => {
                let specs = read_specs(std::iter::once(Document { value: one, duplicates }), &[])?;
                return Ok(Self { specs, ..Self::default() });
            }
        };
        check_count(documents.len())?;
        for pointer in duplicates {
            if let Some((index, pointer_in_job)) = split_item_index(&pointer)
                && let Some(document) = documents.get_mut(index)
            {
                document.duplicates.push(pointer_in_job.to_owned());
            }
        }
        Ok(Self { specs: read_specs(documents.into_iter(), &[])?, ..Self::default() })
    }

    fn of_yaml(bytes: &[u8]) -> Result<Self, Problem> {
        let text = std::str::from_utf8(bytes).map_err(|_| Problem::new(Code::InvalidYaml, "the body is not UTF-8"))?;
        let documents_of_text = documents(text).map_err(|error| Problem::new(Code::InvalidYaml, error.to_string()))?;
        let mut nodes: Vec<Node> = documents_of_text.into_iter().flat_map(Node::items).collect();
        check_count(nodes.len())?;
        let specs = read_specs(nodes.iter().map(|node| Document::from(node.value())), &nodes)?;
        // Frees the texts of the nodes: later only their places in the body are needed.
        nodes.iter_mut().for_each(Node::forget_texts);
        Ok(Self { specs, nodes, ..Self::default() })
    }

    /// The refusal for errors that only a check of the whole list, or of the database, can find.
    fn refuse_all(&self, complaints: Vec<Complaint>) -> Problem {
        let mut errors = ListErrors::default();
        complaints.into_iter().for_each(|complaint| errors.add_located(complaint));
        refuse_list(errors, &self.nodes)
    }
}

/// The definitions in these documents, or a refusal with all errors in them.
fn read_specs(documents: impl Iterator<Item = Document>, nodes: &[Node]) -> Result<Vec<JobSpec>, Problem> {
    let (mut specs, mut indexes, mut errors) = (Vec::new(), Vec::new(), ListErrors::default());
    for (index, document) in documents.enumerate() {
        match shape::read::<JobSpec>(document) {
            Ok(spec) => {
                specs.push(spec);
                indexes.push(index);
            }
            Err(shape_errors) => {
                let (complaints, count) = body::shape_complaints(&shape_errors);
                errors.add(index, complaints, count);
            }
        }
    }
    if errors.is_empty() {
        return Ok(specs);
    }
    // The list is already refused. Its other definitions are checked too, so that the refusal lists all errors.
    for (index, spec) in indexes.into_iter().zip(&specs) {
        let broken_rules = spec.compile().err().unwrap_or_default();
        let count = broken_rules.len();
        errors.add(index, broken_rules.into_iter().map(Complaint::from).collect(), count);
    }
    Err(refuse_list(errors, nodes))
}

fn refuse_list(errors: ListErrors, nodes: &[Node]) -> Problem {
    errors.into_problem(|pointer| position_of_pointer(nodes, pointer))
}

/// The line and column that a pointer into the list refers to.
fn position_of_pointer(nodes: &[Node], pointer: &str) -> Option<(usize, usize)> {
    let (index, pointer_in_job) = split_item_index(pointer)?;
    Some(nodes.get(index)?.place(pointer_in_job))
}

pub(super) fn routes() -> Routes {
    Routes::new()
        .post(
            APPLY_PATH,
            Edit,
            post,
            Doc::new(
                "Apply a list of jobs",
                "Creates and changes jobs so that they match the list; jobs that already match are not changed. The whole list \
                 is checked before anything is saved. With `Accept: application/x-ndjson` each job is a line once it is saved, \
                 and the last line is the summary.",
            )
            .json::<ApplyReport>(200, "What happened, or would happen, to each job.")
            .text("application/x-ndjson")
            .refuses(&[Code::AppNotFound, Code::JobExists])
            .example(serde_json::json!([{"name": "clean-up", "app": "tools", "handler": "shell", "schedule": {"every": "1h"}}])),
        )
}

async fn post(call: Call<ApplyQuery>, headers: HeaderMap, mut body: Documents) -> Result<Response, Problem> {
    let specs = std::mem::take(&mut body.specs);
    let prune = match &call.query.prune {
        Some(app) => Some(find_app(&call, app).await?),
        None => None,
    };
    let apps = check_apps(&call, &specs).await?;
    let apply_request = ApplyRequest { namespace: call.namespace.id, specs, prune };
    if call.query.is_dry_run {
        return plan_list(&call, &body, apply_request).await;
    }
    let plan = match jobs::plan(call.engine(), apply_request).await {
        Ok(plan) => plan,
        Err(error) => return Err(plan_problem(&call, &body, error).await?),
    };
    plan.jobs().try_for_each(|job| check_may_change_existing(&call, job))?;
    check_removals(&call, &plan)?;
    audit_plan(&call, &plan);
    let plan_len = plan.jobs().len();
    let apps = apps.into_iter().chain(plan.jobs().filter_map(|job| job.app).map(Some)).collect();
    let applying = RunningApply {
        saving: plan.save(call.engine().node().clone(), call.caller.name()),
        web: call.web.clone(),
        caller: RecheckedCaller::new(call.caller.clone()),
        namespace: call.namespace.id,
        apps,
        job_count: plan_len,
        saved_count: 0,
        _permits: std::mem::take(&mut body.permits),
    };
    if headers.get(ACCEPT).is_some_and(|accept| accept.as_bytes() == b"application/x-ndjson") {
        let mut response = Response::new(Body::from_stream(saved_job_lines(applying).fuse()));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
        return Ok(response);
    }
    Ok(save_all(applying).await?.into_response(false, None))
}

/// Answers with the plan of a list. Each planned job is serialized immediately and then dropped.
async fn plan_list(
    call: &Call<ApplyQuery>,
    body: &Documents,
    apply_request: ApplyRequest,
) -> Result<Response, Problem> {
    let (mut items, mut removals, mut refusal) = (Items::default(), Removals::default(), None);
    let add_item = |job: PlannedJob| {
        removals.add(&job);
        refusal = refusal.take().or_else(|| check_may_change_existing(call, &job).err());
        items.add(&Item::planned(job));
    };
    if let Err(error) = jobs::dry_run(call.engine(), apply_request, add_item).await {
        return Err(plan_problem(call, body, error).await?);
    }
    if let Some(problem) = refusal {
        return Err(problem);
    }
    call.note.mark_dry_run();
    let removals = call.query.prune.as_ref().map(|_| removals.digest());
    let mut response = items.into_response(true, removals.as_deref());
    response.extensions_mut().insert(DryRunAnswer);
    Ok(response)
}

async fn plan_problem(call: &Call<ApplyQuery>, body: &Documents, error: ApplyError) -> Result<Problem, Problem> {
    match error {
        ApplyError::Invalid(errors) => Ok(body.refuse_all(call.complaints(errors).await?)),
        ApplyError::Store(error) => Ok(error.into()),
    }
}

/// Checks that the caller may change the existing job with this name, if there is one.
fn check_may_change_existing(call: &Call<ApplyQuery>, job: &PlannedJob) -> Result<(), Problem> {
    let hidden_job_problem = || {
        let name = quoted_input(&job.name);
        Problem::new(Code::JobExists, format!("the name {name} is taken by a job that you may not see"))
    };
    job.app.map_or(Ok(()), |app| call.check(Some(app), hidden_job_problem))
}

/// The names of the jobs that a plan removes, in an order that does not depend on the database.
#[derive(Default)]
struct Removals(BTreeSet<String>);

impl Removals {
    fn add(&mut self, job: &PlannedJob) {
        if job.action == Action::Remove {
            self.0.insert(job.name.clone());
        }
    }

    fn digest(&self) -> String {
        let names: Vec<&str> = self.0.iter().map(String::as_str).collect();
        Sha256::digest(names.join("\n")).iter().take(16).map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Checks that the plan removes the jobs that the caller expects. A job may have been created, moved to the app or deleted since the dry
/// run to which the caller agreed.
fn check_removals(call: &Call<ApplyQuery>, plan: &ApplyPlan) -> Result<(), Problem> {
    let Some(expected_digest) = &call.query.removals else { return Ok(()) };
    let mut removals = Removals::default();
    plan.jobs().for_each(|job| removals.add(job));
    // A list that is sent again after a lost answer removes nothing any more.
    if removals.0.is_empty() || removals.digest() == *expected_digest {
        return Ok(());
    }
    let message = "the list would remove other jobs now than when it was planned; plan it again";
    Err(Problem::of_complaints(Code::InvalidQuery, vec![Complaint::query("removals", "invalid_value", message)]))
}

/// Records the planned changes in the audit log, field by field. The whole definitions are stored as versions of the jobs.
fn audit_plan(call: &Call<ApplyQuery>, plan: &ApplyPlan) {
    let (mut documents_before, mut documents_after) = (Map::new(), Map::new());
    let mut changed_jobs: Vec<_> = plan.jobs().filter(|job| job.action != Action::Keep).collect();
    changed_jobs.sort_by_key(|job| job.action == Action::Create);
    let omitted_count = changed_jobs.len().saturating_sub(AUDITED_JOB_COUNT_MAX);
    for job in changed_jobs.into_iter().take(AUDITED_JOB_COUNT_MAX) {
        let values_before: BTreeMap<&str, _> =
            job.changes.iter().map(|change| (change.pointer.as_str(), &change.from)).collect();
        let values_after: BTreeMap<&str, _> =
            job.changes.iter().map(|change| (change.pointer.as_str(), &change.to)).collect();
        if let Some(version) = job.version {
            documents_before.insert(job.name.clone(), serde_json::json!({"version": version, "fields": values_before}));
        }
        documents_after
            .insert(job.name.clone(), serde_json::json!({"action": action_word(job.action), "fields": values_after}));
    }
    call.note.record_documents(documents_before, documents_after, omitted_count);
}

/// Checks that the caller has the permission on the apps of all definitions, and may see the parent jobs outside of the list. Returns the
/// apps; an app that does not exist yet is `None`.
async fn check_apps(call: &Call<ApplyQuery>, specs: &[JobSpec]) -> Result<Vec<Option<AppId>>, Problem> {
    let apps: BTreeSet<&str> = specs.iter().map(|spec| spec.app.as_str()).collect();
    let mut app_ids = Vec::with_capacity(apps.len());
    for app in apps {
        app_ids.push(call.check_app_name(app).await?);
    }
    if call.visible_apps().is_none() {
        return Ok(app_ids);
    }
    let listed_names: BTreeSet<&str> = specs.iter().map(|spec| spec.name.as_str()).collect();
    for (index, spec) in specs.iter().enumerate() {
        for parent in spec.parents() {
            if !listed_names.contains(parent.name) && !call.may_view_job(parent.name).await? {
                let message = format!("there is no job {} that you may see", quoted_input(parent.name));
                return Err(refuse_at(&format!("/{index}{}", parent.pointer), message));
            }
        }
    }
    Ok(app_ids)
}

struct RunningApply {
    saving: Saving,
    web: Web,
    caller: RecheckedCaller,
    namespace: NamespaceId,
    /// The apps of all its jobs. `None` stands for apps that do not exist yet; they need the permission on the whole namespace.
    apps: BTreeSet<Option<AppId>>,
    job_count: usize,
    /// How many jobs are saved so far.
    saved_count: usize,
    _permits: (Option<HeavyWorkShare>, Option<ApplyRoom>),
}

impl RunningApply {
    /// Saves the next few jobs, if the caller still has the permission; `None` at the end.
    async fn save_next(&mut self) -> Result<Option<Vec<SavedJob>>, Problem> {
        let (namespace, apps) = (self.namespace, &self.apps);
        let may_save = |rights: &Rights| apps.iter().all(|app| rights.allow(Edit, namespace, *app));
        if self.saved_count < self.job_count
            && let Some(loss) = self.caller.access_loss_unless(&self.web, may_save).await
        {
            let progress =
                format!("after {} of {} jobs: these are saved, the others are not", self.saved_count, self.job_count);
            return Err(loss.problem(&progress));
        }
        let saved_jobs = self.saving.next().await;
        self.saved_count += saved_jobs.as_ref().map_or(0, Vec::len);
        Ok(saved_jobs)
    }
}

async fn save_all(mut applying: RunningApply) -> Result<Items, Problem> {
    let mut items = Items::default();
    while let Some(saved_jobs) = applying.save_next().await? {
        saved_jobs.into_iter().for_each(|job| items.add(&Item::saved(job)));
    }
    Ok(items)
}

/// Streams the jobs as they are saved, one per line. The last line has the summary, or the reason for an early end. If the client
/// disconnects, saving stops after the current jobs.
fn saved_job_lines(applying: RunningApply) -> impl Stream<Item = Result<Bytes, Infallible>> {
    unfold(Some((applying, Summary::default())), async |state| {
        let (mut applying, mut summary) = state?;
        let saved_jobs = match applying.save_next().await {
            Ok(Some(saved_jobs)) => saved_jobs,
            Ok(None) => return Some((Ok(json_line(&serde_json::json!({ "summary": summary }))), None)),
            Err(problem) => {
                let (code, message) = (problem.code().as_str(), problem.detail());
                let last_line = serde_json::json!({ "ended": { "code": code, "message": message } });
                return Some((Ok(json_line(&last_line)), None));
            }
        };
        let mut bytes = Vec::new();
        for item in saved_jobs.into_iter().map(Item::saved) {
            summary.add(&item);
            bytes.extend_from_slice(&json_line(&item));
        }
        Some((Ok(bytes.into()), Some((applying, summary))))
    })
}

fn json_line(value: &impl serde::Serialize) -> Bytes {
    let mut text = serde_json::to_vec(value).unwrap_or_default();
    text.push(b'\n');
    text.into()
}
