//! Tries a script from its page: runs it once with an argument, or only checks it with its interpreter. The first try creates a job for
//! this purpose.

use rondel_admin::jobs::{self, RunRequest};
use rondel_core::{JobSpec, RunId, Trigger};
use rondel_store::catalog::JobRecord;
use rondel_store::scripts::ScriptRecord;
use serde_json::json;

use super::form::Fields;
use super::shell::Page;
use crate::api::executors;
use crate::api::jobs::body::from_value;
use crate::body::refuse_value;
use crate::call::forbidden_problem;
use crate::problem::{Code, Problem};

/// Maximum number of executors that are read to suggest apps.
const EXECUTOR_COUNT: u32 = 200;
/// The suffix of the name of the job that tries a script; the name begins with that of the script.
const JOB_NAME_SUFFIX: &str = ".try";

/// The apps that the caller may see and whose executors run scripts in this language.
pub(super) async fn apps_for_language<Q>(page: &Page<Q>, language: &str) -> Result<Vec<String>, Problem> {
    let executors = executors::page(&page.call, None, EXECUTOR_COUNT).await?.0;
    let capable_executors =
        executors.into_iter().filter(|executor| executor.handlers.iter().any(|handler| handler == language));
    let mut apps: Vec<String> = capable_executors.map(|executor| executor.app).collect();
    apps.sort();
    apps.dedup();
    Ok(apps)
}

/// Whether agents can check a script in this language without running it.
pub(super) fn can_check(language: &str) -> bool {
    language != "powershell"
}

/// Starts a run of the script with the values of the form.
pub(super) async fn start(page: &Page, script: &ScriptRecord, fields: &Fields) -> Result<RunId, Problem> {
    let app = fields.get("app").trim();
    if app.is_empty() {
        return Err(refuse_value("/app", "is missing: an app whose executors run the script"));
    }
    let job = trial_job(page, script, app).await?;
    let mut params = json!({});
    if fields.get("do") == "check" {
        params["check"] = true.into();
    }
    if !fields.get("args").is_empty() {
        params["args"] = fields.get("args").into();
    }
    let params = jobs::run_params(page.engine(), &job, &params)?;
    let request = RunRequest { params, trace: page.call.trace, ..RunRequest::by(Trigger::Manual) };
    let run = jobs::request_run(page.engine(), &job, request).await?;
    page.call.note.changed_to(&json!({"run": run.id}));
    Ok(run.id)
}

/// The job that tries the script in this app. It is created if it does not exist.
async fn trial_job(page: &Page, script: &ScriptRecord, app: &str) -> Result<JobRecord, Problem> {
    let name = format!("{}{JOB_NAME_SUFFIX}", script.name);
    let (namespace, author) = (page.call.namespace.id, page.call.caller.name());
    if let Some(existing_job) = page.engine().store().job(namespace, &name).await? {
        page.call.check(Some(existing_job.app), forbidden_problem)?;
        let is_trial_of_script = existing_job.spec.app == app
            && existing_job.spec.handler == script.language
            && existing_job.spec.params["script"]["name"] == script.name.as_str();
        return match is_trial_of_script {
            true => Ok(existing_job),
            false => Err(Problem::new(Code::EditConflict, page.t.script_try_other(&existing_job.spec.app, &name))),
        };
    }
    let spec: JobSpec = from_value(json!({
        "name": name,
        "app": app,
        "handler": script.language,
        "description": format!("Tries the script {} from its page", script.name),
        "params": {"script": {"name": script.name}},
        "overrides": ["/args", "/check"],
    }))?;
    page.call.check_definition(&spec).await?;
    match jobs::create(page.engine(), namespace, spec, author).await {
        Ok(record) => Ok(record),
        Err(error) => Err(page.call.job_problem(error).await),
    }
}
