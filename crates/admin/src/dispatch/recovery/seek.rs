//! Moves due runs, and their jobs with them, to another live node if a fit executor is connected to that node and none is connected here.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

use rondel_core::name::takes_handler;
use rondel_core::{AppId, ExecutorId, JobId, NodeId, RunId, Timestamp};
use rondel_store::LeaseToken;
use rondel_store::cluster::{ExecutorRecord, Node, Session};
use rondel_store::ledger::LimitName;

use crate::dispatch::decision::Decision;
use crate::dispatch::flow;
use crate::dispatch::queue::limits::LimitKey;
use crate::dispatch::queue::turns;
use crate::dispatch::ready::ReadyRun;
use crate::dispatch::runs::OpenRun;
use crate::dispatch::state::Work;
use crate::dispatch::step::Step;

/// How long a run waits for an executor here before this node looks elsewhere: an executor that reconnects to all nodes reaches them one after the
/// other.
const SEEK_AFTER: Duration = Duration::from_secs(2);
/// How often this node searches for executors at other nodes.
const SEEK_PERIOD: Duration = Duration::from_secs(2);

/// Hands over the jobs of runs without an executor here to a node that has one.
pub(crate) fn seek_elsewhere(d: &mut Decision<'_>) {
    let now = d.now;
    if d.facts.settings.is_single_server || now < d.state.recovery.next_seek_at || !d.may_start_runs() {
        return;
    }
    d.state.recovery.next_seek_at = now + SEEK_PERIOD;
    let executors = &d.state.executors;
    let is_stranded = |open: &OpenRun| {
        let ready = &open.ready;
        open.since() + SEEK_AFTER <= now && executors.eligible_executors(ready).is_empty()
    };
    let last_sought_job = d.state.recovery.last_sought_job;
    let first_runs = d.state.parked.first_of_jobs(last_sought_job, d.facts.settings.seek_jobs, &d.state.runs);
    let mut last_sought_job = None;
    let mut stranded_runs: Vec<ReadyRun> = Vec::new();
    for parked_run in first_runs {
        last_sought_job = Some(parked_run.ready.run.job);
        if is_stranded(parked_run) {
            stranded_runs.push(parked_run.ready.clone());
        }
    }
    d.state.recovery.last_sought_job = last_sought_job;
    let closed_jobs = close_jobs(d, &stranded_runs.iter().map(|ready| ready.run.job).collect());
    stranded_runs.retain(|ready| closed_jobs.contains(&ready.run.job));
    if !closed_jobs.is_empty() {
        d.step(Step::Seek(stranded_runs));
    }
}

/// Closes the jobs that may move, and returns them. A job may move if no executor has, or is about to get, one of its runs, none of its runs waits
/// for executors' answers, and the job is not being handed over already. A closed job starts no run.
pub(crate) fn close_jobs(d: &mut Decision<'_>, jobs: &BTreeSet<JobId>) -> BTreeSet<JobId> {
    let busy_jobs: HashSet<JobId> = d.state.runs.active_runs().map(|active| active.ready.run.job).collect();
    let may_leave = |job: &&JobId| {
        !busy_jobs.contains(job) && !d.state.probes.has(**job) && !d.state.pending_steps.jobs_in_handover.contains(job)
    };
    let closed_jobs: BTreeSet<JobId> = jobs.iter().filter(may_leave).copied().collect();
    d.state.pending_steps.jobs_in_handover.extend(closed_jobs.iter().copied());
    closed_jobs
}

/// Opens jobs whose handover has ended. The parked runs of jobs that stay here are offered to executors at once, not only in the next round.
pub(crate) fn on_handover_ended(d: &mut Decision<'_>, jobs: &BTreeSet<JobId>) {
    reopen_jobs(d, jobs);
    for app in d.state.parked.apps() {
        flow::unpark(d, app);
    }
}

