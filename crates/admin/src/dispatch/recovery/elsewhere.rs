//! Fences that servers send for each other: the questions that this server asked through other servers, and the questions that other servers asked
//! through this server.
//!
//! An answer counts for the leases of its question, until the next roll call, which asks every executor again.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

use rondel_core::{ExecutorId, NodeId, RunId, Timestamp};
use rondel_store::LeaseToken;
use rondel_store::ledger::{FenceRequest, RelayedAnswer};

use crate::dispatch::executors::Executors;

/// How long executors get to connect to this server before it asks other servers about them.
const ASK_AFTER: Duration = Duration::from_secs(2);
/// The delay before a question without an answer is asked again.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(10);
/// Maximum number of executors that are asked in one round.
const ASKED_COUNT_MAX: usize = 200;

/// The questions that this server asked through other servers.
#[derive(Debug, Default)]
pub(crate) struct RelayedQuestions {
    /// When the last roll call began.
    called_at: Option<Timestamp>,
    inquiries: BTreeMap<ExecutorId, FenceInquiry>,
    /// The instant of the newest question. The next question gets a later instant, so that no two questions to one executor have the same.
    last_asked_at: Option<Timestamp>,
}

#[derive(Debug)]
struct FenceInquiry {
    /// When the question was asked; the answer names the question by this instant.
    asked_at: Timestamp,
    /// The leases that the question is about: for each node its newest ended epoch.
    leases: BTreeMap<NodeId, i64>,
    answer: Option<ReceivedAnswer>,
}

#[derive(Debug)]
struct ReceivedAnswer {
    executor_name: String,
    /// The attempts that the executor has.
    held_runs: HashSet<(RunId, i32)>,
}

impl FenceInquiry {
    fn is_about_all(&self, leases: &BTreeMap<NodeId, i64>) -> bool {
        leases.iter().all(|(node, epoch)| self.leases.get(node).is_some_and(|asked| asked >= epoch))
    }
}

impl RelayedQuestions {
    /// Begins a roll call: earlier answers do not count.
    pub(crate) fn begin_roll_call(&mut self, now: Timestamp) {
        self.called_at = Some(now);
        self.inquiries.clear();
    }

    /// Whether another server has relayed this executor's answer about all of these leases.
    pub(crate) fn has_answered(&self, executor: ExecutorId, leases: &BTreeMap<NodeId, i64>) -> bool {
        self.inquiries.get(&executor).is_some_and(|asked| asked.answer.is_some() && asked.is_about_all(leases))
    }

    /// The attempts that executors without a stream here have, by the answers that cover these leases.
    pub(crate) fn reported_runs<'a>(
        &'a self,
        leases: &'a BTreeMap<NodeId, i64>,
        executors: &'a Executors,
    ) -> impl Iterator<Item = (ExecutorId, &'a HashSet<(RunId, i32)>)> {
        let is_elsewhere = |id: &ExecutorId| executors.get(*id).is_none();
        let answers = self.inquiries.iter().filter(move |(id, asked)| is_elsewhere(id) && asked.is_about_all(leases));
        answers.filter_map(|(id, asked)| Some((*id, &asked.answer.as_ref()?.held_runs)))
    }

    /// The name of an executor at the server that relayed its answer.
    pub(crate) fn executor_name(&self, executor: ExecutorId) -> Option<&str> {
        self.inquiries.get(&executor)?.answer.as_ref().map(|answer| answer.executor_name.as_str())
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
        self.inquiries.retain(|executor, _| executors.contains(executor));
        let is_due = |executor: &ExecutorId| {
            let last_inquiry = self.inquiries.get(executor);
            last_inquiry.is_none_or(|asked| {
                !asked.is_about_all(leases) || (asked.answer.is_none() && asked.asked_at + ASK_AGAIN_AFTER <= now)
            })
        };
        let due_executors: Vec<ExecutorId> = executors.iter().copied().filter(is_due).take(ASKED_COUNT_MAX).collect();
        if due_executors.is_empty() {
            return Vec::new();
        }
        let after_last_question = self.last_asked_at.map_or(now, |last| last + Duration::from_millis(1));
        let asked_at = now.max(after_last_question);
        self.last_asked_at = Some(asked_at);
        let tokens: Vec<LeaseToken> =
            leases.iter().map(|(node, epoch)| LeaseToken { node: *node, epoch: *epoch }).collect();
        let request = |executor: ExecutorId| {
            self.inquiries.insert(executor, FenceInquiry { asked_at, leases: leases.clone(), answer: None });
            FenceRequest { asker, executor, asked_at, leases: tokens.clone() }
        };
        due_executors.into_iter().map(request).collect()
    }

    /// Records a relayed answer; false if it does not belong to the newest question to its executor, or if that question has been answered already.
    pub(crate) fn record_answer(&mut self, answer: RelayedAnswer) -> bool {
        let is_answered_question =
            |asked: &&mut FenceInquiry| asked.asked_at == answer.asked_at && asked.answer.is_none();
        let Some(inquiry) = self.inquiries.get_mut(&answer.executor).filter(is_answered_question) else { return false };
        inquiry.answer =
            Some(ReceivedAnswer { executor_name: answer.name, held_runs: answer.held.into_iter().collect() });
        true
    }
}

