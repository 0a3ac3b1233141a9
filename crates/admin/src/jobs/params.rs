//! Checks a job's parameters against the schema of its handler, if executors with the handler are connected to this node.

use std::sync::Arc;

use rondel_core::job::{PARAMS_LEN_MAX, check_params_size};
use rondel_core::overrides::Overrides;
use rondel_core::schedule::{Kind, Schedule};
use rondel_core::shadow::Mode;
use rondel_core::spec::{ItemSpec, ItemsSpec, with_params_of_shard};
use rondel_core::{AppId, FieldError, JobSpec, NamespaceId, Timestamp, agent_handlers, glue};
use serde_json::Value;

use crate::node::Node;
use crate::registry::{Handler, ParamsSchema};

/// A warning about a valid definition, for its author.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobWarning {
    /// No executor connected to this node has the handler: runs wait, and are skipped after the job's `queue_timeout`.
    NoHandler { app: String, handler: String },
    /// The job is in shadow mode: its fires are planned, and nothing is sent.
    Shadow,
    /// The definition was in shadow mode and no longer is: the other scheduler may still fire it.
    LeavesShadow,
    /// The job belongs to another app from now on: perhaps the definition was meant for another job with the same name.
    MovesApp {
        /// The app to which the job has belonged so far.
        from: String,
        /// The app that the definition names.
        to: String,
    },
    /// The job has only cron expressions, and none of them has an instant ahead.
    NeverFires,
    /// The calendar of the job removes all fires of the job's schedule, for example because all days of the calendar have passed.
    CalendarRemovesAll { calendar: String },
}

impl std::fmt::Display for JobWarning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoHandler { app, handler } => {
                write!(f, "no executor of app {app} that is online has a handler {handler}")
            }
            Self::MovesApp { from, to } => write!(
                f,
                "moves from app {from} to app {to}, and leaves its runs and versions there: if this is a different job with the same name, give it \
                 another name (in imports with --name-prefix)"
            ),
            Self::Shadow => f.write_str(
                "is in shadow mode: its fires are planned, and none is sent until it is switched over with rondel shadow promote",
            ),
            Self::LeavesShadow => f.write_str(
                "leaves shadow mode, and runs here from its next fire on, also while another scheduler runs it: rondel shadow promote stops it there",
            ),
            Self::NeverFires => f.write_str("its schedule never fires from now on"),
            Self::CalendarRemovesAll { calendar } => {
                write!(f, "its calendar {calendar} removes every fire of its schedule from now on")
            }
        }
    }
}

/// The handlers that connected executors of an app have, sorted by name.
#[must_use]
pub fn handlers(node: &Node, app: AppId) -> Vec<Handler> {
    node.shared().registry.handlers(app)
}

/// The schema of a handler's parameters, if all connected executors with the handler agree on it.
#[must_use]
pub fn params_schema(node: &Node, namespace: NamespaceId, app: &str, handler: &str) -> Option<Arc<ParamsSchema>> {
    node.shared().registry.params_schema(namespace, app, handler).flatten()
}

/// The errors that the handler of a job would find in these parameters.
pub(super) fn check_params(node: &Node, namespace: NamespaceId, spec: &JobSpec, params: &Value) -> Vec<FieldError> {
    if let Some(missing_script) = glue::missing_script(&spec.handler, params) {
        return vec![missing_script];
    }
    let agent_schema = agent_handlers::params_schema(&spec.handler);
    let schema = match node.shared().registry.params_schema(namespace, &spec.app, &spec.handler) {
        Some(declared) => declared,
        // No executor with the handler is connected, but the schemas of the agent's handlers are known.
        None => agent_schema.clone().map(|document| Arc::new(ParamsSchema::new(document))),
    };
    let Some(schema) = schema else { return Vec::new() };
    let errors = schema.errors(params, !spec.parents().is_empty());
    // A handler of another executor may have the name of one of the agent's handlers.
    if errors.is_empty() && agent_schema.as_ref() == Some(schema.document()) {
        return agent_handlers::unusable_param(&spec.handler, params).into_iter().collect();
    }
    errors
}

/// The warnings for the author of a valid definition whose next fire is `next_fire_at`.
#[must_use]
pub fn warnings(
    node: &Node,
    namespace: NamespaceId,
    spec: &JobSpec,
    next_fire_at: Option<Timestamp>,
) -> Vec<JobWarning> {
    let (app, handler) = (&spec.app, &spec.handler);
    let mut warnings = Vec::new();
    if spec.enabled && spec.mode == Mode::Shadow {
        warnings.push(JobWarning::Shadow);
    }
    if !is_offered(node, namespace, app, handler) {
        warnings.push(JobWarning::NoHandler { app: app.clone(), handler: handler.clone() });
    }
    warnings.extend(schedule_warning(spec, node.now(), next_fire_at));
    warnings
}

