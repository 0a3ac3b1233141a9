//! The current run, for its handler and for the code that the handler calls.

mod context;
pub(crate) mod parents;
mod stop;

use std::sync::Arc;

use futures_util::FutureExt;
use tokio::task::JoinHandle;
use tracing::Span;
use tracing::instrument::{Instrument as _, WithSubscriber};

use crate::ending::Ending;
use crate::lifecycle;

pub use context::{FencingToken, RunContext};
pub(crate) use stop::StopCause;

tokio::task_local! {
    static RUN: RunContext;
}

/// The run that this code runs in; `None` outside a run.
///
/// ```
/// # use rondel::{TestRun, run};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// async fn handler() {
///     let run = run::current().expect("inside a run");
///     assert_eq!((run.job(), run.attempt()), ("reports", 2));
/// }
/// assert!(TestRun::of(handler).job("reports").attempt(2).run().await.is_succeeded());
/// assert!(run::current().is_none());
/// # }
/// ```
#[must_use]
pub fn current() -> Option<RunContext> {
    with_current(RunContext::clone)
}

pub(crate) fn with_current<T>(read: impl FnOnce(&RunContext) -> T) -> Option<T> {
    RUN.try_with(read).ok()
}

/// Spawns a task that belongs to the run: it inherits [`current`], the shard and the run's log, and it is aborted if
/// the run ends first. Outside a run, it is an ordinary task.
///
/// ```
/// # use rondel::{TestRun, run, spawn};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// async fn handler() -> Result<i64, tokio::task::JoinError> {
///     spawn(async { run::current().map_or(0, |run| run.run_id().get()) }).await
/// }
/// assert_eq!(TestRun::of(handler).run().await.result(), Some(&1.into()));
/// # }
/// ```
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    let future = future.in_current_span().with_current_subscriber();
    let Some(run) = current() else { return lifecycle::spawn_outside(future) };
    let handle = run.tracker().spawn(RUN.scope(run.clone(), future));
    run.register_task(handle.abort_handle());
    handle
}

/// Runs a blocking closure on a separate thread; it inherits [`current`], the shard and the run's log. It cannot be
/// aborted: if the run ends first, the closure continues, and nothing waits for it.
///
/// ```
/// # use rondel::{TestRun, shard, spawn_blocking};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// async fn handler() -> Result<u32, tokio::task::JoinError> {
///     spawn_blocking(shard::index).await
/// }
/// assert_eq!(TestRun::of(handler).shard(2, 3).run().await.result(), Some(&2.into()));
/// # }
/// ```
pub fn spawn_blocking<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    let dispatch = tracing::dispatcher::get_default(Clone::clone);
    let Some(run) = current() else {
        return tokio::task::spawn_blocking(move || tracing::dispatcher::with_default(&dispatch, call));
    };
    let (tracker, span) = (run.tracker().clone(), Span::current());
    tracker.spawn_blocking(move || {
        tracing::dispatcher::with_default(&dispatch, || span.in_scope(|| RUN.sync_scope(run, call)))
    })
}

/// Runs the handler's future with the run as its context. A panic is returned as its message.
pub(crate) async fn run_in_scope<F: Future<Output = Ending>>(run: RunContext, future: F) -> Result<Ending, String> {
    let outcome = std::panic::AssertUnwindSafe(RUN.scope(run, future)).catch_unwind();
    outcome.await.map_err(|payload| panic_message(payload.as_ref()))
}

/// Runs a blocking handler on a separate thread, as soon as the pool has a free thread.
pub(crate) async fn run_on_blocking_thread(
    run: RunContext,
    call: impl FnOnce(&RunContext) -> Ending + Send + 'static,
) -> Ending {
    let Ok(permit) = Arc::clone(run.blocking_permits()).acquire_owned().await else {
        return Ending::new(rondel_core::RunStatus::Failed, "the pool of blocking handlers is closed", true);
    };
    let tracker = run.tracker().clone();
    let (dispatch, span) = (tracing::dispatcher::get_default(Clone::clone), Span::current());
    let handle = tracker.spawn_blocking(move || {
        let _permit = permit;
        // The run may have been stopped, and reported, while it waited for its thread.
        if let Some(cause) = run.stop_cause() {
            return cause.ending(None);
        }
        run.set_on_blocking_thread();
        let call = || RUN.sync_scope(run.clone(), || call(&run));
        tracing::dispatcher::with_default(&dispatch, || span.in_scope(call))
    });
    match handle.await {
        Ok(ending) => ending,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_) => Ending::new(rondel_core::RunStatus::Failed, "the runtime went away", true),
    }
}

pub(crate) fn panic_message(payload: &(dyn std::any::Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied().or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    text.map_or_else(|| "panicked".to_owned(), |text| format!("panicked: {text}"))
}
