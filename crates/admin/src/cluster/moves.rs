//! Moves jobs to other homes: those that the strategy assigns to a node that joined, and all jobs of a node that leaves or is switched off.
//!
//! The home itself hands a job over, in one transaction with the job's unsent runs. A job with any other open run stays until that run has
//! ended, so that no runs overlap. The new home knows the next fire before it is due.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use rondel_core::homes::{ClaimStrategy, HALF_LIFE, JobShare, NodeShare, Switch};
use rondel_core::{JobId, NodeId, RunId, Timestamp};
use rondel_store::StoreError;
use rondel_store::cluster::HomeMove;
use rondel_store::ledger::{JobAtHome, UnsentRun};
use tokio_util::sync::CancellationToken;

use crate::background::{Background, TickError};
use crate::cluster::HeldLease;
use crate::node::Shared;

/// The moments of each second at which jobs move. By then most runs that were due at the whole second have ended, and the runs of the next second
/// are not at the dispatcher yet. A job that is busy at the earlier moment may be idle at the later moment.
const MOVE_OFFSETS: [Duration; 2] = [Duration::from_millis(200), Duration::from_millis(300)];
/// How long after its start a round still begins transactions.
const ROUND_LENGTH_MAX: Duration = Duration::from_millis(100);
/// While the node works, only runs that are due at least this far ahead are handed over: during the transaction, the tick may read a run that is
/// due earlier.
const DUE_LEAD_MIN: Duration = Duration::from_millis(650);
/// How long before its instant a run may be marked. While the node works, runs that are due within this time after the start of the transaction are
/// not handed over.
const MARK_LEAD_MAX: Duration = Duration::from_millis(250);
/// Margin that is added to `send_ahead`, the longest time by which a run is sent before its instant. A run that is due within the sum of both may
/// have been sent.
const SENT_AHEAD_MARGIN: Duration = Duration::from_millis(50);
const PAGE_LEN: u32 = 2_000;
/// Maximum number of jobs that one round examines.
const ROUND_JOB_COUNT: usize = 20_000;
/// Maximum number of jobs that one transaction moves.
const BATCH_JOB_COUNT: usize = 200;
/// Maximum number of unsent runs that one round reads, rounded up to a page. A job with open runs beyond these is not moved in this round.
const ROUND_RUN_COUNT: usize = 200_000;

/// Maximum number of rounds that are skipped after a pass in which no job could move.
const SKIPPED_ROUND_COUNT_MAX: u32 = 16;

pub(crate) struct MoveLoop {
    shared: Arc<Shared>,
    /// How many rounds are still to be skipped.
    rounds_to_skip: u32,
    /// How many rounds are skipped after the next pass in which no job can move.
    next_rounds_to_skip: u32,
    pass_progress: PassProgress,
    /// The last pass that left no job misplaced: the nodes among which it distributed the jobs, and the instant of its end.
    last_complete_pass: (Vec<NodeId>, Timestamp),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct RoundOutcome {
    moved_count: usize,
    /// How many jobs should have moved and did not.
    unmoved_count: usize,
    /// The last job that the round examined, if the node may have more jobs.
    continue_after: Option<JobId>,
}

/// The progress of a pass: the rounds that together examine all jobs of the node, up to [`ROUND_JOB_COUNT`] in each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct PassProgress {
    moved_count: usize,
    unmoved_count: usize,
    /// The job after which the next round begins.
    after_job: Option<JobId>,
}

impl PassProgress {
    /// Adds a round, and returns the pass once it has examined all jobs. If some jobs moved and others did not, the next round examines the
    /// same jobs again.
    fn add(&mut self, round: RoundOutcome) -> Option<Self> {
        if round.moved_count > 0 && round.unmoved_count > 0 {
            return None;
        }
        self.moved_count += round.moved_count;
        self.unmoved_count += round.unmoved_count;
        self.after_job = round.continue_after;
        self.after_job.is_none().then(|| std::mem::take(self))
    }
}

/// Why jobs leave this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MoveReason {
    /// The claim strategy assigns some of them to other nodes.
    Shares,
    /// The node should keep no jobs.
    Leaves,
}

/// Which of a node's runs may be handed over.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MovableRuns<'a> {
    /// Runs that are due so late that no part of the node has read them yet.
    NotYetDue,
    /// All runs except these, which executors have or are about to get. Used once the node sends nothing any more.
    AllBut(&'a HashSet<RunId>),
}

impl Background for MoveLoop {
    const NAME: &'static str = "moves";
    const ACTION: &'static str = "move jobs to other nodes";

