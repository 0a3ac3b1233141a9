//! The scan: each second it claims the fires of the look-ahead window, and then, with a budget, overdue fires. If many jobs fire at one instant,
//! their fires are claimed further ahead, as early as their number requires.
//!
//! A claim is durable before anything is in memory: one transaction moves `next_fire_at` on and inserts the runs. Fires that another node
//! claimed first drop out. The loop may be run twice, late, or on another node.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;
use rondel_core::dense::{ClaimPace, instants_to_claim};
use rondel_core::homes::JobShare;
use rondel_core::maintenance::{Cursor, plan_within};
use rondel_core::plan::LookAhead;
use rondel_core::{NodeId, Run, RunStatus, Timestamp};
use rondel_failpoint::mutant::{self, Mutant};
use rondel_store::StoreError;
use rondel_store::ledger::{ClaimJob, DueJob, DueRange};
use rondel_store::upkeep::StuckJob;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::background::{Background, TickError};
use crate::cluster::HeldLease;
use crate::counters::Count;
use crate::definitions::CompiledDefinitions;
use crate::node::Shared;
use crate::scheduler::caught_up::CaughtUp;
use crate::scheduler::claim_rows::{PlannedJob, claim_request, count_missed, leave_out_stored};
use crate::scheduler::low_water::LowWater;
use crate::scheduler::share::LeftToOthers;
use crate::scheduler::take_up::TakeUp;

/// Maximum number of dense instants that one statement reads.
const DENSE_COUNT_MAX: u32 = 60;
/// The period of the scan while jobs and runs may still be in transfer to this node.
const UNSETTLED_PERIOD: Duration = Duration::from_millis(200);

pub(crate) struct ScanLoop {
    shared: Arc<Shared>,
    /// Whether too many runs were open at the last check.
    had_too_many_runs: bool,
    left_to_others: LeftToOthers,
    caught_up: CaughtUp,
    /// The instant as of which this scan judges how late fires are, by the boot-time clock in microseconds.
    judged_as_of: i64,
    next_dense_look_at: Timestamp,
    /// The mark at which the reading of the backlog starts; it is valid for `backlog_homes` only.
    low_water: LowWater,
    backlog_homes: Vec<NodeId>,
    /// The number of due jobs read from the backlog, including those that another node may claim.
    due_count: usize,
    /// Whether the whole backlog was read.
    is_backlog_whole: bool,
    take_up: TakeUp,
}

/// The outcome of claiming a range.
#[derive(Clone, Copy, Debug)]
struct ClaimOutcome {
    /// Number of jobs whose fires were claimed.
    job_count: usize,
    /// Whether the range has no more fires that this node can claim.
    is_exhausted: bool,
}

impl ClaimOutcome {
    const NOTHING: Self = Self { job_count: 0, is_exhausted: true };

    const fn plus(self, other: Self) -> Self {
        Self { job_count: self.job_count + other.job_count, is_exhausted: self.is_exhausted && other.is_exhausted }
    }
}

/// The jobs that a scan claims.
#[derive(Clone, Copy)]
enum ClaimScope<'a> {
    /// The jobs of this node.
    Own,
    /// The jobs of these homes, the empty home and nodes whose leases have ended, as far as the strategy assigns them to this node.
    Orphaned(&'a [NodeId]),
}

impl Background for ScanLoop {
    const NAME: &'static str = "scan";
    const ACTION: &'static str = "claim fires";

    fn period(&self) -> Option<Duration> {
        Some(self.shared.config.scan_period)
    }

    async fn wait_until_woken(&mut self) {
        let is_unsettled = self.shared.membership.is_unsettled(self.shared.clock.now());
        let has_left_jobs = self.shared.in_memory.left_count() > 0;
        tokio::select! {
            biased;
            () = self.shared.scan_poke.notified() => {}
            () = self.wait_less_than_period(is_unsettled), if is_unsettled || has_left_jobs => {}
        }
    }

    async fn tick(&mut self, _stop: &CancellationToken) -> Result<u64, TickError> {
        let tick_start = Instant::now();
        let result = self.scan().await;
        self.shared.metrics.scan.observe(tick_start.elapsed());
        let Some(claimed_count) = result? else { return Ok(0) };
        self.shared.metrics.record_scan(self.shared.clock.now());
        Ok(claimed_count)
    }
}

