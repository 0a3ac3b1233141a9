//! What an executor knows of its runs: a model of the SDK's desk, with the same judgements and none of its speed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rondel_failpoint::mutant::{self, Mutant};
use rondel_proto::v1::executor_message::Body;
use rondel_proto::v1::{self, RefusedWhy};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// A run and its attempt.
pub(crate) type Key = (i64, i32);

const RESEND_AFTER: Duration = Duration::from_secs(1);
const DOUBLINGS_MAX: u32 = 3;

/// Why a run should end before its handler does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    Cancelled,
    TimedOut,
    Silence,
}

#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) trigger: v1::Trigger,
    pub(crate) origin: (i64, i64),
    /// The highest epoch of that node that was refused when it came.
    pub(crate) fenced: Option<i64>,
    pub(crate) link: u64,
    pub(crate) since: Option<Instant>,
    /// When it has been queued for too long to begin.
    begin_until: Option<Instant>,
    pub(crate) is_announced: bool,
    pub(crate) stop: Option<Stop>,
    pub(crate) stopping: CancellationToken,
}

#[derive(Clone, Debug)]
struct Unacked {
    result: v1::Result,
    link: u64,
    tries: u32,
    resend_at: Option<Instant>,
    /// It went through the journal.
    ready: bool,
}

/// A stream to one node.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    pub(crate) node_id: i64,
    pub(crate) up: mpsc::UnboundedSender<v1::ExecutorMessage>,
}

impl Link {
    pub(crate) fn send(&self, body: Body) {
        // Where the stream is gone, its session ends by itself.
        self.up.send(v1::ExecutorMessage { body: Some(body) }).ok();
    }

    fn reply(&self, key: Key, kind: v1::reply::Kind) {
        self.send_reply(v1::Reply { kind: kind.into(), run_id: key.0, attempt: key.1, ..v1::Reply::default() });
    }

    fn refuse(&self, key: Key, why: RefusedWhy, fence_n: i64) {
        let (kind, refused) = (v1::reply::Kind::Refused.into(), why.into());
        self.send_reply(v1::Reply { kind, run_id: key.0, attempt: key.1, refused, fence_n, ..v1::Reply::default() });
    }

    fn send_reply(&self, reply: v1::Reply) {
        self.send(Body::Replies(v1::Replies { replies: vec![reply] }));
    }
}

#[derive(Debug, Default)]
pub(crate) struct Desk {
    slots: usize,
    pub(crate) held: BTreeMap<Key, Held>,
    queue: Vec<Key>,
    unacked: BTreeMap<Key, Unacked>,
    recent: BTreeMap<Key, v1::Result>,
    /// The numbers of triggers that were refused.
    refused: BTreeSet<i64>,
    pub(crate) fences: BTreeMap<i64, i64>,
    pub(crate) links: BTreeMap<u64, Link>,
}

enum Answer {
    Accept,
    Held,
    Unacked,
    Done(Box<v1::Result>),
    Refuse(RefusedWhy),
}

impl Desk {
    pub(crate) fn new(slots: usize) -> Self {
        Self { slots, ..Self::default() }
    }

    /// Triggers came; gives the runs that begin now.
    pub(crate) fn offer(&mut self, link_id: u64, triggers: v1::Triggers) -> Vec<Key> {
        let Some(link) = self.links.get(&link_id).cloned() else { return Vec::new() };
        let origin = (triggers.node_id, triggers.node_epoch);
        for trigger in triggers.triggers {
            let key = (trigger.run_id, trigger.attempt);
            // A stream does not refuse the same twice: a server that sends that run again gives it another number.
            if self.refused.contains(&trigger.fence_n) {
                continue;
            }
            match self.judge(key, origin) {
                Answer::Accept => {
                    let begin_within = u64::try_from(trigger.begin_within_ms).ok().filter(|ms| *ms > 0);
                    let held = Held {
                        begin_until: begin_within.map(|ms| Instant::now() + Duration::from_millis(ms)),
                        trigger,
                        origin,
                        fenced: self.fences.get(&origin.0).copied(),
                        link: link_id,
                        since: None,
                        is_announced: false,
                        stop: None,
                        stopping: CancellationToken::new(),
                    };
                    self.held.insert(key, held);
                    self.queue.push(key);
                    link.reply(key, v1::reply::Kind::Accepted);
                }
                Answer::Held => link.reply(key, v1::reply::Kind::Accepted),
                Answer::Unacked => self.deliver_by(key, link_id),
                Answer::Done(result) => link.send(Body::Results(v1::Results { results: vec![*result] })),
                Answer::Refuse(why) => {
                    self.refused.insert(trigger.fence_n);
                    link.refuse(key, why, trigger.fence_n);
                }
            }
        }
        self.startable()
    }

