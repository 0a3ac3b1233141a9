//! The messages that wait for one server's stream.

use std::collections::VecDeque;
use std::sync::Mutex;

use rondel_proto::v1::executor_message::Body;
use rondel_proto::v1::{
    self, Draining, ExecutorMessage, LogChunk, Logs, PumpReport, PumpReports, Replies, Reply, Results,
};
use rondel_proto::{ITEM_COUNT_MAX, LINE_COUNT_MAX, encoded_len};
use tokio::sync::Notify;

use crate::lifecycle::lock;
use crate::table::{LinkItem, TableLink};

/// The largest number of items in one round of messages.
const BATCH_MAX: usize = 500;

/// Maximum encoded size of one round of messages, unless one item alone is larger. It is well below what a server
/// accepts in one message.
const BATCH_BYTES_MAX: usize = rondel_proto::MESSAGE_BYTES_MAX / 2;

/// Maximum size of the reports of groups in one message, in bytes, unless one report alone is larger.
const REPORTS_BYTES_MAX: usize = 500 * 1024;

/// Bytes that an item adds to its message beyond its own encoded size: its tag and its length.
const ITEM_OVERHEAD: usize = 8;

/// Maximum log bytes that wait for one stream. Further lines stay in the logs, which are bounded.
const LOG_BYTES_MAX: usize = 4 * 1024 * 1024;

/// The messages that wait for one open stream.
#[derive(Debug)]
pub(crate) struct Link {
    id: u64,
    node_id: i64,
    /// How many silences had exceeded the limit when this stream was opened. If another silence exceeds the limit, the
    /// stream must be reopened.
    pub(crate) silence_count: u64,
    queue: Mutex<Queue>,
    wake: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    items: VecDeque<LinkItem>,
    log_bytes: usize,
}

impl Link {
    pub(crate) fn new(id: u64, node_id: i64) -> Self {
        Self { id, node_id, silence_count: 0, queue: Mutex::default(), wake: Notify::new() }
    }

    pub(crate) fn with_silence_count(self, silence_count: u64) -> Self {
        Self { silence_count, ..self }
    }

    /// Resolves when a message is waiting to be sent.
    pub(crate) async fn wait_until_ready(&self) {
        while lock(&self.queue).items.is_empty() {
            self.wake.notified().await;
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.queue).items.is_empty()
    }

    /// The next round of messages. Within a round, logs and the reports of groups come before results, so that they are
    /// always on the stream before the result of their run.
    pub(crate) fn take(&self) -> Vec<ExecutorMessage> {
        let mut round = Round::default();
        let mut queue = lock(&self.queue);
        let (mut round_bytes, mut round_lines) = (0, 0);
        for _ in 0..BATCH_MAX {
            let Some(front_item) = queue.items.front() else { break };
            let (item_bytes, item_lines) = (encoded_size(front_item), line_count(front_item));
            let fits_in_round =
                round_bytes + item_bytes <= BATCH_BYTES_MAX && round_lines + item_lines <= LINE_COUNT_MAX;
            if round_bytes > 0 && !fits_in_round {
                break;
            }
            let Some(item) = queue.items.pop_front() else { break };
            (round_bytes, round_lines) = (round_bytes + item_bytes, round_lines + item_lines);
            if let LinkItem::Log(_) = item {
                queue.log_bytes -= item_bytes;
            }
            round.add(item);
        }
        drop(queue);
        round.into_messages()
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
        lock(&self.queue).log_bytes < LOG_BYTES_MAX
    }

    fn extend(&self, items: impl IntoIterator<Item = LinkItem>) {
        let mut queue = lock(&self.queue);
        for item in items {
            if let LinkItem::Log(_) = item {
                queue.log_bytes += encoded_size(&item);
            }
            queue.items.push_back(item);
        }
        drop(queue);
        self.wake.notify_one();
    }
}

/// The number of bytes that the item takes in its message.
fn encoded_size(item: &LinkItem) -> usize {
    ITEM_OVERHEAD
        + match item {
            LinkItem::Reply(reply) => encoded_len(reply),
            LinkItem::Log(chunk) => encoded_len(chunk),
            LinkItem::Result(result) => encoded_len(result),
            LinkItem::Probe(replies) => encoded_len(replies),
            LinkItem::Fence(reply) => encoded_len(reply),
            LinkItem::Pump(report) => encoded_len(report),
            LinkItem::Script(request) => encoded_len(request),
            LinkItem::Draining => 0,
        }
}

/// The number of log lines in the item.
fn line_count(item: &LinkItem) -> usize {
    match item {
        LinkItem::Log(chunk) => chunk.lines.len(),
        _ => 0,
    }
}

/// The items of one round, by kind of message.
#[derive(Default)]
struct Round {
    replies: Vec<Reply>,
    chunks: Vec<LogChunk>,
    pump_reports: Vec<PumpReport>,
    results: Vec<v1::Result>,
    other_bodies: Vec<Body>,
}

impl Round {
    fn add(&mut self, item: LinkItem) {
        match item {
            LinkItem::Reply(reply) => self.replies.push(reply),
            LinkItem::Log(chunk) => self.chunks.push(chunk),
            LinkItem::Result(result) => self.results.push(result),
            LinkItem::Probe(replies) => self.other_bodies.push(Body::ProbeReplies(replies)),
            LinkItem::Fence(reply) => self.other_bodies.push(Body::FenceReply(reply)),
            LinkItem::Pump(report) => self.pump_reports.push(report),
            LinkItem::Script(request) => self.other_bodies.push(Body::ScriptRequest(request)),
            LinkItem::Draining => self.other_bodies.push(Body::Draining(Draining {})),
        }
    }

