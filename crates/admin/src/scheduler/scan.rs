//! The scan: each second it claims the fires of the look-ahead window, and then, with a budget, what is overdue.
//!
//! A claim is durable before anything is in memory: one transaction moves `next_fire_at` on and inserts the runs. What
//! another node took first drops out. The loop may be run twice, late, or on another node.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use rondel_core::plan::{Plan, PlannedFire, Window, plan};
use rondel_core::{NodeId, Reason, Run, RunId, RunStatus, Timestamp};
use rondel_store::StoreError;
use rondel_store::ledger::{ClaimJob, DueJob, DueRange};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::background::{Background, TickError};
use crate::cluster::Held;
use crate::counters::Count;
use crate::definitions::{Compiled, Key};
use crate::metrics::FireOutcome;
use crate::node::Shared;
use crate::scheduler::share::LeftToOthers;

/// Jobs read by one statement.
const PAGE: u32 = 5_000;
/// Jobs claimed by one transaction, and the runs after which it is closed early.
const CLAIM_JOBS: usize = 500;
const CLAIM_RUNS: usize = 1_000;
/// Open runs in memory beyond which nothing more is claimed: what comes due meanwhile waits in the store, and where it
/// gets too late, the misfire policy decides.
const OPEN_RUN_MAX: usize = 200_000;
/// Waiting runs taken by one statement.
const WAITING_PAGE: u32 = 1_000;

/// How often a node looks while jobs and runs may be on their way to it.
const UNSETTLED_PERIOD: Duration = Duration::from_millis(200);

pub(crate) struct ScanLoop {
    shared: Arc<Shared>,
    was_full: bool,
    left: LeftToOthers,
}

/// Whose jobs a scan claims.
#[derive(Clone, Copy)]
enum Whose<'a> {
    /// Its own.
    Own,
    /// Those of these homes, none of which lives, as far as the strategy gives them to this node.
    Nobodys(&'a [NodeId]),
}

impl Background for ScanLoop {
    const NAME: &'static str = "scan";
    const WORK: &'static str = "claim fires";

    fn period(&self) -> Option<Duration> {
        Some(self.shared.config.scan_period)
    }

    async fn woken(&mut self) {
        let is_unsettled = self.shared.membership.is_unsettled(self.shared.clock.now());
        tokio::select! {
            () = tokio::time::sleep(UNSETTLED_PERIOD), if is_unsettled => {}
            () = self.shared.scan_poke.notified() => {}
        }
    }

    async fn tick(&mut self, _stop: &CancellationToken) -> Result<u64, TickError> {
        let began = Instant::now();
        let claimed = self.scan().await;
        self.shared.metrics.scan.observe(began.elapsed());
        let claimed = claimed?;
        self.shared.metrics.scanned(self.shared.clock.now());
        Ok(claimed)
    }
}