    fn period(&self) -> Option<Duration> {
        None
    }

    async fn wait_until_woken(&mut self) {
        let now = self.shared.clock.now();
        self.shared.clock.sleep_until(next_move_at(now)).await;
    }

    async fn tick(&mut self, _stop: &CancellationToken) -> Result<u64, TickError> {
        Ok(self.run_round().await?)
    }
}

impl MoveLoop {
    pub(crate) const fn new(shared: Arc<Shared>) -> Self {
        let pass_progress = PassProgress { moved_count: 0, unmoved_count: 0, after_job: None };
        Self {
            shared,
            rounds_to_skip: 0,
            next_rounds_to_skip: 1,
            pass_progress,
            last_complete_pass: (Vec::new(), Timestamp::EPOCH),
        }
    }

    /// Runs one round. Returns how many jobs moved.
    async fn run_round(&mut self) -> Result<u64, StoreError> {
        let shared = &self.shared;
        let now = shared.clock.now();
        shared.departing.forget_old(now);
        let Some(lease) = shared.membership.held_lease() else { return Ok(0) };
        let Some(reason) = self.move_reason(now) else {
            (self.rounds_to_skip, self.next_rounds_to_skip, self.pass_progress) = (0, 1, PassProgress::default());
            return Ok(0);
        };
        if let Some(rounds_left) = self.rounds_to_skip.checked_sub(1) {
            self.rounds_to_skip = rounds_left;
            return Ok(0);
        }
        let round =
            move_next_jobs(shared, &lease, (reason, self.pass_progress.after_job), MovableRuns::NotYetDue).await?;
        let finished_pass = self.pass_progress.add(round);
        if finished_pass.is_some_and(|pass| pass.unmoved_count == 0) {
            self.last_complete_pass = (takers(&shared.membership.node_shares(now)), now);
        }
        // Jobs that are never idle need not be examined each second, so rounds are skipped if no job could move.
        match finished_pass {
            Some(PassProgress { moved_count: 0, unmoved_count: 1.., .. }) => {
                self.rounds_to_skip = self.next_rounds_to_skip;
                self.next_rounds_to_skip = (self.next_rounds_to_skip * 2).min(SKIPPED_ROUND_COUNT_MAX);
            }
            None if round.moved_count == 0 => {}
            Some(_) | None => self.next_rounds_to_skip = 1,
        }
        Ok(u64::try_from(round.moved_count).unwrap_or(u64::MAX))
    }

    /// The reason for moving jobs now; `None` if no job is to move. Jobs are redistributed only once the nodes have been the same for two leases,
    /// so that the restart of a node moves no job. If the strategy counts recent fires, which change, jobs are redistributed once in each
    /// [`HALF_LIFE`] even among the same nodes.
    fn move_reason(&self, now: Timestamp) -> Option<MoveReason> {
        let membership = &self.shared.membership;
        if membership.switch() != Switch::Active {
            return Some(MoveReason::Leaves);
        }
        let is_stable = membership.takers_unchanged_for(now) >= self.shared.config.lease * 2;
        let (strategy, (pass_nodes, at)) = (self.shared.config.claim_strategy, &self.last_complete_pass);
        let needs_new_pass = takers(&membership.node_shares(now)) != *pass_nodes
            || strategy.depends_on_load() && now.since(*at) >= HALF_LIFE;
        (strategy.rebalances() && is_stable && needs_new_pass).then_some(MoveReason::Shares)
    }
}

fn next_move_at(now: Timestamp) -> Timestamp {
    let next_at = |offset: Duration| Timestamp::from_secs((now - offset).second() + 1) + offset;
    MOVE_OFFSETS.into_iter().map(next_at).fold(Timestamp::MAX, Timestamp::min)
}

fn takers(node_shares: &[NodeShare]) -> Vec<NodeId> {
    node_shares.iter().map(|node_share| node_share.node).collect()
}

/// Hands over all jobs that may move now. Returns the number of jobs that should have moved and did not.
pub(crate) async fn hand_over_movable_jobs(
    shared: &Shared,
    lease: &HeldLease,
    movable: MovableRuns<'_>,
) -> Result<usize, StoreError> {
    let (mut after_job, mut unmoved_count) = (None, 0);
    loop {
        let round = move_next_jobs(shared, lease, (MoveReason::Leaves, after_job), movable).await?;
        unmoved_count += round.unmoved_count;
        if round.continue_after.is_none() {
            return Ok(unmoved_count);
        }
        after_job = round.continue_after;
    }
}

