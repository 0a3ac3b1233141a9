//! The dispatcher's whole state, which its decisions read and change. Each part has its own type and methods; the decisions are functions
//! over all of it (see [`transition`](super::transition)).

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};

use rondel_core::route::Memories;
use rondel_core::{ExecutorId, JobId, NodeId, RunId, Timestamp};
use rondel_store::LeaseToken;
use rondel_store::ledger::RunAtExecutor;

use super::active::ActiveRun;
use super::executors::Executors;
use super::queue::limits::{LimitKey, Limits};
use super::queue::noted::NotedWaits;
use super::queue::overlap::{AdmittedRun, Gates};
use super::queue::parked::ParkedRuns;
use super::queue::probes::Probes;
use super::recovery::deadlines::Deadlines;
use super::recovery::elsewhere::Relays;
use super::recovery::rollcall::RollCall;
use super::runs::OpenRuns;

#[derive(Debug)]
pub(crate) struct State {
    /// The owner of all open runs; the queues below hold ids.
    pub(super) runs: OpenRuns,
    pub(super) gates: Gates,
    pub(super) limits: Limits,
    /// Runs that wait for an executor.
    pub(super) parked: ParkedRuns,
    /// Runs that wait for answers of executors.
    pub(super) probes: Probes,
    /// Freed places that are still to be offered to the runs that wait for them.
    pub(super) work_queue: VecDeque<Work>,
    pub(super) outbox: Outbox,
    pub(super) pending_steps: PendingSteps,
    pub(super) recovery: Recovery,
    pub(super) executors: Executors,
    /// The routers' memories of their earlier choices.
    pub(super) memories: Memories,
    pub(super) deadlines: Deadlines,
    /// For each job, the newest term under which one of its runs was sent.
    pub(super) newest_terms: HashMap<JobId, i64>,
    /// Jobs that had no gate when their last run came due: executors may have runs of these jobs that hold no place at a gate.
    pub(super) ungated_jobs: HashSet<JobId>,
    /// The waits of runs, as stored in their rows.
    pub(super) noted_waits: NotedWaits,
    /// When the last event was handled, by the database's clock.
    pub(super) last_now: Timestamp,
    /// Whether the server is shutting down. If so, nothing more is sent.
    pub(super) is_draining: bool,
}

/// Runs with an executor that are about to be sent.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// Runs that are sent with the next flush, keyed by their executors.
    pub(super) triggers: BTreeMap<ExecutorId, Vec<RunId>>,
    /// Runs that are marked with the next flush, because `ReadyRun::is_marked_first` is true of them.
    pub(super) marks: Vec<RunAtExecutor>,
    /// Runs that are sent when their instants come, by instant.
    pub(super) not_yet_due: BTreeSet<(Timestamp, RunId)>,
}

/// Requests to the store that it has not answered.
#[derive(Debug, Default)]
pub(crate) struct PendingSteps {
    /// Jobs that are being handed over to another node: none of their runs is started.
    pub(super) jobs_in_handover: BTreeSet<JobId>,
    /// Runs that are asked to end because a later run takes their place.
    pub(super) covered_runs: BTreeSet<RunId>,
    /// How many requests to remove marks are unanswered.
    pub(super) unmarking_count: usize,
    /// Attempts of broadcasts' shards whose marks are being stored. If such a mark is not needed any more, the shard keeps its executor.
    pub(super) shards_being_marked: BTreeSet<(RunId, i32)>,
    pub(super) is_looking_for_lost: bool,
}

/// How far this node has come in taking over runs of ended leases.
#[derive(Debug)]
pub(crate) struct Recovery {
    /// The lease of this node under which runs may start, if the open runs of their jobs are known; `None` before the first such lease.
    pub(super) begun_lease: Option<LeaseToken>,
    /// Whether open runs of ended leases are being taken over. Until that ends, this node does not know how many runs the shared limits count.
    pub(super) is_adopting: bool,
    /// Jobs whose open runs are being taken over: their due runs wait.
    pub(super) adopting_jobs: HashSet<JobId>,
    pub(super) rollcall: RollCall,
    /// For each node, the epoch of its newest ended lease that was announced to executors.
    pub(super) fences: BTreeMap<NodeId, i64>,
    /// Fences whose answers other servers wait for.
    pub(super) relays: Relays,
    /// When rows of runs are read next.
    pub(super) next_look_at: Timestamp,
    /// The last runs whose rows were read: the first field for runs that hold up others, the second field for runs in the roll call.
    pub(super) last_looked_runs: (RunId, RunId),
    /// When executors at other nodes are sought next.
    pub(super) next_seek_at: Timestamp,
    /// The last job for which executors were sought at other nodes.
    pub(super) last_sought_job: Option<JobId>,
}

impl State {
    pub(crate) fn new(is_single_server: bool, now: Timestamp) -> Self {
        Self {
            runs: OpenRuns::default(),
            gates: Gates::default(),
            limits: Limits::new(!is_single_server),
            parked: ParkedRuns::default(),
            probes: Probes::default(),
            work_queue: VecDeque::new(),
            outbox: Outbox::default(),
            pending_steps: PendingSteps::default(),
            recovery: Recovery {
                begun_lease: None,
                is_adopting: false,
                adopting_jobs: HashSet::new(),
                rollcall: RollCall::default(),
                fences: BTreeMap::new(),
                relays: Relays::default(),
                next_look_at: now,
                last_looked_runs: (RunId::new(0), RunId::new(0)),
                next_seek_at: now,
                last_sought_job: None,
            },
            executors: Executors::default(),
            memories: Memories::default(),
            deadlines: Deadlines::default(),
            newest_terms: HashMap::new(),
            ungated_jobs: HashSet::new(),
            noted_waits: NotedWaits::default(),
            last_now: now,
            is_draining: false,
        }
    }

    /// When the loop must wake for a run. The instants of scheduled runs count only if `lease` is the lease under which runs may start.
    pub(crate) fn next_instant(&self, lease: Option<LeaseToken>) -> Timestamp {
        let mut earliest = self.limits.wake_at().min(self.probes.wake_at());
        if lease.is_some() && self.recovery.begun_lease == lease {
            earliest = self.runs.next_timer_at().unwrap_or(Timestamp::MAX).min(earliest);
            earliest = self.outbox.not_yet_due.first().map_or(Timestamp::MAX, |(at, _)| *at).min(earliest);
        }
        earliest
    }

    /// Whether no executor has a run other than a pump's group, no mark is being removed, and no mark of a broadcast's shard is being stored:
    /// such a mark may have to be removed, and a row that is shelved with its mark loses its executor.
    pub(crate) fn is_drained(&self) -> bool {
        // Groups of pump jobs run without an end, so the drain does not wait for them: the next server takes them over.
        let must_end = |active: &ActiveRun| active.ready.definition.job.pump.is_none();
        let has_pending_marks =
            self.pending_steps.unmarking_count > 0 || !self.pending_steps.shards_being_marked.is_empty();
        !has_pending_marks && !self.runs.active_runs().any(must_end)
    }
}

/// A freed place, to be offered to the runs that wait for it. Places that become free meanwhile are added to `State::work_queue`.
#[derive(Debug)]
pub(crate) enum Work {
    /// The turn of a run has come at a gate.
    Start(AdmittedRun),
    /// A limit may have room for the next run.
    Offer(LimitKey),
}
