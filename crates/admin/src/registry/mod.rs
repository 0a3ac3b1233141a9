//! The executors that are online. Each node keeps a registry of the executors with a stream to this node, in memory. About streams to other
//! nodes, it reads the session rows in the store.

mod schema_cost;
mod schemas;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use rondel_core::name::takes_handler;
use rondel_core::{AppId, ExecutorId, NamespaceId, Timestamp};

use crate::gateway::AppRows;

pub use schemas::ParamsSchema;
pub(crate) use schemas::{SchemaPool, Schemas, common_schema};

/// An executor with a stream to this node.
#[derive(Clone, Debug)]
pub struct OnlineExecutor {
    /// The executor's incarnation: a new id at each start.
    pub id: ExecutorId,
    pub namespace: NamespaceId,
    pub app: AppId,
    pub app_name: String,
    /// The executor's stable name.
    pub name: String,
    pub labels: BTreeMap<String, String>,
    /// The executor's weight, for the weight router.
    pub weight: u32,
    /// How many runs the executor takes concurrently.
    pub slots: u32,
    /// How long before a run's instant the executor takes its trigger; zero if it starts each run immediately.
    pub(crate) ahead_max: Duration,
    /// How many runs the executor has, by its last heartbeat.
    pub running: u32,
    pub handlers: Vec<String>,
    /// The schemas that the executor's handlers declare for their parameters.
    pub(crate) params_schemas: Schemas,
    pub sdk_version: String,
    /// When this stream was opened.
    pub connected_at: Timestamp,
    /// When the executor was last heard.
    pub last_seen_at: Timestamp,
    /// Whether the executor takes no more runs.
    pub is_draining: bool,
    /// The triggers that the executor left unanswered; `None` if there are none, or if it has answered a trigger since.
    pub unanswered: Option<UnansweredTriggers>,
    /// Until when runs go to other executors first, because this executor left triggers unanswered. It may have answered a trigger since.
    pub(crate) avoided_until: Option<Timestamp>,
    /// The number of the hello that declared these values; 0 if the executor does not count its hellos.
    pub(crate) hello_number: u64,
}

/// Triggers that an executor left unanswered while it kept sending heartbeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnansweredTriggers {
    /// How many of the executor's streams in a row were ended for this reason.
    pub count: u32,
    /// When the first of these triggers was sent.
    pub since: Timestamp,
}

/// The id and the names of an online executor.
#[derive(Clone, Debug)]
pub struct OnlineName {
    /// The executor's incarnation: a new id at each start.
    pub id: ExecutorId,
    pub namespace: NamespaceId,
    pub app: AppId,
    pub app_name: String,
    /// The executor's stable name.
    pub name: String,
}

impl OnlineExecutor {
    /// Whether the executor has this handler: it announces the handler, or it announces none and takes all, as executors of XXL-JOB do.
    #[must_use]
    pub fn has_handler(&self, handler: &str) -> bool {
        takes_handler(self.handlers.iter().map(String::as_str), handler)
    }

    /// Whether runs go to other executors first, because this executor leaves triggers unanswered.
    pub(crate) fn is_avoided(&self, now: Timestamp) -> bool {
        self.unanswered.is_some() && self.avoided_until.is_none_or(|until| until > now)
    }

    /// Whether runs of this handler may go to the executor.
    pub(crate) fn takes(&self, handler: &str) -> bool {
        !self.is_draining && self.has_handler(handler)
    }
}

/// A handler of executors that are online.
#[derive(Clone, Debug)]
pub struct Handler {
    pub name: String,
    /// The names of the executors that have the handler.
    pub executors: Vec<String>,
    /// The schema of the handler's parameters, if all of these executors declare the same schema.
    pub params_schema: Option<Arc<ParamsSchema>>,
}

#[derive(Debug, Default)]
pub(crate) struct Registry {
    online_executors: RwLock<HashMap<ExecutorId, OnlineExecutor>>,
    /// The numbers of the streams that each executor has to this node or is opening.
    streams: Mutex<HashMap<ExecutorId, BTreeSet<u64>>>,
    pub(crate) schemas: SchemaPool,
    pub(crate) rows: AppRows,
}

