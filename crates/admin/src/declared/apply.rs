//! Applies the effective declarations of an app to its jobs.

use std::collections::BTreeMap;

use rondel_core::declared::{
    DeclarationStep, DeclaredJobs, EffectiveDeclarations, declaration_step, effective_declarations, parents_first,
};
use rondel_core::shape::{self, ShapeErrors};
use rondel_core::{FieldError, JobSpec, Timestamp};
use rondel_store::StoreError;
use rondel_store::catalog::{Declared, JobRecord};
use rondel_store::declarations::DeclaredSet;
use serde_json::{Value, json};

use super::DeclarationProblem;
use super::audit::{self, App, author};
use super::board::job_label;
use crate::jobs::{self, JobError};
use crate::node::Node;

/// Maximum number of tries to create or change a job that other callers change meanwhile.
const TRY_COUNT: usize = 3;
/// Maximum number of declared sets kept per app; an older set is deleted once no living executor declares it.
const SET_COUNT_MAX: usize = 20;

/// Maximum length of a wrong app name in a message, in characters.
const APP_NAME_LEN_MAX: usize = 100;

/// Applies the declarations to the jobs; returns the problems of the declarations.
pub(super) async fn reconcile_app(
    node: &Node,
    app: &App,
    living_since: Timestamp,
) -> Result<Vec<DeclarationProblem>, StoreError> {
    let sets = node.store().declared_sets(app.id).await?;
    for set in sets.iter().skip(SET_COUNT_MAX).filter(|set| set.header.last_seen_at < living_since) {
        node.store().forget_declared_set(&set.header).await?;
    }
    let mut problems = Vec::new();
    let declared_jobs: Vec<DeclaredJobs> =
        sets.iter().map(|set| jobs_of_set(set, living_since, &mut problems)).collect();
    let EffectiveDeclarations { jobs, gone: missing_jobs } = effective_declarations(&declared_jobs, living_since);
    let mut specs = Vec::with_capacity(jobs.len());
    for (name, text) in jobs {
        match parse_spec(&text, &app.name) {
            Ok(spec) => specs.push(spec),
            Err(errors) => {
                problems.extend(errors.into_iter().map(|error| problem(&name, &error.pointer, error.message)))
            }
        }
    }
    for spec in parents_first(specs) {
        let name = spec.name.clone();
        match Box::pin(register(node, app, spec)).await {
            Ok(()) => {}
            Err(JobError::Store(error)) if error.is_transient() => return Err(error),
            Err(error) => problems.extend(problems_of(&name, error)),
        }
    }
    undeclare(node, app, missing_jobs.iter()).await?;
    problems.sort();
    problems.dedup();
    Ok(problems)
}

/// The jobs of a set, keyed by their names. A job without a valid name adds a problem if an executor has declared the set since `living_since`.
fn jobs_of_set(set: &DeclaredSet, living_since: Timestamp, problems: &mut Vec<DeclarationProblem>) -> DeclaredJobs {
    let specs: Vec<Value> = serde_json::from_str(&set.specs).unwrap_or_default();
    let mut jobs = BTreeMap::new();
    for (index, spec) in specs.iter().enumerate() {
        match spec.get("name").and_then(Value::as_str).map(|name| (name, rondel_core::name::check(name))) {
            Some((name, Ok(()))) => {
                jobs.insert(name.to_owned(), spec.to_string());
            }
            Some((name, Err(message))) if set.header.last_seen_at >= living_since => {
                problems.push(problem(name, "/name", message));
            }
            None if set.header.last_seen_at >= living_since => {
                problems.push(problem(
                    &job_label(index, spec),
                    "/name",
                    "the definition is not a JSON object with a name".to_owned(),
                ));
            }
            _ => {}
        }
    }
    DeclaredJobs { first_seen_at: set.header.first_seen_at, last_seen_at: set.header.last_seen_at, jobs }
}

fn problem(job: &str, pointer: &str, message: String) -> DeclarationProblem {
    DeclarationProblem { job: job.to_owned(), pointer: pointer.to_owned(), message }
}

