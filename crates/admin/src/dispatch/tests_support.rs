//! Values for the tests of this crate.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rondel_core::run::RunJob;
use rondel_core::{AppId, ExecutorId, JobId, NamespaceId, NodeId, Run, RunId, Timestamp, Trigger};
use rondel_proto::v1;
use tokio::sync::mpsc;

use super::{ReadyRun, SessionHandle};
use crate::definitions::CompiledDefinition;
use crate::gateway::OutgoingStream;
use crate::metrics::NamespaceCounts;
use crate::registry::OnlineExecutor;

/// A pending run that is due at this instant.
pub(crate) fn run_due_at(due_at: Timestamp) -> Run {
    let of = RunJob { namespace: NamespaceId::new(1), job: JobId::new(1), job_version: 1, app: AppId::new(1) };
    Run::new(RunId::new(due_at.as_millis()), of, due_at, Trigger::Cron, (NodeId::new(1), 1))
}

/// A definition of job 1: the smallest valid definition, in which these fields are replaced.
pub(crate) fn definition(overrides: &serde_json::Value) -> Arc<CompiledDefinition> {
    let mut spec = serde_json::json!({"name": "j", "app": "a", "handler": "h"});
    for (key, value) in overrides.as_object().expect("an object") {
        spec[key] = value.clone();
    }
    let spec: rondel_core::JobSpec = serde_json::from_value(spec).expect("a definition");
    Arc::new(CompiledDefinition {
        id: JobId::new(1),
        version: 1,
        namespace: NamespaceId::new(1),
        namespace_name: "default".to_owned(),
        app: AppId::new(1),
        saved_at: Timestamp::EPOCH,
        anchor: Timestamp::EPOCH,
        counts: Arc::new(NamespaceCounts::new("default")),
        job_series: None,
        labelled_counts: None,
        job: spec.compile().expect("a valid definition"),
    })
}

/// A run that is due at that second, under that definition.
pub(crate) fn ready(second: i64, definition: &Arc<CompiledDefinition>) -> ReadyRun {
    ReadyRun::new(run_due_at(Timestamp::from_secs(second)), Arc::clone(definition))
}

/// An executor: its session, its entry as an online executor, and the receiver of the messages that are sent to it.
pub(crate) fn executor(id: i64, number: u64) -> (SessionHandle, OnlineExecutor, mpsc::Receiver<v1::ServerMessage>) {
    let (sender, receiver) = mpsc::channel(8);
    let id = ExecutorId::new(id);
    let online = OnlineExecutor {
        id,
        namespace: NamespaceId::new(1),
        app: AppId::new(1),
        app_name: "a".to_owned(),
        name: format!("e{id}"),
        labels: BTreeMap::new(),
        weight: 1,
        slots: 4,
        ahead_max: Duration::ZERO,
        running: 0,
        handlers: vec!["h".to_owned()],
        params_schemas: Arc::default(),
        sdk_version: String::new(),
        connected_at: Timestamp::EPOCH,
        last_seen_at: Timestamp::EPOCH,
        is_draining: false,
        unanswered: None,
        avoided_until: None,
        hello_number: 0,
    };
    let stream = Arc::new(OutgoingStream::new(sender));
    (SessionHandle { executor: id, number, hello_number: 0, stream }, online, receiver)
}