/// Opens these jobs again: none of them is being handed over.
pub(crate) fn reopen_jobs(d: &mut Decision<'_>, jobs: &BTreeSet<JobId>) {
    d.state.pending_steps.jobs_in_handover.retain(|job| !jobs.contains(job));
}

/// Leaves out the runs that an executor has, or that are in the roll call. They were unsent when they were read for the handover, so this node
/// has taken them over again since.
fn without_returned(d: &Decision<'_>, mut runs: Vec<RunId>) -> Vec<RunId> {
    let is_under_way = |run| d.state.runs.active(run).is_some() || d.state.runs.in_roll_call(run).is_some();
    // If another attempt waits here, that is the attempt that was handed over.
    runs.retain(|run| !is_under_way(*run) || d.state.runs.ready(*run).is_some());
    runs
}

/// Forgets runs that belong to another node now.
pub(crate) fn on_handed_over(d: &mut Decision<'_>, runs: Vec<RunId>) {
    let runs = without_returned(d, runs);
    for run in &runs {
        turns::leave_gate(d, *run);
        turns::withdraw(d, *run);
        flow::offer_freed_places(d);
    }
    // Runs that still wait for the home of a limit are tried again.
    if !runs.is_empty() {
        d.state.limits.ask_for_homes_again();
    }
    d.forget(runs);
}

/// Forgets runs that may belong to another node now. Runs that have passed their gates keep their places until their owner is known.
pub(crate) fn on_maybe_handed_over(d: &mut Decision<'_>, runs: Vec<RunId>) {
    let runs = without_returned(d, runs);
    for run in &runs {
        let admitted_runs = d.state.gates.make_reserved(*run, &mut d.state.runs);
        turns::queue_starts(d, admitted_runs);
        turns::withdraw(d, *run);
        flow::offer_freed_places(d);
    }
    d.forget(runs.iter().copied());
    d.state.limits.ask_for_homes_again();
    d.step(Step::CheckRows(runs));
}

/// The store's records of executors that are connected to other nodes.
#[derive(Debug)]
pub(crate) struct RemoteExecutors {
    /// Nodes other than this node that take jobs, each with the executors that it hears.
    executors_by_node: BTreeMap<NodeId, BTreeSet<ExecutorId>>,
    executors: BTreeMap<ExecutorId, RemoteExecutor>,
}

#[derive(Debug)]
struct RemoteExecutor {
    app: AppId,
    name: String,
    handlers: BTreeSet<String>,
    labels: BTreeMap<String, String>,
}

impl RemoteExecutor {
    fn of(record: &ExecutorRecord) -> Self {
        Self {
            app: record.app,
            name: record.name.clone(),
            handlers: serde_json::from_str(&record.handlers).unwrap_or_default(),
            labels: serde_json::from_str(&record.labels).unwrap_or_default(),
        }
    }

    fn is_fit(&self, ready: &ReadyRun) -> bool {
        let job = &ready.definition.job;
        let is_allowed = ready.run.only_executor.as_ref().is_none_or(|only| *only == self.name);
        // As in `ConnectedExecutor::has_handler`.
        let has_handler = match &job.pump {
            Some(_) => self.handlers.contains(&job.handler),
            None => takes_handler(self.handlers.iter().map(String::as_str), &job.handler),
        };
        self.app == ready.run.app && is_allowed && has_handler && job.select.admits(&self.name, &self.labels)
    }
}

impl RemoteExecutors {
    pub(crate) fn new(
        own_node: NodeId,
        nodes: &[Node],
        sessions: &[Session],
        records: &[ExecutorRecord],
        now: Timestamp,
    ) -> Self {
        let is_at_live_node = |session: &&Session| {
            let is_live_node_of_session =
                |node: &Node| node.id != own_node && node.takes_jobs(now) && node.token() == session.token;
            session.is_open() && nodes.iter().any(is_live_node_of_session)
        };
        let mut executors_by_node: BTreeMap<NodeId, BTreeSet<ExecutorId>> = BTreeMap::new();
        for session in sessions.iter().filter(is_at_live_node) {
            executors_by_node.entry(session.token.node).or_default().insert(session.executor);
        }
        Self {
            executors_by_node,
            executors: records.iter().map(|record| (record.id, RemoteExecutor::of(record))).collect(),
        }
    }

