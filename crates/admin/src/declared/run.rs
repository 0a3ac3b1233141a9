//! The loop that records which declared sets are living, and applies the sets of the apps whose state has changed.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use rondel_core::{AppId, ExecutorId, Timestamp};
use rondel_store::StoreError;
use rondel_store::declarations::DeclaredSetHeader;
use tokio_util::sync::CancellationToken;

use super::apply::reconcile_app;
use super::audit::App;
use super::board::{self, DeclaringExecutor};
use crate::background::{Background, TickError};
use crate::node::Node;

/// How often the living sets are recorded, and apps with problems are tried again.
const PERIOD: Duration = Duration::from_secs(5);
/// Delay after an executor connects, so that executors that connect together are handled together.
const GATHER_TIME: Duration = Duration::from_millis(200);

/// Keeps declared jobs in line with the declarations.
pub(crate) struct DeclareLoop {
    node: Node,
    /// The state of each app when its declarations were last applied.
    applied_states: HashMap<AppId, AppState>,
}

/// The state of an app's executors; while it stays the same and the app has no problems, there is nothing to apply.
#[derive(Debug, PartialEq, Eq)]
struct AppState {
    /// The hashes of the declared sets of living executors.
    living_hashes: Vec<String>,
    /// The connected executors, each with the number of its stream.
    online_sessions: Vec<(ExecutorId, u64)>,
}

impl Background for DeclareLoop {
    const NAME: &'static str = "declare";
    const ACTION: &'static str = "apply declared jobs";

    fn period(&self) -> Option<Duration> {
        Some(PERIOD)
    }

    fn first_wait(&self) -> Duration {
        self.node.shared().first_look_delay(PERIOD)
    }

    async fn wait_until_woken(&mut self) {
        self.node.declared().poke.notified().await;
        tokio::time::sleep(GATHER_TIME).await;
    }

    async fn tick(&mut self, _stop: &CancellationToken) -> Result<u64, TickError> {
        Ok(self.apply_changed().await?)
    }
}

impl DeclareLoop {
    pub(crate) fn new(node: Node) -> Self {
        Self { node, applied_states: HashMap::new() }
    }

    /// Applies the declarations of the apps that changed. Returns the number of these apps. A transient error of the store ends the tick. Any
    /// other error of one app is returned after the other apps had their turns.
    async fn apply_changed(&mut self) -> Result<u64, StoreError> {
        if !self.node.readiness().lease_held {
            return Ok(0);
        }
        let apps = self.node.declared().executors_by_app();
        let now = self.node.now();
        let (mut first_error, mut unrecorded_apps) = (None, BTreeSet::new());
        for (app, online) in &apps {
            // Executors of one build declare the same set, which is recorded once.
            let declared_sets: BTreeMap<&str, &str> = online
                .iter()
                .map(|executor| (executor.declared_set.hash.as_str(), executor.declared_set.specs.as_str()))
                .collect();
            for (hash, specs) in declared_sets {
                match self.node.store().record_declared_set(*app, hash, specs, now).await {
                    Err(error) if !error.is_transient() => {
                        unrecorded_apps.insert(*app);
                        first_error = first_error.or(Some(error));
                    }
                    result => result?,
                }
            }
        }
        self.applied_states.retain(|app, _| apps.contains_key(app));
        self.node.declared().keep_problems_of(|app| apps.contains_key(&app));
        if apps.is_empty() {
            return Ok(0);
        }
        let living_since = now - self.node.lost_after();
        let headers = self.node.store().declared_set_headers(living_since).await?;
        let mut count = 0;
        // An app with a set that was not recorded is skipped, because it would look as if no code declared the set any more.
        for (app, online) in apps.iter().filter(|(app, _)| !unrecorded_apps.contains(*app)) {
            match self.apply_if_changed(*app, online, &headers, living_since).await {
                Ok(has_applied) => count += u64::from(has_applied),
                Err(error) if error.is_transient() => return Err(error),
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        first_error.map_or(Ok(count), Err)
    }

    /// Applies an app's declarations if its state changed or it had problems; returns whether it applied them.
    async fn apply_if_changed(
        &mut self,
        id: AppId,
        declaring_executors: &[DeclaringExecutor],
        headers: &[DeclaredSetHeader],
        living_since: Timestamp,
    ) -> Result<bool, StoreError> {
        let Some(any_executor) = declaring_executors.first() else { return Ok(false) };
        let living_hashes =
            headers.iter().filter(|header| header.app == id).map(|header| header.hash.clone()).collect();
        let state = AppState {
            living_hashes,
            online_sessions: declaring_executors
                .iter()
                .map(|executor| (executor.session.executor, executor.session.number))
                .collect(),
        };
        let has_problems = !self.node.declared().problems(id).is_empty();
        if self.applied_states.get(&id) == Some(&state) && !has_problems {
            return Ok(false);
        }
        let app = App { id, namespace: any_executor.namespace, name: any_executor.app_name.clone() };
        let mut problems = Box::pin(reconcile_app(&self.node, &app, living_since)).await?;
        problems.extend(declaring_executors.iter().filter_map(|executor| executor.declared_set.refusal.clone()));
        problems.sort();
        problems.dedup();
        let has_changed = self.node.declared().set_problems(id, &problems);
        for problem in problems.iter().filter(|_| has_changed) {
            let (job, pointer, message) = (&problem.job, &problem.pointer, &problem.message);
            tracing::warn!(app = app.name, job, pointer, message, "cannot apply a declared job");
        }
        let previous_state = self.applied_states.insert(id, state);
        let was_connected = |executor: &DeclaringExecutor| {
            previous_state.as_ref().is_some_and(|known| {
                known.online_sessions.contains(&(executor.session.executor, executor.session.number))
            })
        };
        // An executor that was already connected is notified only if the app's problems changed. A new executor is notified if it has any
        // problem.
        for executor in declaring_executors.iter().filter(|executor| executor.declared_set.has_content()) {
            let own_problems = executor.declared_set.problems_of_executor(&problems);
            let has_news = if was_connected(executor) { has_changed } else { !own_problems.is_empty() };
            if has_news {
                board::send_problems(&executor.session, &own_problems);
            }
        }
        Ok(true)
    }
}