impl ScanLoop {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, was_full: false, left: LeftToOthers::default() }
    }

    /// Answers how many jobs' fires were claimed.
    async fn scan(&mut self) -> Result<u64, StoreError> {
        let Some(held) = self.shared.membership.held() else { return Ok(0) };
        if !self.shared.has_adopted() || self.is_full() {
            return Ok(0);
        }
        let now = self.shared.clock.now();
        let homes = self.shared.membership.claimable_homes(now);
        let config = &self.shared.config;
        let overdue_before = now - config.look_ahead;
        let (near, budget) = (now + config.near, config.backlog_budget);
        let window = DueRange { from: overdue_before, to: near, limit: PAGE };
        let mut won = self.claim_range(&held, Whose::Own, window, u32::MAX).await?;
        won += self.claim_range(&held, Whose::Nobodys(&homes), window, u32::MAX).await?;
        self.take_waiting(&held, near).await?;
        let just_before = Timestamp::from_millis(overdue_before.as_millis() - 1);
        let backlog = DueRange { from: Timestamp::EPOCH, to: just_before, limit: PAGE.min(budget) };
        won += self.claim_range(&held, Whose::Own, backlog, budget).await?;
        won += self.claim_range(&held, Whose::Nobodys(&homes), backlog, budget).await?;
        self.left.forget_taken(now);
        Ok(u64::try_from(won).unwrap_or(u64::MAX))
    }

    /// Whether as many runs are open as this node can look after. Logged once each time that this begins.
    fn is_full(&mut self) -> bool {
        let open = self.shared.in_memory.len();
        let full = open > OPEN_RUN_MAX;
        if full && !self.was_full {
            tracing::warn!(open, "too many open runs: claiming nothing until some have ended");
        }
        self.was_full = full;
        full
    }

    /// Claims page after page until the range is empty, the budget is used up, or nothing moves. Answers how many jobs were won.
    async fn claim_range(
        &mut self,
        held: &Held,
        whose: Whose<'_>,
        mut range: DueRange,
        budget: u32,
    ) -> Result<usize, StoreError> {
        let own = [held.token.node];
        let (mut left, mut all_won) = (budget, 0);
        while left > 0 && self.shared.in_memory.len() <= OPEN_RUN_MAX {
            let homes = match whose {
                Whose::Own => &own[..],
                Whose::Nobodys(homes) => homes,
            };
            if homes.is_empty() {
                return Ok(all_won);
            }
            let due = self.shared.store.due_jobs(homes, range).await?;
            let count = u32::try_from(due.len()).unwrap_or(u32::MAX);
            let last = due.last().map(|due| due.next_fire_at);
            let mine = self.mine(held, whose, due);
            let all_mine = u32::try_from(mine.len()).is_ok_and(|mine| mine == count);
            let won = self.claim(held, mine).await?;
            all_won += won;
            if count < range.limit || (all_mine && won == 0) {
                return Ok(all_won);
            }
            // A page with jobs that are left to others would come again.
            if let Some(last) = last.filter(|_| !all_mine) {
                if last == range.from {
                    return Ok(all_won);
                }
                range.from = last;
            }
            left = left.saturating_sub(count);
        }
        Ok(all_won)
    }

    /// Those of due jobs that this node may take.
    fn mine(&mut self, held: &Held, whose: Whose<'_>, due: Vec<DueJob>) -> Vec<DueJob> {
        match whose {
            Whose::Own => due,
            Whose::Nobodys(_) => {
                let now = self.shared.clock.now();
                let seats = self.shared.membership.seats(now);
                let strategy = self.shared.config.claim_strategy;
                self.left.may_take(due, strategy, (held.token.node, &seats), now)
            }
        }
    }

    /// Plans and claims these jobs, lane by lane at the same time. Answers how many were won.
    async fn claim(&self, held: &Held, due: Vec<DueJob>) -> Result<usize, StoreError> {
        if due.is_empty() {
            return Ok(0);
        }
        let keys = due.iter().map(|due| (due.job, due.version));
        let definitions = self.shared.definitions.load(self.shared.store.as_ref(), keys).await?;
        let now = self.shared.clock.now();
        let window = Window { now, end: now + self.shared.config.look_ahead };
        let mut lanes: Vec<Vec<ClaimJob>> = (0..self.shared.lane_count()).map(|_| Vec::new()).collect();
        for seen in due {
            // A definition that cannot be read was complained about when it was loaded.
            let Some(definition) = definitions.get(&(seen.job, seen.version)) else { continue };
            let planned = plan(&definition.job, definition.id, definition.anchor, seen.next_fire_at, window);
            let lane = seen.job.lane(lanes.len());
            lanes[lane].push(claim_job(held, seen, definition, &planned, window));
        }
        let claims = lanes.into_iter().map(|jobs| self.claim_lane(held, jobs, &definitions));
        join_all(claims).await.into_iter().sum()
    }

    async fn claim_lane(
        &self,
        held: &Held,
        jobs: Vec<ClaimJob>,
        definitions: &HashMap<Key, Arc<Compiled>>,
    ) -> Result<usize, StoreError> {
        let mut won = 0;
        for batch in batches(jobs) {
            let claimed = self.shared.store.claim(held.token, &batch).await?;
            won += claimed.jobs.len();
            self.shared.counters.add(Count::StatementsRefused, usize::from(claimed.is_refused));
            if self.shared.membership.holds() {
                let is_new = |job: &&ClaimJob| job.seen.home != held.token.node;
                self.shared.claims.add(batch.len(), claimed.jobs.len(), batch.iter().filter(is_new).count());
            }
            let is_won = |job: &ClaimJob| claimed.jobs.iter().any(|(id, _)| *id == job.seen.job);
            let all_won = claimed.jobs.len() == batch.len();
            let runs: Vec<Run> =
                batch.into_iter().filter(|job| all_won || is_won(job)).flat_map(|job| job.runs).collect();
            count_missed(definitions, &runs, &claimed.existing);
            // What waits for its jitter is found again when it comes due.
            let is_next = |run: &Run| run.status == RunStatus::Pending && !claimed.existing.contains(&run.id);
            self.shared.put(runs.into_iter().filter(is_next).collect()).await;
        }
        Ok(won)
    }

    async fn take_waiting(&self, held: &Held, until: Timestamp) -> Result<(), StoreError> {
        loop {
            let runs = self.shared.store.take_waiting(held.token, until, WAITING_PAGE).await?;
            let is_last = runs.len() < usize::try_from(WAITING_PAGE).unwrap_or(usize::MAX);
            self.shared.put(runs).await;
            if is_last {
                return Ok(());
            }
        }
    }
}

