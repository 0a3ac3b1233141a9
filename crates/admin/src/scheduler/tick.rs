//! The tick: shortly before each whole second it takes the slots that come due. It reads the current state of the runs and their
//! definitions, in one statement per batch, and hands the runs to the dispatcher, which releases each at its instant.
//!
//! The promise to editors: a fire that is due more than a second after an edit was acknowledged never runs under the old definition.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rondel_core::outcome::{Outcome, cancelled_by};
use rondel_core::queued::is_fire_ahead;
use rondel_core::{JobId, Reason, Run, RunId, RunStatus, Timestamp, TraceParent};
use rondel_store::ledger::RunCheck;
use rondel_store::{LeaseToken, StoreError};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::background::{Background, TickError};
use crate::dispatch::waits::end_of_missed;
use crate::dispatch::{Event, ReadyRun, end_of_unsent};
use crate::metrics::{CountedRun, to_u64};
use crate::node::Shared;
use crate::scheduler::command::TickCommand;
use crate::scheduler::ring::Ring;

/// How long before a whole second its slot is taken: enough to read the rows, and less than the second that editors are promised.
const SLOT_LEAD: Duration = Duration::from_millis(500);
/// A run is read at most this long before its instant. A run that is due late in its second is therefore read later than the others.
const READ_AHEAD_MAX: Duration = Duration::from_millis(900);
/// The delay before a failed read is tried again.
const RETRY_DELAY: Duration = Duration::from_millis(200);
const CHECK_BATCH: usize = 500;

fn run_and_lease(run: &Run) -> (RunId, LeaseToken) {
    (run.id, LeaseToken { node: run.node, epoch: run.node_epoch })
}

/// Whether a run is at another version or attempt by now. A run that is left over from an earlier lease is not read again: it would then
/// look like the run that was taken over from that lease, which arrives here separately.
fn is_outdated(run: &Run, check: &RunCheck) -> bool {
    check.owner == run_and_lease(run).1 && (check.job_version, check.attempt) != (run.job_version, run.attempt)
}

/// Why the run ends without a start: its job was paused or deleted while the run was planned or queued, and no server has ended it since. `None` if
/// it may start. A fire of the schedule that is still ahead is not dropped here: the edit that pauses or deletes the job settles it. Edits do not
/// settle a fire that is ahead only because the clock was set back, so it is dropped here.
fn reason_to_drop(run: &Run, check: &RunCheck, ahead_after: Timestamp) -> Option<Reason> {
    check.drop_for.filter(|_| !is_fire_ahead(run, ahead_after))
}

pub(crate) struct TickLoop {
    shared: Arc<Shared>,
    commands: mpsc::Receiver<TickCommand>,
    events: mpsc::Sender<Event>,
    ring: Ring,
    /// Runs that were taken from the ring and not read yet; normally none.
    unread_runs: Vec<Run>,
    /// Runs that were taken from the ring and are due later in their second.
    later_runs: Vec<Run>,
    /// Runs that wait because other runs of their jobs, under earlier leases, are still to be taken over.
    held_back_runs: Vec<Run>,
}

impl Background for TickLoop {
    const NAME: &'static str = "tick";
    const ACTION: &'static str = "read due runs";

    fn period(&self) -> Option<Duration> {
        None
    }

    async fn wait_until_woken(&mut self) {
        // Runs that could not be read wait in `unread_runs`.
        if !self.unread_runs.is_empty() {
            return tokio::time::sleep(RETRY_DELAY).await;
        }
        let wake = self.next_wake();
        tokio::select! {
            biased;
            command = self.commands.recv() => match command {
                Some(command) => self.take_commands(command),
                // No sender is left: the process is ending.
                None => std::future::pending().await,
            },
            () = self.shared.clock.sleep_until(wake) => {}
        }
    }

    async fn tick(&mut self, _stop: &CancellationToken) -> Result<u64, TickError> {
        let tick_start = Instant::now();
        let handed_over_count = self.hand_over_due().await;
        self.shared.metrics.tick.observe(tick_start.elapsed());
        let held_count = self.ring.len() + self.later_runs.len() + self.unread_runs.len();
        self.shared.metrics.runs_in_memory.ring.store(to_u64(held_count), Ordering::Relaxed);
        Ok(handed_over_count?)
    }
}

impl TickLoop {
    pub(crate) fn new(shared: Arc<Shared>, commands: mpsc::Receiver<TickCommand>, events: mpsc::Sender<Event>) -> Self {
        let ring = Ring::new(shared.clock.now());
        Self {
            shared,
            commands,
            events,
            ring,
            unread_runs: Vec::new(),
            later_runs: Vec::new(),
            held_back_runs: Vec::new(),
        }
    }

