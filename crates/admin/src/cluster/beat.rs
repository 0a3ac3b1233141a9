//! The beat: renews the lease; reads the database's clock, the list of nodes, the switches and the maintenance windows; and stores this node's
//! report and which executors it hears.

use std::sync::Arc;
use std::time::Duration;

use rondel_core::Timestamp;
use rondel_core::homes::Switch;
use rondel_failpoint::mutant::{self, Mutant};
use rondel_store::cluster::{Join, JoinRequest, Node, NodeReport, Renewal};
use rondel_store::ledger::HomeLoad;
use rondel_store::{DatabaseTroubleKind, LeaseToken, Store, StoreError};
use tokio_util::sync::CancellationToken;

use crate::background::{Background, TickError};
use crate::cluster::{LostHistory, Membership};
use crate::config::EngineConfig;
use crate::counters::Count;
use crate::dispatch::Event;
use crate::metrics::RecentLateness;
use crate::node::Shared;
use crate::scheduler::command::TickCommand;
use rondel_core::backoff::backoff;
use rondel_core::error_chain::chain;

/// How long a beat waits for the database; shorter than a lease.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
const RETRY_DELAY_MIN: Duration = Duration::from_millis(100);
const RETRY_DELAY_MAX: Duration = Duration::from_secs(1);
/// How long a starting server retries after transient errors to take its lease. Another server that takes over its runs holds the lock of its row
/// meanwhile. The takeover of half a million runs of one job takes half a minute.
const START_TRIED_FOR: Duration = Duration::from_secs(60);
/// Housekeeping keeps the row of a node for longer than this after the end of its lease. If a row is missing earlier, the database has lost it.
const ROW_KEPT_FOR: Duration = Duration::from_secs(24 * 3600);
/// Number of beats between two counts of the jobs whose home is this node.
const BEATS_BETWEEN_COUNTS: u32 = 10;

pub(crate) struct BeatLoop {
    shared: Arc<Shared>,
    /// How many beats have made a report; wraps around.
    beat_count: u32,
    /// How many jobs have this node as their home, and how often they fired recently, as counted last; `None` if they were not counted.
    home_load: Option<HomeLoad>,
    /// Whether the last beat found a node with another claim strategy. Only the first of several such beats in a row logs the warning.
    has_warned: bool,
    lateness: RecentLateness,
    /// The end of the lease as this node wrote it last.
    written_until: Option<Timestamp>,
    /// Whether this node must take another lease: the database went back in time, or the dispatcher has dropped the runs that waited under the
    /// present lease.
    must_rejoin: bool,
    /// A lease that this node has taken and does not act under yet.
    joined_under: Option<LeaseToken>,
    /// A lease under this node's name that prevents the node from joining again.
    other_lease: Option<OtherLease>,
    /// When this node found that another node is taking over the runs of its last lease, by the boot-time clock in microseconds; `None` if it found
    /// no takeover.
    taken_over_since: Option<i64>,
}

/// A lease under this node's name that this process does not act under: another server has it, or this process took it and got no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OtherLease {
    /// The end of the lease.
    until: Timestamp,
    /// Whether the lease was renewed since it was first seen. If so, another server holds it.
    is_renewed: bool,
}

impl Background for BeatLoop {
    const NAME: &'static str = "beat";
    const ACTION: &'static str = "renew the lease";
    const REPORTS_FAILURE: bool = true;

    fn period(&self) -> Option<Duration> {
        Some(self.shared.config.beat)
    }

    fn retry_wait(&self, failed_count: u32) -> Option<Duration> {
        Some(backoff(RETRY_DELAY_MIN, RETRY_DELAY_MAX, failed_count))
    }

    async fn wait_until_woken(&mut self) {
        self.shared.beat_poke.notified().await;
    }

    async fn tick(&mut self, _stop: &CancellationToken) -> Result<u64, TickError> {
        self.beat().await.map(|()| 1)
    }
}