/// Parses a declared definition. The definition may omit its app. An app other than the executor's is an error.
fn parse_spec(text: &str, app: &str) -> Result<JobSpec, Vec<FieldError>> {
    let mut document: Value =
        serde_json::from_str(text).map_err(|error| vec![FieldError::new("", error.to_string())])?;
    if let Value::Object(fields) = &mut document {
        match fields.get("app") {
            None | Some(Value::Null) => {}
            Some(named) if named == app => {}
            Some(named) => return Err(vec![FieldError::new("/app", other_app_message(named, app))]),
        }
        fields.insert("app".to_owned(), Value::from(app));
    }
    let field_errors = |shape_errors: Box<ShapeErrors<JobSpec>>| {
        shape_errors.errors.into_iter().map(|error| FieldError::new(error.pointer, error.message)).collect()
    };
    shape::read(document.into()).map_err(field_errors)
}

fn other_app_message(named_app: &Value, app: &str) -> String {
    let named_app: String = named_app.to_string().chars().take(APP_NAME_LEN_MAX).collect();
    format!(
        "the definition names app {named_app}, and the executor that declares it belongs to app {app:?}; leave the app out, or \
         declare the job from an executor of the app that it names"
    )
}

/// Creates a declared job, or applies its declaration to the existing job. Tries again if another caller changes the job meanwhile.
async fn register(node: &Node, app: &App, spec: JobSpec) -> Result<(), JobError> {
    check_parents(node, app, &spec).await?;
    let mut tries_left = TRY_COUNT;
    loop {
        tries_left -= 1;
        let result = match node.store().job(app.namespace, &spec.name).await? {
            None => create(node, app, &spec).await,
            Some(record) => reconcile_job(node, app, &record, &spec).await,
        };
        match result {
            Err(JobError::Conflict { .. } | JobError::NameTaken | JobError::NotFound) if tries_left > 0 => {}
            result => return result,
        }
    }
}

/// Checks that a declared job follows only jobs of its own app. The executor's token may have no access to other apps, and the job would
/// receive the results of their jobs.
async fn check_parents(node: &Node, app: &App, spec: &JobSpec) -> Result<(), JobError> {
    for parent in spec.parents() {
        let parent_job = match rondel_core::name::check(parent.name) {
            Ok(()) => node.store().job(app.namespace, parent.name).await?,
            Err(_) => None,
        };
        if parent_job.is_none_or(|known| known.app != app.id) {
            // The message is the same for a job that does not exist and for a job of another app, so that it does not reveal the other
            // app's jobs.
            let message = format!(
                "there is no job {:?} in app {:?}; declared jobs may follow only jobs of their own app",
                parent.name, app.name
            );
            return Err(JobError::Invalid(vec![FieldError::new(&parent.pointer, message)]));
        }
    }
    Ok(())
}

async fn create(node: &Node, app: &App, spec: &JobSpec) -> Result<(), JobError> {
    let entry = audit::begin(node, app, "job.create", &spec.name).await?;
    let creation_result = jobs::create(node, app.namespace, spec.clone(), &author(app)).await;
    let audit_values = creation_result.as_ref().ok().map(|record| json!({"version": record.version}));
    audit::end(node, entry, audit_values).await;
    let record = creation_result?;
    tracing::info!(job = spec.name, app = app.name, "created a declared job");
    store_declaration(node, &record, spec).await
}

async fn reconcile_job(node: &Node, app: &App, record: &JobRecord, spec: &JobSpec) -> Result<(), JobError> {
    let spec = &with_run_instants(node, record, spec);
    let stored_declaration = record.declared.as_ref();
    // Refused even if the job belonged to this app before: the user who moved it to another app withdrew it from this app's code.
    if record.app != app.id {
        let message = "a job of another app has this name".to_owned();
        return Err(JobError::Invalid(vec![FieldError::new("/name", message)]));
    }
    match declaration_step(&record.spec, stored_declaration.map(|before| &before.spec), spec) {
        DeclarationStep::Nothing if stored_declaration.is_some_and(|before| before.undeclared_at.is_none()) => Ok(()),
        DeclarationStep::Nothing | DeclarationStep::Remember => store_declaration(node, record, spec).await,
        DeclarationStep::Change(changed) => {
            let fields = changed_fields(&record.spec, &changed);
            let entry = audit::begin(node, app, "job.change", &spec.name).await?;
            let change_result = jobs::change(node, record, *changed, Some(record.version), &author(app)).await;
            let audit_values =
                change_result.as_ref().ok().map(|saved| json!({"version": saved.version, "changed": fields}));
            audit::end(node, entry, audit_values).await;
            let record = change_result?;
            tracing::info!(job = spec.name, app = app.name, version = record.version, "changed a declared job");
            store_declaration(node, &record, spec).await
        }
    }
}

