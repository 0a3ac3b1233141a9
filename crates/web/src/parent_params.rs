//! Removes from a run's parameters the data of parent runs that the caller may not see. A caller who may see a job need not have a role for
//! the jobs that it follows.

use std::collections::HashMap;

use rondel_core::access::Permission;
use rondel_core::disclosure::params_for_viewer;
use rondel_core::{AppId, RunId};
use serde_json::{Map, Value};

use crate::call::Call;
use crate::problem::Problem;

/// The parameter with the data of parent runs, which the server adds.
const PARENTS_KEY: &str = "parents";

/// Whether these parameters contain data of parent runs.
pub(crate) fn contains_parent_data(params: &Value) -> bool {
    params
        .get(PARENTS_KEY)
        .and_then(Value::as_object)
        .is_some_and(|parents| parents.values().any(|parent| parent_run(parent).is_some()))
}

/// The parent run from which a value comes; `None` if the author of the job wrote the value.
fn parent_run(parent: &Value) -> Option<RunId> {
    parent.get("run_id")?.as_str()?.parse().ok()
}

/// The parameters without the data of parents that the caller may not see. Likely secrets in a parent's parameters are hidden from
/// callers who may not edit the parent's app.
pub(crate) async fn visible_params<Q>(call: &Call<Q>, mut params: Value) -> Result<Value, Problem> {
    let Some(parents) = params.get_mut(PARENTS_KEY).and_then(Value::as_object_mut) else { return Ok(params) };
    let apps_by_name = parent_apps(call, parents).await?;
    let may_see_all = call.visible_apps().is_none();
    let mut visible_parents = Map::new();
    for (name, mut parent) in std::mem::take(parents) {
        let app = apps_by_name.get(&name).copied();
        if parent_run(&parent).is_some() {
            if !(may_see_all || app.is_some_and(|app| call.may_view(app))) {
                continue;
            }
            let may_edit = call.caller.rights.allow(Permission::Edit, call.namespace.id, app);
            if let Some(params_of_parent) = parent.get_mut("params").filter(|_| !may_edit) {
                *params_of_parent = params_for_viewer(params_of_parent.take());
            }
        }
        visible_parents.insert(name, parent);
    }
    *parents = visible_parents;
    Ok(params)
}

/// The apps of the parents, by the names in the parameters: the app of the parent's run, or of its job if the run was deleted.
async fn parent_apps<Q>(call: &Call<Q>, parents: &Map<String, Value>) -> Result<HashMap<String, AppId>, Problem> {
    let ids: Vec<RunId> = parents.values().filter_map(parent_run).collect();
    let runs = call.engine().store().runs(&ids).await?;
    let apps_by_run: HashMap<RunId, AppId> =
        runs.into_iter().filter(|run| run.namespace == call.namespace.id).map(|run| (run.id, run.app)).collect();
    let mut apps_by_name = HashMap::new();
    let mut missing_names = Vec::new();
    for (name, parent) in parents {
        match parent_run(parent).map(|id| apps_by_run.get(&id)) {
            Some(Some(app)) => {
                apps_by_name.insert(name.clone(), *app);
            }
            Some(None) if rondel_core::name::check(name).is_ok() => missing_names.push(name.as_str()),
            Some(None) | None => {}
        }
    }
    if !missing_names.is_empty() {
        let jobs = call.engine().store().jobs_named(call.namespace.id, &missing_names).await?;
        apps_by_name.extend(jobs.into_iter().map(|job| (job.spec.name, job.app)));
    }
    Ok(apps_by_name)
}