    fn judge(&self, key: Key, (node, epoch): (i64, i64)) -> Answer {
        if !mutant::on(Mutant::NoDedupeOnExecutor) {
            if self.held.contains_key(&key) {
                return Answer::Held;
            }
            if self.unacked.contains_key(&key) {
                return Answer::Unacked;
            }
            if let Some(result) = self.recent.get(&key) {
                return Answer::Done(Box::new(result.clone()));
            }
        } else if self.held.contains_key(&key) {
            // Two handlers of one key at the same moment have no place in this model; one after the other have.
            return Answer::Held;
        }
        let is_fenced = self.fences.get(&node).is_some_and(|fenced| epoch <= *fenced);
        if is_fenced && !mutant::on(Mutant::NoFenceOnExecutor) {
            return Answer::Refuse(RefusedWhy::Fenced);
        }
        if self.held.len() >= self.slots + 4 {
            return Answer::Refuse(RefusedWhy::Full);
        }
        Answer::Accept
    }

    /// Hands back what has been queued here for too long to begin, to the server that sent it, by the stream that it came on.
    pub(crate) fn hand_back_expired(&mut self, now: Instant) {
        let is_over = |held: &Held| {
            let is_linked = self.links.contains_key(&held.link);
            is_linked && held.since.is_none() && held.begin_until.is_some_and(|until| until <= now)
        };
        let over: Vec<Key> = self.held.iter().filter(|(_, held)| is_over(held)).map(|(key, _)| *key).collect();
        for key in over {
            self.queue.retain(|queued| *queued != key);
            let Some(held) = self.held.remove(&key) else { continue };
            self.refused.insert(held.trigger.fence_n);
            if let Some(link) = self.links.get(&held.link) {
                link.refuse(key, RefusedWhy::Full, held.trigger.fence_n);
            }
        }
    }

    /// Those who wait and have a slot now.
    pub(crate) fn startable(&mut self) -> Vec<Key> {
        self.hand_back_expired(Instant::now());
        let mut begun = Vec::new();
        while !self.queue.is_empty() && self.held.len() - self.queue.len() < self.slots {
            let key = self.queue.remove(0);
            if let Some(held) = self.held.get_mut(&key) {
                held.since = Some(Instant::now());
                begun.push(key);
            }
        }
        begun
    }

    /// A handler ended; with a journal the result is kept back until it is in there.
    pub(crate) fn finish(&mut self, key: Key, result: v1::Result, is_journaled: bool) {
        let Some(held) = self.held.remove(&key) else { return };
        self.queue.retain(|queued| *queued != key);
        self.add(key, result, held.link);
        if !is_journaled {
            self.deliver(key);
        }
    }

    /// What is known of a result from before.
    pub(crate) fn add(&mut self, key: Key, result: v1::Result, link: u64) {
        self.unacked.insert(key, Unacked { result, link, tries: 0, resend_at: None, ready: false });
    }

    pub(crate) fn deliver(&mut self, key: Key) {
        if let Some(unacked) = self.unacked.get_mut(&key) {
            unacked.ready = true;
            let link = unacked.link;
            self.send(key, link);
        }
    }

    fn deliver_by(&mut self, key: Key, link: u64) {
        if self.unacked.get(&key).is_some_and(|unacked| unacked.ready) {
            self.send(key, link);
        }
    }

    fn send(&mut self, key: Key, wanted: u64) {
        let found = self.links.get_key_value(&wanted).or_else(|| self.links.first_key_value());
        let found = found.map(|(id, link)| (*id, link.clone()));
        let Some(unacked) = self.unacked.get_mut(&key) else { return };
        let Some((id, link)) = found else {
            (unacked.link, unacked.resend_at) = (0, None);
            return;
        };
        link.send(Body::Results(v1::Results { results: vec![unacked.result.clone()] }));
        unacked.resend_at = Some(Instant::now() + RESEND_AFTER * (1 << unacked.tries.min(DOUBLINGS_MAX)));
        unacked.tries += 1;
        unacked.link = id;
        if mutant::on(Mutant::ForgetResultWhenSent) {
            self.unacked.remove(&key);
        }
    }

