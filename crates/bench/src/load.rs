//! Creates the jobs of a measurement, directly in the store.

use std::time::Duration;

use rondel_core::{AppId, IdGen, JobId, JobSpec, NamespaceId, Timestamp};
use rondel_store::catalog::{JobCreated, JobQuery, NewJob};
use rondel_store::ledger::RunQuery;
use rondel_store::{Catalog, CreateJobs, Namespaces, Runs, SqlStore};
use serde_json::json;

use crate::BenchError;
use crate::clock;
use crate::plan::Flood;
use crate::recorder::HANDLER;

/// The app of the jobs and of the executors that run them.
pub(crate) const APP: &str = "bench";
/// Maximum number of jobs that one call creates. No more jobs are in memory at the same time.
const CHUNK_JOB_COUNT: u32 = 4_096;

/// When jobs fire.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FireTimes {
    /// Each second from `first_fire` to `last_fire`, or without end.
    EachSecond { first_fire: Timestamp, last_fire: Option<Timestamp> },
    /// Once, at this instant.
    Once(Timestamp),
    /// Each job fires once: the first one at this instant, and each further one a second later.
    OneByOne(Timestamp),
}

/// Refuses a database with jobs or runs.
pub(crate) async fn check_empty(store: &SqlStore) -> Result<(), BenchError> {
    for namespace in store.namespaces().await? {
        let jobs = store.jobs(namespace.id, &JobQuery { limit: 1, ..JobQuery::default() }).await?;
        if let Some(job) = jobs.first() {
            return Err(BenchError::NotEmpty { first_item: format!("job {:?}", job.spec.name) });
        }
        let runs = store.list_runs(namespace.id, &RunQuery { limit: 1, ..RunQuery::default() }).await?;
        if let Some(run) = runs.first() {
            return Err(BenchError::NotEmpty { first_item: format!("run {}", run.id) });
        }
    }
    Ok(())
}

/// The namespace and the app of the jobs.
pub(crate) async fn ensure_bench_app(store: &SqlStore, ids: &IdGen) -> Result<(NamespaceId, AppId), BenchError> {
    let namespace = store.namespace("default").await?;
    let namespace = namespace.ok_or_else(|| BenchError::failed("the database has no namespace \"default\""))?.id;
    let now = clock::now();
    Ok((namespace, store.ensure_app(AppId::new(ids.next(now)), namespace, APP, now).await?.id))
}

/// Creates `count` jobs. Returns the ids of the first [`CHUNK_JOB_COUNT`] of them.
pub(crate) async fn create(
    store: &SqlStore,
    ids: &IdGen,
    prefix: &str,
    count: u32,
    fires: FireTimes,
) -> Result<Vec<JobId>, BenchError> {
    let (namespace, app) = ensure_bench_app(store, ids).await?;
    let mut created_ids = Vec::new();
    let mut chunk_start = 0;
    while chunk_start < count {
        let chunk_end = count.min(chunk_start + CHUNK_JOB_COUNT);
        let mut jobs = Vec::with_capacity(usize::try_from(chunk_end - chunk_start).unwrap_or(0));
        for number in chunk_start..chunk_end {
            let now = clock::now();
            let (spec, fire_at) = definition(prefix, number, fires)?;
            jobs.push(NewJob {
                delay: None,
                calendar: None,
                declared: None,
                id: JobId::new(ids.next(now)),
                namespace,
                app,
                spec,
                anchor: fire_at.unwrap_or(now),
                next_fire_at: fire_at,
                author: "rondel bench".to_owned(),
                now,
            });
        }
        check_created(&store.create_jobs(&jobs).await?)?;
        if created_ids.is_empty() {
            created_ids.extend(jobs.iter().map(|job| job.id));
        }
        chunk_start = chunk_end;
    }
    Ok(created_ids)
}

/// Creates a job with a single run, which starts at `at` and prints as fast as it can until its timeout of `length`.
pub(crate) async fn create_flood(
    store: &SqlStore,
    ids: &IdGen,
    flood: Flood,
    at: Timestamp,
    length: Duration,
) -> Result<JobId, BenchError> {
    let (namespace, app) = ensure_bench_app(store, ids).await?;
    let redirect = match flood {
        Flood::Log => "",
        Flood::Null => ">/dev/null",
    };
    let script =
        format!("while :; do yes 'all work and no play makes a dull job' | head -c 1073741824 {redirect}; done");
    let name = format!("bench-flood-{}", clock::now().as_millis());
    let document = json!({"name": name, "app": APP, "handler": "shell", "schedule": {"at": at},
        "params": {"argv": ["sh", "-c", script]}, "timeout": format!("{}s", length.as_secs())});
    let spec = serde_json::from_value(document);
    let spec = spec.map_err(|error| BenchError::failed(format!("the definition of {name} is wrong: {error}")))?;
    let (id, now) = (JobId::new(ids.next(clock::now())), clock::now());
    let job = NewJob {
        delay: None,
        calendar: None,
        declared: None,
        id,
        namespace,
        app,
        spec,
        anchor: at,
        next_fire_at: Some(at),
        author: "rondel bench".to_owned(),
        now,
    };
    check_created(&store.create_jobs(&[job]).await?)?;
    Ok(id)
}

fn check_created(outcomes: &[JobCreated]) -> Result<(), BenchError> {
    let is_created = |outcome: &JobCreated| matches!(outcome, JobCreated::Saved(_));
    if outcomes.iter().all(is_created) {
        Ok(())
    } else {
        Err(BenchError::failed("a job could not be created".to_owned()))
    }
}

fn definition(prefix: &str, number: u32, fires: FireTimes) -> Result<(JobSpec, Option<Timestamp>), BenchError> {
    let (schedule, fire_at) = match fires {
        FireTimes::EachSecond { first_fire, last_fire: None } => (json!({"every": "1s"}), Some(first_fire)),
        FireTimes::EachSecond { first_fire, last_fire: Some(last_fire) } => {
            (json!({"every": "1s", "end_at": last_fire}), Some(first_fire))
        }
        FireTimes::Once(fire_at) => (json!({"at": fire_at}), Some(fire_at)),
        FireTimes::OneByOne(first_fire) => {
            let fire_at = Timestamp::from_secs(first_fire.second() + i64::from(number));
            (json!({"at": fire_at}), Some(fire_at))
        }
    };
    let name = format!("bench-{prefix}-{number:07}");
    let document = json!({"name": name, "app": APP, "handler": HANDLER, "schedule": schedule});
    let spec = serde_json::from_value(document);
    let spec = spec.map_err(|error| BenchError::failed(format!("the definition of {name} is wrong: {error}")))?;
    Ok((spec, fire_at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions_are_right() {
        let at = Timestamp::from_secs(4_000_000_000);
        for (fires, first) in [
            (FireTimes::EachSecond { first_fire: at, last_fire: None }, Some(at)),
            (FireTimes::EachSecond { first_fire: at, last_fire: Some(at) }, Some(at)),
            (FireTimes::Once(at), Some(at)),
            (FireTimes::OneByOne(at), Some(Timestamp::from_secs(4_000_000_009))),
        ] {
            let (spec, next) = definition("x", 9, fires).unwrap();
            let job = spec.compile().unwrap();
            let from = Timestamp::from_millis(first.unwrap_or(at).as_millis() - 1);
            let planned = job.timetable.next_after(first.unwrap_or(at), from).map(|fire| (fire.at, fire.trigger));
            assert_eq!((planned.map(|(at, _)| at), next), (first, first));
        }
    }
}