/// The questions of other servers that executors connected here have not answered yet.
#[derive(Debug, Default)]
pub(crate) struct Relays(Vec<RelayedQuestion>);

#[derive(Debug)]
struct RelayedQuestion {
    request: FenceRequest,
    /// The leases that the executor has not answered about yet: for each node, the newest epoch.
    missing_leases: BTreeMap<NodeId, i64>,
}

impl Relays {
    /// Whether a server waits for this executor's answer about the lease.
    pub(crate) fn has_question_to(&self, executor: ExecutorId, lease: LeaseToken) -> bool {
        let is_asked = |relayed: &RelayedQuestion| {
            relayed.request.executor == executor && relayed.missing_leases.get(&lease.node) == Some(&lease.epoch)
        };
        self.0.iter().any(is_asked)
    }

    /// The questions of other servers that this answer completes.
    pub(crate) fn take_completed(&mut self, executor: ExecutorId, lease: LeaseToken) -> Vec<FenceRequest> {
        for relayed in self.0.iter_mut().filter(|relayed| relayed.request.executor == executor) {
            relayed.missing_leases.retain(|node, epoch| *node != lease.node || *epoch > lease.epoch);
        }
        let is_complete =
            |relayed: &mut RelayedQuestion| relayed.request.executor == executor && relayed.missing_leases.is_empty();
        self.0.extract_if(.., is_complete).map(|relayed| relayed.request).collect()
    }

