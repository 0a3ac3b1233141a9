//! One executor's side of a stream, and the other types that its run table needs: a run, its log, and the intake.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, OnceLock};

use rondel::pump::mailbox::OrderMailbox;
use rondel::table::{Intake, LinkItem, RunKey, TableLink, TableLog, TableRun};
use rondel_core::{JobId, Timestamp};
use rondel_proto::v1;
use rondel_proto::v1::executor_message::Body;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::world::lock;

/// Why a run must end although its handler has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopCause {
    Cancelled,
    TimedOut,
    Silence,
}

/// The numbers of triggers that this process refused.
pub(crate) type RefusedFences = Arc<Mutex<BTreeSet<i64>>>;

/// A stream to one node. Each item is sent as a separate message.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) id: u64,
    pub(crate) node_id: i64,
    pub(crate) up: mpsc::UnboundedSender<v1::ExecutorMessage>,
    pub(crate) refused_fences: RefusedFences,
}

impl Link {
    /// Sends the goodbye of an executor that has drained.
    pub(crate) fn send_goodbye(&self) {
        self.up.send(v1::ExecutorMessage { body: Some(Body::Goodbye(v1::Goodbye {})) }).ok();
    }
}

impl TableLink for Link {
    fn id(&self) -> u64 {
        self.id
    }

    fn node_id(&self) -> i64 {
        self.node_id
    }

    fn has_log_room(&self) -> bool {
        true
    }

    fn extend(&self, items: impl IntoIterator<Item = LinkItem>) {
        for item in items {
            let body = match item {
                LinkItem::Reply(reply) => {
                    if reply.kind() == v1::reply::Kind::Refused {
                        lock(&self.refused_fences).insert(reply.fence_n);
                    }
                    Body::Replies(v1::Replies { replies: vec![reply] })
                }
                LinkItem::Log(chunk) => Body::Logs(v1::Logs { chunks: vec![chunk] }),
                LinkItem::Result(result) => Body::Results(v1::Results { results: vec![result] }),
                LinkItem::Probe(replies) => Body::ProbeReplies(replies),
                LinkItem::Fence(reply) => Body::FenceReply(reply),
                LinkItem::Pump(report) => Body::PumpReports(v1::PumpReports { reports: vec![report] }),
                LinkItem::Script(request) => Body::ScriptRequest(request),
                LinkItem::Draining => Body::Draining(v1::Draining {}),
            };
            // If the stream is gone, its session ends automatically.
            self.up.send(v1::ExecutorMessage { body: Some(body) }).ok();
        }
    }
}

/// An accepted run.
#[derive(Clone, Debug)]
pub(crate) struct RunHandle(Arc<HeldRun>);

#[derive(Debug)]
pub(crate) struct HeldRun {
    pub(crate) trigger: v1::Trigger,
    /// The node that sent it, and the epoch of that node's lease.
    pub(crate) origin: (i64, i64),
    /// The highest fenced epoch of that node when the run arrived.
    pub(crate) fenced_epoch: Option<i64>,
    /// The id of the [`Link`] on which it arrived.
    link_id: u64,
    /// When its handler began, by the database's clock and by a clock without steps.
    pub(crate) started_at: OnceLock<(Timestamp, tokio::time::Instant)>,
    first_stop_cause: Mutex<Option<StopCause>>,
    pub(crate) stop_token: CancellationToken,
    log: Arc<NoLog>,
    /// The mailbox for orders, if the run is a group of a pump job.
    pub(crate) mailbox: OrderMailbox,
}

impl std::ops::Deref for RunHandle {
    type Target = HeldRun;

    fn deref(&self) -> &HeldRun {
        &self.0
    }
}

impl HeldRun {
    /// Stops the run; the first cause counts.
    pub(crate) fn stop(&self, cause: StopCause) {
        lock(&self.first_stop_cause).get_or_insert(cause);
        self.stop_token.cancel();
    }

    pub(crate) fn stop_cause(&self) -> Option<StopCause> {
        *lock(&self.first_stop_cause)
    }
}

impl TableRun for RunHandle {
    type Log = NoLog;

    fn key(&self) -> RunKey {
        RunKey::new(self.trigger.run_id, self.trigger.attempt)
    }

    fn job_id(&self) -> JobId {
        JobId::new(self.trigger.job_id)
    }

    fn fence_n(&self) -> i64 {
        self.trigger.fence_n
    }

    fn link_id(&self) -> u64 {
        self.link_id
    }

    fn log(&self) -> &Arc<NoLog> {
        &self.log
    }

    fn started_at_ms(&self) -> Option<i64> {
        self.started_at.get().map(|(started_at, _)| started_at.as_millis())
    }

    fn running_ms(&self) -> i64 {
        let running_for = self.started_at.get().map(|(_, started_at)| started_at.elapsed());
        running_for.map_or(0, |length| i64::try_from(length.as_millis()).unwrap_or(i64::MAX).max(1))
    }

    fn started_after_ms(&self) -> i64 {
        0
    }

    fn should_end(&self, _: std::time::Instant) -> bool {
        false
    }
}

/// The log of a simulated handler, which writes no lines.
#[derive(Debug)]
pub(crate) struct NoLog;

impl TableLog for NoLog {
    fn link_id(&self) -> u64 {
        0
    }

    fn has_chunks(&self) -> bool {
        false
    }

    fn has_unsent(&self) -> bool {
        false
    }

    fn collect(&self, _: u64, _: bool) -> Vec<v1::LogChunk> {
        Vec::new()
    }

    fn record_ack(&self, _: i64) {}

    fn close(self: &Arc<Self>) {}
}

/// The origin of triggers that arrived together.
pub(crate) struct Arrival {
    /// The node that sent them, and the epoch of that node's lease.
    pub(crate) origin: (i64, i64),
    /// The highest fenced epoch of that node.
    pub(crate) fenced_epoch: Option<i64>,
}

impl Intake for Arrival {
    type Run = RunHandle;

    fn has_handler(&self, _: &str) -> bool {
        true
    }

    fn make_run(&self, trigger: v1::Trigger, link_id: u64) -> RunHandle {
        RunHandle(Arc::new(HeldRun {
            trigger,
            origin: self.origin,
            fenced_epoch: self.fenced_epoch,
            link_id,
            started_at: OnceLock::new(),
            first_stop_cause: Mutex::default(),
            stop_token: CancellationToken::new(),
            log: Arc::new(NoLog),
            mailbox: OrderMailbox::default(),
        }))
    }
}
