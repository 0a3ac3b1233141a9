//! The arguments that a handler can take.

use std::any::type_name;
use std::sync::Arc;

use rondel_core::shape::read_with_place;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::job_error::JobError;
use crate::log::RunLog;
use crate::run::{RunContext, parents};
use crate::shard::Shard;

/// A type that a handler can take as an argument. Its value is made from the run.
///
/// ```
/// # use rondel::{FromRun, JobError, RunContext, TestRun};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// struct Half(bool);
/// impl FromRun for Half {
///     fn from_run(run: &RunContext) -> Result<Self, JobError> {
///         Ok(Half(run.attempt() > 1))
///     }
/// }
/// async fn import(Half(half): Half) {
///     assert!(half, "the second attempt imports half only");
/// }
/// assert!(TestRun::of(import).attempt(2).run().await.is_succeeded());
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be made from a run",
    label = "not something that a handler can take",
    note = "handlers take `Params<T>`, `Shard`, `State<T>`, `Cancel`, `RunContext`, `Progress`, `Log`, or your own type with `impl FromRun`",
    note = "`Params<T>` wants `T: serde::de::DeserializeOwned + schemars::JsonSchema`; `RawParams<T>` does without the schema"
)]
pub trait FromRun: Sized {
    /// Makes the argument from the run.
    ///
    /// # Errors
    /// The run ends with the error, and the handler is not called.
    fn from_run(run: &RunContext) -> Result<Self, JobError>;

    /// JSON schema that the job's parameters must match; `None` if this argument needs none. The server refuses a job
    /// whose parameters do not match, and the console draws a form from the schema. An extractor that wraps [`Params`]
    /// should return the schema of the wrapped value.
    fn params_schema() -> Option<Schema> {
        None
    }
}

/// The job's parameters, read from JSON. Without parameters, `T` is read from `null` or, if that fails, from `{}`.
/// Parameters that do not match `T` fail the run, which is not retried.
///
/// The type's JSON schema goes to the server. The server refuses jobs and triggers whose parameters do not match it.
/// The console draws a form from it: doc comments become hints, and `#[serde(default)]` makes a field optional.
///
/// ```
/// # use rondel::{Params, TestRun};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// #[derive(serde::Deserialize, schemars::JsonSchema)]
/// struct Import { table: String, #[serde(default)] rows: u32 }
///
/// async fn import(Params(import): Params<Import>) -> Result<String, rondel::JobError> {
///     Ok(format!("{} {}", import.table, import.rows))
/// }
/// let outcome = TestRun::of(import).params(serde_json::json!({"table": "orders"})).run().await;
/// assert_eq!(outcome.result(), Some(&"orders 0".into()));
/// let outcome = TestRun::of(import).run().await;
/// assert!(outcome.message().contains("missing field `table`"));
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Params<T>(pub T);

impl<T: DeserializeOwned + JsonSchema> FromRun for Params<T> {
    fn from_run(run: &RunContext) -> Result<Self, JobError> {
        read_params(run).map(Params)
    }

    fn params_schema() -> Option<Schema> {
        Some(SchemaGenerator::default().into_root_schema_for::<T>())
    }
}

/// The job's parameters, of a type without a schema: the server accepts any parameters.
///
/// ```
/// # use rondel::{RawParams, TestRun};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// #[derive(serde::Deserialize)]
/// struct Import { table: String }
///
/// async fn import(RawParams(import): RawParams<Import>) {
///     assert_eq!(import.table, "orders");
/// }
/// assert!(TestRun::of(import).params(serde_json::json!({"table": "orders"})).run().await.is_succeeded());
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct RawParams<T>(pub T);

impl<T: DeserializeOwned> FromRun for RawParams<T> {
    fn from_run(run: &RunContext) -> Result<Self, JobError> {
        read_params(run).map(RawParams)
    }
}

fn read_params<T: DeserializeOwned>(run: &RunContext) -> Result<T, JobError> {
    read(run.params()).map_err(|error| JobError::terminal(format_args!("params: {error}")))
}

/// Reads parameters. The error names the field that does not match. The parameters of a run that follows other runs are
/// an object with the field `parents`, which is dropped if the type does not accept it.
fn read<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let read = match text {
        "null" => serde_json::from_str(text).or_else(|_| serde_json::from_str("{}")),
        _ => serde_json::from_str(text),
    };
    read.or_else(|error| read_without_parents(text, &error))
}

