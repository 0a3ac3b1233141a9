//! Leaving: a server that is asked to stop first hands over its jobs to other nodes while it still works. Then it sends nothing more, waits for its
//! runs at executors, and leaves its unsent runs to their next owners. It gives its lease back last. This way a rolling restart delays no fire.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rondel_core::RunId;
use rondel_failpoint::mutant::{self, Mutant};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::end_requests;
use super::moves::{self, MovableRuns};
use crate::dispatch::{Event, Responder};
use crate::lifecycle::Lifecycle;
use crate::node::Shared;
use rondel_core::error_chain::chain;

/// How long jobs are handed over while everything still runs: long enough for a job that fires each second to be idle once.
const HAND_OVER_LIMIT: Duration = Duration::from_millis(1_800);
/// The pause between two rounds in which jobs are handed over while everything still runs.
const HAND_OVER_PAUSE: Duration = Duration::from_millis(100);
/// The pause between rounds once nothing more is sent and the server only waits for runs at executors.
const RUN_WAIT_PAUSE: Duration = Duration::from_millis(200);
/// How often requests to end runs are read while the server waits for runs.
const REQUESTS_PERIOD: Duration = Duration::from_secs(1);
/// Upper bound of the grace: longer than any run, and short enough that the computed end of the grace does not overflow.
const GRACE_MAX: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

pub(crate) async fn leave(shared: &Arc<Shared>, lifecycle: &Lifecycle, grace: Duration) {
    tracing::info!(grace = ?grace, "draining");
    let grace = grace.min(GRACE_MAX);
    shared.draining.store(true, Ordering::Relaxed);
    shared.beat_poke.notify_one();
    if !grace.is_zero() {
        hand_over_while_working(shared).await;
    }
    lifecycle.soft.cancel();
    let (drained_sender, drained_receiver) = oneshot::channel();
    // Sending fails if the grace has ended, because the receiver is dropped then.
    let drained_responder = Responder::new(|()| {
        drained_sender.send(()).ok();
    });
    if shared.events.send(Event::Drain(drained_responder, grace)).await.is_ok()
        && !wait_for_runs(shared, drained_receiver, grace).await
    {
        tracing::warn!("executors still have runs; they keep their results for the next server");
    }
    shelve(shared).await;
    shared.membership.give_back().await;
    let token = shared.membership.token();
    if let Err(error) = shared.store.release(token, shared.sent_until()).await {
        tracing::warn!(error = %chain(&error), "cannot give the lease back; it will expire");
    }
    lifecycle.hard.cancel();
}

/// Records in the store that the unsent runs were never sent. Then their next owner asks no executor about them and counts no lost attempt.
async fn shelve(shared: &Arc<Shared>) {
    let Some(lease) = shared.membership.held_lease().filter(|_| !mutant::on(Mutant::LeaveAsPerhapsSent)) else {
        return;
    };
    let Some(runs_in_hand) = runs_in_hand(shared).await else { return };
    match shared.store.shelve(lease.token, &runs_in_hand).await {
        Ok(0) => {}
        Ok(count) => tracing::info!(count, "leaving unsent runs to the next server"),
        Err(error) => {
            tracing::warn!(error = %chain(&error), "cannot record which runs were not sent; the next server asks the executors");
        }
    }
}

/// The runs that executors have, or are about to get; `None` if the dispatcher has ended.
async fn runs_in_hand(shared: &Arc<Shared>) -> Option<Vec<RunId>> {
    let (sender, receiver) = oneshot::channel();
    let responder = Responder::new(|runs| drop(sender.send(runs)));
    shared.events.send(Event::ListInHand(responder)).await.ok()?;
    receiver.await.ok()
}

/// Hands over jobs between their fires, until no job is left, no other node takes jobs, or [`HAND_OVER_LIMIT`] has passed.
async fn hand_over_while_working(shared: &Arc<Shared>) {
    let deadline = Instant::now() + HAND_OVER_LIMIT;
    while moves::has_other_taker(shared) && Instant::now() < deadline {
        let Some(lease) = shared.membership.held_lease() else { return };
        match moves::hand_over_movable_jobs(shared, &lease, MovableRuns::NotYetDue).await {
            Ok(0) => return,
            Ok(_) => tokio::time::sleep(HAND_OVER_PAUSE).await,
            Err(error) => {
                tracing::warn!(error = %chain(&error), "cannot hand over jobs to other nodes; they will be taken over later");
                return;
            }
        }
    }
}

/// Waits until no executor has a run. Meanwhile it hands over jobs that become free, and forwards requests to end runs. Returns whether all
/// runs ended in time.
async fn wait_for_runs(shared: &Arc<Shared>, mut drained_receiver: oneshot::Receiver<()>, grace: Duration) -> bool {
    let deadline = Instant::now() + grace;
    let mut has_warned = false;
    let mut next_requests_at = Instant::now();
    loop {
        if Instant::now() >= next_requests_at {
            next_requests_at = Instant::now() + REQUESTS_PERIOD;
            if let Err(error) = forward_end_requests(shared).await {
                tracing::warn!(error = %chain(&error), "cannot read which runs are to end; trying again");
            }
        }
        if let Err(error) = hand_over_free_jobs(shared).await
            && !std::mem::replace(&mut has_warned, true)
        {
            tracing::warn!(error = %chain(&error), "cannot hand over jobs to other nodes; they will be taken over later");
        }
        let wake_at = (Instant::now() + RUN_WAIT_PAUSE).min(deadline);
        match tokio::time::timeout_at(wake_at, &mut drained_receiver).await {
            Ok(_) => {
                // Some jobs may become free only when the last run ends.
                hand_over_free_jobs(shared).await.ok();
                return true;
            }
            Err(_) if Instant::now() >= deadline => return false,
            Err(_) => {}
        }
    }
}

/// Forwards requests to end runs, because the loop that normally does this has ended by now.
async fn forward_end_requests(shared: &Shared) -> Result<(), rondel_store::StoreError> {
    let Some(lease) = shared.membership.held_lease() else { return Ok(()) };
    end_requests::forward(shared, &lease).await
}

async fn hand_over_free_jobs(shared: &Arc<Shared>) -> Result<(), rondel_store::StoreError> {
    let Some(lease) = shared.membership.held_lease().filter(|_| moves::has_other_taker(shared)) else { return Ok(()) };
    let Some(runs_in_hand) = runs_in_hand(shared).await else { return Ok(()) };
    let runs_in_hand: HashSet<RunId> = runs_in_hand.into_iter().collect();
    moves::hand_over_movable_jobs(shared, &lease, MovableRuns::AllBut(&runs_in_hand)).await.map(drop)
}