impl BeatLoop {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let lateness = RecentLateness::default();
        Self {
            shared,
            beat_count: 0,
            home_load: None,
            has_warned: false,
            lateness,
            written_until: None,
            must_rejoin: false,
            joined_under: None,
            other_lease: None,
            taken_over_since: None,
        }
    }

    /// Runs one beat. Logs each new kind of trouble with the database once, and the end of the trouble.
    async fn beat(&mut self) -> Result<(), TickError> {
        let shared = Arc::clone(&self.shared);
        let previous_other_lease = self.other_lease;
        let failure = match tokio::time::timeout(ANSWER_TIMEOUT, self.renew()).await {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some((shared.store.diagnose(&error).await, chain(&error))),
            Err(_) => Some((self.late_answer_cause().await, format!("no answer within {ANSWER_TIMEOUT:?}"))),
        };
        let Some((trouble, message)) = failure else {
            if let Some(ended_trouble) = shared.database.take_ended_trouble() {
                let outage = shared.clock.now().since(ended_trouble.since);
                tracing::info!(trouble = %ended_trouble.trouble, outage = ?outage, "the database answers again");
                // Runs that came due meanwhile are taken up at once, not only at the next scan.
                shared.scan_poke.notify_one();
                shared.adopt_poke.notify_one();
            }
            let Some(other_lease) = self.other_lease else { return Ok(()) };
            let message = other_lease.describe(&shared.config.node_name);
            if previous_other_lease.is_none_or(|before| before.is_renewed != other_lease.is_renewed) {
                tracing::error!(error = message, "cannot join under a new epoch; trying again");
            }
            return Err(TickError::new(message));
        };
        if shared.database.record_failure(trouble, &message, shared.clock.now()) {
            tracing::warn!(%trouble, error = message, "cannot renew the lease; trying again");
        }
        Err(TickError::new(message))
    }

    /// Why the database did not answer in time. While the database refuses connections, the pool waits for a connection, so the beat times out
    /// without an error.
    async fn late_answer_cause(&self) -> DatabaseTroubleKind {
        use DatabaseTroubleKind::{Full, ReadOnly, Slow, Unreachable};
        let (shared, error) = (&self.shared, StoreError::no_answer("renew"));
        match within_lease(shared.membership.remaining_lease(), shared.store.diagnose(&error)).await {
            Some(cause @ (Unreachable | ReadOnly | Full)) => cause,
            _ => Slow,
        }
    }

    async fn renew(&mut self) -> Result<(), StoreError> {
        let shared = Arc::clone(&self.shared);
        let Some(renewal_guard) = shared.membership.begin_renewal().await else { return Ok(()) };
        let sent_at = shared.clock.boot_micros();
        // A lease that is to be replaced is not extended. If this node cannot take a new lease, another node adopts the runs.
        let renewal = match self.must_rejoin {
            true => None,
            false => shared.store.renew(shared.membership.token(), shared.config.lease).await?,
        };
        match renewal {
            Some(renewal) if self.has_lost_history(&renewal) => self.rejoin().await?,
            Some(renewal) => {
                self.observe(renewal.now, sent_at);
                let sent_at = if mutant::on(Mutant::LeaseFromTheAnswer) { shared.clock.boot_micros() } else { sent_at };
                shared.membership.record_renewal(sent_at, shared.config.lease);
                self.other_lease = None;
            }
            None if self.must_rejoin => self.rejoin().await?,
            None => {
                shared.counters.add(Count::StatementsRefused, 1);
                self.rejoin().await?;
            }
        }
        drop(renewal_guard);
        self.report().await?;
        let nodes = shared.store.nodes().await?;
        self.warn_of_other_strategies(&nodes);
        shared.membership.set_nodes(nodes, shared.clock.now());
        if shared.switches.set(shared.store.switches().await?) {
            // A dispatcher whose queue is full looks at the switches within a second anyway.
            shared.events.try_send(Event::Wake).ok();
        }
        self.forward_stops();
        shared.maintenance.read(shared.store.as_ref(), &shared.clock).await?;
        let heard_executors = shared.registry.heard_since(shared.clock.now() - shared.config.beat.saturating_mul(3));
        shared.store.beat_sessions(shared.membership.token(), &heard_executors).await
    }

    /// Whether the database has lost the last write of this node: the stored lease ended earlier than this node had written. A difference of up to
    /// a tenth of the lease does not count, because an older renewal that is stored after a newer one moves the end back by up to that much. Always
    /// false while the node leaves.
    fn has_lost_history(&mut self, renewal: &Renewal) -> bool {
        let shared = &self.shared;
        let written_until = self.written_until.replace(renewal.until);
        let shortened_until =
            written_until.filter(|written| renewal.previous_until + shared.config.lease / 10 < *written);
        let Some(written_until) = shortened_until.filter(|_| !shared.is_leaving()) else { return false };
        self.note_lost_history(Some(written_until.since(renewal.previous_until)));
        self.must_rejoin = true;
        true
    }

    fn note_lost_history(&self, by: Option<Duration>) {
        let shared = &self.shared;
        shared.counters.add(Count::DatabaseRegressions, 1);
        let found_at = shared.clock.now();
        shared.database.note_lost_history(LostHistory { found_at, by });
        tracing::error!(
            lost = ?by,
            "the database went back in time: it has lost what this server had written (a restored backup, or a failover \
             without the last transactions); joining under a new epoch, and asking the executors what they have in hand. Fires of \
             the lost time may run twice"
        );
    }

    /// Stores the report of this node. If the claim strategy depends on loads, counts the node's jobs first, once in [`BEATS_BETWEEN_COUNTS`]
    /// beats.
    async fn report(&mut self) -> Result<(), StoreError> {
        let shared = &self.shared;
        let token = shared.membership.token();
        if shared.config.claim_strategy.depends_on_load() && self.beat_count.is_multiple_of(BEATS_BETWEEN_COUNTS) {
            self.home_load = shared.store.home_loads(&[token.node], shared.clock.now()).await?.pop();
            shared.claims.reset_gains();
        }
        self.beat_count = self.beat_count.wrapping_add(1);
        let ((tried_count, lost_count), (gained_count, gained_fires)) =
            (shared.claims.tried_and_lost(), shared.claims.gained_counts());
        let home_counts = self.home_load.map_or((0, 0), |load| (load.job_count, load.recent_fires));
        let report = NodeReport {
            is_leaving: shared.is_leaving(),
            claim_strategy: shared.config.claim_strategy,
            weight: shared.config.node_weight,
            job_count: home_counts.0 + gained_count,
            recent_fires: home_counts.1 + gained_fires,
            skew_ms: shared.clock.skew_ms(),
            claims_tried: tried_count,
            claims_lost: lost_count,
            refused_count: shared.counters.get(Count::StatementsRefused),
            lateness_p99_ms: self.lateness.p99_ms(&shared.metrics.fire_lateness, shared.clock.now()),
            loops: shared.loops.reports(),
        };
        shared.store.report_node(token, &report).await
    }

    /// Logs a warning if another living node has a different claim strategy, unless the last beat found such a node too. Nodes with different
    /// strategies only obstruct each other.
    fn warn_of_other_strategies(&mut self, nodes: &[Node]) {
        let own_strategy = self.shared.config.claim_strategy;
        let now = self.shared.clock.now();
        let has_other_strategy = |node: &&Node| node.is_living(now) && node.report.claim_strategy != own_strategy;
        let other_node = nodes.iter().find(has_other_strategy);
        if let Some(other_node) = other_node.filter(|_| !self.has_warned) {
            let (name, other_strategy) = (&other_node.name, other_node.report.claim_strategy);
            tracing::warn!(own = %own_strategy, node = name, theirs = %other_strategy, "nodes have different claim strategies; set the same on all");
        }
        self.has_warned = other_node.is_some();
    }

    /// Reports to the dispatcher, with each beat, which apps operators have stopped, and whether this node is stopped or is to keep no jobs.
    /// If the dispatcher's queue is full, the report follows with the next beat: the renewal of the lease must not wait for the dispatcher.
    fn forward_stops(&self) {
        let stopped_apps = self.shared.switches.stopped_apps();
        if !stopped_apps.is_empty() {
            self.shared.events.try_send(Event::StopApps(stopped_apps)).ok();
        }
        let switch = self.shared.membership.switch();
        if switch == Switch::Stopped {
            self.shared.events.try_send(Event::Dismiss).ok();
        }
        if switch != Switch::Active || self.shared.is_leaving() {
            self.shared.events.try_send(Event::GiveLimits).ok();
        }
    }

    fn observe(&self, database_now: Timestamp, sent_at: i64) {
        if let Some(back_ms) = self.shared.clock.observe(database_now, sent_at, self.shared.clock.boot_micros()) {
            let back_at = self.shared.clock.now() + Duration::from_millis(u64::try_from(back_ms).unwrap_or(0));
            self.shared.membership.note_step_back();
            self.shared.note_quiet(back_at);
            tracing::warn!(back_ms, until = %back_at, "the database's clock stepped back; no job fires until it has caught up");
        }
    }

    /// Joins under a new epoch, because the old lease cannot be renewed: this node slept through it, or the database or the database's clock went
    /// back. Runs that this node had not sent now belong to another node, or to this node's new lease.
    async fn rejoin(&mut self) -> Result<(), StoreError> {
        let shared = Arc::clone(&self.shared);
        shared.membership.end_lease();
        // The dispatcher forgets runs that wait or are in a roll call, with their places in their jobs' order. Only the adoption under the next
        // lease restores them, so this lease is not renewed any more, even if this try fails.
        let is_first_try = !std::mem::replace(&mut self.must_rejoin, true);
        let previous_lease = shared.membership.token();
        if is_first_try && self.other_lease.is_none() {
            tracing::warn!(epoch = previous_lease.epoch, "the lease has ended; joining under a new epoch");
        }
        drop(shared.tick.send(TickCommand::Clear).await);
        drop(shared.events.send(Event::LeaseLost).await);
        let sent_at = shared.clock.boot_micros();
        let request = join_request(&shared.config, shared.store.as_ref());
        let stored_node = shared.store.nodes().await?.into_iter().find(|node| node.id == previous_lease.node);
        // An earlier try that timed out or failed midway may have taken a lease already.
        let own_lease = Some(self.joined_under.unwrap_or(previous_lease));
        // If no answer comes, this process itself may have taken the lease that the next try finds.
        let previous_other_lease = self.other_lease.take();
        let waited_for_takeover = time_since(self.taken_over_since, sent_at);
        let request = JoinRequest { held: own_lease, waited_for_takeover, ..request };
        let (token, ordinal) = match shared.store.join(&request).await? {
            Join::Joined { token, ordinal } => (token, ordinal),
            Join::Living { lease_until: until, .. } => {
                let is_renewed = previous_other_lease.is_some_and(|before| before.is_renewed || before.until < until);
                self.other_lease = Some(OtherLease { until, is_renewed });
                return Ok(());
            }
            Join::BeingTakenOver => {
                // The next beat tries again.
                self.taken_over_since.get_or_insert(sent_at);
                return Ok(());
            }
        };
        self.joined_under = Some(token);
        self.taken_over_since = None;
        let written_until = self.written_until.take();
        self.must_rejoin = false;
        let is_history_lost = match stored_node {
            Some(node) => node.epoch < previous_lease.epoch,
            None => written_until.is_some_and(|until| shared.clock.now() < until + ROW_KEPT_FOR),
        };
        if is_history_lost {
            self.note_lost_history(None);
        }
        // Streams outlive a lease, but the session rows of the streams end with it. The rows are opened again before anything is sent, so that
        // an adopter sees them open.
        let heard_executors = shared.registry.heard_since(Timestamp::EPOCH);
        shared.store.beat_sessions(token, &heard_executors).await?;
        shared.membership.record_new_lease(token, ordinal, sent_at, shared.config.lease);
        self.joined_under = None;
        tracing::info!(epoch = token.epoch, "joined");
        self.observe(shared.store.now().await?, sent_at);
        Ok(())
    }
}

