//! Turns functions into handlers.

use std::marker::PhantomData;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use schemars::Schema;

use crate::ending::{Ending, IntoEnding};
use crate::extract::FromRun;
use crate::job_error::JobError;
use crate::pump::{Pump, PumpHandler};
use crate::run::{self, RunContext};

/// An async function whose arguments come from the run and whose return value becomes the run's ending.
///
/// Every such function with up to eight arguments implements this trait; do not implement it by hand.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler",
    label = "not an async function of a run",
    note = "a handler is an `async fn` with up to eight arguments that implement `FromRun`, returning `()` or `Result<T, E>` where `T: Serialize` and `E: Into<JobError>`; `Params<T>` wants `T: schemars::JsonSchema`; it is `Send + Sync + 'static`, and so is what it holds across an `.await`"
)]
pub trait Handler<Args>: Send + Sync + 'static {
    /// Calls the function with arguments from the run. If one of them cannot be made, returns that error instead.
    fn call(&self, run: RunContext) -> impl Future<Output = Ending> + Send;

    /// JSON schema that the job's parameters must match: that of the first argument that has one. `None` if no argument has one.
    fn params_schema() -> Option<Schema>;
}

/// A plain function, which may block its thread: see [`blocking_handler`](crate::Builder::blocking_handler).
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a blocking handler",
    label = "not a plain function of a run",
    note = "a blocking handler is a `fn` with up to eight arguments that implement `FromRun`, returning `()` or `Result<T, E>`"
)]
pub trait BlockingHandler<Args>: Send + Sync + 'static {
    /// Calls the function with arguments from the run. If one of them cannot be made, returns that error instead.
    fn call(&self, run: &RunContext) -> Ending;

    /// JSON schema that the job's parameters must match: that of the first argument that has one. `None` if no argument has one.
    fn params_schema() -> Option<Schema>;
}

macro_rules! handlers {
    ($($arg:ident),*) => {
        impl<F, Fut, R, $($arg),*> Handler<($($arg,)*)> for F
        where
            F: Fn($($arg),*) -> Fut + Send + Sync + 'static,
            Fut: Future<Output = R> + Send,
            R: IntoEnding,
            $($arg: FromRun + Send,)*
        {
            #[allow(clippy::allow_attributes, reason = "not every number of arguments needs what follows")]
            #[allow(non_snake_case, unused_variables, reason = "arguments are named like their types; there may be none")]
            async fn call(&self, run: RunContext) -> Ending {
                $(let $arg = match $arg::from_run(&run) {
                    Ok(value) => value,
                    Err(error) => return error.into(),
                };)*
                self($($arg),*).await.into_ending()
            }

            fn params_schema() -> Option<Schema> {
                None$(.or_else($arg::params_schema))*
            }
        }

        impl<F, R, $($arg),*> BlockingHandler<($($arg,)*)> for F
        where
            F: Fn($($arg),*) -> R + Send + Sync + 'static,
            R: IntoEnding,
            $($arg: FromRun,)*
        {
            #[allow(clippy::allow_attributes, reason = "not every number of arguments needs what follows")]
            #[allow(non_snake_case, unused_variables, reason = "arguments are named like their types; there may be none")]
            fn call(&self, run: &RunContext) -> Ending {
                $(let $arg = match $arg::from_run(run) {
                    Ok(value) => value,
                    Err(error) => return error.into(),
                };)*
                self($($arg),*).into_ending()
            }

            fn params_schema() -> Option<Schema> {
                None$(.or_else($arg::params_schema))*
            }
        }
    };
}

handlers!();
handlers!(A);
handlers!(A, B);
handlers!(A, B, C);
handlers!(A, B, C, D);
handlers!(A, B, C, D, E);
handlers!(A, B, C, D, E, G);
handlers!(A, B, C, D, E, G, H);
handlers!(A, B, C, D, E, G, H, I);

/// An async, blocking or pump handler, as the executor stores it. Cheap to clone.
///
/// ```
/// use rondel::{JobHandler, Params};
///
/// async fn greet(Params(name): Params<String>) {}
/// fn hash(Params(dir): Params<String>) {}
///
/// let handlers = [JobHandler::of(greet), JobHandler::of_blocking(hash)];
/// assert_eq!(handlers[0].params_schema().unwrap()["type"], "string");
/// ```
#[derive(Clone)]
pub struct JobHandler(Arc<dyn AnyHandler>);

impl JobHandler {
    /// Makes a handler of an async function.
    pub fn of<Args: 'static>(handler: impl Handler<Args>) -> Self {
        Self(Arc::new(AsyncHandler { handler, args: PhantomData }))
    }

    /// Makes a handler of a plain function, which may block its thread: see
    /// [`blocking_handler`](crate::Builder::blocking_handler).
    pub fn of_blocking<Args: 'static>(handler: impl BlockingHandler<Args>) -> Self {
        Self(Arc::new(BlockingFunction { handler: Arc::new(handler), args: PhantomData }))
    }

    /// The JSON schema of the handler's parameters; `None` if it declares none.
    #[must_use]
    pub fn params_schema(&self) -> Option<serde_json::Value> {
        self.0.params_schema().map(serde_json::Value::from)
    }

    /// Makes a handler of a pump.
    pub(crate) fn of_pump(handler: PumpHandler<impl Pump>) -> Self {
        Self(Arc::new(handler))
    }

    pub(crate) async fn start(&self, run: RunContext) -> Ending {
        let name = run.handler();
        match (self.0.is_pump(), run.order_mailbox().is_some()) {
            (true, false) => JobError::terminal(format_args!(
                "handler {name:?} is a pump, but the job has no \"pump\" in its definition"
            ))
            .into(),
            (false, true) => JobError::terminal(format_args!(
                "handler {name:?} is not a pump, but the job has a \"pump\" in its definition: register it with .pump(…)"
            ))
            .into(),
            _ => self.0.start(run).await,
        }
    }
}

impl std::fmt::Debug for JobHandler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JobHandler").finish_non_exhaustive()
    }
}

pub(crate) trait AnyHandler: Send + Sync {
    fn start(&self, run: RunContext) -> BoxFuture<'_, Ending>;
    fn params_schema(&self) -> Option<Schema>;

    /// Whether the handler is for groups of pump jobs.
    fn is_pump(&self) -> bool {
        false
    }
}

struct AsyncHandler<H, Args> {
    handler: H,
    args: PhantomData<fn() -> Args>,
}

impl<H: Handler<Args>, Args: 'static> AnyHandler for AsyncHandler<H, Args> {
    fn start(&self, run: RunContext) -> BoxFuture<'_, Ending> {
        Box::pin(self.handler.call(run))
    }

    fn params_schema(&self) -> Option<Schema> {
        H::params_schema()
    }
}

struct BlockingFunction<H, Args> {
    handler: Arc<H>,
    args: PhantomData<fn() -> Args>,
}

impl<H: BlockingHandler<Args>, Args: 'static> AnyHandler for BlockingFunction<H, Args> {
    fn start(&self, run: RunContext) -> BoxFuture<'_, Ending> {
        let handler = Arc::clone(&self.handler);
        Box::pin(run::run_on_blocking_thread(run, move |run| handler.call(run)))
    }

    fn params_schema(&self) -> Option<Schema> {
        H::params_schema()
    }
}
