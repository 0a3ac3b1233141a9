//! A job's parameters against the schema of its handler, as far as executors that have it are connected to this node.

use std::sync::Arc;

use rondel_core::job::{PARAMS_LEN_MAX, check_params_size};
use rondel_core::overrides::Overrides;
use rondel_core::spec::{ItemSpec, ItemsSpec, with_params_of_shard};
use rondel_core::{AppId, FieldError, JobSpec, NamespaceId, agent_handlers};
use serde_json::Value;

use crate::node::Node;
use crate::registry::{Handler, ParamsSchema};

/// What the author of a definition should know although it is right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobWarning {
    /// Its runs wait, and are skipped after its `queue_timeout`.
    NoHandler {
        /// The app.
        app: String,
        /// The handler.
        handler: String,
    },
    /// Its definition was in shadow mode, and is no more: the other scheduler may still fire it.
    LeavesShadow,
}

impl std::fmt::Display for JobWarning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoHandler { app, handler } => {
                write!(f, "no executor of app {app} that is online has a handler {handler}")
            }
            Self::LeavesShadow => f.write_str(
                "leaves shadow mode, and runs here from its next fire on, also while another scheduler runs it: rondel shadow promote stops it there",
            ),
        }
    }
}

/// The handlers that executors online have in an app, by name.
#[must_use]
pub fn handlers(node: &Node, app: AppId) -> Vec<Handler> {
    node.shared().registry.handlers(app)
}

/// The schema of a handler's parameters, where all executors online that have it agree.
#[must_use]
pub fn params_schema(node: &Node, namespace: NamespaceId, app: &str, handler: &str) -> Option<Arc<ParamsSchema>> {
    node.shared().registry.params_schema(namespace, app, handler).flatten()
}

/// What the handler of a job would refuse of these parameters.
pub(super) fn check_params(node: &Node, namespace: NamespaceId, spec: &JobSpec, params: &Value) -> Vec<FieldError> {
    let is_follower = !spec.parents().is_empty();
    match node.shared().registry.params_schema(namespace, &spec.app, &spec.handler) {
        Some(schema) => schema.map_or_else(Vec::new, |schema| schema.complaints(params, is_follower)),
        // No executor with the handler is connected. The schemas of the agent's handlers are known.
        None => agent_handlers::params_schema(&spec.handler)
            .map_or_else(Vec::new, |schema| ParamsSchema::new(schema).complaints(params, is_follower)),
    }
}

/// What the author of a definition should know although it is right.
#[must_use]
pub fn warnings(node: &Node, namespace: NamespaceId, spec: &JobSpec) -> Vec<JobWarning> {
    let (app, handler) = (&spec.app, &spec.handler);
    match node.shared().registry.params_schema(namespace, app, handler) {
        Some(_) => Vec::new(),
        None => vec![JobWarning::NoHandler { app: app.clone(), handler: handler.clone() }],
    }
}

/// Whether an executor that this node hears offers a handler.
#[must_use]
pub fn is_offered(node: &Node, namespace: NamespaceId, app: &str, handler: &str) -> bool {
    node.shared().registry.params_schema(namespace, app, handler).is_some()
}

/// What is wrong with the parameters of a definition in the place of `before`. What was saved once stays as it is:
/// a job whose handler has learned other parameters since can still be paused.
pub(super) fn params_complaints(
    node: &Node,
    namespace: NamespaceId,
    spec: &JobSpec,
    before: Option<&JobSpec>,
) -> Vec<FieldError> {
    let is_judged = match before {
        Some(before) => judged_by(before) != judged_by(spec),
        None => true,
    };
    // A job without a schedule may get its parameters when it is triggered, unless no caller may give any.
    let takes_params = *spec.effective_overrides() != Overrides::None;
    let is_told_later = spec.params.is_null() && spec.schedule.is_none() && takes_params;
    // What is too long was refused with the rest of the definition.
    if !is_judged || is_told_later || spec.params.to_string().len() > PARAMS_LEN_MAX {
        return Vec::new();
    }
    if let Err(message) = check_params_size(&spec.params) {
        return vec![FieldError::new("/params", message)];
    }
    let named = spec.shards.as_ref().map_or(&[][..], ItemsSpec::named);
    if named.iter().all(|shard| shard.params.is_null()) {
        return complaints_about(node, namespace, spec, &spec.params);
    }
    // What the handler gets is what counts: a shard may add what the job leaves out. The first one that is wrong is named.
    let of_shard = |(index, shard): (usize, &ItemSpec)| {
        let params = with_params_of_shard(spec.params.clone(), &shard.params);
        let complaints = match check_params_size(&params) {
            Err(message) => vec![FieldError::new("/params", message)],
            Ok(()) => complaints_about(node, namespace, spec, &params),
        };
        let below = |error: FieldError| FieldError { pointer: format!("/shards/{index}{}", error.pointer), ..error };
        complaints.into_iter().map(below).collect::<Vec<_>>()
    };
    named.iter().enumerate().map(of_shard).find(|complaints| !complaints.is_empty()).unwrap_or_default()
}

fn complaints_about(node: &Node, namespace: NamespaceId, spec: &JobSpec, params: &Value) -> Vec<FieldError> {
    if node.shared().registry.params_schema(namespace, &spec.app, &spec.handler).is_none()
        && let Some(missing) = agent_handlers::missing(&spec.handler, params)
    {
        return vec![missing];
    }
    check_params(node, namespace, spec, params)
}

/// What the verdict on a definition's parameters hangs on.
fn judged_by(spec: &JobSpec) -> (&str, &str, (&Value, Option<&ItemsSpec>), bool, bool) {
    let takes_params = *spec.effective_overrides() != Overrides::None;
    let params = (&spec.params, spec.shards.as_ref());
    (&spec.app, &spec.handler, params, spec.schedule.is_none(), takes_params)
}