    fn into_messages(self) -> Vec<ExecutorMessage> {
        let Self { replies, chunks, pump_reports, results, other_bodies } = self;
        let replies = (!replies.is_empty()).then_some(Body::Replies(Replies { replies }));
        let logs = (!chunks.is_empty()).then_some(Body::Logs(Logs { chunks }));
        let results = (!results.is_empty()).then_some(Body::Results(Results { results }));
        let pump_reports =
            split_reports(pump_reports).into_iter().map(|reports| Body::PumpReports(PumpReports { reports }));
        let bodies = replies.into_iter().chain(logs).chain(pump_reports).chain(results).chain(other_bodies);
        bodies.map(|body| ExecutorMessage { body: Some(body) }).collect()
    }
}

/// Splits reports into messages within a server's limits on the items and the bytes of one message.
fn split_reports(reports: Vec<PumpReport>) -> Vec<Vec<PumpReport>> {
    let mut messages: Vec<Vec<PumpReport>> = Vec::new();
    let (mut item_count, mut message_bytes) = (0, 0);
    for report in reports {
        // A server counts each report as one more item.
        let (report_items, report_bytes) = (report.items.len() + 1, encoded_len(&report) + ITEM_OVERHEAD);
        let fits_in_message =
            item_count + report_items <= ITEM_COUNT_MAX && message_bytes + report_bytes <= REPORTS_BYTES_MAX;
        match messages.last_mut() {
            Some(last_message) if fits_in_message => {
                last_message.push(report);
                (item_count, message_bytes) = (item_count + report_items, message_bytes + report_bytes);
            }
            _ => {
                messages.push(vec![report]);
                (item_count, message_bytes) = (report_items, report_bytes);
            }
        }
    }
    messages
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(run_id: i64) -> LinkItem {
        LinkItem::Result(v1::Result { run_id, ..v1::Result::default() })
    }

    #[test]
    fn a_round_is_bounded_and_logs_come_before_results() {
        let link = Link::new(1, 1);
        link.extend((0..600).map(result));
        link.push(LinkItem::Log(LogChunk::default()));
        link.push(result(600));
        let [first] = &link.take()[..] else { panic!("one message") };
        assert!(matches!(&first.body, Some(Body::Results(results)) if results.results.len() == BATCH_MAX));
        let second: Vec<Option<Body>> = link.take().into_iter().map(|message| message.body).collect();
        let [Some(Body::Logs(_)), Some(Body::Results(results))] = &second[..] else { panic!("{second:?}") };
        assert_eq!(results.results.len(), 101);
        assert!(link.is_empty());
    }

    #[test]
    fn a_round_of_big_results_is_cut_by_bytes() {
        let link = Link::new(1, 1);
        let big = "x".repeat(300_000);
        link.extend(
            (0..10).map(|run_id| LinkItem::Result(v1::Result { run_id, result: big.clone(), ..v1::Result::default() })),
        );
        let message = link.take().remove(0);
        assert!(matches!(&message.body, Some(Body::Results(results)) if results.results.len() == 3));
        assert!(encoded_len(&message) <= BATCH_BYTES_MAX);
    }

    #[test]
    fn no_message_is_larger_than_a_server_takes() {
        let link = Link::new(1, 1);
        // Lines without text, and results of the maximum size.
        let lines = vec![v1::LogLine { at_ms: i64::MAX, ..v1::LogLine::default() }; 2_000];
        for run_id in 0..40 {
            link.push(LinkItem::Log(LogChunk { run_id, lines: lines.clone(), ..LogChunk::default() }));
            let result = "x".repeat(256 * 1024);
            link.push(LinkItem::Result(v1::Result { run_id, result, ..v1::Result::default() }));
        }
        while !link.is_empty() {
            for message in link.take() {
                assert!(encoded_len(&message) <= BATCH_BYTES_MAX + ITEM_OVERHEAD, "{}", encoded_len(&message));
            }
        }
    }

    #[test]
    fn a_round_of_short_lines_is_cut_by_their_number() {
        let link = Link::new(1, 1);
        let chunk = LogChunk { lines: vec![v1::LogLine::default(); 2_000], ..LogChunk::default() };
        link.extend((0..60).map(|_| LinkItem::Log(chunk.clone())));
        let mut line_counts = Vec::new();
        while !link.is_empty() {
            line_counts.extend(link.take().into_iter().map(|message| match message.body {
                Some(Body::Logs(logs)) => logs.chunks.iter().map(|chunk| chunk.lines.len()).sum::<usize>(),
                _ => 0,
            }));
        }
        assert_eq!(line_counts, [LINE_COUNT_MAX, LINE_COUNT_MAX, 20_000]);
    }

    #[test]
    fn reports_of_groups_are_in_messages_that_a_server_takes() {
        let link = Link::new(1, 1);
        let progress = v1::PumpProgress { checkpoint: "x".repeat(200), ..v1::PumpProgress::default() };
        for run_id in 0..40 {
            let items = vec![progress.clone(); if run_id < 20 { 250 } else { 900 }];
            link.push(LinkItem::Pump(PumpReport { run_id, items, ..PumpReport::default() }));
        }
        let mut run_ids = Vec::new();
        while !link.is_empty() {
            for message in link.take() {
                let Some(Body::PumpReports(PumpReports { reports })) = &message.body else { panic!("{message:?}") };
                let items: usize = reports.iter().map(|report| report.items.len() + 1).sum();
                assert!(
                    items <= ITEM_COUNT_MAX && encoded_len(&message) <= REPORTS_BYTES_MAX + ITEM_OVERHEAD,
                    "{items}"
                );
                run_ids.extend(reports.iter().map(|report| report.run_id));
            }
        }
        assert_eq!(run_ids, (0..40).collect::<Vec<_>>());
    }
}
