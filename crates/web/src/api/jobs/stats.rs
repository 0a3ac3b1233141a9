//! How a job's runs ended, hour by hour. The counts are stored separately and outlive the runs.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::response::Response;
use http::StatusCode;
use rondel_core::access::Permission::View;
use rondel_core::sketch::Step;
use rondel_core::{RunStatus, Timestamp};
use rondel_store::catalog::JobRecord;
use rondel_store::upkeep::JobStat;
use schemars::JsonSchema;
use serde::Serialize;

use super::find::find;
use super::fires::parse_instant;
use crate::answer::json_response;
use crate::api::page::Page;
use crate::call::Call;
use crate::openapi::Doc;
use crate::parameter::Parameter;
use crate::path::{self, Named};
use crate::problem::{Code, Complaint, Problem};
use crate::query::{FromQuery, Reader};
use crate::routes::Routes;

const DAY: Duration = Duration::from_secs(24 * 3600);
/// Maximum range of one answer, in days.
const DAYS_MAX: u32 = 92;

/// How many versions of a job are read at a time.
const VERSION_BATCH_COUNT: u32 = 50;

/// The range of hours that a query asks for.
#[derive(Debug)]
pub(super) struct StatsQuery {
    from: Option<Timestamp>,
    to: Option<Timestamp>,
}

impl FromQuery for StatsQuery {
    fn from_query(reader: &mut Reader) -> Self {
        Self {
            from: reader.parsed(
                Parameter::instant("from").about("The first hour; a day before `to` if left out."),
                parse_instant,
            ),
            to: reader.parsed(
                Parameter::instant("to").about("The end, now if left out; at most 92 days after `from`."),
                parse_instant,
            ),
        }
    }
}

/// An hour in which runs were planned.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Hour")]
pub(super) struct HourJson {
    hour: Timestamp,
    run_count: u64,
    /// The number of runs by verdict.
    counts: BTreeMap<&'static str, u64>,
    /// The mean duration of the runs that a handler ended, in milliseconds.
    mean_duration_ms: Option<u64>,
}

pub(super) fn routes() -> Routes {
    Routes::new().get(
        "/api/v1/jobs/{name}/stats",
        View,
        get,
        Doc::new(
            "Count the verdicts of a job's runs by hour",
            "By the hour for which the runs were planned. Counted once a minute, and kept for 400 days.",
        )
        .json::<Page<HourJson>>(200, "The hours in which runs were planned."),
    )
}

async fn get(call: Call<StatsQuery>, Named(name, ..): Named<path::Job>) -> Result<Response, Problem> {
    let record = find(&call, &name).await?;
    let (from, to) = query_range(&call.query, call.engine().now())?;
    let from = visible_from(&call, &record, from, to).await?;
    let stats = call.engine().store().job_stats(record.id, from, to).await?;
    json_response(StatusCode::OK, &Page { items: hourly_counts(&stats), next_cursor: None })
}

/// The instant from which all of the job's counts belong to apps that the caller sees. Counts are stored per job and hour, not per app:
/// the counts of the hour in which the job moved to another app belong to the old app.
pub(crate) async fn visible_from<Q>(
    call: &Call<Q>,
    record: &JobRecord,
    from: Timestamp,
    mut to: Timestamp,
) -> Result<Timestamp, Problem> {
    if call.visible_apps().is_none() {
        return Ok(from);
    }
    let range_end = to;
    // When the next newer version was saved; the loop reads versions from the newest to the oldest.
    let mut next_began_at = None;
    loop {
        let versions = call.engine().store().versions(record.id, from, to, VERSION_BATCH_COUNT).await?;
        let hidden_apps = call.hidden_apps(versions.iter().map(|version| version.spec.app.clone()).collect()).await?;
        for version in &versions {
            if hidden_apps.contains(&version.spec.app) {
                return Ok(next_began_at.map_or(range_end, |at: Timestamp| next_hour(at).max(from)));
            }
            next_began_at = Some(version.created_at);
        }
        let is_last_page = versions.len() < usize::try_from(VERSION_BATCH_COUNT).unwrap_or(usize::MAX);
        match versions.last() {
            _ if is_last_page => return Ok(from),
            Some(last) if last.created_at < to => to = last.created_at,
            // More versions than fit into one page were saved at the same instant, so earlier versions cannot be read. Their counts are
            // not shown.
            _ => return Ok(next_began_at.map_or(range_end, next_hour).max(from)),
        }
    }
}