/// Reads parameters again after a first read has failed with `error`. If they have the field `parents`, this field is
/// left out. Otherwise, the second read only yields an error that names the field that does not match.
fn read_without_parents<T: DeserializeOwned>(text: &str, error: &serde_json::Error) -> Result<T, String> {
    let Ok(mut params) = serde_json::from_str::<Value>(text) else { return Err(error.to_string()) };
    if parents::take(&mut params).is_none() {
        return match text {
            "null" => Err(error.to_string()),
            _ => read_with_place(&mut serde_json::Deserializer::from_str(text)),
        };
    }
    let result = read_with_place(&params);
    if result.is_ok() {
        return result;
    }
    let fields: Vec<(&String, &Value)> = params.as_object().into_iter().flatten().collect();
    match fields.as_slice() {
        // Without the parents, the run has no parameters, so the type is read from `null`.
        [] => read_with_place(Value::Null).or(result),
        // The job's own parameters are not an object, so the server has wrapped them in this field.
        [(name, value)] if *name == WRAPPER_FIELD && !value.is_object() && !value.is_null() => read_with_place(*value),
        _ => result,
    }
}

/// The field that contains the job's own parameters if they are not an object and the run follows other runs.
const WRAPPER_FIELD: &str = "params";

/// A value that was given to the builder with [`state`](crate::Builder::state), such as a pool or a client. Each run
/// gets a clone of it.
///
/// ```
/// # use rondel::{State, TestRun};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// #[derive(Clone)]
/// struct Greeting(&'static str);
///
/// async fn greet(State(Greeting(words)): State<Greeting>) {
///     assert_eq!(words, "good morning");
/// }
/// assert!(TestRun::of(greet).state(Greeting("good morning")).run().await.is_succeeded());
/// assert!(TestRun::of(greet).run().await.message().contains("Greeting"));
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct State<T>(pub T);

impl<T: Clone + Send + Sync + 'static> FromRun for State<T> {
    fn from_run(run: &RunContext) -> Result<Self, JobError> {
        run.state::<T>().map(State).ok_or_else(|| {
            JobError::terminal(format_args!(
                "the executor has no state of type {}: add it with .state(value)",
                type_name::<T>()
            ))
        })
    }
}

impl FromRun for RunContext {
    fn from_run(run: &RunContext) -> Result<Self, JobError> {
        Ok(run.clone())
    }
}

impl FromRun for Shard {
    fn from_run(run: &RunContext) -> Result<Self, JobError> {
        Ok(run.shard())
    }
}

/// Reports that the run must stop: it was cancelled, its timeout has passed, no server answers, or the executor shuts
/// down.
///
/// A handler should return soon after that. If it has not returned when the grace has passed, it is dropped at its
/// current `await`.
///
/// ```
/// # use rondel::{Cancel, JobError, RunStatus, TestRun};
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// async fn patient(cancel: Cancel) -> Result<(), JobError> {
///     loop {
///         cancel.check()?;
///         tokio::time::sleep(Duration::from_millis(5)).await;
///     }
/// }
/// let outcome = TestRun::of(patient).cancel_after(Duration::from_millis(20)).run().await;
/// assert_eq!(outcome.status(), RunStatus::Cancelled);
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Cancel {
    run: RunContext,
}

/// The error of [`Cancel::check`]: the run must stop. With `?`, this error ends the handler; the run's message names
/// the reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Cancelled(String);

impl Cancel {
    /// Resolves when the run must stop.
    pub async fn cancelled(&self) {
        self.run.wait_until_stopped().await;
        self.run.read_stop_cause();
    }

    /// Whether the run must stop.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.run.read_stop_cause().is_some()
    }

    /// Fails once the run must stop: `cancel.check()?` between two steps.
    ///
    /// # Errors
    /// [`Cancelled`], with the reason.
    pub fn check(&self) -> Result<(), Cancelled> {
        self.run.read_stop_cause().map_or(Ok(()), |cause| Err(Cancelled(cause.to_string())))
    }
}

impl FromRun for Cancel {
    fn from_run(run: &RunContext) -> Result<Self, JobError> {
        Ok(Self { run: run.clone() })
    }
}

/// Reports the progress of the run. The newest numbers are sent to the servers, at most once a second.
///
/// ```
/// # use rondel::{Progress, TestRun};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// async fn import(progress: Progress) {
///     progress.set(3, 10);
/// }
/// assert_eq!(TestRun::of(import).run().await.progress(), Some((3, 10)));
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Progress {
    run: RunContext,
}

impl Progress {
    /// Sets how much is done, and the total. A total of 0 means that it is unknown.
    pub fn set(&self, done_count: u64, total_count: u64) {
        self.run.set_progress(done_count, total_count);
    }
}

impl FromRun for Progress {
    fn from_run(run: &RunContext) -> Result<Self, JobError> {
        Ok(Self { run: run.clone() })
    }
}

/// The run's own log, for lines that are not events of `tracing`.
///
/// ```
/// # use rondel::{Log, TestRun};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// async fn import(log: Log) {
///     log.info("3 rows");
/// }
/// assert_eq!(TestRun::of(import).run().await.log(), "info 3 rows\n");
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Log {
    run: RunContext,
}