/// The declaration with the run instants of the job's definition ([`jobs::keep_run_instants`]): schedules in the past ran at these instants when
/// they were saved. The instants are no edit by a user, and a reset must not run the schedules again.
fn with_run_instants(node: &Node, record: &JobRecord, spec: &JobSpec) -> JobSpec {
    let mut spec = spec.clone();
    jobs::keep_run_instants(node, &mut spec, &record.spec);
    spec
}

/// Stores the declaration. If this fails after the job was changed, the next look finds that the job matches its declaration, and stores the
/// declaration then.
async fn store_declaration(node: &Node, record: &JobRecord, spec: &JobSpec) -> Result<(), JobError> {
    let spec = with_run_instants(node, record, spec);
    let same_declaration = record.declared.as_ref().filter(|declared| declared.spec == spec);
    let declared_at = same_declaration.map_or_else(|| node.now(), |declared| declared.declared_at);
    let declared = Declared { spec, declared_at, undeclared_at: None };
    node.store().declare_job(record.id, &declared).await?;
    Ok(())
}

/// Records that no code declares these jobs any more. Skips a job that this app's code did not declare last.
async fn undeclare(node: &Node, app: &App, missing_jobs: impl Iterator<Item = &String>) -> Result<(), StoreError> {
    let mut ids = Vec::new();
    for name in missing_jobs {
        let Some(record) = node.store().job(app.namespace, name).await? else { continue };
        let is_ours = |declared: &Declared| declared.spec.app == app.name && declared.undeclared_at.is_none();
        if record.declared.as_ref().is_some_and(is_ours) {
            tracing::info!(job = name, app = app.name, "no code declares this job any more; it continues unchanged");
            ids.push(record.id);
        }
    }
    if !ids.is_empty() {
        node.store().undeclare_jobs(&ids, node.now()).await?;
    }
    Ok(())
}

/// The names of the fields that differ, without their values, which may be secret.
fn changed_fields(old_spec: &JobSpec, new_spec: &JobSpec) -> Vec<String> {
    let fields = |spec: &JobSpec| serde_json::to_value(spec).unwrap_or_default();
    let (old_spec, new_spec) = (fields(old_spec), fields(new_spec));
    let names = [&old_spec, &new_spec].into_iter().filter_map(Value::as_object).flat_map(serde_json::Map::keys);
    let mut changed_names: Vec<String> =
        names.filter(|name| old_spec.get(name) != new_spec.get(name)).cloned().collect();
    changed_names.sort();
    changed_names.dedup();
    changed_names
}

fn problems_of(job: &str, error: JobError) -> Vec<DeclarationProblem> {
    match error {
        JobError::Invalid(errors) => {
            errors.into_iter().map(|error| problem(job, &error.pointer, error.message)).collect()
        }
        other => vec![problem(job, "", other.to_string())],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_definition_that_names_another_app_is_refused_by_both_names() {
        let read = |app: &str| parse_spec(&format!(r#"{{"name": "j", "handler": "h"{app}}}"#), "mine");
        for own in ["", r#", "app": null"#, r#", "app": "mine""#] {
            assert_eq!(read(own).unwrap().app, "mine", "{own}");
        }
        let errors = read(r#", "app": "theirs""#).unwrap_err();
        let [error] = &errors[..] else { unreachable!("{errors:?}") };
        assert_eq!(error.pointer, "/app");
        assert!(error.message.contains("names app \"theirs\"") && error.message.contains("app \"mine\""), "{error:?}");
        assert!(read(r#", "app": 7"#).unwrap_err()[0].message.contains("names app 7"));
    }
}
