//! Plans the runs of child jobs: when a run of a fire ends, the jobs that follow from its job may get runs in the same fire. Every store
//! uses the same plan.
//!
//! The plan is computed from the ledger each time a run of the fire ends, while the row of the fire's first run (its root) is locked.
//! Therefore the second of two concurrent ends sees the first. No end is counted twice, because each plan counts anew. An edit of the jobs
//! applies to fires in progress.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rondel_core::graph::{ChildStart, FireGraph, Graph, JobInFire};
use rondel_core::reason::ReasonDetail;
use rondel_core::reason::words::reason_text;
use rondel_core::run::RunJob;
use rondel_core::visibility::child_ended;
use rondel_core::words::Lang;
use rondel_core::{AppId, IdGen, JobId, JobSpec, NamespaceId, Reason, Run, RunId, RunStatus, Timestamp, Trigger};
use serde_json::{Map, Value, json};

use crate::LeaseToken;

/// Maximum total size of the parents' results that a run gets, in bytes. The same maximum holds for the parents' parameters.
const PARENT_RESULTS_LEN_MAX: usize = 16 * 1024;

/// A run that has just got its verdict. A broadcast is represented by the row for all its shards.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EndedRun {
    pub(crate) run: RunId,
    pub(crate) job: JobId,
    /// The id of the first run of its fire, if the run is a child.
    pub(crate) cause: i64,
    pub(crate) trigger: Trigger,
    /// Whether the run succeeded, but gets its verdict only when its children have ended.
    pub(crate) awaits_children: bool,
}

impl EndedRun {
    /// The first run of its fire.
    pub(crate) const fn root(&self) -> RunId {
        match self.trigger {
            Trigger::Parent => RunId::new(self.cause),
            Trigger::Cron
            | Trigger::Interval
            | Trigger::Once
            | Trigger::Manual
            | Trigger::Api
            | Trigger::Backfill
            | Trigger::Misfire => self.run,
        }
    }
}

/// The first run of a fire.
#[derive(Clone, Debug)]
pub(crate) struct Root {
    pub(crate) run: RunId,
    pub(crate) job: JobId,
    pub(crate) fire_at: Timestamp,
    pub(crate) due_at: Timestamp,
}

/// A run of a fire, with the fields that the plan needs.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) run: RunId,
    /// The name of its job.
    pub(crate) name: String,
    pub(crate) status: RunStatus,
    pub(crate) reason: Option<Reason>,
    /// Number of its open children; `None` if it does not await them.
    pub(crate) open_children: Option<i32>,
}

/// A job that gets a run in the fire if the plan decides so.
#[derive(Clone, Debug)]
pub(crate) struct Child {
    pub(crate) namespace: NamespaceId,
    pub(crate) app: AppId,
    pub(crate) version: i64,
    pub(crate) spec: JobSpec,
    /// The lease that owns the job's run: that of the job's home, even if the home is dead, or that of the node that stores the ends if the
    /// home has no row.
    pub(crate) owner: LeaseToken,
}

/// The new state of a run that awaits its children: the number of its open children, or its verdict once none is open.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ParentUpdate {
    pub(crate) job: JobId,
    pub(crate) run: RunId,
    pub(crate) status: RunStatus,
    pub(crate) open_children: i32,
    pub(crate) message: Option<String>,
    /// Whether the run begins to await its children with this update.
    pub(crate) is_new: bool,
}

/// A run that the plan creates, and the runs that it follows from.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Follower {
    pub(crate) run: Run,
    pub(crate) parents: Vec<RunId>,
}

/// The runs to create, and the new states of the runs that await their children.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct FirePlan {
    pub(crate) followers: Vec<Follower>,
    pub(crate) parent_updates: Vec<ParentUpdate>,
}

/// The facts about one fire that its plan depends on.
#[derive(Debug)]
pub(crate) struct FireFacts<'f> {
    pub(crate) root: &'f Root,
    pub(crate) graph: &'f Graph,
    pub(crate) created_at_by_job: &'f BTreeMap<JobId, Timestamp>,
    /// The runs of the fire so far, keyed by their jobs.
    pub(crate) members: BTreeMap<JobId, Member>,
    /// The runs of the fire that have just ended.
    pub(crate) ended_runs: Vec<EndedRun>,
}

