//! Fence questions through other servers: those that this server asked, and those that others asked it.
//!
//! An answer counts for the leases of its question, until the next roll call, which asks every executor again.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

use rondel_core::{ExecutorId, NodeId, RunId, Timestamp};
use rondel_store::LeaseToken;
use rondel_store::ledger::{FenceRequest, RelayedAnswer};

use crate::dispatch::executors::Executors;

/// How long executors have to connect by themselves before other servers are asked.
const ASK_AFTER: Duration = Duration::from_secs(2);
/// How long after a question was asked it is repeated, if it was not answered.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(10);
/// How many executors are asked in one round.
const ASK_MAX: usize = 200;

/// The questions that this server asked through others.
#[derive(Debug, Default)]
pub(crate) struct RelayedQuestions {
    called_at: Option<Timestamp>,
    asked: BTreeMap<ExecutorId, FenceInquiry>,
    /// When the newest of all questions was asked, so that no two have the same instant.
    last_asked_at: Option<Timestamp>,
}

#[derive(Debug)]
struct FenceInquiry {
    at: Timestamp,
    leases: BTreeMap<NodeId, i64>,
    answer: Option<Answered>,
}

#[derive(Debug)]
struct Answered {
    name: String,
    held: HashSet<(RunId, i32)>,
}

impl FenceInquiry {
    fn covers(&self, leases: &BTreeMap<NodeId, i64>) -> bool {
        leases.iter().all(|(node, epoch)| self.leases.get(node).is_some_and(|asked| asked >= epoch))
    }
}

impl RelayedQuestions {
    /// Begins a roll call: earlier answers do not count.
    pub(crate) fn call(&mut self, now: Timestamp) {
        self.called_at = Some(now);
        self.asked.clear();
    }

    /// Whether another server asked this executor about all of these leases and had its answer.
    pub(crate) fn has_answered(&self, executor: ExecutorId, leases: &BTreeMap<NodeId, i64>) -> bool {
        self.asked.get(&executor).is_some_and(|asked| asked.answer.is_some() && asked.covers(leases))
    }

    /// The attempts at executors that are not connected here, by the answers that cover these leases.
    pub(crate) fn held<'a>(
        &'a self,
        leases: &'a BTreeMap<NodeId, i64>,
        executors: &'a Executors,
    ) -> impl Iterator<Item = (ExecutorId, &'a HashSet<(RunId, i32)>)> {
        let is_elsewhere = |id: &ExecutorId| executors.get(*id).is_none();
        let answers = self.asked.iter().filter(move |(id, asked)| is_elsewhere(id) && asked.covers(leases));
        answers.filter_map(|(id, asked)| Some((*id, &asked.answer.as_ref()?.held)))
    }

    /// The name of an executor at the server that relayed its answer.
    pub(crate) fn name(&self, executor: ExecutorId) -> Option<&str> {
        self.asked.get(&executor)?.answer.as_ref().map(|answer| answer.name.as_str())
    }

    /// The questions to these executors that are due now.
    pub(crate) fn ask(
        &mut self,
        asker: NodeId,
        executors: &BTreeSet<ExecutorId>,
        leases: &BTreeMap<NodeId, i64>,
        now: Timestamp,
    ) -> Vec<FenceRequest> {
        if self.called_at.is_none_or(|called_at| called_at + ASK_AFTER > now) {
            return Vec::new();
        }
        self.asked.retain(|executor, _| executors.contains(executor));
        let is_due = |executor: &ExecutorId| {
            let asked = self.asked.get(executor);
            asked.is_none_or(|asked| {
                !asked.covers(leases) || (asked.answer.is_none() && asked.at + ASK_AGAIN_AFTER <= now)
            })
        };
        let due: Vec<ExecutorId> = executors.iter().copied().filter(is_due).take(ASK_MAX).collect();
        if due.is_empty() {
            return Vec::new();
        }
        let after_last = self.last_asked_at.map_or(now, |last| last + Duration::from_millis(1));
        let at = now.max(after_last);
        self.last_asked_at = Some(at);
        let tokens: Vec<LeaseToken> =
            leases.iter().map(|(node, epoch)| LeaseToken { node: *node, epoch: *epoch }).collect();
        let request = |executor: ExecutorId| {
            self.asked.insert(executor, FenceInquiry { at, leases: leases.clone(), answer: None });
            FenceRequest { asker, executor, asked_at: at, leases: tokens.clone() }
        };
        due.into_iter().map(request).collect()
    }

    /// Takes an answer; false if it is not about the newest question, or if that has been answered already.
    pub(crate) fn answered(&mut self, answer: RelayedAnswer) -> bool {
        let is_this = |asked: &&mut FenceInquiry| asked.at == answer.asked_at && asked.answer.is_none();
        let Some(asked) = self.asked.get_mut(&answer.executor).filter(is_this) else { return false };
        asked.answer = Some(Answered { name: answer.name, held: answer.held.into_iter().collect() });
        true
    }
}

/// The questions of other servers that executors connected here have still to answer.
#[derive(Debug, Default)]
pub(crate) struct Relays(Vec<Relayed>);

#[derive(Debug)]
struct Relayed {
    request: FenceRequest,
    missing: BTreeMap<NodeId, i64>,
}

impl Relays {
    /// Whether a server waits for this executor's answer about the lease.
    pub(crate) fn asks(&self, executor: ExecutorId, lease: LeaseToken) -> bool {
        let is_it = |relayed: &Relayed| {
            relayed.request.executor == executor && relayed.missing.get(&lease.node) == Some(&lease.epoch)
        };
        self.0.iter().any(is_it)
    }

    /// The questions of other servers that this answer completes.
    pub(crate) fn complete(&mut self, executor: ExecutorId, lease: LeaseToken) -> Vec<FenceRequest> {
        for relayed in self.0.iter_mut().filter(|relayed| relayed.request.executor == executor) {
            relayed.missing.retain(|node, epoch| *node != lease.node || *epoch > lease.epoch);
        }
        let is_complete = |relayed: &mut Relayed| relayed.request.executor == executor && relayed.missing.is_empty();
        self.0.extract_if(.., is_complete).map(|relayed| relayed.request).collect()
    }

    /// Takes the questions that other servers now ask of executors that are connected here, and forgets those that no server asks any more.
    /// Returns the fences to send, each with its executor.
    pub(crate) fn take(&mut self, requests: Vec<FenceRequest>) -> Vec<(ExecutorId, LeaseToken)> {
        let mut before = std::mem::take(&mut self.0);
        let mut fences = Vec::new();
        for request in requests {
            let known = before.iter().position(|relayed| relayed.request == request);
            let missing: BTreeMap<NodeId, i64> = match known {
                Some(place) => before.swap_remove(place).missing,
                None => request.leases.iter().map(|lease| (lease.node, lease.epoch)).collect(),
            };
            let lease = |(node, epoch): (&NodeId, &i64)| LeaseToken { node: *node, epoch: *epoch };
            fences.extend(missing.iter().map(|missing| (request.executor, lease(missing))));
            self.0.push(Relayed { request, missing });
        }
        fences
    }
}
