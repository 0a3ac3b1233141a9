//! Runs one attempt from the start of its handler to its ending. Handles its deadline, stop, grace and panic.

use std::time::Duration;

use rondel_core::{RunStatus, Timestamp};

use crate::ending::Ending;
use crate::handler::JobHandler;
use crate::run::{RunContext, StopCause, panic_message, run_in_scope};
use crate::template::{self, ResolvedParams};

pub(crate) struct EndedAttempt {
    pub(crate) ending: Ending,
    /// [`Timestamp::EPOCH`] if the handler never began.
    pub(crate) started_at: Timestamp,
    pub(crate) finished_at: Timestamp,
}

/// Runs the handler until the attempt ends. If the run has a timeout, this takes at most the timeout and the grace,
/// unless the handler blocks a thread.
pub(crate) async fn execute(run: &RunContext, handler: JobHandler) -> EndedAttempt {
    let clock = &run.setup().clock;
    if let Some(cause) = run.stop_cause() {
        // A server may send the run again only if the result does not state that the handler began.
        let ending = stopped_ending(run, cause, None).sanitize(run.masks());
        run.end_tasks();
        return EndedAttempt { ending, started_at: Timestamp::EPOCH, finished_at: clock.now() };
    }
    let (_, started_at) = run.set_started();
    let ending = supervise(run, handler).await;
    run.end_tasks();
    let ending = ending.sanitize(run.masks());
    EndedAttempt { ending, started_at, finished_at: clock.now().max(started_at) }
}

async fn supervise(run: &RunContext, handler: JobHandler) -> Ending {
    if let Some(cause) = run.stop_cause() {
        return stopped_ending(run, cause, None);
    }
    let mut body = Box::pin(run_in_scope(run.clone(), resolve_and_run(run.clone(), handler)));
    // The body is polled first, so that a handler that returns at its first poll costs neither a timer nor a waker.
    let outcome = tokio::select! {
        biased;
        outcome = &mut body => Some(outcome),
        () = wait_for_stop(run) => match tokio::time::timeout(run.stop_grace(), &mut body).await {
            Ok(outcome) => Some(outcome),
            // A blocking handler cannot be aborted, and keeps its slot until it returns. If that takes too long, the
            // sweep reports the run's verdict first.
            Err(_) if run.is_on_blocking_thread() && run.has_sweep() => Some((&mut body).await),
            Err(_) => None,
        },
    };
    if outcome.is_none() {
        abort(run, body);
    }
    decide_ending(run, outcome)
}

/// Resolves the secrets, then runs the handler.
async fn resolve_and_run(run: RunContext, handler: JobHandler) -> Ending {
    if let Some(secrets) = &run.setup().secrets {
        match template::resolve(run.params(), secrets).await {
            Ok(Some(ResolvedParams { params, masks })) => {
                run.log().set_masks(masks);
                run.set_params(params);
            }
            Ok(None) => {}
            Err(error) => return error.into(),
        }
    }
    handler.start(run.clone()).await
}

/// Resolves when the run must stop; an expired deadline becomes the cause of the stop.
async fn wait_for_stop(run: &RunContext) {
    let (Some(deadline), Some(timeout)) = (run.deadline(), run.timeout()) else {
        return run.wait_until_stopped().await;
    };
    if tokio::time::timeout_at(deadline, run.wait_until_stopped()).await.is_err() {
        run.stop(StopCause::TimedOut { timeout });
    }
}

/// Drops the handler's future at its current `await`. A destructor in it may panic; the run ends either way.
fn abort(run: &RunContext, body: impl Sized) {
    let drop_result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(body)));
    if let Err(payload) = drop_result {
        run.log_line("error", &panic_message(payload.as_ref()));
    }
}

/// A stopped run ends with the cause of the stop, whatever its handler returned. There are two exceptions. A group of a
/// pump job keeps its ending, which already takes the cause into account. Any other handler keeps its ending if the
/// executor itself requested the stop (not a user or the timeout), the handler had not read that request, and the
/// ending is a success, a skip, or a failure that is not retried.
fn decide_ending(run: &RunContext, outcome: Option<Result<Ending, String>>) -> Ending {
    if let Some(Err(panic)) = &outcome {
        run.log_line("error", panic);
    }
    match (run.stop_cause(), outcome) {
        (Some(cause), None) if run.is_on_blocking_thread() => cause.stuck_ending(true),
        (Some(cause), None) => stopped_ending(run, cause, Some(run.stop_grace())),
        (Some(_), Some(Ok(ending))) if run.order_mailbox().is_some() => ending,
        (Some(cause), Some(Ok(ending))) if !ending.retryable && cause.yields_to_handler() && !run.has_read_stop() => {
            ending
        }
        (Some(cause), Some(_)) => stopped_ending(run, cause, None),
        (None, Some(Ok(ending))) => ending,
        (None, Some(Err(panic))) => Ending::new(RunStatus::Failed, panic, true),
        (None, None) => Ending::new(RunStatus::Failed, "the handler was dropped", true),
    }
}

/// The ending of a stopped run. A group of a pump job that a drain has stopped yields: other groups continue with its
/// items.
fn stopped_ending(run: &RunContext, cause: &StopCause, aborted_after: Option<Duration>) -> Ending {
    let ending = cause.ending(aborted_after);
    if run.order_mailbox().is_some() && *cause == StopCause::Drained { Ending::yielded(ending.message) } else { ending }
}