/// The ended runs whose jobs no longer follow from the jobs of their roots, because an edit or a deletion removed a job from the chain
/// while the fire was in progress. Runs further up in the fire may still await them.
pub(crate) fn detached(graph: &Graph, roots: &[Root], ended_runs: &[EndedRun]) -> Vec<RunId> {
    let jobs_by_root: BTreeMap<RunId, BTreeSet<JobId>> =
        roots.iter().map(|root| (root.run, graph.with_followers(root.job))).collect();
    let is_detached = |run: &&EndedRun| jobs_by_root.get(&run.root()).is_some_and(|jobs| !jobs.contains(&run.job));
    ended_runs.iter().filter(is_detached).map(|ended_run| ended_run.run).collect()
}

/// The jobs that can have runs in a fire with this root. `detached_jobs` are jobs that have a run in it but no longer follow from the root's
/// job.
pub(crate) fn jobs_below(graph: &Graph, root: JobId, detached_jobs: &BTreeSet<JobId>) -> BTreeSet<JobId> {
    std::iter::once(root).chain(detached_jobs.iter().copied()).flat_map(|job| graph.with_followers(job)).collect()
}

impl FireFacts<'_> {
    /// The jobs of the fire. A job that was created after the fire began belongs to the fire only if it follows from a job whose run ends
    /// now: a run that had ended before the job was created must not start it. A job with a run in the fire stays in it, even after an
    /// edit.
    pub(crate) fn jobs(&self) -> BTreeSet<JobId> {
        let is_older_than_fire =
            |job: &JobId| self.created_at_by_job.get(job).is_none_or(|created| *created <= self.root.due_at);
        let mut jobs = self.graph.with_followers(self.root.job);
        jobs.retain(|job| is_older_than_fire(job) || self.members.contains_key(job));
        jobs.extend(self.members.keys());
        for child in self.ended_runs.iter().flat_map(|ended_run| self.graph.children_of(ended_run.job)) {
            jobs.extend(self.graph.with_followers(child));
        }
        jobs
    }

    fn job_states(&self) -> BTreeMap<JobId, JobInFire> {
        let awaiting_runs: BTreeSet<RunId> = self
            .ended_runs
            .iter()
            .filter(|ended_run| ended_run.awaits_children)
            .map(|ended_run| ended_run.run)
            .collect();
        let job_state = |member: &Member| {
            let awaits_children = match member.status {
                RunStatus::Succeeded => awaiting_runs.contains(&member.run),
                status => status == RunStatus::Running && member.open_children.is_some(),
            };
            match awaits_children {
                true => JobInFire { end_status: Some(RunStatus::Succeeded), verdict: None },
                false => {
                    let verdict = member.status.is_terminal().then_some((member.status, member.reason));
                    JobInFire { end_status: verdict.map(|(status, _)| status), verdict }
                }
            }
        };
        self.members.iter().map(|(job, member)| (*job, job_state(member))).collect()
    }

    /// The plan. `children` are the jobs that have no run in this fire yet.
    pub(crate) fn plan(&self, children: &BTreeMap<JobId, Child>, ids: &IdGen, now: Timestamp) -> FirePlan {
        let jobs: BTreeSet<JobId> = self.jobs();
        let stored_jobs = jobs.into_iter().filter(|job| self.members.contains_key(job) || children.contains_key(job));
        let mut fire = FireGraph::new(self.graph, stored_jobs.collect(), self.job_states());
        let mut followers_by_job: BTreeMap<JobId, Follower> = BTreeMap::new();
        loop {
            let ready_children = fire.ready_children();
            if ready_children.is_empty() {
                break;
            }
            for (job, child_start) in ready_children {
                let Some(child) = children.get(&job) else { continue };
                let run = self.new_run(job, child, RunId::new(ids.next(now)), now);
                let run = match child_start {
                    ChildStart::Runs if child.spec.enabled => run,
                    ChildStart::Runs => skipped_run(run, Reason::Paused, ReasonDetail::default(), now),
                    ChildStart::Refused(parent) => {
                        let detail = self.refusal_detail(parent, &fire, children);
                        skipped_run(run, refusal_reason(&fire, parent), detail, now)
                    }
                };
                let verdict = run.status.is_terminal().then_some((run.status, run.reason));
                let parents: Vec<RunId> =
                    fire.parents_of(job).filter_map(|parent| self.run_of_job(parent, &followers_by_job)).collect();
                fire.set(job, JobInFire { end_status: verdict.map(|(status, _)| status), verdict });
                let run = Run { parent: parents.first().copied(), ..run };
                followers_by_job.insert(job, Follower { run, parents });
            }
        }
        FirePlan {
            parent_updates: self.parent_updates(&mut fire, children),
            followers: followers_by_job.into_values().collect(),
        }
    }

    fn run_of_job(&self, job: JobId, followers: &BTreeMap<JobId, Follower>) -> Option<RunId> {
        let stored_run = self.members.get(&job).map(|member| member.run);
        stored_run.or_else(|| followers.get(&job).map(|follower| follower.run.id))
    }

    fn refusal_detail(&self, parent: JobId, fire: &FireGraph<'_>, children: &BTreeMap<JobId, Child>) -> ReasonDetail {
        let stored_name = self.members.get(&parent).map(|member| member.name.as_str());
        let name = stored_name.or_else(|| children.get(&parent).map(|child| child.spec.name.as_str()));
        let parent_status = fire.state_of(parent).and_then(|state| state.end_status);
        ReasonDetail { parent: name.map(str::to_owned), parent_status, ..ReasonDetail::default() }
    }

    fn new_run(&self, job: JobId, child: &Child, id: RunId, now: Timestamp) -> Run {
        let run_job = RunJob { namespace: child.namespace, job, job_version: child.version, app: child.app };
        let owner = (child.owner.node, child.owner.epoch);
        let run = Run {
            cause: self.root.run.get(),
            // The parent may have its verdict before the instant of the fire, if it is an at-most-once run and the server that marked it
            // died.
            due_at: now.max(self.root.fire_at),
            ..Run::new(id, run_job, self.root.fire_at, Trigger::Parent, owner)
        };
        if child.spec.is_sharded() { run.for_all_shards() } else { run }
    }

    /// Counts the open children of the runs that await them. A run that ends here can be the last open child of another run, which then
    /// ends, too.
    fn parent_updates(&self, fire: &mut FireGraph<'_>, children: &BTreeMap<JobId, Child>) -> Vec<ParentUpdate> {
        let mut updates: BTreeMap<JobId, ParentUpdate> = BTreeMap::new();
        loop {
            let mut has_changed = false;
            for (job, member) in &self.members {
                let is_awaiting =
                    |state: JobInFire| state.end_status == Some(RunStatus::Succeeded) && state.verdict.is_none();
                if !fire.state_of(*job).is_some_and(is_awaiting) {
                    continue;
                }
                let mut update = ParentUpdate {
                    job: *job,
                    run: member.run,
                    status: RunStatus::Running,
                    open_children: i32::try_from(fire.open_child_count(*job)).unwrap_or(i32::MAX),
                    message: None,
                    is_new: member.status.is_terminal(),
                };
                if update.open_children == 0 {
                    has_changed = true;
                    update.status = RunStatus::Succeeded;
                    if let Some((child, status)) = fire.failing_child(*job) {
                        let stored_name = self.members.get(&child).map(|member| member.name.as_str());
                        let name = stored_name.or_else(|| children.get(&child).map(|child| child.spec.name.as_str()));
                        update.status = RunStatus::Failed;
                        update.message = Some(child_ended(name, status));
                    }
                    let verdict = Some((update.status, None));
                    fire.set(*job, JobInFire { end_status: Some(RunStatus::Succeeded), verdict });
                }
                updates.insert(*job, update);
            }
            if !has_changed {
                let is_new_state = |update: &ParentUpdate| {
                    let count_before = self.members.get(&update.job).and_then(|member| member.open_children);
                    // A run that has no children to await keeps the verdict that it just got.
                    let keeps_verdict = update.is_new && update.status == RunStatus::Succeeded;
                    !keeps_verdict && (update.is_new || count_before != Some(update.open_children))
                };
                return updates.into_values().filter(is_new_state).collect();
            }
        }
    }
}