/// Awaits a diagnosis. While the lease holds, the diagnosis has at most a quarter of the remaining time, so that it does not delay the next renewal
/// too much; `None` if it takes longer.
async fn within_lease<T>(remaining: Duration, diagnosis: impl Future<Output = T>) -> Option<T> {
    match remaining.is_zero() {
        true => Some(diagnosis.await),
        false => tokio::time::timeout(remaining / 4, diagnosis).await.ok(),
    }
}

impl OtherLease {
    fn describe(self, name: &str) -> String {
        if self.is_renewed {
            return format!("another server runs as node {name:?}, and renews its lease; give each its own node_name");
        }
        format!("node {name:?} has a lease that this server does not act under, until {}", self.until)
    }
}

fn join_request(config: &EngineConfig, store: &dyn Store) -> JoinRequest {
    JoinRequest {
        name: config.node_name.clone(),
        lease: config.lease,
        advertise_url: config.advertise_url.clone(),
        server_version: config.server_version.clone(),
        may_take_over: store.is_single_server(),
        held: None,
        waited_for_takeover: Duration::ZERO,
    }
}

/// The time from `since` to `now`, both by the boot-time clock in microseconds; zero if `since` is `None`.
fn time_since(since: Option<i64>, now: i64) -> Duration {
    let micros = since.map_or(0, |since| now.saturating_sub(since));
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

/// Why an engine did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A living node has this node's name.
    #[error("another server is running as node {name:?}; give each its own --node-name")]
    NameTaken { name: String },
    /// The store returned an error that is not transient, or transient errors for too long.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Takes the node's lease at start. If a lease under this name has not ended, waits for its end. If that lease is renewed meanwhile, another server
/// is using the name, and the start fails. (An adopter raises the epoch of a dead node, but does not extend its lease.) After an error, a later end
/// of the lease proves nothing, because this process itself may have taken the lease without receiving the answer.
pub(crate) async fn join(store: &dyn Store, config: &EngineConfig) -> Result<Membership, StartError> {
    let mut request = join_request(config, store);
    let mut seen_until: Option<Timestamp> = None;
    let (mut taken_over_since, mut has_failed) = (None, false);
    let give_up_at = tokio::time::Instant::now() + START_TRIED_FOR;
    loop {
        let sent_at = config.boot.micros();
        request.waited_for_takeover = time_since(taken_over_since, sent_at);
        let join_result = match store.join(&request).await {
            Err(error) if error.is_transient() && tokio::time::Instant::now() < give_up_at => {
                if !std::mem::replace(&mut has_failed, true) {
                    tracing::warn!(error = %chain(&error), "cannot take the lease of this name yet; trying again");
                }
                seen_until = None;
                tokio::time::sleep(Duration::from_millis(200)).await;
                continue;
            }
            join_result => join_result?,
        };
        match join_result {
            Join::Joined { token, ordinal } => {
                // An executor that gets no answer from any server stops its runs after `silence`, long before it counts as lost after `lost_after`.
                // Session rows that are outdated by a quarter of the difference therefore do no harm.
                let spare_time = config.lost_after.saturating_sub(config.silence) / 4;
                return Ok(Membership::new(token, ordinal, sent_at, config.lease, config.boot.clone())
                    .with_cut_off_after(spare_time));
            }
            Join::Living { lease_until, .. } => {
                if seen_until.is_some_and(|before| before < lease_until) {
                    return Err(StartError::NameTaken { name: config.node_name.clone() });
                }
                if seen_until.is_none() {
                    tracing::info!(name = config.node_name, %lease_until, "waiting for the lease of this name to end");
                }
                seen_until = Some(lease_until);
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            Join::BeingTakenOver => {
                if taken_over_since.is_none() {
                    tracing::info!(
                        name = config.node_name,
                        "waiting until another server has taken over the open runs of this name"
                    );
                }
                taken_over_since.get_or_insert(sent_at);
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

#[cfg(test)]
mod tests;
