//! Downloads chosen jobs as a YAML file that `rondel job apply` accepts.

use std::collections::BTreeSet;
use std::str::FromStr;

use axum::response::{IntoResponse as _, Response};
use http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use rondel_core::filter::{Filter, Scope};
use rondel_core::name;
use rondel_store::catalog::ListedJob;

use super::shell::Page;
use crate::api::jobs::jobs_as_yaml;
use crate::body::refuse_value;
use crate::job_bulk::{BULK_JOB_COUNT_MAX, matching_jobs};
use crate::parameter::Parameter;
use crate::permits::HeavyWork;
use crate::problem::{Code, Problem};
use crate::query::{FromQuery, Reader};
use crate::redirect::{own_path, redirect_to};
use crate::{run_filter, shares};

/// How many jobs are read at a time.
const JOB_BATCH_COUNT: usize = 50;
/// Maximum size of a file, in bytes. For larger exports there is the command, which streams.
const FILE_LEN_MAX: usize = 8 * 1024 * 1024;

/// The name of a chosen job.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct JobName(String);

impl FromStr for JobName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        name::check(text).map(|()| Self(text.to_owned()))
    }
}

/// The selection of jobs in the list.
#[derive(Debug)]
pub(crate) struct ChosenJobs {
    names: Vec<JobName>,
    filter: String,
    is_all: bool,
    /// The URL of the list, to return to if nothing is selected.
    return_url: String,
}

impl FromQuery for ChosenJobs {
    fn from_query(reader: &mut Reader) -> Self {
        let names = reader.words(Parameter::name("job"));
        let filter = reader.single("q").unwrap_or_default().trim().to_owned();
        // If no rows are selected, all jobs that match the filter are exported.
        let is_all = reader.single("scope").as_deref() == Some("all") || (names.is_empty() && !filter.is_empty());
        let return_url = reader.single("back").unwrap_or_default();
        // The other fields of the list's form are accepted and ignored.
        for ignored_field in ["do", "label"] {
            drop(reader.single(ignored_field));
        }
        Self { names, filter, is_all, return_url }
    }
}

pub(super) async fn yaml(page: Page<ChosenJobs>) -> Result<Response, Problem> {
    let call = &page.call;
    if page.query().names.is_empty() && !page.query().is_all {
        return Ok(redirect_to(own_path(&page.query().return_url).unwrap_or("/jobs")));
    }
    let _share = shares::take_heavy_work_share(&call.web, HeavyWork::Export, call.caller.key())?;
    let all_names = chosen_names(&page).await?;
    let mut text = String::new();
    for names in all_names.chunks(JOB_BATCH_COUNT) {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut jobs = call.engine().store().listed_jobs_named(call.namespace.id, &names).await?;
        jobs.retain(|job| call.may_view(job.app()));
        let found_names: BTreeSet<&str> = jobs.iter().map(ListedJob::name).collect();
        if let Some(missing_name) = names.iter().find(|name| !found_names.contains(*name)) {
            let detail =
                format!("there is no job {missing_name} any more, so no file was written: load the list again");
            return Err(Problem::new(Code::JobNotFound, detail));
        }
        text.push_str(&jobs_as_yaml(&jobs));
        if text.len() > FILE_LEN_MAX {
            let file_mib_max = FILE_LEN_MAX / 1024 / 1024;
            return Err(refuse_value(
                "/job",
                format!("the file would be longer than {file_mib_max} MiB; use rondel job export"),
            ));
        }
    }
    if all_names.is_empty() {
        text = jobs_as_yaml(&[]);
    }
    let headers = [
        (CONTENT_TYPE, "application/yaml".to_owned()),
        (CONTENT_DISPOSITION, "attachment; filename=\"jobs.yaml\"".to_owned()),
    ];
    Ok((headers, text).into_response())
}

/// The names of the selected jobs. If more jobs match than a file may have, this is an error: a file with only some of them would be
/// incomplete.
async fn chosen_names(page: &Page<ChosenJobs>) -> Result<Vec<String>, Problem> {
    let query = page.query();
    if query.is_all {
        let filter = Filter::parse(&query.filter, Scope::Jobs).map_err(|error| run_filter::filter_problem(&error))?;
        let entries = matching_jobs(&page.call, &filter).await?;
        return match entries.len() > BULK_JOB_COUNT_MAX {
            false => Ok(entries.iter().map(|entry| entry.name.clone()).collect()),
            true => Err(refuse_value(
                "/q",
                format!("more than {BULK_JOB_COUNT_MAX} jobs match; narrow the filter, or use rondel job export"),
            )),
        };
    }
    let names: Vec<String> = query.names.iter().map(|name| name.0.clone()).collect();
    match names.len() {
        count if count > BULK_JOB_COUNT_MAX => {
            Err(refuse_value("/job", format!("{count} jobs; at most {BULK_JOB_COUNT_MAX} go into a file")))
        }
        _ => Ok(names),
    }
}
