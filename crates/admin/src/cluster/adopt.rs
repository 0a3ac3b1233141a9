//! The adoption loop. Each second, this node looks for its own overdue runs that are not in its memory, for runs of ended leases, and for cancel
//! requests. Other comments call these searches the periodic queries. They find runs that no process has in memory after a crash, a lost answer or
//! a late commit.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use rondel_core::{JobId, NodeId, Run, RunId, RunStatus, Timestamp};
use rondel_failpoint::mutant::{self, Mutant};
use rondel_store::cluster::{Node, Session};
use rondel_store::ledger::{Adoption, DeadNode, OrphanedJobs};
use rondel_store::{LeaseToken, StoreError};
use tokio_util::sync::CancellationToken;

use crate::background::{Background, TickError};
use crate::cluster::orphans::{batch_jobs, split_by_sent};
use crate::cluster::strays::{Strays, Sweep, remove_marks};
use crate::cluster::{EndedLease, HeldLease, LeaseToAdopt, end_requests, ended_leases};
use crate::definitions::CompiledDefinitions;
use crate::dispatch::{Event, ReadyRun, RollCallRun};
use crate::host_process;
use crate::node::Shared;

const PERIOD: Duration = Duration::from_secs(1);
/// The delay between the end of a lease and the search for its runs, because this node's clock may be slightly ahead of the database's.
const LEASE_END_MARGIN: Duration = Duration::from_millis(50);
/// Maximum number of fences that one round sends for other servers, and of answers that it reads.
const FENCE_PAGE: u32 = 500;
/// Maximum age of a request to send a fence for another server. Servers repeat their requests within this time.
const FENCE_REQUEST_AGE_MAX: Duration = Duration::from_secs(60);
/// Maximum number of jobs of a dead home node that one transaction frees.
const FREE_BATCH: u32 = 500;
/// Maximum number of such transactions for one node in one round.
const FREE_BATCH_COUNT_MAX: u32 = 20;
/// The number of rounds between two searches for running runs that are not in memory.
const ROUNDS_BETWEEN_SEARCHES: u32 = 10;

pub(crate) struct AdoptLoop {
    shared: Arc<Shared>,
    /// How many rounds have completed their adoption; wraps around.
    round_count: u32,
    /// The lease for which the dispatcher was notified that all earlier open runs are adopted.
    adopted_under: Option<LeaseToken>,
    /// Leases whose takeover this node has begun, and not seen to complete. If it has fenced one of them, it is also the home of the limits of that
    /// lease's node.
    begun_takeovers: Vec<LeaseToAdopt>,
    /// Whether the dispatcher was notified that runs are being taken over.
    has_announced: bool,
    /// Whether the answer to an adoption may have been lost. If so, the next round looks for running runs that are not in memory.
    is_interrupted: bool,
    /// Roll calls that could not be prepared because the database did not answer.
    owed_roll_calls: Vec<OwedRollCall>,
    /// Whether unsent runs of an interrupted adoption may lack their places at gates.
    lacks_places: bool,
    strays: Strays,
}

/// Runs that may have been sent and about which no executor has been asked yet. They count as in memory already. Otherwise, once the row of one of
/// them shows a wait, the search for strays could treat it as a run that was never sent.
struct OwedRollCall {
    /// The lease under which this node has the runs.
    lease: LeaseToken,
    runs: Vec<Run>,
    /// The lease under which a run may have been sent, if that lease is known.
    lease_by_run: HashMap<RunId, LeaseToken>,
}

impl Background for AdoptLoop {
    const NAME: &'static str = "adopt";
    const ACTION: &'static str = "look for runs to adopt";

    fn period(&self) -> Option<Duration> {
        Some(PERIOD)
    }

    async fn wait_until_woken(&mut self) {
        tokio::select! {
            biased;
            () = self.shared.adopt_poke.notified() => {}
            () = self.wait_for_lease_end() => {}
        }
    }

    async fn tick(&mut self, _stop: &CancellationToken) -> Result<u64, TickError> {
        Ok(self.run_round().await?)
    }
}

