//! What every part of a running node shares. It starts nothing, and decides nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use rondel_core::run::BROADCAST;
use rondel_core::{Run, RunId, Timestamp};
use rondel_store::ledger::RunQuery;
use rondel_store::{Store, StoreError};
use tokio::sync::{Notify, mpsc};

use crate::background::LoopBoard;
use crate::clock::Clock;
use crate::cluster::{AppSwitches, DatabaseWatch, Departing, Membership};
use crate::config::EngineConfig;
use crate::counters::Counters;
use crate::declared::Board;
use crate::definitions::Definitions;
use crate::dispatch::results::ResultLanes;
use crate::dispatch::results::foreign::ForeignQueue;
use crate::dispatch::{self, Event};
use crate::gateway::{LogReaders, SentRuns};
use crate::log_limit::LogLimit;
use crate::metrics::Metrics;
use crate::progress::ProgressBoard;
use crate::registry::Registry;
use crate::scheduler::in_memory::{Awaiting, InMemory};
use crate::scheduler::share::ClaimCounts;
use crate::scheduler::tick::Command;

/// Shards of one broadcast that a cancel reaches.
const SHARD_COUNT_MAX: u32 = 10_000;

/// What the loops share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) config: EngineConfig,
    pub(crate) clock: Clock,
    pub(crate) membership: Membership,
    pub(crate) definitions: Definitions,
    pub(crate) in_memory: InMemory,
    pub(crate) awaiting: Awaiting,
    pub(crate) registry: Registry,
    pub(crate) progress: ProgressBoard,
    pub(crate) log_readers: LogReaders,
    pub(crate) sent_runs: SentRuns,
    pub(crate) log_limit: LogLimit,
    pub(crate) counters: Counters,
    pub(crate) metrics: Metrics,
    pub(crate) declared: Board,
    pub(crate) results: ResultLanes,
    pub(crate) foreign: ForeignQueue,
    pub(crate) scan_poke: Notify,
    pub(crate) adopt_poke: Notify,
    pub(crate) tick: mpsc::Sender<Command>,
    pub(crate) events: mpsc::Sender<Event>,
    pub(crate) beat_poke: Notify,
    pub(crate) database: DatabaseWatch,
    pub(crate) apps: AppSwitches,
    pub(crate) departing: Departing,
    pub(crate) claims: ClaimCounts,
    /// What came of the loops' last ticks.
    pub(crate) loops: LoopBoard,
    /// Until when jobs are quiet, since the database's clock stepped back; in milliseconds.
    pub(crate) quiet_until_ms: AtomicI64,
    pub(crate) draining: AtomicBool,
    /// What was open when this node started has been looked for.
    pub(crate) adopted: AtomicBool,
}

impl Shared {
    /// The scan may begin: what it claims comes after what was open already.
    pub(crate) fn note_adopted(&self) {
        if !self.adopted.swap(true, Ordering::AcqRel) {
            self.scan_poke.notify_one();
        }
    }

    pub(crate) fn has_adopted(&self) -> bool {
        self.adopted.load(Ordering::Acquire)
    }

    /// Puts durable open runs into the ring, unless they are in memory already.
    pub(crate) async fn put(&self, runs: Vec<Run>) {
        let new = self.in_memory.admit(runs);
        if !new.is_empty() {
            // A closed ring means that the process ends: the runs are durable.
            drop(self.tick.send(Command::Put(new)).await);
        }
    }

    /// The same of runs some of which may be another home's: that one finds them.
    pub(crate) async fn put_own(&self, runs: Vec<Run>) {
        let token = self.membership.token();
        self.put(runs.into_iter().filter(|run| (run.node, run.node_epoch) == (token.node, token.epoch)).collect())
            .await;
    }

    /// The shards of a broadcast that have no verdict yet.
    pub(crate) async fn open_shards(&self, root: &Run) -> Result<Vec<Run>, StoreError> {
        if root.shard_index != BROADCAST || root.shard_total.is_none() {
            return Ok(Vec::new());
        }
        let query = RunQuery { parent: Some(root.id), limit: SHARD_COUNT_MAX, ..RunQuery::default() };
        let mut shards = self.store.list_runs(root.namespace, &query).await?;
        shards.retain(|shard| !shard.status.is_terminal());
        Ok(shards)
    }

    /// When a loop first looks: nodes that start together do so at different moments of the period.
    pub(crate) fn first_look(&self, period: Duration) -> Duration {
        let token = self.membership.token();
        let epoch = i32::try_from(token.epoch).unwrap_or(i32::MAX);
        period.mul_f64(0.1 + 0.9 * dispatch::jitter(RunId::new(token.node.get()), epoch))
    }

    pub(crate) fn lane_count(&self) -> usize {
        if self.store.is_single_server() { 1 } else { self.config.lanes.max(1) }
    }

    /// Whether this process is on its way out.
    pub(crate) fn is_leaving(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// The database's clock stepped back: nothing is due again before it has come to where it was.
    pub(crate) fn note_quiet(&self, until: Timestamp) {
        self.quiet_until_ms.fetch_max(until.as_millis(), Ordering::Relaxed);
    }

    /// The latest that the database's clock is known to have been: the present, unless it stepped back.
    pub(crate) fn reached(&self) -> Timestamp {
        self.quiet_until().unwrap_or_else(|| self.clock.now())
    }

    pub(crate) fn quiet_until(&self) -> Option<Timestamp> {
        let until = Timestamp::from_millis(self.quiet_until_ms.load(Ordering::Relaxed));
        (until > self.clock.now()).then_some(until)
    }
}