impl ScanLoop {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            had_too_many_runs: false,
            left_to_others: LeftToOthers::default(),
            caught_up: CaughtUp::default(),
            judged_as_of: 0,
            next_dense_look_at: Timestamp::EPOCH,
            low_water: LowWater::default(),
            backlog_homes: Vec::new(),
            due_count: 0,
            is_backlog_whole: false,
            take_up: TakeUp::default(),
        }
    }

    /// Waits for less than a period: until jobs and runs in transfer may have arrived, or until there is room for a run that was left in
    /// the store.
    async fn wait_less_than_period(&self, is_unsettled: bool) {
        if is_unsettled {
            tokio::time::sleep(UNSETTLED_PERIOD).await;
        } else {
            self.take_up.wait_for_room(&self.shared).await;
        }
    }

    /// Runs one scan. Returns the number of jobs whose fires were claimed; `None` if this node may claim no fires now.
    async fn scan(&mut self) -> Result<Option<u64>, StoreError> {
        let Some(lease) = self.shared.membership.held_lease() else { return Ok(None) };
        if !self.shared.has_begun_adoption() {
            return Ok(None);
        }
        let began_at = self.shared.clock.boot_micros();
        self.judged_as_of = self.caught_up.begin(lease.token, self.shared.membership.held_since(), began_at);
        let has_taken_all_up = self.take_up.take_up(&self.shared, &lease).await?;
        if self.has_too_many_runs() {
            return Ok(None);
        }
        let now = self.shared.clock.now();
        let homes = self.shared.membership.claimable_homes(now);
        let outcome = self.claim_due(&lease, &homes, now).await?;
        self.left_to_others.forget_jobs_of_others(now);
        // A scan that read only a part of the backlog may have missed fires below the low-water mark, so it does not count as complete.
        if outcome.is_exhausted && self.is_backlog_whole {
            self.caught_up.complete(began_at);
        }
        // If fires are left over, the next scan follows immediately.
        if !(self.has_too_many_runs() || outcome.is_exhausted && has_taken_all_up) {
            self.shared.scan_poke.notify_one();
        }
        Ok(Some(u64::try_from(outcome.job_count).unwrap_or(u64::MAX)))
    }

    /// Claims the fires that are due soon before the late fires: however many jobs are late, the others stay on time.
    async fn claim_due(
        &mut self,
        lease: &HeldLease,
        homes: &[NodeId],
        now: Timestamp,
    ) -> Result<ClaimOutcome, StoreError> {
        let claim_budget = self.shared.config.claim_budget;
        let (claim_until, overdue_before) = (now + self.shared.config.claim_ahead, now - self.shared.config.look_ahead);
        if mutant::on(Mutant::LateFirst) {
            let late = self.claim_between(lease, homes, (overdue_before, just_before(now)), claim_budget).await?;
            if !late.is_exhausted {
                return Ok(late);
            }
        }
        let soon_outcome = self.claim_between(lease, homes, (now, claim_until), claim_budget).await?;
        let late_outcome = self.claim_between(lease, homes, (overdue_before, just_before(now)), claim_budget).await?;
        let waiting_outcome = self.take_waiting(lease, claim_until, claim_budget).await?;
        let overdue_outcome = self.claim_backlog(lease, homes, overdue_before).await?;
        let dense_outcome = self.claim_dense(lease, homes, now).await?;
        Ok(soon_outcome.plus(late_outcome).plus(waiting_outcome).plus(overdue_outcome).plus(dense_outcome))
    }

    /// Claims the fires that have been due for longer than `look_ahead`.
    async fn claim_backlog(
        &mut self,
        lease: &HeldLease,
        homes: &[NodeId],
        overdue_before: Timestamp,
    ) -> Result<ClaimOutcome, StoreError> {
        let config = &self.shared.config;
        let (budget, wait_factor, within) =
            (config.backlog_budget, config.whole_backlog_wait_factor, config.whole_backlog_within);
        if self.backlog_homes != homes {
            // Jobs that had another node as their home may have been due for a long time.
            self.low_water.forget();
            self.backlog_homes = homes.to_vec();
        }
        if self.shared.must_read_whole_backlog.swap(false, Ordering::AcqRel) {
            self.low_water.forget();
        }
        let began_at = Instant::now();
        let due_from = self.low_water.reading_start(began_at);
        (self.due_count, self.is_backlog_whole) = (0, due_from == Timestamp::EPOCH);
        let outcome = self.claim_between(lease, homes, (due_from, just_before(overdue_before)), budget).await?;
        if self.due_count > 0 || !outcome.is_exhausted {
            self.low_water.forget();
        } else if self.is_backlog_whole {
            self.low_water.raise(overdue_before, Instant::now(), (began_at.elapsed() * wait_factor).min(within));
        }
        Ok(outcome)
    }

    async fn claim_between(
        &mut self,
        lease: &HeldLease,
        homes: &[NodeId],
        (from, to): (Timestamp, Timestamp),
        budget: u32,
    ) -> Result<ClaimOutcome, StoreError> {
        let range = DueRange { from, to, limit: self.shared.config.claim_page.min(budget).max(1) };
        let own_outcome = self.claim_range(lease, ClaimScope::Own, range, budget).await?;
        Ok(own_outcome.plus(self.claim_range(lease, ClaimScope::Orphaned(homes), range, budget).await?))
    }

    /// Claims the fires of dense instants early, if there are so many that they would be late otherwise.
    async fn claim_dense(
        &mut self,
        lease: &HeldLease,
        homes: &[NodeId],
        now: Timestamp,
    ) -> Result<ClaimOutcome, StoreError> {
        let config = &self.shared.config;
        // If the clock went back, the next look is not delayed.
        if now < self.next_dense_look_at && self.next_dense_look_at < now + config.dense_period * 2 {
            return Ok(ClaimOutcome::NOTHING);
        }
        let (from, to) = (now + config.claim_ahead + Duration::from_millis(1), now + config.dense_look_ahead);
        let all_homes: Vec<NodeId> = std::iter::once(lease.token.node).chain(homes.iter().copied()).collect();
        let pace = ClaimPace { lead: config.claim_ahead, jobs_per_second: config.claim_pace };
        let (budget, dense_from, next_look_at) = (config.claim_budget, config.dense_from, now + config.dense_period);
        let range = DueRange { from, to, limit: DENSE_COUNT_MAX };
        let dense_instants = self.shared.store.dense_instants(&all_homes, range, dense_from).await?;
        let mut outcome = ClaimOutcome::NOTHING;
        for at in instants_to_claim(&dense_instants, pace, now) {
            outcome = outcome.plus(self.claim_between(lease, homes, (at, at), budget).await?);
            if !outcome.is_exhausted {
                break;
            }
        }
        self.next_dense_look_at = if outcome.is_exhausted { next_look_at } else { now };
        Ok(outcome)
    }

    /// The number of open runs in memory above which this node claims nothing, because it cannot handle more. Claimed runs go to memory only if
    /// there is room, so that only adopted runs and runs that have begun can exceed this number.
    fn open_runs_limit(&self) -> usize {
        self.shared.config.open_runs_max.saturating_mul(2)
    }

    /// Whether more runs are open than this node can handle. Logged once each time that this begins.
    fn has_too_many_runs(&mut self) -> bool {
        let open_count = self.shared.in_memory.len();
        let has_too_many_runs = open_count > self.open_runs_limit();
        if has_too_many_runs && !self.had_too_many_runs {
            tracing::warn!(open = open_count, "too many open runs: claiming nothing until some have ended");
        }
        self.had_too_many_runs = has_too_many_runs;
        has_too_many_runs
    }

    /// Claims page after page until the range is empty, the budget is used up, too many runs are open, or none of a page's jobs can be claimed.
    async fn claim_range(
        &mut self,
        lease: &HeldLease,
        scope: ClaimScope<'_>,
        mut range: DueRange,
        budget: u32,
    ) -> Result<ClaimOutcome, StoreError> {
        let own_homes = [lease.token.node];
        let (mut budget_left, mut won_total) = (budget, 0);
        while budget_left > 0 && self.shared.in_memory.len() <= self.open_runs_limit() {
            let homes = match scope {
                ClaimScope::Own => &own_homes[..],
                ClaimScope::Orphaned(homes) => homes,
            };
            if homes.is_empty() {
                return Ok(ClaimOutcome::NOTHING);
            }
            let due_jobs = self.shared.store.due_jobs(homes, range).await?;
            let due_count = u32::try_from(due_jobs.len()).unwrap_or(u32::MAX);
            self.due_count += due_jobs.len();
            let last_fire_at = due_jobs.last().map(|due| due.next_fire_at);
            let own_jobs = self.claimable_jobs(lease, scope, due_jobs);
            let are_all_own = u32::try_from(own_jobs.len()).is_ok_and(|own_count| own_count == due_count);
            let won_count = self.claim(lease, own_jobs).await?;
            won_total += won_count;
            if due_count < range.limit || (are_all_own && won_count == 0) {
                return Ok(ClaimOutcome { job_count: won_total, is_exhausted: true });
            }
            // Jobs that are left to other nodes stay in the range and would be read again, so the next page starts at the last instant of this
            // page.
            if let Some(last_fire_at) = last_fire_at.filter(|_| !are_all_own) {
                if last_fire_at == range.from {
                    return Ok(ClaimOutcome { job_count: won_total, is_exhausted: true });
                }
                range.from = last_fire_at;
            }
            budget_left = budget_left.saturating_sub(due_count);
        }
        Ok(ClaimOutcome { job_count: won_total, is_exhausted: false })
    }

    /// The due jobs that this node may take.
    fn claimable_jobs(&mut self, lease: &HeldLease, scope: ClaimScope<'_>, due_jobs: Vec<DueJob>) -> Vec<DueJob> {
        match scope {
            ClaimScope::Own => due_jobs,
            ClaimScope::Orphaned(_) => {
                let now = self.shared.clock.now();
                let node_shares = self.shared.membership.node_shares(now);
                let strategy = self.shared.config.claim_strategy;
                self.left_to_others.pick_takeable_jobs(due_jobs, strategy, (lease.token.node, &node_shares), now)
            }
        }
    }

    /// Plans and claims the fires of these jobs, in all lanes at the same time. Returns how many jobs were claimed.
    async fn claim(&self, lease: &HeldLease, due_jobs: Vec<DueJob>) -> Result<usize, StoreError> {
        if due_jobs.is_empty() {
            return Ok(0);
        }
        let keys = due_jobs.iter().map(|due| (due.job, due.version));
        let definitions = self.shared.definitions.load(self.shared.store.as_ref(), keys).await?;
        let shared = &self.shared;
        // Fires are claimed only with maintenance windows that were read recently.
        let windows = shared.maintenance.fresh_windows(shared.store.as_ref(), &shared.clock).await?;
        let windows = windows.ok_or_else(|| StoreError::no_answer("list_maintenance"))?;
        let now = self.shared.clock.now();
        let look_ahead = LookAhead {
            now,
            caught_up_at: self.shared.clock.timestamp_at(self.judged_as_of),
            end: now + self.shared.config.look_ahead,
        };
        let mut plans = Vec::with_capacity(due_jobs.len());
        for due_job in due_jobs {
            // An unreadable definition was logged when it was loaded.
            let Some(definition) = definitions.get(&(due_job.job, due_job.version)) else { continue };
            // A fire of a dense instant may be beyond the look-ahead. It is claimed without the fires after it.
            let look_ahead = LookAhead { end: look_ahead.end.max(due_job.next_fire_at), ..look_ahead };
            let windows_of_job = match mutant::on(Mutant::WindowsUnheeded) {
                true => Vec::new(),
                false => windows.of(definition.namespace, definition.app, now),
            };
            let cursor = Cursor { next_fire_at: due_job.next_fire_at, held_from: due_job.held_from };
            let job = (definition.id, definition.anchor);
            let plan = plan_within(&definition.job, job, cursor, look_ahead, &windows_of_job);
            plans.push(PlannedJob::new(due_job, definition, plan, look_ahead));
        }
        leave_out_stored(self.shared.store.as_ref(), &mut plans, self.shared.config.claim_runs).await?;
        let mut lanes: Vec<Vec<ClaimJob>> = (0..self.shared.lane_count()).map(|_| Vec::new()).collect();
        for planned_job in plans {
            let lane = planned_job.due_job.job.lane(lanes.len());
            lanes[lane].push(claim_request(lease, &planned_job));
        }
        let claims = lanes.into_iter().map(|jobs| self.claim_lane(lease, jobs, &definitions));
        join_all(claims).await.into_iter().sum()
    }

    async fn claim_lane(
        &self,
        lease: &HeldLease,
        jobs: Vec<ClaimJob>,
        definitions: &CompiledDefinitions,
    ) -> Result<usize, StoreError> {
        let mut won_count = 0;
        for batch in batches(jobs, (self.shared.config.claim_jobs, self.shared.config.claim_runs)) {
            let claim_result = self.shared.store.claim(lease.token, &batch).await?;
            won_count += claim_result.jobs.len();
            self.shared.counters.add(Count::StatementsRefused, usize::from(claim_result.is_refused));
            if self.shared.membership.holds_lease() {
                let is_new = |job: &&ClaimJob| job.expected_row.home != lease.token.node;
                let share =
                    |job: &ClaimJob| JobShare { job: job.expected_row.job, recent_fires: job.recent_fires.thousandths };
                let gained_jobs: Vec<JobShare> = batch.iter().filter(is_new).map(share).collect();
                self.shared.claims.add(batch.len(), claim_result.jobs.len(), &gained_jobs);
            }
            let had_fire = |job: &&ClaimJob| job.awaited_run.is_some_and(|run| claim_result.existing.contains(&run));
            let jobs_to_replan: Vec<DueJob> = batch.iter().filter(had_fire).map(|job| job.expected_row).collect();
            let is_won = |job: &ClaimJob| claim_result.jobs.iter().any(|(id, _)| *id == job.expected_row.job);
            let all_won = claim_result.jobs.len() == batch.len();
            let runs: Vec<Run> =
                batch.into_iter().filter(|job| all_won || is_won(job)).flat_map(|job| job.runs).collect();
            count_missed(definitions, &runs, &claim_result.existing);
            // Runs that wait for their jitter are found again when they come due.
            let is_next = |run: &Run| run.status == RunStatus::Pending && !claim_result.existing.contains(&run.id);
            self.shared.put_as_of(runs.into_iter().filter(is_next).collect(), self.judged_as_of).await;
            self.plan_delays_again(&jobs_to_replan, definitions).await?;
        }
        Ok(won_count)
    }

    /// Plans the next fire again for jobs with a fixed delay whose planned instant already had a fire: a pause inside a maintenance window
    /// settled that fire, or the clock stepped back. The claim then created no run whose end would plan the next fire.
    async fn plan_delays_again(&self, jobs: &[DueJob], definitions: &CompiledDefinitions) -> Result<(), StoreError> {
        for due_job in jobs {
            let Some(definition) = definitions.get(&(due_job.job, due_job.version)) else { continue };
            let stuck_job = StuckJob { job: due_job.job, version: due_job.version, awaited_run: None };
            let next_fire_at = definition.job.timetable.first_delayed(self.shared.clock.now());
            self.shared.store.heal_job(stuck_job, next_fire_at).await?;
        }
        Ok(())
    }

    async fn take_waiting(&self, lease: &HeldLease, until: Timestamp, budget: u32) -> Result<ClaimOutcome, StoreError> {
        let page = self.shared.config.waiting_page.max(1);
        let mut budget_left = budget;
        while budget_left > 0 {
            let runs = self.shared.store.take_waiting(lease.token, until, page).await?;
            let is_last = runs.len() < usize::try_from(page).unwrap_or(usize::MAX);
            self.shared.put_as_of(runs, self.judged_as_of).await;
            if is_last {
                return Ok(ClaimOutcome::NOTHING);
            }
            budget_left = budget_left.saturating_sub(page);
        }
        Ok(ClaimOutcome { job_count: 0, is_exhausted: false })
    }
}

const fn just_before(at: Timestamp) -> Timestamp {
    Timestamp::from_millis(at.as_millis() - 1)
}

/// Splits a lane into transactions of at most `jobs_max` jobs and `runs_max` runs; a single job may have more runs.
fn batches(jobs: Vec<ClaimJob>, (jobs_max, runs_max): (usize, usize)) -> Vec<Vec<ClaimJob>> {
    let mut batches = vec![Vec::new()];
    let mut run_count = 0;
    for job in jobs {
        let last = batches.len() - 1;
        if !batches[last].is_empty() && (batches[last].len() >= jobs_max || run_count + job.runs.len() > runs_max) {
            batches.push(Vec::new());
            run_count = 0;
        }
        run_count += job.runs.len();
        let last = batches.len() - 1;
        batches[last].push(job);
    }
    batches.retain(|batch| !batch.is_empty());
    batches
}
