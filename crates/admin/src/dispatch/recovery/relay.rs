//! Fences that servers send for each other. If this server has no stream to an executor that another server hears, it asks that server by a
//! row. The other server sends the fence on its own stream and stores the answer. Without this, a run could wait for as long as the executor
//! lives.

use rondel_core::{ExecutorId, RunId};
use rondel_failpoint::mutant::{self, Mutant};
use rondel_proto::v1::server_message::Body;
use rondel_store::ledger::{FenceRequest, RelayedAnswer};

use crate::dispatch::decision::Decision;
use crate::dispatch::effect::Effect;
use crate::dispatch::event::FenceAnswer;
use crate::dispatch::messages::fence;
use crate::dispatch::step::Step;

/// Maximum number of runs in one answer. A longer answer is not stored; no executor has that many runs.
const HELD_COUNT_MAX: usize = 100_000;

/// Asks other servers for the answers of executors that are not connected here.
pub(crate) fn ask_elsewhere(d: &mut Decision<'_>) {
    if d.facts.settings.is_single_server || !d.facts.lease_holds || mutant::on(Mutant::NoRelay) {
        return;
    }
    let (now, asker) = (d.now, d.facts.token.node);
    let rollcall = &mut d.state.recovery.rollcall;
    let absent_executors = rollcall.absent_witnesses(&d.state.executors);
    let (questions, leases) = rollcall.relayed_questions();
    let requests = questions.ask(asker, &absent_executors, leases, now);
    if !requests.is_empty() {
        d.step(Step::AskFences(requests));
    }
}

/// Sends the fences of other servers to executors that those servers do not reach. A question that is asked again is sent again.
pub(crate) fn relay(d: &mut Decision<'_>, mut requests: Vec<FenceRequest>) {
    requests.retain(|request| d.state.executors.get(request.executor).is_some());
    for (executor, lease) in d.state.recovery.relays.replace_questions(requests) {
        if let Some(online) = d.state.executors.get(executor) {
            d.effects.push(Effect::Send(online.session.clone(), Body::Fence(fence(lease))));
        }
    }
}

/// Stores an executor's answer to a fence for the servers that wait for it.
pub(crate) fn relay_answer(d: &mut Decision<'_>, executor: ExecutorId, answer: &FenceAnswer) {
    let completed_requests = d.state.recovery.relays.take_completed(executor, answer.lease);
    let count = answer.held_runs.len() + answer.finished_runs.len();
    let Some(online) = d.state.executors.get(executor).filter(|_| count <= HELD_COUNT_MAX) else { return };
    let mut reported_runs: Vec<(RunId, i32)> = answer.held_runs.iter().chain(&answer.finished_runs).copied().collect();
    reported_runs.sort_unstable();
    reported_runs.dedup();
    let name = online.name.clone();
    let relayed_answer = |request: FenceRequest| RelayedAnswer {
        asker: request.asker,
        executor,
        asked_at: request.asked_at,
        name: name.clone(),
        held: reported_runs.clone(),
    };
    let answers: Vec<RelayedAnswer> = completed_requests.into_iter().map(relayed_answer).collect();
    if !answers.is_empty() {
        d.step(Step::AnswerFences(answers));
    }
}