    /// The new homes of the jobs of these runs. Because a job has one home, all its runs go to one node: the node for the first of its runs
    /// that another node can start.
    pub(crate) fn homes_for(&self, stranded_runs: &[ReadyRun]) -> BTreeMap<NodeId, BTreeSet<JobId>> {
        let mut homes: BTreeMap<JobId, NodeId> = BTreeMap::new();
        for ready in stranded_runs {
            if let Entry::Vacant(place) = homes.entry(ready.run.job)
                && let Some(node) = self.node_for(ready)
            {
                place.insert(node);
            }
        }
        let mut jobs_by_node: BTreeMap<NodeId, BTreeSet<JobId>> = BTreeMap::new();
        for (job, node) in homes {
            jobs_by_node.entry(node).or_default().insert(job);
        }
        jobs_by_node
    }

    /// The node that hears the most executors that are fit for this run; of several such nodes, the one with the lowest id. `None` if no node hears
    /// a fit executor.
    fn node_for(&self, ready: &ReadyRun) -> Option<NodeId> {
        let is_fit = |id: &&ExecutorId| self.executors.get(*id).is_some_and(|executor| executor.is_fit(ready));
        let executor_counts =
            self.executors_by_node.iter().map(|(node, heard)| (heard.iter().filter(is_fit).count(), *node));
        let best_count_and_node = executor_counts
            .filter(|(count, _)| *count > 0)
            .max_by_key(|(count, node)| (*count, std::cmp::Reverse(*node)));
        best_count_and_node.map(|(_, node)| node)
    }
}

/// Maximum number of waiting runs whose jobs go to another node in one transaction.
const HAND_OVER_BATCH: usize = 500;

/// Applies the homes of limits. Runs under another node's limit go to that node. If that node is dead or is to keep no jobs, they wait until
/// the limit has another home.
///
/// The homes were read under `lease`. If that lease has ended, the node that took this node's runs over may have become a limit's home since. If
/// open runs are being taken over, this node may have become the home of a limit under which it does not know all runs yet. In both cases nothing
/// is applied, and the homes are read again.
pub(crate) fn on_limit_homes(d: &mut Decision<'_>, lease: LeaseToken, homes: Vec<(LimitName, NodeId)>) {
    if lease != d.facts.token || !d.facts.lease_holds || d.state.recovery.is_adopting {
        return;
    }
    let own_node = d.facts.token.node;
    for (name, home) in homes {
        if home == own_node {
            d.state.limits.count_here(name.clone());
            d.state.work_queue.push_back(Work::Offer(LimitKey::Home(name)));
            flow::offer_freed_places(d);
            continue;
        }
        let jobs = d.state.limits.jobs_awaiting_home(&name, HAND_OVER_BATCH, &d.state.runs);
        let closed_jobs = close_jobs(d, &jobs);
        if !closed_jobs.is_empty() {
            let other_limits = d.state.limits.other_limits_of_waiting_runs(&name, HAND_OVER_BATCH, &d.state.runs);
            d.step(Step::HandOver(closed_jobs, home));
            // One node must count all limits of a run. If the other limits stayed here, the run would come back.
            give_limits(d, |other| other_limits.contains(other), Some(home));
        }
    }
}