/// The beginning of the hour after `at`, the instant of a move. The rest of the hour of `at` is left out: runs that were claimed just
/// before the job moved can be planned for that time.
fn next_hour(at: Timestamp) -> Timestamp {
    Step::Hour.floor(at) + Step::Hour.length()
}

/// The range of a query. It begins at a full hour.
fn query_range(query: &StatsQuery, now: Timestamp) -> Result<(Timestamp, Timestamp), Problem> {
    let to = query.to.unwrap_or(now);
    let from = query.from.unwrap_or(to - DAY);
    check_range(from, to)?;
    Ok((Step::Hour.floor(from), to))
}

fn check_range(from: Timestamp, to: Timestamp) -> Result<(), Problem> {
    let detail = if from >= to {
        format!("{to} is not after from, which is {from}")
    } else if to.since(from) > DAY * DAYS_MAX {
        format!("{to} is more than {DAYS_MAX} days after from, which is {from}")
    } else {
        return Ok(());
    };
    Err(Problem::of_complaints(Code::InvalidQuery, vec![Complaint::query("to", "invalid_value", detail)]))
}

fn hourly_counts(stats: &[JobStat]) -> Vec<HourJson> {
    let mut hours: BTreeMap<Timestamp, Vec<&JobStat>> = BTreeMap::new();
    for stat in stats {
        hours.entry(stat.hour).or_default().push(stat);
    }
    let hour_json = |(hour, stats): (Timestamp, Vec<&JobStat>)| {
        let was_executed =
            |stat: &&&JobStat| matches!(stat.status, RunStatus::Succeeded | RunStatus::Failed | RunStatus::TimedOut);
        let executed_count: u64 = stats.iter().filter(was_executed).map(|stat| stat.run_count).sum();
        let duration_sum: u128 = stats.iter().filter(was_executed).map(|stat| stat.duration.as_millis()).sum();
        HourJson {
            hour,
            run_count: stats.iter().map(|stat| stat.run_count).sum(),
            counts: stats.iter().map(|stat| (stat.status.as_str(), stat.run_count)).collect(),
            mean_duration_ms: u64::try_from(duration_sum)
                .ok()
                .and_then(|duration_sum| duration_sum.checked_div(executed_count)),
        }
    };
    hours.into_iter().map(hour_json).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_of_an_hour_are_one_item() {
        let at = Timestamp::from_secs(7_200);
        let stat = |hour, status, run_count, seconds| JobStat {
            hour,
            status,
            run_count,
            duration: Duration::from_secs(seconds),
        };
        let stats = [
            stat(at, RunStatus::Failed, 1, 4),
            stat(at, RunStatus::Skipped, 7, 0),
            stat(at, RunStatus::Succeeded, 3, 8),
            stat(at + Duration::from_secs(3600), RunStatus::Skipped, 2, 0),
        ];
        let hours = serde_json::to_value(hourly_counts(&stats)).unwrap();
        let expected = serde_json::json!([
            {"hour": "1970-01-01T02:00:00Z", "run_count": 11, "counts": {"failed": 1, "skipped": 7, "succeeded": 3},
             "mean_duration_ms": 3000},
            {"hour": "1970-01-01T03:00:00Z", "run_count": 2, "counts": {"skipped": 2}, "mean_duration_ms": null},
        ]);
        assert_eq!(hours, expected);
    }

    #[test]
    fn the_hour_of_the_first_instant_is_in_the_range() {
        let at = Timestamp::from_secs;
        let range = |from: Option<i64>, to: Option<i64>| {
            query_range(&StatsQuery { from: from.map(at), to: to.map(at) }, at(90_000)).ok()
        };
        assert_eq!(range(Some(5_400), Some(5_700)), Some((at(3_600), at(5_700))));
        assert_eq!(range(Some(3_600), None), Some((at(3_600), at(90_000))));
        assert_eq!(range(None, Some(88_000)), Some((at(0), at(88_000))));
        assert_eq!(range(Some(5_700), Some(5_400)), None);
    }

    #[test]
    fn ranges_have_an_order_and_a_bound() {
        let at = Timestamp::from_secs;
        assert!(check_range(at(0), at(92 * 86_400)).is_ok());
        assert!(check_range(at(5), at(5)).is_err() && check_range(at(0), at(92 * 86_400 + 1)).is_err());
    }
}
