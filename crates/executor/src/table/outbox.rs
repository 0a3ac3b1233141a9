//! Results and logs, kept and sent again until a server has acknowledged them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rondel_failpoint::mutant::{self, Mutant};
use rondel_proto::v1::{self, Reply};

use super::recent::RecentResults;
use super::{LinkItem, RunKey, TableLink, TableLog};

/// How many results may wait for an acknowledgement before new runs are refused.
pub(super) const UNACKED_MAX: usize = 50_000;

/// How long a log waits for its own acknowledgement after its result has been acknowledged.
const UNACKED_LOG_AGE_MAX: Duration = Duration::from_secs(30);

/// The wait before a result is sent again doubles with each try, at most this many times.
const DOUBLINGS_MAX: u32 = 4;

/// Results and logs that no server has acknowledged.
#[derive(Debug)]
pub struct Outbox<G, L> {
    resend_after: Duration,
    links: BTreeMap<u64, Arc<L>>,
    unacked_results: BTreeMap<RunKey, UnackedResult<G>>,
    /// When each sent result is due to be sent again.
    resend_queue: BTreeSet<(Instant, RunKey)>,
    /// The logs of acknowledged results that still have unacknowledged chunks, each with the instant at which the
    /// result was acknowledged.
    unacked_logs: BTreeMap<RunKey, (Instant, Arc<G>)>,
    unacked_journaled_count: usize,
    recent_results: RecentResults,
}

/// A result that no server has acknowledged.
#[derive(Debug)]
struct UnackedResult<G> {
    result: v1::Result,
    log: Option<Arc<G>>,
    /// The id of the stream that has the result, or is to get it; 0 for none.
    link_id: u64,
    try_count: u32,
    resend_at: Option<Instant>,
    /// Whether the result is on disk.
    is_journaled: bool,
    /// Whether the result may be sent. With a journal, that is after the write of the result to the journal.
    is_ready: bool,
}

impl<G: TableLog, L: TableLink> Outbox<G, L> {
    pub(super) fn new(resend_after: Duration) -> Self {
        Self {
            resend_after,
            links: BTreeMap::new(),
            unacked_results: BTreeMap::new(),
            resend_queue: BTreeSet::new(),
            unacked_logs: BTreeMap::new(),
            unacked_journaled_count: 0,
            recent_results: RecentResults::default(),
        }
    }

    /// How many results wait for an acknowledgement.
    #[must_use]
    pub fn unacked_count(&self) -> usize {
        self.unacked_results.len()
    }

    /// How many results on disk wait for an acknowledgement; at 0 the journal may be emptied.
    #[must_use]
    pub fn unacked_journaled_count(&self) -> usize {
        self.unacked_journaled_count
    }

    /// The results on disk that wait for an acknowledgement.
    pub fn unacked_journaled(&self) -> impl Iterator<Item = &v1::Result> {
        self.unacked_results.values().filter(|entry| entry.is_journaled).map(|entry| &entry.result)
    }

    pub(super) fn unacked_keys(&self) -> impl Iterator<Item = RunKey> {
        self.unacked_results.keys().copied()
    }

    /// Whether a result of the attempt waits for an acknowledgement.
    #[must_use]
    pub fn is_unacked(&self, key: RunKey) -> bool {
        self.unacked_results.contains_key(&key)
    }

    /// The result of the attempt, if no server has acknowledged it.
    #[must_use]
    pub fn unacked_result(&self, key: RunKey) -> Option<&v1::Result> {
        self.unacked_results.get(&key).map(|entry| &entry.result)
    }

    /// A result that a server acknowledged recently, without its texts.
    pub(super) fn recent_result(&self, key: RunKey) -> Option<&v1::Result> {
        self.recent_results.get(key)
    }

    /// The open streams.
    pub fn links(&self) -> impl Iterator<Item = &Arc<L>> {
        self.links.values()
    }