    /// Takes the questions that other servers now ask of executors that are connected here, and forgets the questions that no server asks any more.
    /// Returns the fences to send, each with its executor.
    pub(crate) fn replace_questions(&mut self, requests: Vec<FenceRequest>) -> Vec<(ExecutorId, LeaseToken)> {
        let mut previous_questions = std::mem::take(&mut self.0);
        let mut fences = Vec::new();
        for request in requests {
            let index = previous_questions.iter().position(|relayed| relayed.request == request);
            let missing_leases: BTreeMap<NodeId, i64> = match index {
                Some(place) => previous_questions.swap_remove(place).missing_leases,
                None => request.leases.iter().map(|lease| (lease.node, lease.epoch)).collect(),
            };
            let lease = |(node, epoch): (&NodeId, &i64)| LeaseToken { node: *node, epoch: *epoch };
            fences.extend(missing_leases.iter().map(|missing| (request.executor, lease(missing))));
            self.0.push(RelayedQuestion { request, missing_leases });
        }
        fences
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::event::Report;
    use crate::dispatch::tests_support::executor;

    const AT: fn(i64) -> Timestamp = Timestamp::from_millis;
    const ASKER: NodeId = NodeId::new(1);
    const ONE: ExecutorId = ExecutorId::new(1);

    fn leases(epochs: &[(i64, i64)]) -> BTreeMap<NodeId, i64> {
        epochs.iter().map(|(node, epoch)| (NodeId::new(*node), *epoch)).collect()
    }

    fn answer(request: &FenceRequest) -> RelayedAnswer {
        RelayedAnswer {
            asker: request.asker,
            executor: request.executor,
            asked_at: request.asked_at,
            name: "e1".to_owned(),
            held: vec![(RunId::new(7), 1)],
        }
    }

    /// Questions that executor 1 was asked through another server at second 10, about these leases.
    fn ask_executor_1(epochs: &[(i64, i64)]) -> (RelayedQuestions, FenceRequest) {
        let mut questions = RelayedQuestions::default();
        questions.begin_roll_call(AT(8_000));
        let mut requests = questions.ask(ASKER, &[ONE].into(), &leases(epochs), AT(10_000));
        (questions, requests.remove(0))
    }

    #[test]
    fn a_question_is_asked_two_seconds_after_the_call_and_every_ten_seconds() {
        let (all, over) = (BTreeSet::from([ONE]), leases(&[(2, 3)]));
        let mut questions = RelayedQuestions::default();
        let ask = |questions: &mut RelayedQuestions, now| questions.ask(ASKER, &all, &over, AT(now)).len();
        assert_eq!(ask(&mut questions, 60_000), 0, "no roll was called");
        questions.begin_roll_call(AT(8_000));
        assert_eq!([9_999, 10_000, 19_999, 20_000, 20_001].map(|now| ask(&mut questions, now)), [0, 1, 0, 1, 0]);
        // The executor connects here or is lost, and later it is absent again.
        assert_eq!(questions.ask(ASKER, &BTreeSet::new(), &over, AT(21_000)), []);
        assert_eq!(ask(&mut questions, 22_000), 1);
        // No two questions have the same instant, even if the clock stands still or steps back.
        questions.begin_roll_call(AT(10_000));
        let again = questions.ask(ASKER, &all, &over, AT(21_000));
        assert_eq!(again.first().map(|request| request.asked_at), Some(AT(22_001)));
    }

    #[test]
    fn an_answer_counts_for_the_leases_of_its_question() {
        for (epochs, covered) in [
            (vec![(2, 3)], true),
            (vec![(2, 2)], true),
            (vec![(2, 4)], false),
            (vec![(2, 3), (5, 1)], false),
            (vec![(5, 1)], false),
        ] {
            let (mut questions, request) = ask_executor_1(&[(2, 3)]);
            let now = leases(&epochs);
            assert!(!questions.has_answered(ONE, &now), "no server has answered");
            assert!(
                questions.record_answer(answer(&request)) && !questions.record_answer(answer(&request)),
                "it is news once"
            );
            assert_eq!(questions.has_answered(ONE, &now), covered, "{epochs:?}");
            assert!(!questions.has_answered(ExecutorId::new(2), &now));
            let executors = Executors::default();
            assert_eq!(questions.reported_runs(&now, &executors).count(), usize::from(covered), "{epochs:?}");
            let asked_again = questions.ask(ASKER, &[ONE].into(), &now, AT(10_001)).len();
            assert_eq!(asked_again, usize::from(!covered), "{epochs:?}");
        }
    }

    #[test]
    fn an_executor_that_is_connected_answers_for_itself() {
        let (mut questions, request) = ask_executor_1(&[(2, 3)]);
        assert!(questions.record_answer(answer(&request)));
        let (session, online, _stream) = executor(1, 1);
        let mut executors = Executors::default();
        executors.join(session, &online, Report::default());
        assert_eq!(questions.reported_runs(&leases(&[(2, 3)]), &executors).count(), 0);
        assert_eq!(questions.executor_name(ONE), Some("e1"));
        questions.begin_roll_call(AT(30_000));
        assert_eq!(questions.executor_name(ONE), None, "the next call asks again");
    }

    #[test]
    fn an_answer_to_an_earlier_question_does_not_answer_the_newest() {
        let (mut questions, request) = ask_executor_1(&[(2, 3)]);
        let earlier = RelayedAnswer { asked_at: AT(9_999), ..answer(&request) };
        assert!(!questions.record_answer(earlier) && !questions.has_answered(ONE, &leases(&[(2, 3)])));
        assert!(!questions.record_answer(RelayedAnswer { executor: ExecutorId::new(2), ..answer(&request) }));
    }

    /// Each of several servers waits for its own executors and leases.
    #[test]
    fn the_questions_of_servers_are_kept_apart() {
        let lease = |node, epoch| LeaseToken { node: NodeId::new(node), epoch };
        let request = |asker, executor, leases: &[LeaseToken]| FenceRequest {
            asker: NodeId::new(asker),
            executor: ExecutorId::new(executor),
            asked_at: AT(1),
            leases: leases.to_vec(),
        };
        let first = request(7, 1, &[lease(2, 3)]);
        let second = request(8, 2, &[lease(5, 4), lease(6, 1)]);
        let mut relays = Relays::default();
        assert_eq!(relays.replace_questions(vec![first.clone(), second.clone()]).len(), 3);
        let two = ExecutorId::new(2);
        assert!(relays.has_question_to(ONE, lease(2, 3)) && relays.has_question_to(two, lease(6, 1)));
        assert!(
            !relays.has_question_to(two, lease(2, 3))
                && !relays.has_question_to(ONE, lease(2, 2))
                && !relays.has_question_to(ONE, lease(5, 4))
        );
        assert_eq!(relays.take_completed(two, lease(2, 3)), [], "no server asks that of it");
        assert_eq!(relays.take_completed(two, lease(5, 3)), [], "an earlier lease than the one that is asked about");
        assert_eq!(relays.take_completed(two, lease(6, 1)), []);
        assert_eq!(relays.take_completed(two, lease(5, 5)), [second], "a later lease covers the earlier");
        assert_eq!(relays.take_completed(ONE, lease(2, 3)), [first]);
    }

    /// A question of another server is complete once each of its leases has been answered.
    #[test]
    fn a_relayed_question_is_answered_when_all_its_leases_are() {
        let id = ONE;
        let [dead, other] = [(2, 3), (5, 1)].map(|(node, epoch)| LeaseToken { node: NodeId::new(node), epoch });
        let request = |asker| FenceRequest {
            asker: NodeId::new(asker),
            executor: id,
            asked_at: Timestamp::from_secs(1),
            leases: vec![dead, other],
        };
        let mut relays = Relays::default();
        assert_eq!(relays.replace_questions(vec![request(7)]), [(id, dead), (id, other)]);
        assert!(relays.has_question_to(id, dead) && !relays.has_question_to(id, LeaseToken { epoch: 9, ..dead }));
        assert_eq!(relays.take_completed(id, dead), []);
        assert_eq!(relays.replace_questions(vec![request(7), request(8)]), [(id, other), (id, dead), (id, other)]);
        assert_eq!(relays.take_completed(id, other), [request(7)]);
        assert_eq!(relays.take_completed(ExecutorId::new(2), dead), []);
        assert_eq!(relays.take_completed(id, dead), [request(8)]);
        assert_eq!(relays.replace_questions(Vec::new()), []);
    }
}