/// Gives the chosen limits to node `new_home`, or to the next node that asks. A limit that still counts a run stays here, and all limits stay
/// while open runs are being taken over, because some of these may be under the limits. A server that shuts down takes nothing over.
pub(crate) fn give_limits(d: &mut Decision<'_>, is_chosen: impl Fn(&LimitName) -> bool, new_home: Option<NodeId>) {
    if d.state.recovery.is_adopting && !d.state.is_draining {
        return;
    }
    let given_limits = d.state.limits.give_away(is_chosen);
    if !given_limits.is_empty() {
        d.step(Step::GiveLimits(given_limits, new_home));
    }
}

#[cfg(test)]
mod tests {
    use rondel_core::NamespaceId;
    use rondel_core::homes::Switch;
    use rondel_store::cluster::NodeReport;
    use serde_json::json;

    use super::*;
    use crate::dispatch::tests_support::{definition, ready};

    const NOW: Timestamp = Timestamp::from_secs(1_000);

    fn node(id: i64, epoch: i64, lease_until: i64) -> Node {
        Node {
            id: NodeId::new(id),
            name: format!("n{id}"),
            epoch,
            lease_until: Timestamp::from_secs(lease_until),
            is_fenced: false,
            fenced_by: None,
            advertise_url: None,
            server_version: String::new(),
            started_at: Timestamp::EPOCH,
            switch: Switch::Active,
            report: NodeReport::default(),
        }
    }

    fn session(node: i64, epoch: i64, executor: i64) -> Session {
        Session {
            token: LeaseToken { node: NodeId::new(node), epoch },
            executor: ExecutorId::new(executor),
            app: AppId::new(1),
            last_seen_at: NOW,
            ended_at: None,
            has_left: false,
            process: None,
        }
    }

    fn record(id: i64, handlers: &str, labels: &str) -> ExecutorRecord {
        ExecutorRecord {
            id: ExecutorId::new(id),
            namespace: NamespaceId::new(1),
            app: AppId::new(1),
            name: format!("e{id}"),
            predecessor: None,
            sdk_version: String::new(),
            labels: labels.to_owned(),
            weight: 1,
            slots: 1,
            handlers: handlers.to_owned(),
            secret_hash: None,
            first_seen_at: NOW,
            last_seen_at: NOW,
        }
    }

    #[test]
    fn a_run_for_one_executor_goes_where_that_one_is_heard() {
        let nodes = [node(1, 1, 1_005), node(2, 1, 1_005), node(3, 1, 1_005)];
        let records = [record(1, "[\"h\"]", "{}"), record(2, "[\"h\"]", "{}"), record(3, "[\"h\"]", "{}")];
        let sessions = [session(2, 1, 1), session(2, 1, 2), session(3, 1, 3)];
        let elsewhere = RemoteExecutors::new(NodeId::new(1), &nodes, &sessions, &records, NOW);
        let target = |only: Option<&str>| {
            let mut ready = ready(1, &definition(&json!({})));
            ready.run.only_executor = only.map(str::to_owned);
            elsewhere.node_for(&ready).map(NodeId::get)
        };
        assert_eq!((target(None), target(Some("e3")), target(Some("e4"))), (Some(2), Some(3), None));
    }

    #[test]
    fn a_job_goes_with_the_first_of_its_runs_that_has_a_node() {
        let nodes = [node(1, 1, 1_005), node(2, 1, 1_005), node(3, 1, 1_005)];
        let records = [record(2, "[\"h\"]", "{}"), record(3, "[\"h\"]", "{}")];
        let elsewhere =
            RemoteExecutors::new(NodeId::new(1), &nodes, &[session(2, 1, 2), session(3, 1, 3)], &records, NOW);
        let stranded = [(1, "gone"), (1, "e3"), (1, "e2"), (2, "gone"), (3, "e2")].map(|(job, only)| {
            let mut ready = ready(1, &definition(&json!({})));
            (ready.run.job, ready.run.only_executor) = (JobId::new(job), Some(only.to_owned()));
            ready
        });
        let homes = elsewhere.homes_for(&stranded).into_iter().map(|(node, jobs)| (node.get(), jobs));
        let homes: Vec<(i64, BTreeSet<JobId>)> = homes.collect();
        assert_eq!(homes, [(2, [JobId::new(3)].into()), (3, [JobId::new(1)].into())]);
    }

