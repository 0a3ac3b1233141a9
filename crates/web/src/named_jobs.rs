//! Conceals the names of jobs that the caller may not see, in messages of runs that alerts and reports quote.

use std::collections::BTreeSet;

use rondel_core::name;
use rondel_core::report::fold;
use rondel_core::visibility::{VisibleJobs, job_in};

use crate::call::Call;
use crate::problem::Problem;

/// Stands for a number in the messages of reports, since a report joins messages that differ only in numbers. No name of a job contains it.
const NUMBER_PLACEHOLDER: char = '#';

/// Conceals in `messages` the names of jobs that the caller may not see.
pub(crate) async fn conceal_names<Q>(call: &Call<Q>, messages: Vec<&mut String>) -> Result<(), Problem> {
    if call.visible_apps().is_none() {
        return Ok(());
    }
    let names: BTreeSet<String> = messages.iter().filter_map(|message| job_in(message)).map(str::to_owned).collect();
    if names.is_empty() {
        return Ok(());
    }
    let visibility = visible_jobs(call, &names).await?;
    for message in messages {
        if let Some(concealed_message) = visibility.conceal_message(message) {
            *message = concealed_message;
        }
    }
    Ok(())
}

/// Which of the jobs with these names the caller may see. A name from a report may contain [`NUMBER_PLACEHOLDER`]; it then stands for all jobs whose
/// names differ from it only in numbers.
async fn visible_jobs<Q>(call: &Call<Q>, names: &BTreeSet<String>) -> Result<VisibleJobs, Problem> {
    let mut visibility = VisibleJobs::default();
    // Messages can contain any text of handlers. Text that cannot be a name is not looked up.
    let valid_names: Vec<&str> = names.iter().map(String::as_str).filter(|name| name::check(name).is_ok()).collect();
    for job in call.engine().store().listed_jobs_named(call.namespace.id, &valid_names).await? {
        let name_set =
            if call.may_view(job.app()) { &mut visibility.visible_names } else { &mut visibility.hidden_names };
        name_set.insert(job.name().to_owned());
    }
    if names.iter().any(|name| name.contains(NUMBER_PLACEHOLDER)) {
        let board = call.web.boards.board(call.engine(), call.namespace.id).await?;
        for entry in board.entries_named(|name| names.contains(&fold(name)), None) {
            let name_set =
                if call.may_view(entry.app) { &mut visibility.visible_names } else { &mut visibility.hidden_names };
            name_set.insert(fold(&entry.name));
        }
    }
    Ok(visibility)
}