    /// The preferred stream or, if it has ended, any open one.
    pub(super) fn route(&self, preferred_link_id: u64) -> Option<&Arc<L>> {
        self.links.get(&preferred_link_id).or_else(|| self.links.values().next())
    }

    pub(super) fn reply(&self, preferred_link_id: u64, reply: Reply) {
        if let Some(link) = self.route(preferred_link_id) {
            link.push(LinkItem::Reply(reply));
        }
    }
}

// Results that wait for an acknowledgement.
impl<G: TableLog, L: TableLink> Outbox<G, L> {
    /// Adds a result. [`Self::deliver`] sends it: immediately or, with a journal, after the write to the journal.
    pub(super) fn add(&mut self, key: RunKey, result: v1::Result, log: Option<Arc<G>>, link_id: u64) {
        let entry =
            UnackedResult { result, log, link_id, try_count: 0, resend_at: None, is_journaled: false, is_ready: false };
        self.unacked_results.insert(key, entry);
    }

    /// Adds a result from the journal of an earlier process.
    pub fn restore(&mut self, result: v1::Result) {
        let key = RunKey::new(result.run_id, result.attempt);
        let entry = UnackedResult {
            result,
            log: None,
            link_id: 0,
            try_count: 0,
            resend_at: None,
            is_journaled: true,
            is_ready: true,
        };
        if self.unacked_results.insert(key, entry).is_none() {
            self.unacked_journaled_count += 1;
        }
    }

    /// Marks a result as written to disk.
    pub(super) fn mark_journaled(&mut self, key: RunKey) {
        if let Some(entry) = self.unacked_results.get_mut(&key)
            && !entry.is_journaled
        {
            entry.is_journaled = true;
            self.unacked_journaled_count += 1;
        }
    }

    /// Sends the result: on the stream by which the run arrived if that is open, else on another one.
    pub(super) fn deliver(&mut self, key: RunKey, now: Instant) {
        let Some(entry) = self.unacked_results.get_mut(&key) else { return };
        entry.is_ready = true;
        let preferred_link_id = entry.link_id;
        self.send(key, preferred_link_id, now);
    }

    /// Sends the result on this stream, even if another stream has it.
    pub(super) fn deliver_on_link(&mut self, key: RunKey, link_id: u64, now: Instant) {
        if self.unacked_results.get(&key).is_some_and(|entry| entry.is_ready) {
            self.send(key, link_id, now);
        }
    }

    /// Sends the chunks of the log that the stream lacks, and then the result.
    fn send(&mut self, key: RunKey, preferred_link_id: u64, now: Instant) {
        let link = self.route(preferred_link_id).cloned();
        let Some(entry) = self.unacked_results.get_mut(&key) else { return };
        if let Some(resend_at) = entry.resend_at.take() {
            self.resend_queue.remove(&(resend_at, key));
        }
        let Some(link) = link else {
            entry.link_id = 0;
            return;
        };
        let chunks = entry.log.as_ref().map(|log| log.collect(link.id(), true)).unwrap_or_default();
        link.extend(chunks.into_iter().map(LinkItem::Log).chain([LinkItem::Result(entry.result.clone())]));
        let resend_at = now + self.resend_after * (1 << entry.try_count.min(DOUBLINGS_MAX));
        entry.link_id = link.id();
        entry.try_count += 1;
        entry.resend_at = Some(resend_at);
        self.resend_queue.insert((resend_at, key));
        if mutant::on(Mutant::ForgetResultWhenSent) {
            self.unacked_results.remove(&key);
        }
    }

    /// Resends the results that no server has acknowledged in time, each on another stream if there is one.
    pub fn resend_due(&mut self, now: Instant) {
        while let Some((at, key)) = self.resend_queue.first().copied() {
            if at > now {
                break;
            }
            self.resend_queue.pop_first();
            let previous_link_id = self.unacked_results.get_mut(&key).map_or(0, |entry| {
                entry.resend_at = None;
                entry.link_id
            });
            let next_link_id = self
                .links
                .range(previous_link_id + 1..)
                .chain(self.links.range(..previous_link_id))
                .next()
                .map(|(id, _)| *id);
            self.send(key, next_link_id.unwrap_or(previous_link_id), now);
        }
    }

