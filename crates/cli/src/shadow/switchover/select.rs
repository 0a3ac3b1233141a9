//! The jobs that a command switches: the jobs that it names, and the jobs of an app.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use serde_json::Value;

use super::job::{CALL_COUNT_MAX, Job};
use super::save::Pace;
use crate::client::Client;
use crate::exit::{Exit, Failure};
use crate::list::{self, BoundArgs};
use crate::shadow::jobs::{self, NUMBER_LABEL};
use crate::terminal::harmless_text;

/// Reads the jobs. For an app, their parents and children are included if they were imported from XXL-JOB.
pub(super) async fn read_jobs(
    client: &Client,
    given_names: &[String],
    app: Option<&str>,
    pace: &mut Pace,
) -> Result<Vec<Job>, Failure> {
    let mut seen_names = BTreeSet::new();
    let mut unread_names: Vec<String> =
        given_names.iter().filter(|name| seen_names.insert((*name).clone())).cloned().collect();
    if let Some(app) = app {
        unread_names
            .extend(job_names_of_app(client, app).await?.into_iter().filter(|name| seen_names.insert(name.clone())));
    }
    let mut jobs = read(client, &unread_names, pace).await?;
    let mut first_unread_index = 0;
    while app.is_some() && first_unread_index < jobs.len() {
        let relative_names = jobs[first_unread_index..].iter().flat_map(|job| job.parents.iter().chain(&job.children));
        let new_names: Vec<String> =
            relative_names.filter(|name| seen_names.insert((*name).clone())).cloned().collect();
        first_unread_index = jobs.len();
        for chunk in new_names.chunks(CALL_COUNT_MAX) {
            for job in join_all(chunk.iter().map(|name| read_parent_or_child(client, name))).await {
                jobs.extend(job?);
            }
        }
    }
    Ok(jobs)
}

/// The jobs of an app that are from XXL-JOB.
async fn job_names_of_app(client: &Client, app: &str) -> Result<Vec<String>, Failure> {
    let body = match list::read(client, "jobs", &[("app", app)], &BoundArgs::unlimited()).await {
        Ok(body) => body.value()?,
        Err(failure) if failure.exit() == Exit::NotFound => Value::Null,
        Err(failure) => return Err(failure.with_hint("; nothing was changed")),
    };
    let imported_jobs = body["items"].as_array().into_iter().flatten().filter(|job| jobs::xxl_number(job).is_some());
    let names: Vec<String> = imported_jobs.filter_map(|job| Some(job["name"].as_str()?.to_owned())).collect();
    if names.is_empty() {
        let app = harmless_text(app);
        return Err(Failure::refused(format!(
            "--app: no job of app {app} has the label {NUMBER_LABEL}; nothing was changed"
        )));
    }
    Ok(names)
}

async fn read(client: &Client, names: &[String], pace: &mut Pace) -> Result<Vec<Job>, Failure> {
    let mut jobs = Vec::new();
    for chunk in names.chunks(CALL_COUNT_MAX) {
        let start = tokio::time::Instant::now();
        for job in join_all(chunk.iter().map(|name| read_job(client, name))).await {
            jobs.push(job.map_err(|failure| failure.with_hint("; nothing was changed"))?);
        }
        pace.expect_at_least(start.elapsed());
    }
    Ok(jobs)
}

async fn read_job(client: &Client, name: &str) -> Result<Job, Failure> {
    let job = client.get(&["jobs", name], &[]).await?.value()?;
    Job::read(&job).ok_or_else(|| {
        let name = harmless_text(name);
        Failure::refused(format!(
            "job {name} has no label {NUMBER_LABEL}: the number of the job in XXL-JOB is expected there"
        ))
    })
}

/// A parent or child; `None` if it does not exist, or XXL-JOB does not have it.
async fn read_parent_or_child(client: &Client, name: &str) -> Result<Option<Job>, Failure> {
    let job: Value = match client.get(&["jobs", name], &[]).await {
        Ok(body) => body.value()?,
        Err(failure) if failure.exit() == Exit::NotFound => return Ok(None),
        Err(failure) => return Err(failure.with_hint("; nothing was changed")),
    };
    Ok(Job::read(&job))
}