impl AdoptLoop {
    pub(crate) const fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            round_count: 0,
            adopted_under: None,
            begun_takeovers: Vec::new(),
            has_announced: false,
            is_interrupted: false,
            owed_roll_calls: Vec::new(),
            lacks_places: false,
            strays: Strays::new(),
        }
    }

    /// Waits for the earliest known end of another node's lease. The runs of a dead node are already late, so they must not wait for the next
    /// period of this loop.
    async fn wait_for_lease_end(&self) {
        let now = self.shared.clock.now();
        match self.shared.membership.next_lease_end(now - LEASE_END_MARGIN) {
            Some(end) => tokio::time::sleep((end + LEASE_END_MARGIN).since(now)).await,
            None => std::future::pending().await,
        }
    }

    /// Runs one round. Returns how many runs were adopted.
    async fn run_round(&mut self) -> Result<u64, StoreError> {
        let Some(lease) = self.shared.membership.held_lease() else { return Ok(0) };
        self.start_owed_roll_calls(&lease).await?;
        let knows_all = self.shared.membership.knows_fenced_leases(self.shared.clock.now(), self.shared.config.lease);
        let Some(taken_over) = self.adopt(&lease).await? else { return Ok(0) };
        self.free_ended_awaiting_runs(&lease).await?;
        self.round_count = self.round_count.wrapping_add(1);
        if self.round_count.is_multiple_of(ROUNDS_BETWEEN_SEARCHES) || self.is_interrupted || self.strays.is_sweeping()
        {
            if self.lacks_places {
                self.restore_missing_places(&lease).await?;
                self.lacks_places = false;
            }
            if self.is_interrupted {
                // Runs that the sweep found before the interruption may not have got their places, so the sweep starts over.
                self.strays.restart_sweep();
            }
            self.call_roll_for_missing_runs(&lease).await?;
            while self.is_interrupted && self.strays.is_sweeping() {
                self.call_roll_for_missing_runs(&lease).await?;
            }
            self.is_interrupted = false;
        }
        // Requests to end runs come before runs that were held back may start, so that a run that is to end does not start.
        end_requests::forward(&self.shared, &lease).await?;
        // All open runs are known now, except those of a lease that this node may have fenced without getting the answer. Limits wait for those
        // runs.
        if self.adopted_under.replace(lease.token) != Some(lease.token) || std::mem::take(&mut self.has_announced) {
            self.shared.note_all_adopted(lease.token);
            self.has_announced = !knows_all;
            let event = if knows_all { Event::AllAdopted(lease.token) } else { Event::Adopting(Vec::new()) };
            drop(self.shared.events.send(event).await);
            // Jobs that can be claimed from now on may already be due.
            self.shared.scan_poke.notify_one();
        }
        self.take_strays(&lease).await?;
        self.relay_fences(&lease).await?;
        Ok(taken_over)
    }

    /// Reads the fences that other servers cannot send themselves, and the answers to the fences that this server asked others to send.
    async fn relay_fences(&self, lease: &HeldLease) -> Result<(), StoreError> {
        let shared = &self.shared;
        if shared.store.is_single_server() {
            return Ok(());
        }
        let asked_since = shared.clock.now() - FENCE_REQUEST_AGE_MAX;
        let requests = shared.store.fences_to_relay(lease.token, asked_since, FENCE_PAGE).await?;
        if !requests.is_empty() {
            drop(shared.events.send(Event::FencesAsked(requests)).await);
        }
        let answers = shared.store.fence_answers(lease.token.node, asked_since, FENCE_PAGE).await?;
        if !answers.is_empty() {
            drop(shared.events.send(Event::FencesRelayed(answers)).await);
        }
        Ok(())
    }

    /// Adopts the open runs of ended leases. The dead leases are fenced first; from then on, jobs without such runs may be claimed and fire. Whole
    /// jobs are taken over, those with the fewest runs first, so that a job that fires each second does not wait for the backlog of another job. A
    /// run starts only once the earlier runs of its job that may have been sent are known. A retry of such an earlier run starts first, even if the
    /// retry is due later.
    ///
    /// Returns the number of runs. `None` if this node's lease has ended by the database's clock, which may have stepped ahead: the next round
    /// tries again.
    async fn adopt(&mut self, lease: &HeldLease) -> Result<Option<u64>, StoreError> {
        let now = self.shared.clock.now();
        let leases_to_adopt = self.leases_to_adopt(now);
        let ended_leases: Vec<EndedLease> = leases_to_adopt.iter().map(|to_adopt| to_adopt.lease).collect();
        let dead_nodes: Vec<DeadNode> = leases_to_adopt
            .iter()
            .map(|to_adopt| DeadNode { id: to_adopt.lease.0, is_late: to_adopt.is_late })
            .collect();
        self.begun_takeovers = leases_to_adopt;
        if !self.shared.membership.has_adopted(&ended_leases) {
            // The fence makes this node the home of the dead nodes' limits, even if the answer is lost. The limits may count those nodes' runs.
            self.has_announced = true;
            drop(self.shared.events.send(Event::Adopting(Vec::new())).await);
        }
        let limit = self.shared.config.adopt_jobs_max.max(1);
        let (mut is_first, mut taken_over) = (true, 0);
        loop {
            let orphaned_jobs = self.shared.store.orphaned_jobs(lease.token, &dead_nodes, limit).await?;
            let OrphanedJobs { jobs, fenced: fenced_leases, is_refused } = orphaned_jobs;
            if is_refused {
                return Ok(None);
            }
            if !jobs.is_empty() {
                self.has_announced = true;
                self.shared.note_adopting();
                let ids = jobs.iter().map(|job| job.id).collect();
                drop(self.shared.events.send(Event::Adopting(ids)).await);
            }
            if std::mem::take(&mut is_first) {
                // A node that still lives by the database's clock was not fenced, so it does not count as adopted. Neither does a node that is left
                // to another fencer.
                let fenced_leases: Vec<EndedLease> =
                    ended_leases.iter().filter(|(node, _)| fenced_leases.contains(node)).copied().collect();
                self.shared.membership.note_adopted(&fenced_leases);
                self.let_runs_start(lease).await;
            }
            let mut count = 0;
            for batch in batch_jobs(&jobs, self.shared.config.adopt_page) {
                let Some(adopted_count) = self.adopt_jobs(lease, (&dead_nodes, &batch)).await? else { return Ok(None) };
                count += adopted_count;
            }
            taken_over += count;
            let may_have_more = u32::try_from(jobs.len()).is_ok_and(|job_count| job_count >= limit);
            if !may_have_more || count == 0 {
                break;
            }
        }
        self.begun_takeovers.clear();
        self.free_jobs(lease, ended_leases.iter().map(|(node, _)| *node)).await?;
        Ok(Some(taken_over))
    }

    /// The ended leases whose runs this node takes over now.
    fn leases_to_adopt(&mut self, now: Timestamp) -> Vec<LeaseToAdopt> {
        let membership = &self.shared.membership;
        let mut leases = membership.leases_to_adopt(now, self.shared.config.lease);
        for begun in membership.still_ended(std::mem::take(&mut self.begun_takeovers), now, self.shared.config.lease) {
            if leases.iter().all(|to_adopt| to_adopt.lease != begun.lease) {
                leases.push(LeaseToAdopt { is_late: false, ..begun });
            }
        }
        leases
    }

    /// Lets runs start, once the first page of jobs with runs under ended leases was announced to the dispatcher. That page nearly always has all
    /// of these jobs; the tick holds back the runs of any other until it is announced too.
    async fn let_runs_start(&mut self, lease: &HeldLease) {
        self.shared.note_adoption_begun();
        if self.adopted_under != Some(lease.token) {
            drop(self.shared.events.send(Event::LeaseBegun(lease.token)).await);
            self.shared.scan_poke.notify_one();
        }
    }

    /// Takes over the open runs of announced jobs, lets the jobs continue, and returns the number of runs. `None` if this node's lease has ended.
    async fn adopt_jobs(
        &mut self,
        lease: &HeldLease,
        (dead_nodes, jobs): (&[DeadNode], &[JobId]),
    ) -> Result<Option<u64>, StoreError> {
        let shared = Arc::clone(&self.shared);
        // The flags stay set if anything below fails, because the answer to a commit may then be lost.
        let was_interrupted = std::mem::replace(&mut self.is_interrupted, true);
        let lacked_places = std::mem::replace(&mut self.lacks_places, true);
        let last_handover = shared.departing.last_handover();
        let Adoption { runs: adopted_runs, is_refused } = shared.store.adopt(lease.token, dead_nodes, jobs).await?;
        if is_refused {
            return Ok(None);
        }
        let count = u64::try_from(adopted_runs.len()).unwrap_or(u64::MAX);
        tracing::info!(count, jobs = jobs.len(), "took over open runs of leases that have ended");
        // This node may have handed these runs over to the dead node. They may start here again, except those that are still in this node's
        // memory from before the handover.
        let returned_runs = shared.in_memory.missing_runs(adopted_runs.iter().map(|adopted| adopted.run.id));
        shared.departing.note_returned(returned_runs, last_handover);
        let (awaiting_runs, adopted_runs): (Vec<_>, Vec<_>) =
            adopted_runs.into_iter().partition(|adopted| adopted.run.awaits_children());
        self.place_awaiting_runs(awaiting_runs.into_iter().map(|adopted| adopted.run).collect()).await?;
        self.restore_places(adopted_runs.iter().map(|adopted| &adopted.run)).await?;
        let (unsent_runs, maybe_sent_runs) = split_by_sent(adopted_runs);
        let lease_by_run = maybe_sent_runs.iter().map(|adopted| (adopted.run.id, adopted.from)).collect();
        // Runs that may be at an executor get their places in their job's order before the later runs of the job.
        self.call_roll(lease, maybe_sent_runs.into_iter().map(|adopted| adopted.run).collect(), lease_by_run).await?;
        (self.is_interrupted, self.lacks_places) = (was_interrupted, lacked_places);
        drop(shared.events.send(Event::AdoptedJobs(jobs.to_vec())).await);
        shared.put(unsent_runs).await;
        Ok(Some(count))
    }

    /// If the claim strategy rebalances, those jobs of the dead nodes that have no open run lose their home, so that every node can claim
    /// them. Otherwise this node claims these jobs as they come due.
    async fn free_jobs(&self, lease: &HeldLease, dead_nodes: impl Iterator<Item = NodeId>) -> Result<(), StoreError> {
        if !self.shared.config.claim_strategy.rebalances() {
            return Ok(());
        }
        for node in dead_nodes {
            for _ in 0..FREE_BATCH_COUNT_MAX {
                let freed_count = self.shared.store.free_jobs(lease.token, node, FREE_BATCH).await?;
                if freed_count < u64::from(FREE_BATCH) {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Restores the gate places of runs that have begun although no executor has them: retries, and shards of a broadcast in progress. The event
    /// also contains other runs with a parent, which the gate ignores.
    async fn restore_places(&self, adopted_runs: impl Iterator<Item = &Run>) -> Result<(), StoreError> {
        let shared = &self.shared;
        let has_begun = |run: &&Run| {
            run.status != RunStatus::Running && !run.is_root() && (run.attempt > 1 || run.parent.is_some())
        };
        let begun_runs: Vec<Run> = adopted_runs.filter(has_begun).cloned().collect();
        if begun_runs.is_empty() {
            return Ok(());
        }
        let keys = begun_runs.iter().map(|run| (run.job, run.job_version));
        let definitions = shared.definitions.load(shared.store.as_ref(), keys).await?;
        let ready = begun_runs.into_iter().filter_map(|run| {
            let definition = Arc::clone(definitions.get(&(run.job, run.job_version))?);
            Some(ReadyRun::new(run, definition))
        });
        drop(shared.events.send(Event::Restored(ready.collect())).await);
        Ok(())
    }

    /// Like [`restore_places`](Self::restore_places), for all unsent runs of this node that are not in its memory. No adoption returns them again.
    async fn restore_missing_places(&self, lease: &HeldLease) -> Result<(), StoreError> {
        for mut sweep in [Sweep::new(RunStatus::Waiting), Sweep::new(RunStatus::Pending)] {
            loop {
                let unsent_runs = sweep.missing_rows(&self.shared, lease.token).await?;
                self.restore_places(unsent_runs.iter()).await?;
                if sweep.is_at_start() {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Reads the next pages of this node's running runs that are not in its memory, because the answer to their adoption was lost. Begins a roll
    /// call for them; those that await their children only get places at their gates.
    async fn call_roll_for_missing_runs(&mut self, lease: &HeldLease) -> Result<(), StoreError> {
        let running_runs = self.strays.running_runs(&self.shared, lease.token).await?;
        let (awaiting_runs, missing): (Vec<Run>, Vec<Run>) = running_runs.into_iter().partition(Run::awaits_children);
        let awaiting_runs = self.shared.awaiting.admit_new(awaiting_runs);
        let admitted_runs: Vec<(JobId, RunId)> = awaiting_runs.iter().map(|run| (run.job, run.id)).collect();
        if let Err(error) = self.place_awaiting_runs(awaiting_runs).await {
            // The next sweep finds them again.
            self.shared.awaiting.forget(admitted_runs);
            self.is_interrupted = true;
            return Err(error);
        }
        if !missing.is_empty() {
            tracing::warn!(count = missing.len(), "running runs are not in memory; asking the executors");
        }
        let result = self.call_roll(lease, missing, HashMap::new()).await;
        self.is_interrupted |= result.is_err();
        result
    }

    /// Gives runs that await their children a place at the gate of their job; nothing else has to be restored for them.
    async fn place_awaiting_runs(&self, runs: Vec<Run>) -> Result<(), StoreError> {
        let shared = &self.shared;
        if runs.is_empty() {
            return Ok(());
        }
        let keys = runs.iter().map(|run| (run.job, run.job_version));
        let definitions = shared.definitions.load(shared.store.as_ref(), keys).await?;
        let ready = runs.into_iter().filter_map(|run| {
            let definition = Arc::clone(definitions.get(&(run.job, run.job_version))?);
            Some(ReadyRun::new(run, definition))
        });
        drop(shared.events.send(Event::AdoptedAwaiting(ready.collect())).await);
        Ok(())
    }

    /// Makes the gates free the places of runs that awaited their children and have ended, or that another lease owns now. Such a run ends with its
    /// last child, which may end on another node.
    async fn free_ended_awaiting_runs(&self, lease: &HeldLease) -> Result<(), StoreError> {
        let awaiting_runs = self.shared.awaiting.all();
        if awaiting_runs.is_empty() {
            return Ok(());
        }
        let ids: Vec<RunId> = awaiting_runs.iter().map(|(_, run)| *run).collect();
        let checks = self.shared.store.check_runs(&ids).await?;
        let open_ids: HashSet<RunId> = checks
            .iter()
            .filter(|check| check.status == RunStatus::Running && check.owner == lease.token)
            .map(|check| check.id)
            .collect();
        let ended_runs: Vec<_> = awaiting_runs.into_iter().filter(|(_, run)| !open_ids.contains(run)).collect();
        if !ended_runs.is_empty() {
            drop(self.shared.events.send(Event::AwaitingEnded(ended_runs)).await);
        }
        Ok(())
    }

    /// Starts the roll call, in which executors are asked about runs that may have been sent to them. From here on, the runs are in memory, so they
    /// are no strays. `lease_by_run` has the lease under which a run may have been sent, if that lease is known.
    async fn call_roll(
        &mut self,
        lease: &HeldLease,
        maybe_sent_runs: Vec<Run>,
        lease_by_run: HashMap<RunId, LeaseToken>,
    ) -> Result<(), StoreError> {
        let runs = self.shared.in_memory.admit(maybe_sent_runs);
        self.owed_roll_calls.push(OwedRollCall { lease: lease.token, runs, lease_by_run });
        self.start_owed_roll_calls(lease).await
    }

    /// Starts the roll calls that are owed. Each stays owed until the database has answered the queries that prepare it.
    async fn start_owed_roll_calls(&mut self, own_lease: &HeldLease) -> Result<(), StoreError> {
        while let Some(OwedRollCall { lease, runs, lease_by_run }) = self.owed_roll_calls.pop() {
            if lease != own_lease.token {
                let runs = runs.iter().map(|run| run.id).collect();
                drop(self.shared.events.send(Event::RollCallDropped(lease, runs)).await);
                continue;
            }
            // The result of one of these runs may have arrived since the first try. The dispatcher then keeps the run's place for its next attempt.
            let Some(oldest_at) = runs.iter().map(|run| run.due_at).min() else { continue };
            let (definitions, witnesses, leases) = match self.prepare_roll_call(&runs, oldest_at).await {
                Ok(prepared) => prepared,
                Err(error) => {
                    self.owed_roll_calls.push(OwedRollCall { lease, runs, lease_by_run });
                    return Err(error);
                }
            };
            let roll_call_runs = runs.into_iter().filter_map(|run| {
                let definition = Arc::clone(definitions.get(&(run.job, run.job_version))?);
                let sent_under = lease_by_run.get(&run.id).copied();
                Some(RollCallRun { ready: ReadyRun::new(run, definition), sent_under })
            });
            drop(self.shared.events.send(Event::RollCall(roll_call_runs.collect(), witnesses, leases)).await);
        }
        Ok(())
    }

    /// Reads the data for a roll call of these runs: their definitions, the sessions of streams that may have carried triggers since the oldest of
    /// the runs was due, and the ended leases under which triggers may have been sent since then.
    async fn prepare_roll_call(
        &self,
        runs: &[Run],
        oldest: Timestamp,
    ) -> Result<(CompiledDefinitions, Vec<Session>, Vec<LeaseToken>), StoreError> {
        let shared = &self.shared;
        let keys = runs.iter().map(|run| (run.job, run.job_version));
        let definitions = shared.definitions.load(shared.store.as_ref(), keys).await?;
        let now = shared.clock.now();
        let mut witnesses =
            shared.store.sessions_that_may_have_carried(Timestamp::min(oldest, now) - shared.config.lost_after).await?;
        for session in &mut witnesses {
            // For an open session, the store returns the end of the session's lease as `last_seen_at`. That instant may be in the future, but no
            // executor was heard later than now.
            session.last_seen_at = session.last_seen_at.min(now);
            // An executor whose process on this host has died unnoticed has no runs, like an executor that left.
            session.has_left |= session.process.is_some_and(host_process::is_gone);
        }
        // The nodes are read after the adoption, because the adoption raised the epochs of the dead nodes: their earlier epochs are fenced.
        let leases = leases_that_sent(shared.store.nodes().await?, &witnesses, oldest);
        Ok((definitions, witnesses, leases))
    }

    /// Takes up this node's overdue runs that are not in memory. The module of [`Strays`] names the causes.
    async fn take_strays(&mut self, lease: &HeldLease) -> Result<(), StoreError> {
        if mutant::on(Mutant::NoStrays) {
            return Ok(());
        }
        let mut overdue_runs = self.strays.overdue_runs(&self.shared, lease.token).await?;
        remove_marks(&self.shared, lease.token, &mut overdue_runs).await?;
        self.shared.put(overdue_runs).await;
        Ok(())
    }
}

/// The ended leases under which runs that are due at `due_at` or later may have been sent. Normally, no such run was sent under a lease that ended
/// before `due_at`. After a step back of the clock, however, a lease may end before the instants of runs that its node has already sent. The row of
/// one of the node's streams then shows that the stream was open at `due_at` or later.
fn leases_that_sent(mut nodes: Vec<Node>, sessions: &[Session], due_at: Timestamp) -> Vec<LeaseToken> {
    let has_stream =
        |node: &Node| sessions.iter().any(|session| session.token.node == node.id && session.may_have_carried(due_at));
    nodes.retain(|node| node.lease_until >= due_at || has_stream(node));
    ended_leases(&nodes)
}

#[cfg(test)]
mod tests;