    pub(crate) fn resend_due(&mut self, now: Instant) {
        let is_due = |unacked: &Unacked| unacked.ready && unacked.resend_at.is_some_and(|at| at <= now);
        let due: Vec<(Key, u64)> =
            self.unacked.iter().filter(|(_, one)| is_due(one)).map(|(key, one)| (*key, one.link)).collect();
        for (key, had) in due {
            let other = self.links.range(had + 1..).chain(self.links.range(..had)).next().map(|(id, _)| *id);
            self.send(key, other.unwrap_or(had));
        }
    }

    /// A server answered for a result. Gives the result where it was not answered for before.
    pub(crate) fn acked(&mut self, key: Key) -> Option<v1::Result> {
        let unacked = self.unacked.remove(&key)?;
        self.recent.insert(key, unacked.result.clone());
        Some(unacked.result)
    }

    pub(crate) fn fence(&mut self, fence: &v1::Fence) {
        let fenced = self.fences.entry(fence.node_id).or_insert(fence.node_epoch);
        *fenced = (*fenced).max(fence.node_epoch);
        // The server that has taken over what is queued here would not hear that it is handed back.
        self.held.values_mut().for_each(|held| held.begin_until = None);
    }

    /// Reports what is here of a node that is fenced.
    pub(crate) fn answer_fence(&mut self, link_id: u64, fence: &v1::Fence) {
        let Some(link) = self.links.get(&link_id).cloned() else { return };
        let (held, finished) = self.inventory();
        let reply = v1::FenceReply { node_id: fence.node_id, node_epoch: fence.node_epoch, held, finished };
        link.send(Body::FenceReply(reply));
        let unacked: Vec<Key> = self.unacked.keys().copied().collect();
        unacked.into_iter().for_each(|key| self.deliver_by(key, link_id));
    }

    pub(crate) fn free_jobs(&self, jobs: Vec<i64>) -> Vec<i64> {
        if !self.queue.is_empty() || self.held.len() >= self.slots {
            return Vec::new();
        }
        jobs.into_iter().filter(|job| self.held.values().all(|held| held.trigger.job_id != *job)).collect()
    }

    pub(crate) fn inventory(&self) -> (Vec<v1::RunRef>, Vec<v1::RunRef>) {
        let refer = |key: &Key| v1::RunRef { run_id: key.0, attempt: key.1 };
        (self.held.keys().map(refer).collect(), self.unacked.keys().map(refer).collect())
    }

    pub(crate) fn load(&self) -> (u32, u32) {
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        (count(self.held.len() - self.queue.len()), count(self.queue.len()))
    }

    pub(crate) fn link_up(&mut self, id: u64, link: Link) {
        self.links.insert(id, link);
        let stranded: Vec<Key> =
            self.unacked.iter().filter(|(_, one)| one.ready && one.link == 0).map(|(key, _)| *key).collect();
        stranded.into_iter().for_each(|key| self.send(key, id));
    }

    pub(crate) fn link_lost(&mut self, id: u64) {
        self.links.remove(&id);
        let stranded: Vec<Key> =
            self.unacked.iter().filter(|(_, one)| one.ready && one.link == id).map(|(key, _)| *key).collect();
        stranded.into_iter().for_each(|key| self.send(key, 0));
    }

    /// Asks these runs to stop; gives those that had not begun, which are over with it.
    pub(crate) fn stop(&mut self, cause: Stop, which: impl Fn(&Held) -> bool) -> Vec<(Key, v1::Trigger)> {
        let mut over = Vec::new();
        for (key, held) in self.held.iter_mut().filter(|(_, held)| held.stop.is_none() && which(held)) {
            held.stop = Some(cause);
            if held.since.is_none() {
                over.push((*key, held.trigger.clone()));
            } else {
                held.stopping.cancel();
            }
        }
        over
    }

    /// Announces those that have lasted.
    pub(crate) fn announce(&mut self, now: Instant, after: Duration) {
        let lasts = |held: &Held| !held.is_announced && held.since.is_some_and(|since| now >= since + after);
        for (key, held) in self.held.iter_mut().filter(|(_, held)| lasts(held)) {
            held.is_announced = true;
            let link = self.links.get(&held.link).or_else(|| self.links.values().next());
            if let Some(link) = link {
                link.reply(*key, v1::reply::Kind::Started);
            }
        }
    }
}
