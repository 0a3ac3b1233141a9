//! The parts that the table works with and does not implement: a run, its log, a stream.

use std::sync::Arc;
use std::time::Instant;

use rondel_core::JobId;
use rondel_proto::v1::{self, FenceReply, LogChunk, ProbeReplies, PumpReport, Reply, ScriptRequest, Trigger};

use super::RunKey;

/// A run as the table sees it.
pub trait TableRun: Clone {
    /// Its log.
    type Log: TableLog;

    /// Its run and attempt.
    fn key(&self) -> RunKey;
    /// Its job.
    fn job_id(&self) -> JobId;
    /// The number of its trigger.
    fn fence_n(&self) -> i64;
    /// The stream that it is reported on; 0 for none.
    fn link(&self) -> u64;
    /// Its log.
    fn log(&self) -> &Arc<Self::Log>;
    /// When its handler began, in milliseconds by the server's clock; `None` before.
    fn started_at_ms(&self) -> Option<i64>;
    /// How many milliseconds after the arrival of its trigger its handler began; 0 before.
    fn started_after_ms(&self) -> i64;
    /// Whether it was asked to stop, or its time is over.
    fn should_end(&self, now: Instant) -> bool;
}

/// The log of one attempt. Its chunks are kept until a server acknowledges them.
pub trait TableLog {
    /// The stream that has its chunks, or is to get them; 0 for none.
    fn link(&self) -> u64;
    /// Whether chunks wait for an acknowledgement.
    fn has_chunks(&self) -> bool;
    /// Whether lines wait to be sent.
    fn has_unsent(&self) -> bool;
    /// The chunks that this stream does not have yet; `whole` includes an unfinished one.
    fn collect(&self, link: u64, whole: bool) -> Vec<LogChunk>;
    /// A server has the chunks up to this one.
    fn acked(&self, sequence: i64);
    /// Accepts no more lines.
    fn close(self: &Arc<Self>);
}

/// A stream to one server. What is added is sent in order.
pub trait TableLink {
    /// Its number; never 0.
    fn id(&self) -> u64;
    /// The server's number.
    fn node_id(&self) -> i64;
    /// Whether it takes more chunks of logs now.
    fn has_log_room(&self) -> bool;
    /// Adds messages.
    fn extend(&self, items: impl IntoIterator<Item = Item>);

    /// Adds a message.
    fn push(&self, item: Item) {
        self.extend([item]);
    }
}

/// What a program decides about a trigger: whether it can run it, and the run that it makes of it.
pub trait Intake {
    /// The runs that it makes.
    type Run: TableRun;

    /// Whether the program has this handler.
    fn has_handler(&self, name: &str) -> bool;
    /// The run of an accepted trigger, reported on that stream.
    fn run(&self, trigger: Trigger, link: u64) -> Self::Run;
}

/// One message to a server.
#[derive(Debug)]
pub enum Item {
    /// About a trigger, a start or progress.
    Reply(Reply),
    /// Lines of a log.
    Log(LogChunk),
    /// The end of an attempt.
    Result(v1::Result),
    /// Jobs with a free slot.
    Probe(ProbeReplies),
    /// The attempts of a fenced server.
    Fence(FenceReply),
    /// The items of a group of a pump job.
    Pump(PumpReport),
    /// The script that a run names.
    Script(ScriptRequest),
    /// No more triggers are accepted.
    Draining,
}
