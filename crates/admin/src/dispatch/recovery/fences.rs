//! Announces ended leases to executors: each fence goes out on every stream, and again to executors that do not answer. An executor that
//! connects later finds the fences in its welcome.

use rondel_core::ExecutorId;
use rondel_proto::v1::server_message::Body;
use rondel_store::LeaseToken;

use crate::dispatch::decision::Decision;
use crate::dispatch::effect::Effect;
use crate::dispatch::event::FenceAnswer;
use crate::dispatch::messages::fence;
use crate::dispatch::recovery::{relay, roll};

/// Announces a lease that has ended to every executor, once.
pub(crate) fn announce(d: &mut Decision<'_>, lease: LeaseToken) {
    if d.state.recovery.fences.get(&lease.node).is_some_and(|epoch| *epoch >= lease.epoch) {
        return;
    }
    d.state.recovery.fences.insert(lease.node, lease.epoch);
    d.send_all(&Body::Fence(fence(lease)));
}

/// Sends fences to the executors whose answers the roll call awaits. The next round repeats a fence that got lost.
pub(crate) fn ask_witnesses(d: &mut Decision<'_>) {
    for (executor, leases) in d.state.recovery.rollcall.unanswered_fences(&d.state.executors) {
        let Some(online) = d.state.executors.get(executor) else { continue };
        for lease in leases {
            d.effects.push(Effect::Send(online.session.clone(), Body::Fence(fence(lease))));
        }
    }
}

pub(crate) fn on_fence_answered(d: &mut Decision<'_>, executor: ExecutorId, session_number: u64, answer: FenceAnswer) {
    let now = d.now;
    d.state.executors.record_heard(executor, now);
    // Only the newest fenced epoch of each node is stored. An answer about a lease that no server asked about is ignored: if it were
    // stored, it could also count as an answer for a lease that ends later.
    let is_announced =
        d.state.recovery.fences.get(&answer.lease.node).is_some_and(|epoch| answer.lease.epoch <= *epoch);
    let is_awaited_elsewhere = d.state.recovery.relays.has_question_to(executor, answer.lease);
    if !is_announced && !is_awaited_elsewhere && !d.state.recovery.rollcall.asks_about(answer.lease) {
        return;
    }
    let answer_to_relay = is_awaited_elsewhere.then(|| answer.clone());
    if d.state.executors.record_fence_answer(executor, session_number, answer) {
        if let Some(answer) = answer_to_relay {
            relay::relay_answer(d, executor, &answer);
        }
        roll::resolve(d);
    }
}
