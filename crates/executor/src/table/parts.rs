//! The interfaces that the table works with: a run, its log, a stream, and the intake of triggers.

use std::sync::Arc;
use std::time::Instant;

use rondel_core::JobId;
use rondel_proto::v1::{self, FenceReply, LogChunk, ProbeReplies, PumpReport, Reply, ScriptRequest, Trigger};

use super::RunKey;

/// A run as the table sees it.
pub trait TableRun: Clone {
    /// The type of the run's log.
    type Log: TableLog;

    /// The ids of the run and the attempt.
    fn key(&self) -> RunKey;
    /// The id of the job that the run belongs to.
    fn job_id(&self) -> JobId;
    /// The fencing number of the run's trigger.
    fn fence_n(&self) -> i64;
    /// The id of the stream that the run is reported on; 0 for none.
    fn link_id(&self) -> u64;
    /// The log of the run's attempt.
    fn log(&self) -> &Arc<Self::Log>;
    /// When the handler began, in milliseconds by the server's clock; `None` before.
    fn started_at_ms(&self) -> Option<i64>;
    /// For how many milliseconds the handler has been running, at least 1; 0 before it begins.
    fn running_ms(&self) -> i64;
    /// How many milliseconds after the arrival of the trigger the handler began; 0 before.
    fn started_after_ms(&self) -> i64;
    /// Whether the run was asked to stop, or its timeout has passed.
    fn should_end(&self, now: Instant) -> bool;
}

/// The log of one attempt. Its chunks are kept until a server acknowledges them.
pub trait TableLog {
    /// The id of the stream that has the log's chunks, or will get them; 0 for none.
    fn link_id(&self) -> u64;
    /// Whether chunks wait for an acknowledgement.
    fn has_chunks(&self) -> bool;
    /// Whether lines wait to be sent.
    fn has_unsent(&self) -> bool;
    /// The chunks that this stream does not have yet, up to a limit of unacknowledged bytes; with `flush`, all of them.
    fn collect(&self, link_id: u64, flush: bool) -> Vec<LogChunk>;
    /// Forgets the chunks up to this one, which a server has acknowledged.
    fn record_ack(&self, sequence: i64);
    /// Accepts no more lines.
    fn close(self: &Arc<Self>);
}

/// A stream to one server. Messages are sent in the order in which they are added.
pub trait TableLink {
    /// The stream's id; never 0.
    fn id(&self) -> u64;
    /// The server's node id.
    fn node_id(&self) -> i64;
    /// Whether the stream takes more chunks of logs now.
    fn has_log_room(&self) -> bool;
    /// Adds messages.
    fn extend(&self, items: impl IntoIterator<Item = LinkItem>);

    /// Adds a message.
    fn push(&self, item: LinkItem) {
        self.extend([item]);
    }
}

/// What the table needs to accept triggers: whether the program has the handler, and the run that a trigger becomes.
pub trait Intake {
    /// The type of the runs.
    type Run: TableRun;

    /// Whether the program has this handler.
    fn has_handler(&self, name: &str) -> bool;
    /// Makes the run of an accepted trigger, to be reported on this stream.
    fn make_run(&self, trigger: Trigger, link_id: u64) -> Self::Run;
}

/// One item in the queue of a stream to a server. A message can carry several of them.
#[derive(Debug)]
pub enum LinkItem {
    /// A reply about a trigger, a start or progress.
    Reply(Reply),
    /// Lines of a log.
    Log(LogChunk),
    /// The end of an attempt.
    Result(v1::Result),
    /// The answer to a probe: which of its jobs could start a run here immediately.
    Probe(ProbeReplies),
    /// The attempts that the executor holds or has finished, as the answer to a fence.
    Fence(FenceReply),
    /// The report of a group of a pump job on its items.
    Pump(PumpReport),
    /// A request for the script that a run names.
    Script(ScriptRequest),
    /// No more triggers are accepted.
    Draining,
}