    /// Takes the runs that have come due and hands over those that may run. Returns how many runs it handed over.
    async fn hand_over_due(&mut self) -> Result<u64, StoreError> {
        let mut count = 0;
        let now = self.shared.clock.now();
        self.later_runs.extend(self.ring.take_through((now + SLOT_LEAD).second()));
        self.unread_runs.append(&mut self.held_back_runs);
        self.unread_runs.extend(self.later_runs.extract_if(.., |run| run.due_at <= now + READ_AHEAD_MAX));
        while !self.unread_runs.is_empty() {
            let batch: Vec<Run> = self.unread_runs.iter().take(CHECK_BATCH).cloned().collect();
            let (batch, held_back) = self.hold_back(batch).await?;
            let ready = self.check(batch).await?;
            rondel_failpoint::pass("tick.checked");
            self.unread_runs.drain(..CHECK_BATCH.min(self.unread_runs.len()));
            self.held_back_runs.extend(held_back);
            count += u64::try_from(ready.len()).unwrap_or(u64::MAX);
            if !ready.is_empty() && self.events.send(Event::Ready(ready)).await.is_err() {
                break;
            }
        }
        Ok(count)
    }

    /// Splits a batch into runs that may continue, and runs that must wait because their job has open runs under an earlier lease of this
    /// node. Those open runs are taken over first. A job without such open runs is not delayed.
    async fn hold_back(&self, batch: Vec<Run>) -> Result<(Vec<Run>, Vec<Run>), StoreError> {
        let token = self.shared.membership.token();
        if !self.shared.is_adopting() {
            return Ok((batch, Vec::new()));
        }
        let mut jobs: Vec<JobId> = batch.iter().map(|run| run.job).collect();
        jobs.sort_unstable();
        jobs.dedup();
        let jobs_with_open_runs = self.shared.store.jobs_open_under_earlier_leases(token, &jobs).await?;
        Ok(batch.into_iter().partition(|run| !jobs_with_open_runs.contains(&run.job)))
    }

    fn next_wake(&self) -> Timestamp {
        let now = self.shared.clock.now();
        let slot_at = Timestamp::from_secs((now + SLOT_LEAD).second() + 1) - SLOT_LEAD;
        let later_at = self.later_runs.iter().map(|run| run.due_at - SLOT_LEAD).min();
        later_at.map_or(slot_at, |later| later.min(slot_at))
    }

    fn take_commands(&mut self, first_command: TickCommand) {
        let mut next_command = Some(first_command);
        while let Some(command) = next_command {
            match command {
                TickCommand::Put(runs) => {
                    let due_runs = runs.into_iter().filter_map(|run| self.ring.put(run));
                    self.later_runs.extend(due_runs);
                    rondel_failpoint::pass("ring.put");
                }
                TickCommand::Clear => {
                    let dropped_runs = [&mut self.unread_runs, &mut self.later_runs, &mut self.held_back_runs]
                        .into_iter()
                        .flat_map(std::mem::take);
                    let all_dropped_runs = self.ring.clear().into_iter().chain(dropped_runs);
                    self.shared.in_memory.forget_under_lease(all_dropped_runs.map(|run| run_and_lease(&run)));
                }
            }
            next_command = self.commands.try_recv().ok();
        }
    }

    /// The runs of a batch that may run, with their definitions. The others are forgotten or get their verdicts.
    async fn check(&self, batch: Vec<Run>) -> Result<Vec<ReadyRun>, StoreError> {
        let ids: Vec<RunId> = batch.iter().map(|run| run.id).collect();
        let checks: HashMap<RunId, RunCheck> =
            self.shared.store.check_runs(&ids).await?.into_iter().map(|check| (check.id, check)).collect();
        let leases: Vec<_> = batch.iter().map(run_and_lease).collect();
        let batch = self.refresh(batch, &checks).await?;
        let keys = batch.iter().map(|run| (run.job, run.job_version));
        let definitions = self.shared.definitions.load(self.shared.store.as_ref(), keys).await?;
        let traces = self.trace_parents(&batch).await?;
        let (now, ahead_after) = (self.shared.clock.now(), self.shared.fires_ahead_after());
        let (mut ready, mut ended_runs, mut dropped_runs) = (Vec::new(), Vec::new(), Vec::new());
        for (lease, run) in leases.into_iter().zip(batch) {
            // A run that is left over from an earlier lease arrives here again if this lease has taken it over.
            let has_same_lease = run_and_lease(&run) == lease;
            let check = checks
                .get(&run.id)
                .filter(|check| self.is_pending_here(check) && check.owner == lease.1 && has_same_lease);
            let definition = definitions.get(&(run.job, run.job_version));
            let drop_reason = check.and_then(|check| reason_to_drop(&run, check, ahead_after));
            match (check, definition, drop_reason) {
                (Some(RunCheck { cancel_by: Some(by), .. }), Some(definition), _) => {
                    let attempt_end = end_of_unsent(&run, definition, Outcome::Cancelled, now, Some(cancelled_by(by)));
                    ended_runs.push((attempt_end, CountedRun::of(&run, definition)));
                }
                (Some(_), Some(definition), Some(reason)) => {
                    let attempt_end = end_of_unsent(&run, definition, Outcome::Skipped(reason), now, None);
                    ended_runs.push((attempt_end, CountedRun::of(&run, definition)));
                }
                (Some(check), Some(definition), None) => {
                    let taken_up_at = self.shared.taken_up_at(run.id);
                    let trace = traces.get(&RunId::new(run.cause)).copied().map(Box::new);
                    let queued_at = self.shared.in_memory.queued_from(run.id);
                    let ready_run = ReadyRun::from_ring(run, Arc::clone(definition), taken_up_at);
                    let ready_run = ReadyRun { term: check.term, trace, queued_at, ..ready_run };
                    // The misfire policy also applies to a fire that was claimed in time and never sent, because its node died or slept.
                    if ready_run.is_missed(now) {
                        ended_runs.push((end_of_missed(&ready_run, now), CountedRun::of(&ready_run.run, definition)));
                    } else {
                        ready.push(ready_run);
                    }
                }
                _ => dropped_runs.push(lease),
            }
        }
        self.shared.in_memory.forget_under_lease(dropped_runs);
        self.shared.results.submit_unsent(ended_runs).await;
        Ok(ready)
    }

