//! One attempt on an executor: its handler, drawn from the run, and the result that follows.

use std::sync::Arc;
use std::time::Duration;

use rondel::table::{RunKey, TableRun as _};
use rondel_core::{JobId, RunId, Timestamp};
use rondel_proto::v1;
use tokio::time::sleep;

use super::group::Driver;
use super::{Executor, now};
use crate::link::{RunHandle, StopCause};
use crate::profile::GRACE;
use crate::rng::{SeededRng, mix};
use crate::truth::Start;
use crate::world::lock;

impl Executor {
    /// Runs the handler. Its behaviour is drawn from the run, so that it does not depend on other events.
    pub(super) async fn run_handler(self: Arc<Self>, key: RunKey) {
        self.enforce_silence_limit();
        let Some(run) = lock(&self.table).get(key).cloned() else { return };
        let trigger = run.trigger.clone();
        if let Some(cause) = run.stop_cause() {
            return self.end(key, without_start(result(&trigger, stop_status(cause), self.world().now()), cause));
        }
        let start_index = self.note_start(&run);
        if let Some(pump) = &trigger.pump {
            let status = Driver::new(&self, run.clone(), pump).drive().await;
            return self.conclude(start_index, &run, status);
        }
        let mut rng = SeededRng::new(mix(key.run.get().unsigned_abs()) ^ u64::from(key.attempt.unsigned_abs()));
        let (length, ending) = draw_outcome(&mut rng);
        let deadline = (trigger.timeout_ms > 0).then(|| Duration::from_millis(trigger.timeout_ms.unsigned_abs()));
        let is_late = deadline.is_some_and(|deadline| length > deadline);
        let status = tokio::select! {
            biased;
            () = run.stop_token.cancelled() => {
                let cause = run.stop_cause().unwrap_or(StopCause::Cancelled);
                sleep(GRACE.mul_f64(rng.below(100) as f64 / 100.0)).await;
                stop_status(cause)
            }
            () = sleep(deadline.filter(|_| is_late).unwrap_or(length)) => {
                if is_late { stop_status(StopCause::TimedOut) } else { ending }
            }
        };
        self.conclude(start_index, &run, status);
    }

    fn conclude(self: &Arc<Self>, start_index: usize, run: &RunHandle, status: (v1::result::Status, bool)) {
        self.note_end(start_index, status.0);
        let is_silenced = run.stop_cause() == Some(StopCause::Silence) && status == stop_status(StopCause::Silence);
        let result = result(&run.trigger, status, self.world().now());
        // Only groups can be unfinished.
        let unfinished = matches!(status, (v1::result::Status::Yielded | v1::result::Status::Cancelled, true));
        self.end(run.key(), v1::Result { silent_ms: i64::from(is_silenced), unfinished, ..result });
    }

    /// Ends a run on this executor: frees its slot and sends its result, through the journal if there is one.
    pub(super) fn end(self: &Arc<Self>, key: RunKey, result: v1::Result) {
        let next_runs = lock(&self.table).finish(key, result, now());
        self.begin(next_runs);
        self.write_journal();
    }

    /// Writes the results that wait for the journal; each is sent once it is written.
    pub(super) fn write_journal(self: &Arc<Self>) {
        for result in lock(&self.table).take_to_journal() {
            let executor = Arc::clone(self);
            self.spawn(async move {
                let length = executor.world().rng().millis(0, 3);
                sleep(length).await;
                let key = RunKey::new(result.run_id, result.attempt);
                lock(&executor.host.disk).results.insert(key, result.clone());
                lock(&executor.table).send_journaled(&[result], true, now());
            });
        }
    }

    fn note_start(&self, run: &RunHandle) -> usize {
        let (trigger, origin) = (&run.trigger, run.origin);
        let world = self.world();
        run.started_at.get_or_init(|| (world.now(), tokio::time::Instant::now()));
        world.record("begins", trigger.run_id, || {
            format!(
                "attempt {} of {} on {} (node {} epoch {})",
                trigger.attempt, trigger.job, self.host.name, origin.0, origin.1
            )
        });
        let mut truth = world.truth();
        truth.starts.push(Start {
            run: RunId::new(trigger.run_id),
            attempt: trigger.attempt,
            job: JobId::new(trigger.job_id),
            fire_at: Timestamp::from_millis(trigger.fire_at_ms),
            due_at: Timestamp::from_millis(trigger.due_at_ms),
            executor: self.host.index,
            incarnation: self.incarnation,
            origin,
            fenced_epoch: run.fenced_epoch,
            fencing_token: (trigger.fence_term, trigger.fence_n),
            at_most_once: trigger.at_most_once,
            began_at: world.latest_now(),
            began_ms: world.elapsed_ms(),
            ended_ms: None,
            end_status: None,
        });
        truth.starts.len() - 1
    }

    fn note_end(&self, start_index: usize, status: v1::result::Status) {
        let mut truth = self.world().truth();
        let start = &mut truth.starts[start_index];
        (start.ended_ms, start.end_status) = (Some(self.world().elapsed_ms()), Some(status));
        let (run, attempt) = (start.run, start.attempt);
        drop(truth);
        self.world().record("ends", run.get(), || format!("attempt {attempt} {status:?}"));
    }
}

/// Draws how long a handler takes, and how it ends.
fn draw_outcome(rng: &mut SeededRng) -> (Duration, (v1::result::Status, bool)) {
    let length = match rng.below(10) {
        0..=5 => rng.millis(1, 80),
        6..=7 => rng.millis(80, 900),
        8 => rng.millis(900, 2_500),
        _ => rng.millis(2_500, 5_000),
    };
    let ending = match rng.below(10) {
        0 => (v1::result::Status::Failed, true),
        1 => (v1::result::Status::Failed, false),
        _ => (v1::result::Status::Succeeded, false),
    };
    (length, ending)
}

pub(super) const fn stop_status(cause: StopCause) -> (v1::result::Status, bool) {
    match cause {
        StopCause::Cancelled => (v1::result::Status::Cancelled, false),
        StopCause::TimedOut => (v1::result::Status::TimedOut, true),
        StopCause::Silence => (v1::result::Status::Failed, true),
    }
}

pub(super) fn result(
    trigger: &v1::Trigger,
    (status, retryable): (v1::result::Status, bool),
    now: Timestamp,
) -> v1::Result {
    v1::Result {
        run_id: trigger.run_id,
        attempt: trigger.attempt,
        status: status.into(),
        retryable,
        started_at_ms: now.as_millis(),
        finished_at_ms: now.as_millis(),
        job_id: trigger.job_id,
        ..v1::Result::default()
    }
}

/// The result of a run that was stopped before its handler began.
pub(super) fn without_start(result: v1::Result, cause: StopCause) -> v1::Result {
    v1::Result { started_at_ms: 0, silent_ms: i64::from(cause == StopCause::Silence), ..result }
}