/// Whether another node could get this node's jobs.
pub(crate) fn has_other_taker(shared: &Shared) -> bool {
    let own_node = shared.membership.token().node;
    shared.membership.node_shares(shared.clock.now()).iter().any(|node_share| node_share.node != own_node)
}

/// How long before its instant a run may have been marked or sent.
fn start_lead_max(shared: &Shared) -> Duration {
    MARK_LEAD_MAX.max(shared.config.send_ahead + SENT_AHEAD_MARGIN)
}

/// Examines the next jobs after `after_job`, and hands over those that may move now.
async fn move_next_jobs(
    shared: &Shared,
    lease: &HeldLease,
    (reason, after_job): (MoveReason, Option<JobId>),
    movable: MovableRuns<'_>,
) -> Result<RoundOutcome, StoreError> {
    let now = shared.clock.now();
    let (own_node, strategy) = (lease.token.node, shared.config.claim_strategy);
    let mut node_shares = shared.membership.node_shares(now);
    if reason == MoveReason::Leaves {
        node_shares.retain(|node_share| node_share.node != own_node);
    }
    if node_shares.is_empty() {
        return Ok(RoundOutcome::default());
    }
    if strategy.depends_on_load() || strategy == ClaimStrategy::Default {
        count_loads(shared, &mut node_shares, now).await?;
    }
    let job_share = |job: JobAtHome| JobShare { job: job.job, recent_fires: job.recent_fires.thousandths_at(now) };
    let (jobs, continue_after) = read_jobs_at_home(shared, own_node, after_job).await?;
    let jobs: Vec<JobShare> = jobs.into_iter().map(job_share).collect();
    let misplaced_jobs: Vec<(JobId, NodeId)> = match reason {
        MoveReason::Shares => strategy.misplaced(own_node, &jobs, &node_shares),
        MoveReason::Leaves => {
            let homes = strategy.deal_on_leave(&jobs, &node_shares);
            jobs.iter().zip(homes).filter_map(|(job, home)| Some((job.job, home?))).collect()
        }
    };
    if misplaced_jobs.is_empty() {
        return Ok(RoundOutcome { continue_after, ..RoundOutcome::default() });
    }
    let mut unsent_runs = read_unsent_runs_by_job(shared, lease, movable, now).await?;
    let mut moved_count = 0;
    for batch in misplaced_jobs.chunks(BATCH_JOB_COUNT) {
        moved_count += hand_over_jobs(shared, lease, batch, &mut unsent_runs, movable).await?;
        if matches!(movable, MovableRuns::NotYetDue) && shared.clock.now() > now + ROUND_LENGTH_MAX {
            // Runs that were not due yet may be due by now, so the remaining jobs move in the next round.
            break;
        }
    }
    if moved_count > 0 {
        tracing::info!(
            count = moved_count,
            left = misplaced_jobs.len() - moved_count,
            "handed over jobs to other nodes"
        );
    }
    Ok(RoundOutcome { moved_count, unmoved_count: misplaced_jobs.len() - moved_count, continue_after })
}

/// Hands over a batch of jobs in one transaction. Returns the number of jobs handed over.
async fn hand_over_jobs(
    shared: &Shared,
    lease: &HeldLease,
    batch: &[(JobId, NodeId)],
    unsent_runs: &mut HashMap<JobId, Vec<UnsentRun>>,
    movable: MovableRuns<'_>,
) -> Result<usize, StoreError> {
    let mut runs = Vec::new();
    let home_moves: Vec<HomeMove> = batch
        .iter()
        .map(|(job, to)| {
            let runs_of_job = unsent_runs.remove(job).unwrap_or_default();
            runs.extend(runs_of_job.iter().map(|run| (run.run, run.due_at)));
            HomeMove { job: *job, runs: runs_of_job.iter().map(|run| run.run).collect(), to: *to }
        })
        .collect();
    shared.departing.begin_handover(runs.iter().copied());
    // Nothing starts these runs from here on. Runs that came due while a slow database was read may have started already.
    let not_before = match movable {
        MovableRuns::NotYetDue => shared.clock.now() + start_lead_max(shared),
        MovableRuns::AllBut(_) => Timestamp::EPOCH,
    };
    let move_result = shared.store.move_jobs(lease.token, &home_moves, not_before).await;
    // If the answer was lost, this node does not know which jobs moved. Runs that stayed are found as strays.
    let move_result = move_result?;
    let moved_runs: HashSet<RunId> = move_result.runs.iter().copied().collect();
    shared.departing.cancel_handover(runs.into_iter().map(|(run, _)| run).filter(|run| !moved_runs.contains(run)));
    Ok(move_result.jobs.len())
}