impl Registry {
    /// Adds an executor, unless a newer hello of the executor was already read: a server that was suspended reads the hellos of several streams
    /// in any order.
    pub(crate) fn insert(&self, executor: OnlineExecutor) {
        let mut online_by_id = self.online_executors.write().unwrap_or_else(PoisonError::into_inner);
        if online_by_id.get(&executor.id).is_none_or(|known| known.hello_number <= executor.hello_number) {
            online_by_id.insert(executor.id, executor);
        }
    }

    fn streams(&self) -> MutexGuard<'_, HashMap<ExecutorId, BTreeSet<u64>>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an executor that is opening the stream with this number. Returns false if an earlier hello has opened a stream that was heard after
    /// `silent_since`: the executor may have made the later hello before it got the welcome of that stream. The later hello would not list
    /// the runs that have come on that stream, and they would count as not received.
    pub(crate) fn open(&self, executor: OnlineExecutor, stream_number: u64, silent_since: Timestamp) -> bool {
        let mut streams = self.streams();
        let is_in_use =
            |known: &OnlineExecutor| known.hello_number <= executor.hello_number && known.last_seen_at > silent_since;
        if self.online_executors.read().unwrap_or_else(PoisonError::into_inner).get(&executor.id).is_some_and(is_in_use)
        {
            return false;
        }
        streams.entry(executor.id).or_default().insert(stream_number);
        self.insert(executor);
        true
    }

    /// Removes a stream, and its executor if it has no other stream to this node and is opening none.
    pub(crate) fn close(&self, id: ExecutorId, stream_number: u64) {
        let mut streams = self.streams();
        let Some(numbers) = streams.get_mut(&id) else { return };
        numbers.remove(&stream_number);
        if numbers.is_empty() {
            streams.remove(&id);
            self.online_executors.write().unwrap_or_else(PoisonError::into_inner).remove(&id);
        }
    }

    /// Removes an executor whose newest stream has ended, unless it is opening another one. In that case it must stay in the registry: a server
    /// that takes its next lease moves only the sessions of the executors in this registry to that lease.
    pub(crate) fn remove(&self, id: ExecutorId) {
        let streams = self.streams();
        if streams.get(&id).is_none_or(|numbers| numbers.len() < 2) {
            self.online_executors.write().unwrap_or_else(PoisonError::into_inner).remove(&id);
        }
    }

    pub(crate) fn get(&self, id: ExecutorId) -> Option<OnlineExecutor> {
        self.online_executors.read().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
    }

    pub(crate) fn is_online(&self, id: ExecutorId) -> bool {
        self.online_executors.read().unwrap_or_else(PoisonError::into_inner).contains_key(&id)
    }

    pub(crate) fn record_heard(&self, id: ExecutorId, now: Timestamp, running: Option<u32>) {
        if let Some(executor) = self.online_executors.write().unwrap_or_else(PoisonError::into_inner).get_mut(&id) {
            executor.last_seen_at = now;
            executor.running = running.unwrap_or(executor.running);
        }
    }

    pub(crate) fn set_draining(&self, id: ExecutorId) {
        if let Some(executor) = self.online_executors.write().unwrap_or_else(PoisonError::into_inner).get_mut(&id) {
            executor.is_draining = true;
        }
    }

    pub(crate) fn set_unanswered(&self, id: ExecutorId, unanswered: Option<UnansweredTriggers>) {
        if let Some(executor) = self.online_executors.write().unwrap_or_else(PoisonError::into_inner).get_mut(&id) {
            executor.unanswered = unanswered;
        }
    }

    pub(crate) fn heard_since(&self, since: Timestamp) -> Vec<ExecutorId> {
        let online_by_id = self.online_executors.read().unwrap_or_else(PoisonError::into_inner);
        let mut heard_executors: Vec<_> = online_by_id
            .values()
            .filter(|executor| executor.last_seen_at >= since)
            .map(|executor| executor.id)
            .collect();
        heard_executors.sort_unstable();
        heard_executors
    }

    /// The schema of a handler's parameters, if all executors of the app that have the handler and take runs declare the same. The outer
    /// `None` means that there is no such executor.
    pub(crate) fn params_schema(
        &self,
        namespace: NamespaceId,
        app: &str,
        handler: &str,
    ) -> Option<Option<Arc<ParamsSchema>>> {
        let online_by_id = self.online_executors.read().unwrap_or_else(PoisonError::into_inner);
        let is_of_app = |executor: &&OnlineExecutor| executor.namespace == namespace && executor.app_name == app;
        let mut capable_executors =
            online_by_id.values().filter(is_of_app).filter(|executor| executor.takes(handler)).peekable();
        capable_executors.peek()?;
        Some(common_schema(capable_executors.map(|executor| executor.params_schemas.get(handler))))
    }