/// Why a child is refused. The reason is `Shadow` if the parent was itself skipped in shadow mode, because the parent did not fail then.
fn refusal_reason(fire: &FireGraph<'_>, parent: JobId) -> Reason {
    let verdict = fire.state_of(parent).and_then(|state| state.verdict);
    let is_shadow = verdict == Some((RunStatus::Skipped, Some(Reason::Shadow)));
    if is_shadow { Reason::Shadow } else { Reason::Parent }
}

fn skipped_run(run: Run, reason: Reason, detail: ReasonDetail, now: Timestamp) -> Run {
    let message = Some(reason_text(reason, &detail, Lang::En));
    let detail = (detail != ReasonDetail::default()).then(|| Arc::new(detail));
    Run { status: RunStatus::Skipped, reason: Some(reason), detail, message, finished_at: Some(now), ..run }
}

/// The data that a run gets about one of the runs that it follows from.
#[derive(Clone, Debug)]
pub(crate) struct ParentResult {
    pub(crate) job_name: String,
    pub(crate) run: RunId,
    pub(crate) status: RunStatus,
    /// Whether this run itself follows from other runs. Its parameters then contain those of its own parents.
    pub(crate) is_follower: bool,
    /// The run's own parameters, as JSON text; `None` if it has those of its job.
    pub(crate) params: Option<String>,
    pub(crate) job_params: Value,
    /// Its result, as JSON text.
    pub(crate) result: Option<String>,
}