    /// Forgets a result that a server has acknowledged, whatever the kind of the acknowledgement.
    pub(super) fn record_ack(&mut self, key: RunKey, now: Instant) {
        let Some(entry) = self.unacked_results.remove(&key) else { return };
        if let Some(resend_at) = entry.resend_at {
            self.resend_queue.remove(&(resend_at, key));
        }
        if entry.is_journaled {
            self.unacked_journaled_count -= 1;
        }
        if let Some(log) = entry.log.filter(|log| log.has_chunks()) {
            self.unacked_logs.insert(key, (now, log));
        }
        self.recent_results.insert(key, entry.result);
    }
}

// Logs whose chunks wait for an acknowledgement.
impl<G: TableLog, L: TableLink> Outbox<G, L> {
    /// Puts the new chunks of the log on a stream; `false` if some have to wait.
    pub fn send_log(&self, log: &G) -> bool {
        let Some(link) = self.route(log.link_id()).filter(|link| link.has_log_room()) else { return false };
        link.extend(log.collect(link.id(), false).into_iter().map(LinkItem::Log));
        !log.has_unsent()
    }

    pub(super) fn record_log_ack(&mut self, key: RunKey, sequence: i64) {
        let log = self.unacked_results.get(&key).and_then(|entry| entry.log.as_ref());
        if let Some(log) = log.or_else(|| self.unacked_logs.get(&key).map(|(_, log)| log)) {
            log.record_ack(sequence);
        }
        if self.unacked_logs.get(&key).is_some_and(|(_, log)| !log.has_chunks()) {
            self.unacked_logs.remove(&key);
        }
    }

    /// Drops logs that are still unacknowledged some time after their result was acknowledged.
    pub fn forget_logs(&mut self, now: Instant) {
        self.unacked_logs.retain(|_, (unacked_since, _)| now.duration_since(*unacked_since) < UNACKED_LOG_AGE_MAX);
    }

    pub(super) fn has_unacked_log(&self, key: RunKey) -> bool {
        self.unacked_logs.contains_key(&key)
    }

    /// Whether the log of any acknowledged result waits for its own acknowledgement.
    #[must_use]
    pub fn has_unacked_logs(&self) -> bool {
        !self.unacked_logs.is_empty()
    }
}

// The open streams.
impl<G: TableLog, L: TableLink> Outbox<G, L> {
    /// Adds a stream, and sends on it the results that no stream has.
    pub(super) fn add_link(&mut self, link: Arc<L>, now: Instant) {
        let id = link.id();
        self.links.insert(id, link);
        let waiting_keys: Vec<RunKey> = self
            .unacked_results
            .iter()
            .filter(|(_, entry)| entry.is_ready && entry.link_id == 0)
            .map(|(key, _)| *key)
            .collect();
        for key in waiting_keys {
            self.send(key, id, now);
        }
    }

    /// Removes a stream. Its results are sent on another one, or wait until there is one. Returns the logs to be sent again.
    pub(super) fn remove_link(&mut self, id: u64, now: Instant) -> Vec<Arc<G>> {
        self.links.remove(&id);
        let is_stranded = |entry: &UnackedResult<G>| entry.is_ready && entry.link_id == id;
        let stranded_keys: Vec<RunKey> =
            self.unacked_results.iter().filter(|(_, entry)| is_stranded(entry)).map(|(key, _)| *key).collect();
        for key in stranded_keys {
            self.send(key, 0, now);
        }
        self.unacked_logs.values().filter(|(_, log)| log.link_id() == id).map(|(_, log)| Arc::clone(log)).collect()
    }
}