    /// An executor without a record is not known to have the handler, and one of another app does not run the job.
    #[test]
    fn no_run_goes_to_an_executor_that_is_not_known_to_be_fit() {
        let nodes = [node(2, 1, 1_005)];
        let of_app = |app| ExecutorRecord { app: AppId::new(app), ..record(1, "[\"h\"]", "{}") };
        for (records, expected) in [(vec![], None), (vec![of_app(2)], None), (vec![of_app(1)], Some(2))] {
            let elsewhere = RemoteExecutors::new(NodeId::new(1), &nodes, &[session(2, 1, 1)], &records, NOW);
            assert_eq!(elsewhere.node_for(&ready(1, &definition(&json!({})))).map(NodeId::get), expected);
        }
    }

    /// An executor that takes any handler speaks XXL-JOB's protocol, which has no groups of pump jobs.
    #[test]
    fn an_executor_that_takes_any_handler_gets_no_pump_jobs() {
        let nodes = [node(2, 1, 1_005)];
        let target = |handlers, overrides: serde_json::Value| {
            let records = [record(1, handlers, "{}")];
            let elsewhere = RemoteExecutors::new(NodeId::new(1), &nodes, &[session(2, 1, 1)], &records, NOW);
            elsewhere.node_for(&ready(1, &definition(&overrides))).map(NodeId::get)
        };
        let pump = json!({"pump": {"items": [{"name": "eu"}], "groups": 1}});
        assert_eq!(target("[\"*\"]", json!({})), Some(2));
        assert_eq!(target("[\"*\"]", pump.clone()), None);
        assert_eq!(target("[\"h\"]", pump), Some(2));
    }

    #[test]
    fn runs_go_to_a_node_that_hears_a_fit_executor() {
        let draining = Node { switch: Switch::Draining, ..node(5, 1, 1_005) };
        let nodes = [node(1, 1, 1_005), node(2, 4, 1_005), node(3, 1, 1_005), node(4, 1, 999), draining];
        let records = [
            record(1, "[\"h\"]", "{}"),
            record(2, "[\"other\"]", "{}"),
            record(3, "[\"h\"]", "{\"zone\":\"a\"}"),
            record(4, "not json", "{}"),
        ];
        let closed = Session { ended_at: Some(Timestamp::EPOCH), ..session(3, 1, 1) };
        let target = |sessions: &[Session], overrides: serde_json::Value| {
            let elsewhere = RemoteExecutors::new(NodeId::new(1), &nodes, sessions, &records, NOW);
            elsewhere.node_for(&ready(1, &definition(&overrides))).map(NodeId::get)
        };
        let any = || json!({});
        assert_eq!(target(&[], any()), None);
        assert_eq!(target(&[session(1, 1, 1)], any()), None, "here");
        assert_eq!(target(&[session(2, 4, 2), session(2, 4, 4)], any()), None, "no executor has the handler");
        assert_eq!(target(&[session(2, 3, 1)], any()), None, "heard under an epoch that is over");
        assert_eq!(target(&[session(4, 1, 1)], any()), None, "the node is dead");
        assert_eq!(target(&[closed], any()), None);
        assert_eq!(target(&[session(5, 1, 1)], any()), None, "the node drains");
        assert_eq!(target(&[session(2, 4, 1), session(3, 1, 1)], any()), Some(2));
        assert_eq!(target(&[session(2, 4, 1), session(3, 1, 1), session(3, 1, 3)], any()), Some(3), "two of them");
        let in_zone = json!({"select": {"labels": ["zone=a"]}});
        assert_eq!(target(&[session(2, 4, 1), session(3, 1, 3)], in_zone), Some(3));
    }
}
