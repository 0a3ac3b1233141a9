//! Jobs that were imported from XXL-JOB: a label has their number in XXL-JOB.

use std::collections::BTreeMap;

use rondel_store::foreign::ForeignError;
use rondel_store::foreign::xxl_job::XxlDatabase;
use serde_json::Value;

use crate::client::Client;
use crate::exit::Failure;
use crate::foreign_url;
use crate::list::{self, BoundArgs};

/// The label that an import gives to each job. Its value is the job's number in XXL-JOB.
pub(super) const NUMBER_LABEL: &str = "xxl-job-id";

/// The names of the jobs by their numbers in XXL-JOB.
pub(super) async fn names_by_number(client: &Client) -> Result<BTreeMap<i64, String>, Failure> {
    let body = list::read(client, "jobs", &[], &BoundArgs::unlimited()).await?.value()?;
    let jobs = body["items"].as_array().into_iter().flatten();
    Ok(jobs.filter_map(|job| Some((xxl_number(job)?, job["name"].as_str()?.to_owned()))).collect())
}

pub(super) fn xxl_number(job: &Value) -> Option<i64> {
    job["labels"][NUMBER_LABEL].as_str()?.parse().ok()
}

pub(super) async fn open_database(source: &str) -> Result<XxlDatabase, Failure> {
    foreign_url::check(source)?;
    XxlDatabase::open(source).await.map_err(|error| database_failure(&error))
}

pub(super) fn database_failure(error: &ForeignError) -> Failure {
    Failure::of("cannot use the database of XXL-JOB", error)
}