/// The parameters of a run that follows from others: its job's parameters, and the parameters and results of its parents. Parameters that
/// are not an object are wrapped in one.
pub(crate) fn params(job_params: &Value, mut parents: Vec<ParentResult>) -> String {
    let mut params = match job_params {
        Value::Object(params) => params.clone(),
        Value::Null => Map::new(),
        other => Map::from_iter([("params".to_owned(), other.clone())]),
    };
    parents.sort_by(|a, b| a.job_name.cmp(&b.job_name));
    let (mut results_left, mut params_left) = (PARENT_RESULTS_LEN_MAX, PARENT_RESULTS_LEN_MAX);
    let mut parent_entries = Map::new();
    for parent in parents {
        let result = json_within(parent.run, parent.result.as_deref().unwrap_or("null"), &mut results_left);
        let params_text = params_without_parents(&parent).to_string();
        let params_value = json_within(parent.run, &params_text, &mut params_left);
        let entry = json!({
            "run_id": parent.run.to_string(),
            "status": parent.status.as_str(),
            "result": result,
            "params": params_value,
        });
        parent_entries.insert(parent.job_name, entry);
    }
    params.insert("parents".to_owned(), Value::Object(parent_entries));
    Value::Object(params).to_string()
}

/// The parameters of a parent without the parameters of its own parents, because parameters would otherwise grow along a chain.
fn params_without_parents(parent: &ParentResult) -> Value {
    let params = parent.params.as_deref().and_then(|text| serde_json::from_str(text).ok());
    match params.unwrap_or_else(|| parent.job_params.clone()) {
        Value::Object(mut params) if parent.is_follower => {
            params.remove("parents");
            Value::Object(params)
        }
        other => other,
    }
}

/// The text as a JSON value, if it fits into `bytes_left`, the number of bytes that are still free. Otherwise a note that names the run where
/// the text can be read.
fn json_within(run: RunId, text: &str, bytes_left: &mut usize) -> Value {
    if text.len() > *bytes_left {
        return json!({"omitted": format!("{} bytes of JSON; read run {run}", text.len())});
    }
    *bytes_left -= text.len();
    // Servers of earlier versions cut long texts, which then were no valid JSON.
    serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(name: &str, result: Option<&str>) -> ParentResult {
        ParentResult {
            job_name: name.to_owned(),
            run: RunId::new(7),
            status: RunStatus::Succeeded,
            is_follower: true,
            params: Some(r#"{"n": 1, "parents": {"x": 1}}"#.to_owned()),
            job_params: Value::Null,
            result: result.map(str::to_owned),
        }
    }

    #[track_caller]
    fn check_params(job_params: &Value, parents: Vec<ParentResult>, expected: &Value) {
        assert_eq!(&serde_json::from_str::<Value>(&params(job_params, parents)).unwrap(), expected);
    }

    #[test]
    fn parameters_carry_the_parents() {
        let b = json!({"run_id": "7", "status": "succeeded", "result": {"rows": 3}, "params": {"n": 1}});
        let with_b = |rest: Value| {
            let mut all = rest.as_object().cloned().unwrap_or_default();
            all.insert("parents".to_owned(), json!({"b": b}));
            Value::Object(all)
        };
        let parents = || vec![passed("b", Some(r#"{"rows": 3}"#))];
        check_params(&json!({"k": "v"}), parents(), &with_b(json!({"k": "v"})));
        check_params(&Value::Null, parents(), &with_b(json!({})));
        check_params(&json!([1]), parents(), &with_b(json!({"params": [1]})));
        let nothing = json!({"run_id": "7", "status": "succeeded", "result": null, "params": {"n": 1}});
        check_params(&Value::Null, vec![passed("b", None)], &json!({"parents": {"b": nothing}}));
    }

    #[test]
    fn a_result_that_is_too_long_is_left_out_and_named() {
        let long = format!("\"{}\"", "x".repeat(10_000));
        let text = params(&Value::Null, vec![passed("c", Some(&long)), passed("b", Some(&long))]);
        let params: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(params["parents"]["b"]["result"].as_str().map(str::len), Some(10_000));
        assert_eq!(params["parents"]["c"]["result"]["omitted"], "10002 bytes of JSON; read run 7");
        assert_eq!(params["parents"]["c"]["params"], json!({"n": 1}));
    }
}
