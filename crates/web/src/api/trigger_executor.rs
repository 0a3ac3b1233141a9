//! Checks that a run may go to the executor that its caller names.

use rondel_admin::given_name;
use rondel_core::near::near_misses;
use rondel_core::select::Select;
use rondel_store::catalog::JobRecord;

use super::executors::{executor_names, find};
use crate::body::refuse_value;
use crate::call::{Call, quoted_input};
use crate::problem::Problem;

/// Maximum number of executor names that a refusal lists.
const NAME_COUNT_MAX: usize = 20;

/// Returns the stable name of the executor that the caller named for a run of this job. An executor that is not connected is accepted:
/// the run waits for it up to the job's queue timeout.
///
/// # Errors
/// A complaint about the field at `pointer` if no executor of the job's app has the name, if its switch keeps runs away from it, or if it
/// cannot run any fire of this job.
pub(crate) async fn checked_executor<Q>(
    call: &Call<Q>,
    record: &JobRecord,
    (pointer, name): (&str, &str),
) -> Result<String, Problem> {
    let refuse = |message: String| refuse_value(pointer, message);
    if record.spec.pump.is_some() {
        let message = "a pump job's groups go to all executors that meet its conditions; leave it out, or name executors in the job's select";
        return Err(refuse(message.to_owned()));
    }
    let (app, stable_name) = (record.spec.app.as_str(), given_name(name));
    let Some((_, executor)) = find(call, stable_name, Some(app)).await? else {
        return Err(refuse(unknown_executor_text(name, app, executor_names(call, app).await?)));
    };
    if executor.state != "active" {
        return Err(refuse(format!(
            "executor {} is switched to {}: activate it first, or name another one",
            quoted_input(stable_name),
            executor.state
        )));
    }
    if executor.status == "offline" {
        return Ok(stable_name.to_owned());
    }
    let handler = &record.spec.handler;
    if !rondel_core::name::takes_handler(executor.handlers.iter().map(String::as_str), handler) {
        return Err(refuse(format!(
            "executor {} does not have handler {}",
            quoted_input(stable_name),
            quoted_input(handler)
        )));
    }
    // The conditions were checked when the job was saved, so they have no errors here.
    match Select::new(&record.spec.select).unwrap_or_default().unmet_condition(stable_name, &executor.labels) {
        None => Ok(stable_name.to_owned()),
        Some(_) => Err(refuse(format!(
            "executor {} does not meet the conditions of the job (select); name one that does",
            quoted_input(stable_name)
        ))),
    }
}

/// The complaint about a name that no executor of the app has. It lists the existing names, the most similar ones first.
fn unknown_executor_text(name: &str, app: &str, mut names: Vec<String>) -> String {
    if names.is_empty() {
        return format!("app {app} has no executor {}, nor any other one", quoted_input(name));
    }
    let similar_names: Vec<String> =
        near_misses(name, names.iter().map(String::as_str), NAME_COUNT_MAX).into_iter().map(str::to_owned).collect();
    names.sort_by_key(|name| similar_names.iter().position(|similar| similar == name).unwrap_or(usize::MAX));
    let count = names.len();
    names.truncate(NAME_COUNT_MAX);
    if count > NAME_COUNT_MAX {
        names.push(format!("{} more", count - NAME_COUNT_MAX));
    }
    format!("app {app} has no executor {}; it has {}", quoted_input(name), names.join(", "))
}
