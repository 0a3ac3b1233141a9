//! What an executor is made of, once it is built: shared by all its tasks, changed by none.

use std::any::{Any, TypeId};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rondel_proto::v1;
use tokio::sync::Semaphore;

use crate::clock::ServerClock;
use crate::handler::JobHandler;
use crate::lifecycle::{Lifecycle, lock};
use crate::log::{LogLimit, Shipping};
use crate::run::RunContext;
use crate::secrets::Secrets;

/// The lengths that an executor works by. The defaults are meant for everybody; tests shorten them.
///
/// ```
/// use rondel::Timing;
/// use std::time::Duration;
///
/// let timing = Timing { cancel_grace: Duration::from_secs(30), ..Timing::default() };
/// assert_eq!(timing.resend_after, Duration::from_secs(2));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timing {
    /// How long a run that is to stop may take to do so before it is dropped.
    pub cancel_grace: Duration,
    /// How long no server may answer before serial and at-most-once runs are stopped; `None` takes the server's word.
    pub silence: Option<Duration>,
    /// How long a result goes without an acknowledgement before it is sent again.
    pub resend_after: Duration,
    /// How long a run lasts before the server is told that it has started.
    pub started_after: Duration,
    /// The longest that a log line waits for company.
    pub sweep_period: Duration,
    /// The shortest wait before dialling a server again …
    pub reconnect_min: Duration,
    /// … and the longest.
    pub reconnect_max: Duration,
    /// How long connecting, and then the server's welcome, may take.
    pub connect_timeout: Duration,
    /// How long a draining executor waits for the last acknowledgements.
    pub ack_grace: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            cancel_grace: Duration::from_secs(10),
            silence: None,
            resend_after: Duration::from_secs(2),
            started_after: Duration::from_millis(500),
            sweep_period: Duration::from_millis(200),
            reconnect_min: Duration::from_millis(100),
            reconnect_max: Duration::from_secs(2),
            connect_timeout: Duration::from_secs(5),
            ack_grace: Duration::from_secs(5),
        }
    }
}

pub(crate) struct Setup {
    pub(crate) handlers: BTreeMap<String, JobHandler>,
    /// The jobs that the code declares.
    pub(crate) declared: Vec<v1::DeclaredJob>,
    pub(crate) states: States,
    pub(crate) secrets: Option<Secrets>,
    pub(crate) timing: Timing,
    pub(crate) clock: ServerClock,
    pub(crate) lifecycle: Lifecycle,
    /// `None` where nobody collects logs: they stay with the run.
    pub(crate) shipping: Option<Arc<Shipping>>,
    pub(crate) log_limit: LogLimit,
    pub(crate) blocking: Arc<Semaphore>,
    /// Runs that told progress since it was last sent.
    pub(crate) progressed: Mutex<Vec<RunContext>>,
}

impl Setup {
    pub(crate) fn new(handlers: BTreeMap<String, JobHandler>, states: States, timing: Timing) -> Self {
        Self {
            handlers,
            declared: Vec::new(),
            states,
            secrets: None,
            timing,
            clock: ServerClock::new(),
            lifecycle: Lifecycle::default(),
            shipping: None,
            log_limit: LogLimit::default(),
            blocking: Arc::new(Semaphore::new(BLOCKING_THREADS)),
            progressed: Mutex::new(Vec::new()),
        }
    }

    /// What the handlers say of their parameters.
    pub(crate) fn handler_infos(&self) -> Vec<v1::HandlerInfo> {
        let schema = |handler: &JobHandler| handler.params_schema().map(|schema| schema.to_string());
        let infos = self.handlers.iter().filter_map(|(name, handler)| Some((name, schema(handler)?)));
        // What is too long to be told is not told: the parameters are still checked when the handler reads them.
        let infos = infos.filter(|(_, schema)| schema.len() <= SCHEMA_BYTES_MAX);
        infos.map(|(name, params_schema)| v1::HandlerInfo { name: name.clone(), params_schema }).collect()
    }

    /// Lets go of the runs in its lists: they hold this in turn.
    pub(crate) fn forget_runs(&self) {
        lock(&self.progressed).clear();
        if let Some(shipping) = &self.shipping {
            drop(shipping.take_marked());
        }
    }
}

/// The longest schema that is told to servers.
const SCHEMA_BYTES_MAX: usize = 64 * 1024;

/// How many blocking handlers run at the same time where the builder says nothing.
pub(crate) const BLOCKING_THREADS: usize = 32;

/// Values by their type.
#[derive(Default)]
pub(crate) struct States(HashMap<TypeId, Box<dyn Any + Send + Sync>>);

impl States {
    pub(crate) fn insert<T: Send + Sync + 'static>(&mut self, value: T) {
        self.0.insert(TypeId::of::<T>(), Box::new(value));
    }

    pub(crate) fn get<T: Clone + 'static>(&self) -> Option<T> {
        self.0.get(&TypeId::of::<T>())?.downcast_ref().cloned()
    }
}