    /// The trace parents of requested fires, keyed by the run that a fire began with. Fires of schedules cost no statement.
    async fn trace_parents(&self, batch: &[Run]) -> Result<HashMap<RunId, TraceParent>, StoreError> {
        let mut first_runs: Vec<RunId> =
            batch.iter().filter(|run| run.cause != 0).map(|run| RunId::new(run.cause)).collect();
        first_runs.sort_unstable();
        first_runs.dedup();
        if first_runs.is_empty() {
            return Ok(HashMap::new());
        }
        Ok(self.shared.store.traces(&first_runs).await?.into_iter().collect())
    }

    fn is_pending_here(&self, check: &RunCheck) -> bool {
        check.status == RunStatus::Pending && check.owner == self.shared.membership.token()
    }

    /// Reads again the runs that have moved to another version or attempt.
    async fn refresh(&self, batch: Vec<Run>, checks: &HashMap<RunId, RunCheck>) -> Result<Vec<Run>, StoreError> {
        let is_stale = |run: &Run| checks.get(&run.id).is_some_and(|check| is_outdated(run, check));
        let stale_ids: Vec<RunId> = batch.iter().filter(|run| is_stale(run)).map(|run| run.id).collect();
        if stale_ids.is_empty() {
            return Ok(batch);
        }
        let mut current_rows: HashMap<RunId, Run> =
            self.shared.store.runs(&stale_ids).await?.into_iter().map(|run| (run.id, run)).collect();
        self.shared.in_memory.update_attempts(current_rows.values());
        let with_current_row =
            |run: Run| if is_stale(&run) { current_rows.remove(&run.id).unwrap_or(run) } else { run };
        Ok(batch.into_iter().map(with_current_row).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::tests_support::run_due_at;

    fn check_of(run: &Run) -> RunCheck {
        RunCheck {
            id: run.id,
            status: RunStatus::Pending,
            attempt: 2,
            job_version: run.job_version,
            has_recorded_start: false,
            owner: run_and_lease(run).1,
            cancel_by: None,
            drop_for: None,
            term: 1,
        }
    }

    /// A fire that was queued when its job was paused does not start, although a server died before it had ended the fire.
    #[test]
    fn a_queued_run_of_a_paused_job_does_not_start() {
        let fire = run_due_at(Timestamp::from_secs(10));
        let planned = Run { cause: 7, ..fire.clone() };
        let asked = |run: &Run| RunCheck { drop_for: Some(Reason::Paused), ..check_of(run) };
        let dropped = |run: &Run, second| reason_to_drop(run, &asked(run), Timestamp::from_secs(second)).is_some();
        assert_eq!([dropped(&fire, 9), dropped(&fire, 10), dropped(&fire, 30)], [false, true, true]);
        assert!(dropped(&planned, 9) && reason_to_drop(&fire, &check_of(&fire), Timestamp::from_secs(30)).is_none());
    }

    #[test]
    fn runs_of_an_earlier_lease_are_not_read_again() {
        let run = run_due_at(Timestamp::from_secs(1));
        let check = check_of(&run);
        assert!(is_outdated(&run, &check));
        assert!(!is_outdated(&Run { attempt: 2, ..run.clone() }, &check));
        assert!(is_outdated(&Run { attempt: 2, job_version: run.job_version + 1, ..run.clone() }, &check));
        let taken_over = RunCheck { owner: LeaseToken { epoch: run.node_epoch + 1, ..check.owner }, ..check };
        assert!(!is_outdated(&run, &taken_over));
    }
}
