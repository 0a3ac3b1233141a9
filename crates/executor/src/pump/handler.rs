//! Turns pumps into handlers.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use schemars::Schema;

use super::context::PumpContext;
use super::driver;
use super::item::Item;
use crate::ending::Ending;
use crate::handler::AnyHandler;
use crate::job_error::JobError;
use crate::run::RunContext;

/// Fetches and executes the rows of a pump job. [`Builder::pump`](crate::Builder::pump) registers a pump.
///
/// A pump job keeps groups running. Each group holds some of the job's items, selects their rows, and executes these
/// with several workers. The functions are called in the run of the group: its log,
/// [`shard::index`](crate::shard::index) and [`run::current`](crate::run::current) work inside them. A panic is caught:
/// in `select`, it counts as a failed select, which is retried after a wait; in `execute`, the rows of the call count
/// as failed.
///
/// ```
/// use std::sync::Mutex;
///
/// use rondel::{Item, JobError, Pump, PumpContext, TestPump};
///
/// #[derive(Default)]
/// struct CloseOrders {
///     open: Mutex<Vec<(String, u64)>>,
/// }
///
/// impl Pump for CloseOrders {
///     type Row = (String, u64);
///     type Error = JobError;
///
///     async fn select(&self, _: &PumpContext, items: &[Item], limit: usize) -> Result<Vec<Self::Row>, JobError> {
///         let open = self.open.lock().unwrap();
///         let is_ours = |row: &&(String, u64)| items.iter().any(|item| item.name == row.0);
///         Ok(open.iter().filter(is_ours).take(limit).cloned().collect())
///     }
///
///     async fn execute(&self, cx: &PumpContext, rows: Vec<Self::Row>) -> Result<(), JobError> {
///         tracing::info!(epoch = cx.epoch(&rows[0].0), "closing {} orders", rows.len());
///         self.open.lock().unwrap().retain(|row| !rows.contains(row));
///         Ok(())
///     }
///
///     fn item(row: &Self::Row) -> String {
///         row.0.clone()
///     }
///
///     fn key(row: &Self::Row) -> String {
///         row.1.to_string()
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let pump = CloseOrders { open: Mutex::new((0..10).map(|id| ("eu".to_owned(), id)).collect()) };
/// let outcome = TestPump::of(pump).item("eu", 7).batch(4).run().await;
/// assert_eq!((outcome.fetched(), outcome.done(), outcome.failed()), (10, 10, 0));
/// # }
/// ```
pub trait Pump: Send + Sync + 'static {
    /// A row. It is cloned for each try.
    type Row: Send + Clone + 'static;
    /// The error of [`select`](Self::select) and [`execute`](Self::execute): any error type that a handler may return.
    type Error: Into<JobError>;

    /// Returns at most `limit` rows of these items, to be executed. Rows beyond the limit and rows of other items are
    /// dropped, and so are rows that are already in work. Rows are recognised by their [`key`](Self::key).
    fn select(
        &self,
        cx: &PumpContext,
        items: &[Item],
        limit: usize,
    ) -> impl Future<Output = Result<Vec<Self::Row>, Self::Error>> + Send;

    /// Executes rows of one item: up to the job's `batch`, which is one row by default. An error means that none of the
    /// rows is done. Like any handler, this may be called again for a row, for instance after an executor was lost.
    fn execute(&self, cx: &PumpContext, rows: Vec<Self::Row>) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// The name of the item that the row belongs to.
    fn item(row: &Self::Row) -> String;

    /// Identifies the row within its item, in logs and among the rows in work.
    fn key(row: &Self::Row) -> String;
}

/// A pump with a name: `#[rondel::pump("…")]` on an `impl Pump` implements this trait.
pub trait NamedPump: Pump + Default {
    /// The handler's name.
    const NAME: &'static str;
}

/// A pump as the executor stores it.
pub(crate) struct PumpHandler<P> {
    pump: Arc<P>,
    schema: Option<Schema>,
}

impl<P: Pump> PumpHandler<P> {
    pub(crate) fn new(pump: P) -> Self {
        Self { pump: Arc::new(pump), schema: None }
    }

    /// Sets the JSON schema that the job's parameters must match.
    pub(crate) fn with_schema(self, schema: Schema) -> Self {
        Self { schema: Some(schema), ..self }
    }
}

impl<P: Pump> AnyHandler for PumpHandler<P> {
    fn start(&self, run: RunContext) -> BoxFuture<'_, Ending> {
        Box::pin(driver::drive(Arc::clone(&self.pump), run))
    }

    fn params_schema(&self) -> Option<Schema> {
        self.schema.clone()
    }

    fn is_pump(&self) -> bool {
        true
    }
}