impl Log {
    pub(crate) fn of(run: &RunContext) -> Self {
        Self { run: run.clone() }
    }

    /// Logs a line at level `info`.
    pub fn info(&self, text: impl AsRef<str>) {
        self.log_line("info", text.as_ref());
    }

    /// Logs a line at level `warn`.
    pub fn warn(&self, text: impl AsRef<str>) {
        self.log_line("warn", text.as_ref());
    }

    /// Logs a line at level `error`.
    pub fn error(&self, text: impl AsRef<str>) {
        self.log_line("error", text.as_ref());
    }

    pub(crate) fn log_line(&self, level: &'static str, text: &str) {
        self.run.log_line(level, text);
    }

    pub(crate) fn buffer(&self) -> &Arc<RunLog> {
        self.run.log()
    }
}

impl FromRun for Log {
    fn from_run(run: &RunContext) -> Result<Self, JobError> {
        Ok(Self { run: run.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Strict {
        table: String,
    }

    #[derive(Debug, PartialEq, serde::Deserialize)]
    struct Joined {
        table: String,
        parents: Value,
    }

    const FOLLOWER: &str =
        r#"{"table": "orders", "parents": {"b": {"run_id": "7", "status": "succeeded", "result": 3}}}"#;

    #[test]
    fn parents_are_passed_to_types_that_accept_them() {
        let joined: Joined = read(FOLLOWER).unwrap();
        assert_eq!(joined.parents["b"]["result"], 3);
        assert_eq!(read::<Strict>(FOLLOWER).unwrap(), Strict { table: "orders".to_owned() });
        let own = read::<Strict>(r#"{"table": "orders", "parents": {"b": 1}}"#);
        assert!(own.is_err(), "a field of the job's own that does not fit is reported");
        let wrong = read::<Strict>(&FOLLOWER.replace("table", "tabel")).unwrap_err();
        assert!(wrong.to_string().contains("tabel"), "{wrong}");
    }

    #[test]
    fn a_follower_gives_parameters_that_are_no_object_as_they_are() {
        let with = |params: &str| FOLLOWER.replace(r#""table": "orders""#, &format!(r#""params": {params}"#));
        assert_eq!(read::<String>(&with(r#""eu""#)).unwrap(), "eu");
        assert_eq!(read::<Option<String>>(&with(r#""eu""#)).unwrap().as_deref(), Some("eu"));
        assert_eq!(read::<Vec<u32>>(&with("[1, 2]")).unwrap(), [1, 2]);
        assert_eq!(read::<u32>(&with(r#""eu""#)).unwrap_err(), "invalid type: string \"eu\", expected u32");
        assert_eq!(read::<Value>(&with("7")).unwrap()["parents"]["b"]["result"], 3);
        assert!(read::<Strict>(&with(r#"{"table": "orders"}"#)).is_err(), "an object is not put into another one");
    }

    #[test]
    fn invalid_params_are_named_by_their_place() {
        #[derive(Debug, PartialEq, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Import {
            windows: Vec<Window>,
        }
        #[derive(Debug, PartialEq, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Window {
            rows: u32,
        }
        let complaint = |windows: &str| read::<Import>(&format!(r#"{{"windows": {windows}}}"#)).unwrap_err();
        let wrong = complaint(r#"[{"rows": 1}, {"rows": "ten"}]"#);
        assert!(wrong.starts_with("/windows/1/rows: invalid type: string \"ten\", expected u32"), "{wrong}");
        let first = read::<Window>(r#"{"rows": "x", "row": 1}"#).unwrap_err();
        assert!(first.starts_with("/rows: invalid type: string \"x\""), "the place is that of the sentence: {first}");
        let missing = complaint("[{}]");
        assert!(missing.starts_with("/windows/0: missing field `rows`"), "{missing}");
        let unknown = complaint(r#"[{"row": 1}]"#);
        assert!(unknown.starts_with("/windows/0: unknown field `row`"), "{unknown}");
        let follower = FOLLOWER.replace(r#""table": "orders""#, r#""windows": [{"rows": true}]"#);
        let wrong = read::<Import>(&follower).unwrap_err();
        assert_eq!(wrong, "/windows/0/rows: invalid type: boolean `true`, expected u32");
    }

    #[test]
    fn a_follower_without_parameters_gives_null_or_an_empty_object() {
        let alone = FOLLOWER.replace(r#""table": "orders", "#, "");
        assert!(read::<()>(&alone).is_ok());
        assert_eq!(read::<Option<Strict>>(&alone).unwrap(), None);
        let missing = read::<Strict>(&alone).unwrap_err();
        assert!(missing.to_string().contains("missing field `table`"), "{missing}");
        assert!(read::<()>(FOLLOWER).is_err(), "it has parameters");
    }
}