/// Counts the fires that the misfire policy skips, which the claim has just made rows of the ledger.
fn count_missed(definitions: &HashMap<Key, Arc<Compiled>>, runs: &[Run], existing: &[RunId]) {
    for run in runs.iter().filter(|run| run.status == RunStatus::Skipped && !existing.contains(&run.id)) {
        if let Some(definition) = definitions.get(&(run.job, run.job_version)) {
            let count = u64::try_from(run.span_count).unwrap_or(0);
            definition.counts.fires(run.trigger, FireOutcome::Missed, count);
        }
    }
}

/// Cuts a lane into transactions of a bounded size.
fn batches(jobs: Vec<ClaimJob>) -> Vec<Vec<ClaimJob>> {
    let mut batches = vec![Vec::new()];
    let mut run_count = 0;
    for job in jobs {
        let last = batches.len() - 1;
        if !batches[last].is_empty() && (batches[last].len() == CLAIM_JOBS || run_count + job.runs.len() > CLAIM_RUNS) {
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

fn claim_job(held: &Held, seen: DueJob, definition: &Compiled, planned: &Plan, window: Window) -> ClaimJob {
    let owner = (held.token.node, held.token.epoch);
    let missed = planned.missed.map(|span| {
        let id = RunId::new(held.ids.next(window.now));
        span.row(id, definition.run_of(), &definition.job, Reason::Misfire, owner, window.now)
    });
    let fires = planned.fires.iter().map(|fire| fire_row(held, definition, fire, window));
    let runs: Vec<Run> = missed.into_iter().chain(fires).collect();
    let open = runs.iter().find(|run| !run.status.is_terminal()).map(|run| run.id);
    let follows = open.filter(|_| definition.job.timetable.delay().is_some());
    ClaimJob { seen, next_fire_at: planned.next, runs, follows }
}

fn fire_row(held: &Held, definition: &Compiled, fire: &PlannedFire, window: Window) -> Run {
    let owner = (held.token.node, held.token.epoch);
    let run = Run {
        // The ring reaches as far as the look-ahead; what starts later (jitter) waits in the store.
        status: if fire.due_at > window.end { RunStatus::Waiting } else { RunStatus::Pending },
        due_at: fire.due_at,
        ..Run::new(RunId::new(held.ids.next(window.now)), definition.run_of(), fire.fire_at, fire.trigger, owner)
    };
    if definition.job.is_sharded() { run.for_all_shards() } else { run }
}