    /// The handlers of an app, sorted by name, with [`rondel_core::name::ANY_HANDLER`] for executors that announce none
    /// and take all. Executors may have very many handlers, so each of their lists is read once.
    pub(crate) fn handlers(&self, app: AppId) -> Vec<Handler> {
        let online_by_id = self.online_executors.read().unwrap_or_else(PoisonError::into_inner);
        let mut capable_executors: Vec<_> =
            online_by_id.values().filter(|executor| executor.app == app && !executor.is_draining).collect();
        capable_executors.sort_by(|a, b| (&a.name, a.id).cmp(&(&b.name, b.id)));
        let mut executors_by_handler: BTreeMap<&String, Vec<&OnlineExecutor>> = BTreeMap::new();
        for executor in capable_executors {
            for name in executor.handlers.iter().collect::<BTreeSet<_>>() {
                executors_by_handler.entry(name).or_default().push(executor);
            }
        }
        let handler = |(name, executors): (&String, Vec<&OnlineExecutor>)| Handler {
            name: name.clone(),
            executors: executors.iter().map(|executor| executor.name.clone()).collect(),
            params_schema: common_schema(executors.iter().map(|executor| executor.params_schemas.get(name))),
        };
        executors_by_handler.into_iter().map(handler).collect()
    }

    /// The names of all online executors, without the rest of their hellos.
    pub(crate) fn online_names(&self) -> Vec<OnlineName> {
        let online_by_id = self.online_executors.read().unwrap_or_else(PoisonError::into_inner);
        let name = |executor: &OnlineExecutor| OnlineName {
            id: executor.id,
            namespace: executor.namespace,
            app: executor.app,
            app_name: executor.app_name.clone(),
            name: executor.name.clone(),
        };
        online_by_id.values().map(name).collect()
    }

    /// All online executors, sorted by app and name.
    pub(crate) fn all(&self) -> Vec<OnlineExecutor> {
        let online_by_id = self.online_executors.read().unwrap_or_else(PoisonError::into_inner);
        let mut executors: Vec<_> = online_by_id.values().cloned().collect();
        executors.sort_by(|a, b| (&a.app_name, &a.name, a.id).cmp(&(&b.app_name, &b.name, b.id)));
        executors
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::tests_support::executor;

    /// A stream that is replaced before the dispatcher knows of it leaves nothing behind, and the end of a stream does not hide the next one.
    #[test]
    fn an_executor_is_online_as_long_as_it_has_a_stream() {
        let (_, online, _stream) = executor(1, 1);
        let (registry, id) = (Registry::default(), online.id);
        registry.open(online.clone(), 1, Timestamp::EPOCH);
        registry.open(online.clone(), 2, Timestamp::EPOCH);
        registry.remove(id);
        assert!(registry.is_online(id), "it is opening another one");
        registry.close(id, 1);
        assert!(registry.is_online(id));
        registry.close(id, 2);
        assert!(!registry.is_online(id) && registry.streams().is_empty(), "the dispatcher knew of neither");
        registry.open(online, 3, Timestamp::EPOCH);
        registry.remove(id);
        assert!(!registry.is_online(id));
        registry.close(id, 3);
        assert!(registry.streams().is_empty());
    }

    /// Two hellos of an executor were on their way at the same time.
    #[test]
    fn a_later_hello_does_not_replace_a_stream_that_is_in_use() {
        let (_, online, _stream) = executor(1, 1);
        let at = |hello, second| {
            let last_seen_at = Timestamp::from_secs(second);
            OnlineExecutor { hello_number: hello, last_seen_at, ..online.clone() }
        };
        let (registry, silent_since) = (Registry::default(), Timestamp::from_secs(6));
        assert!(registry.open(at(2, 10), 1, silent_since));
        assert!(!registry.open(at(3, 10), 2, silent_since));
        assert!(registry.open(at(1, 10), 3, silent_since), "the dispatcher ends the stream of an outdated hello");
        assert!(registry.open(at(3, 20), 4, Timestamp::from_secs(16)), "the earlier stream is silent");
        for number in [1, 3, 4] {
            registry.close(online.id, number);
        }
        assert!(!registry.is_online(online.id) && registry.streams().is_empty());
    }
}