/// A warning about a definition that plans no fires. Either it has only cron expressions without an instant ahead, such as an expression for 31
/// February, or its calendar removes all fires.
fn schedule_warning(spec: &JobSpec, now: Timestamp, next_fire_at: Option<Timestamp>) -> Option<JobWarning> {
    // The instants of the schedules without the calendar.
    let timetable = spec.compile().ok()?.timetable;
    if timetable.next_after(now, now).is_none() {
        let is_cron = |schedule: &Schedule| matches!(schedule.kind, Kind::Cron { .. });
        let schedules = &timetable.schedules;
        return (!schedules.is_empty() && schedules.iter().all(is_cron)).then_some(JobWarning::NeverFires);
    }
    let calendar = spec.calendar.as_ref().filter(|_| spec.enabled && next_fire_at.is_none())?;
    Some(JobWarning::CalendarRemovesAll { calendar: calendar.name.clone() })
}

/// Whether an executor connected to this node offers a handler.
#[must_use]
pub fn is_offered(node: &Node, namespace: NamespaceId, app: &str, handler: &str) -> bool {
    node.shared().registry.params_schema(namespace, app, handler).is_some()
}

/// The errors in the parameters of a definition that replaces `stored_spec`. Parameters that were already saved are accepted: a job whose
/// handler has since changed its parameters can still be paused.
pub(super) fn param_errors(
    node: &Node,
    namespace: NamespaceId,
    spec: &JobSpec,
    stored_spec: Option<&JobSpec>,
) -> Vec<FieldError> {
    let has_changed = match stored_spec {
        Some(stored_spec) => check_inputs(stored_spec) != check_inputs(spec),
        None => true,
    };
    // A job without a schedule may get its parameters when it is triggered.
    let may_be_given_later = spec.params.is_null() && spec.schedule.is_none() && takes_params(spec);
    // Parameters that are too long were refused with the rest of the definition.
    if !has_changed || may_be_given_later || spec.params.to_string().len() > PARAMS_LEN_MAX {
        return Vec::new();
    }
    if let Err(message) = check_params_size(&spec.params) {
        return vec![FieldError::new("/params", message)];
    }
    let named_shards = spec.shards.as_ref().map_or(&[][..], ItemsSpec::named);
    if named_shards.iter().all(|shard| shard.params.is_null()) {
        return param_errors_in(node, namespace, spec, &spec.params);
    }
    // Checks the parameters that the handler receives for each shard, since a shard may add parameters that the job omits. Only the first
    // wrong shard is reported.
    let shard_errors = |(index, shard): (usize, &ItemSpec)| {
        let params = with_params_of_shard(spec.params.clone(), &shard.params);
        let errors = match check_params_size(&params) {
            Err(message) => vec![FieldError::new("/params", message)],
            Ok(()) => param_errors_in(node, namespace, spec, &params),
        };
        let under_shard =
            |error: FieldError| FieldError { pointer: format!("/shards/{index}{}", error.pointer), ..error };
        errors.into_iter().map(under_shard).collect::<Vec<_>>()
    };
    named_shards.iter().enumerate().map(shard_errors).find(|errors| !errors.is_empty()).unwrap_or_default()
}

fn param_errors_in(node: &Node, namespace: NamespaceId, spec: &JobSpec, params: &Value) -> Vec<FieldError> {
    if node.shared().registry.params_schema(namespace, &spec.app, &spec.handler).is_none()
        && let Some(missing_param) = agent_handlers::missing_param(&spec.handler, params)
    {
        return vec![missing_param];
    }
    check_params(node, namespace, spec, params)
}

/// The fields on which the check of a definition's parameters depends.
fn check_inputs(spec: &JobSpec) -> (&str, &str, (&Value, Option<&ItemsSpec>), bool, bool) {
    let params = (&spec.params, spec.shards.as_ref());
    (&spec.app, &spec.handler, params, spec.schedule.is_none(), takes_params(spec))
}

/// Whether a caller may give the parameters of a run. For a handler that runs a script, parameters are of no use unless the caller may also give
/// the script.
fn takes_params(spec: &JobSpec) -> bool {
    let overrides = spec.effective_overrides();
    match glue::is_script_handler(&spec.handler) {
        true => overrides.covers(glue::SCRIPT_POINTER),
        false => *overrides != Overrides::None,
    }
}