/// Reads the loads from the store, because the nodes' reports are some seconds old and lack the jobs that were handed over since.
async fn count_loads(shared: &Shared, node_shares: &mut [NodeShare], now: Timestamp) -> Result<(), StoreError> {
    let loads = shared.store.home_loads(&takers(node_shares), now).await?;
    for node_share in node_shares {
        let load = loads.iter().find(|load| load.node == node_share.node);
        (node_share.job_count, node_share.recent_fires) =
            load.map_or((0, 0), |load| (load.job_count, load.recent_fires));
    }
    Ok(())
}

/// The jobs of a home after `after_job`, in the order of their ids, up to [`ROUND_JOB_COUNT`]; and the last of them if there may be more.
async fn read_jobs_at_home(
    shared: &Shared,
    home: NodeId,
    after_job: Option<JobId>,
) -> Result<(Vec<JobAtHome>, Option<JobId>), StoreError> {
    let (mut jobs, mut after_job) = (Vec::new(), after_job.unwrap_or(JobId::new(0)));
    loop {
        let page = shared.store.jobs_of_home(home, after_job, PAGE_LEN).await?;
        let is_last = page.len() < usize::try_from(PAGE_LEN).unwrap_or(usize::MAX);
        after_job = page.last().map_or(after_job, |job| job.job);
        jobs.extend(page);
        if is_last || jobs.len() >= ROUND_JOB_COUNT {
            return Ok((jobs, Some(after_job).filter(|_| !is_last)));
        }
    }
}

async fn read_unsent_runs_by_job(
    shared: &Shared,
    lease: &HeldLease,
    movable: MovableRuns<'_>,
    now: Timestamp,
) -> Result<HashMap<JobId, Vec<UnsentRun>>, StoreError> {
    let mut runs_by_job: HashMap<JobId, Vec<UnsentRun>> = HashMap::new();
    let (mut after_run, mut count) = (RunId::new(0), 0);
    loop {
        let page = shared.store.unsent_runs(lease.token, after_run, PAGE_LEN).await?;
        count += page.len();
        let is_last = page.len() < usize::try_from(PAGE_LEN).unwrap_or(usize::MAX) || count >= ROUND_RUN_COUNT;
        after_run = page.last().map_or(after_run, |run| run.run);
        let is_movable = |run: &UnsentRun| match movable {
            MovableRuns::NotYetDue => run.due_at >= now + DUE_LEAD_MIN,
            MovableRuns::AllBut(in_hand) => !in_hand.contains(&run.run),
        };
        for run in page.into_iter().filter(is_movable) {
            runs_by_job.entry(run.job).or_default().push(run);
        }
        if is_last {
            return Ok(runs_by_job);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_ends_once_all_jobs_were_looked_at() {
        let round = |moved, unmoved, after: Option<i64>| RoundOutcome {
            moved_count: moved,
            unmoved_count: unmoved,
            continue_after: after.map(JobId::new),
        };
        let mut pass = PassProgress::default();
        assert_eq!(pass.add(round(0, 0, Some(5))), None, "the jobs behind it are still to be looked at");
        assert_eq!(pass.after_job, Some(JobId::new(5)));
        assert_eq!(pass.add(round(200, 3, Some(9))), None);
        assert_eq!(pass.after_job, Some(JobId::new(5)), "more of the same jobs may go");
        assert_eq!(pass.add(round(0, 3, Some(9))), None);
        assert_eq!(
            pass.add(round(2, 0, None)),
            Some(PassProgress { moved_count: 2, unmoved_count: 3, after_job: None })
        );
        assert_eq!(pass, PassProgress::default());
    }

    #[test]
    fn jobs_move_twice_in_each_second_and_never_with_runs_due_in_it() {
        let at = |ms: i64| Timestamp::from_millis(7_000 + ms);
        let moments: Vec<Timestamp> = [0, 199, 200, 250, 300, 999].map(|ms| next_move_at(at(ms))).into();
        assert_eq!(moments, [at(200), at(200), at(300), at(300), at(1_200), at(1_200)]);
        for moment in MOVE_OFFSETS {
            // A run that is due at the next whole second may be handed over, and no transaction begins after the tick has read it.
            assert!(moment + DUE_LEAD_MIN < Duration::from_secs(1));
            assert!(moment + ROUND_LENGTH_MAX < Duration::from_millis(500));
        }
    }
}
