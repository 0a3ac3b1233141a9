//! The weekly report: written once, by the first server that finds it due, in the transaction that advances its schedule.
//!
//! The message is built before that transaction; a server that loses the race drops its message. A report that became due while no server ran is
//! sent once when a server runs again, and covers the seven days before the day on which it was due.

use std::time::Duration;

use rondel_core::notice::{Notice, NoticeKind, NoticeSubject, RunSample, Severity, Subject};
use rondel_core::report::{ON_TIME_DEFAULT, ReportSchedule};
use rondel_core::sketch::Step;
use rondel_core::words::Lang;
use rondel_core::{FieldError, IncidentId, MessageId, NamespaceId, Timestamp};
use rondel_store::StoreError;
use rondel_store::channels::NewMessage;
use rondel_store::reports::{FailureQuery, ReportChange, ReportSaved, ReportWrite, ScheduledReport};
use rondel_store::rollups::PointKind;
use tokio_util::sync::CancellationToken;

use super::texts::{Week, summary_text};
use super::{Failure, Group, Period, ReportRange, Row, failures, rows};
use crate::background::{Background, TickError};
use crate::jobs::missing_channel_error;
use crate::node::Node;

/// Maximum number of reports written per tick.
const DUE_COUNT: u32 = 50;
/// Maximum number of failures in a message.
const NAMED_COUNT: u32 = 5;
/// Maximum time between two checks for due reports, which are not urgent.
const PERIOD_MAX: Duration = Duration::from_secs(15);

/// Why a schedule was not saved.
#[derive(Debug, thiserror::Error)]
pub enum ScheduleError {
    /// The document is invalid.
    #[error("the schedule is not valid, the first error is {}", .0.first().map_or_else(String::new, ToString::to_string))]
    Invalid(Vec<FieldError>),
    /// Another caller saved or deleted the schedule first.
    #[error("the schedule was changed meanwhile")]
    Conflict {
        /// The schedule's current version; 0 if there is no schedule.
        version: i64,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Saves the schedule of a namespace's report if it has the expected version: 0 means that there is none yet, `None` means any version. Returns
/// the schedule, and whether it is new.
///
/// # Errors
/// [`ScheduleError`].
pub async fn save_schedule(
    node: &Node,
    namespace: NamespaceId,
    (spec, expected_version): (&ReportSchedule, Option<i64>),
    author: &str,
) -> Result<(ScheduledReport, bool), ScheduleError> {
    spec.check().map_err(ScheduleError::Invalid)?;
    let store = node.store();
    if store.channel(namespace, &spec.channel).await?.is_none() {
        let channels = store.channels(namespace).await?;
        let channel_names = channels.iter().map(|channel| channel.name.as_str());
        return Err(ScheduleError::Invalid(vec![missing_channel_error(
            "/channel".to_owned(),
            &spec.channel,
            channel_names,
        )]));
    }
    let now = node.now();
    let next_at = spec.next_after(now);
    let change = ReportChange { namespace, spec, author, expected_version, next_at, now };
    let is_new = match store.save_report_schedule(change).await? {
        ReportSaved::Created => true,
        ReportSaved::Changed => false,
        ReportSaved::Conflict(version) => return Err(ScheduleError::Conflict { version }),
        ReportSaved::NoChannel => {
            let message = format!("there is no channel {:?}: it was deleted meanwhile", spec.channel);
            return Err(ScheduleError::Invalid(vec![FieldError::new("/channel", message)]));
        }
    };
    let saved_schedule = store.report_schedule(namespace).await?;
    // If another caller deleted the schedule meanwhile, it is returned as it was saved.
    let new_schedule = ScheduledReport {
        namespace,
        version: 1,
        spec: spec.clone(),
        author: author.to_owned(),
        updated_at: now,
        next_at,
        sent_at: None,
    };
    Ok((saved_schedule.unwrap_or(new_schedule), is_new))
}

/// Result of sending the report now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SendNowResult {
    /// The report was written as a message to this channel.
    Written(String),
    /// The namespace has no schedule for a weekly report.
    NoSchedule,
    /// The channel of this name does not exist.
    NoChannel(String),
}

/// Sends the report of the seven days before today, through the channel of its schedule. The schedule does not change.
///
/// # Errors
/// The store's.
pub async fn send_now(node: &Node, namespace: NamespaceId) -> Result<SendNowResult, StoreError> {
    let (store, now) = (node.store(), node.now());
    let Some(schedule) = store.report_schedule(namespace).await? else { return Ok(SendNowResult::NoSchedule) };
    let channel = schedule.spec.channel.clone();
    let written_count = match message(node, &schedule, (now, now)).await? {
        Some(message) => store.write_messages(std::slice::from_ref(&message)).await?,
        None => 0,
    };
    Ok(if written_count == 1 { SendNowResult::Written(channel) } else { SendNowResult::NoChannel(channel) })
}

/// The loop that writes due reports.
#[derive(Debug)]
pub(crate) struct ReportLoop {
    node: Node,
}

impl ReportLoop {
    pub(crate) const fn new(node: Node) -> Self {
        Self { node }
    }
}

impl Background for ReportLoop {
    const NAME: &'static str = "weekly_reports";
    const ACTION: &'static str = "write weekly reports";

    fn period(&self) -> Option<Duration> {
        // A server that evaluates alert rules more often than usual, as in tests, also looks more often here.
        Some((self.node.shared().config.alert_rules_period * 5).min(PERIOD_MAX))
    }

    fn first_wait(&self) -> Duration {
        self.node.shared().first_look_delay(PERIOD_MAX)
    }

    async fn tick(&mut self, stop: &CancellationToken) -> Result<u64, TickError> {
        let (mut count, mut first_error) = (0, None);
        if !self.node.shared().membership.holds_lease() {
            return Ok(count);
        }
        let now = self.node.now();
        for schedule in self.node.store().due_reports(now, DUE_COUNT).await? {
            if stop.is_cancelled() || !self.node.shared().membership.holds_lease() {
                break;
            }
            match write_report(&self.node, &schedule, now).await {
                Ok(is_written) => count += u64::from(is_written),
                Err(error) if error.is_transient() => return Err(error.into()),
                // A report that cannot be written delays no other.
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        first_error.map_or(Ok(count), |error| Err(error.into()))
    }
}

async fn write_report(node: &Node, schedule: &ScheduledReport, now: Timestamp) -> Result<bool, StoreError> {
    let message = message(node, schedule, (schedule.next_at.unwrap_or(now), now)).await?;
    if message.is_none() {
        let (namespace, channel) = (schedule.namespace, &schedule.spec.channel);
        tracing::warn!(namespace = %namespace, channel, "the channel of the weekly report is gone");
    }
    let write = ReportWrite { schedule, next_at: schedule.spec.next_after(now), now, message: message.as_ref() };
    node.store().write_report(&write).await
}

/// The message of a report that was due at an instant; `None` if its channel was deleted.
async fn message(
    node: &Node,
    schedule: &ScheduledReport,
    (due_at, now): (Timestamp, Timestamp),
) -> Result<Option<NewMessage>, StoreError> {
    let (store, namespace) = (node.store(), schedule.namespace);
    let channel = store.channel(namespace, &schedule.spec.channel).await?;
    let name = store.namespaces().await?.into_iter().find(|record| record.id == namespace).map(|record| record.name);
    let Some((channel, name)) = channel.zip(name) else { return Ok(None) };
    Ok(Some(NewMessage {
        id: MessageId::new(node.new_id()),
        namespace,
        channel: channel.id,
        // The message has no incident; a new id distinguishes it from other messages.
        incident: IncidentId::new(node.new_id()),
        number: 1,
        notice: notice(node, (namespace, &name), weeks_before(&schedule.spec, due_at)).await?,
        created_at: now,
    }))
}

/// The start of the week before the week that a report covers, the start of the covered week, and the end of the covered week. Each week has
/// seven days in the schedule's time zone, even if the clock of that zone changes.
fn weeks_before(spec: &ReportSchedule, at: Timestamp) -> [Timestamp; 3] {
    let (from, to) = spec.days_before(at);
    [spec.days_before(from).0, from, to]
}

/// Builds the report of the week from `from` to `to`. The week before begins at `before_from`.
async fn notice(
    node: &Node,
    (namespace, name): (NamespaceId, &str),
    [before_from, from, to]: [Timestamp; 3],
) -> Result<Notice, StoreError> {
    let group = Group { name: name.to_owned(), app: None, owners: vec![(namespace.get(), Timestamp::EPOCH)] };
    let groups = [group];
    let rows_of_week = rows(node, PointKind::Namespace, &groups, counted_range(from, to)).await?;
    let rows_of_previous_week = rows(node, PointKind::Namespace, &groups, counted_range(before_from, from)).await?;
    let query = FailureQuery { namespace, jobs: None, apps: None, from: first_day(from), to, limit: NAMED_COUNT };
    let failures = failures(node, query).await?;
    let week =
        Week { this_week: rows_of_week.first(), previous_week: rows_of_previous_week.first(), failures: &failures };
    let notice = Notice {
        kind: NoticeKind::Report,
        incident: None,
        rule: "weekly-report".to_owned(),
        condition: "report".to_owned(),
        namespace: name.to_owned(),
        subject: Subject { kind: NoticeSubject::Namespace, name: name.to_owned() },
        severity: Severity::Warning,
        summary_en: summary_text(&week, Lang::En),
        summary_zh: summary_text(&week, Lang::Zh),
        description: String::new(),
        started_at: from,
        at: to,
        count: rows_of_week.first().map_or(0, |row: &Row| row.verdicts.total()),
        samples: samples(node, &failures).await?,
        path: format!("/reports?from={from}&to={to}"),
    };
    Ok(notice.bounded())
}

/// The hours that are counted for a week. Counts are those of whole hours in UTC, but in some zones a day begins within such an hour. That
/// hour belongs to the later of two weeks: if it belonged to both, its runs would be counted twice.
fn counted_range(from: Timestamp, to: Timestamp) -> ReportRange {
    let (from, to) = (Step::Hour.floor(from), Step::Hour.floor(to));
    ReportRange { from, to, period: Period::Total, on_time_within: ON_TIME_DEFAULT }
}

/// The first day in UTC that begins at an instant or later: failures are counted by such days.
fn first_day(from: Timestamp) -> Timestamp {
    Step::Day.floor(from + (Step::Day.length() - Duration::from_millis(1)))
}

/// The newest run of each of these failures, if it is still kept.
async fn samples(node: &Node, failures: &[Failure]) -> Result<Vec<RunSample>, StoreError> {
    let ids: Vec<_> = failures.iter().filter_map(|failure| failure.newest).collect();
    let runs = node.store().runs(&ids).await?;
    let sample = |failure: &Failure| {
        let run = runs.iter().find(|run| Some(run.id) == failure.newest)?;
        let job = failure.jobs.first()?.clone();
        Some(RunSample {
            run: run.id,
            job,
            fire_at: run.fire_at,
            message: format!("{} × {}", failure.count, failure.message),
        })
    };
    Ok(failures.iter().filter(|failure| !failure.message.is_empty()).filter_map(sample).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_failures_of_a_week_are_those_of_the_seven_days_that_begin_in_it() {
        for zone in ["UTC", "Europe/Berlin", "America/New_York", "Pacific/Kiritimati"] {
            let schedule = json!({"weekday": "mon", "time": "08:00", "zone": zone, "channel": "ops"});
            let schedule: ReportSchedule = serde_json::from_value(schedule).unwrap();
            let (from, to) = schedule.days_before("2026-01-12T12:00:00Z".parse().unwrap());
            let first = first_day(from);
            assert!(first >= from && first == Step::Day.floor(first), "{zone}: {from} {first}");
            assert_eq!(Step::Day.floor(to - Duration::from_millis(1)), first + Step::Day.length() * 6, "{zone}");
        }
    }

    #[test]
    fn no_hour_is_counted_in_two_weeks() {
        for zone in ["UTC", "Asia/Kolkata", "Asia/Kathmandu", "Australia/Adelaide"] {
            let schedule = json!({"weekday": "mon", "time": "08:00", "zone": zone, "channel": "ops"});
            let schedule: ReportSchedule = serde_json::from_value(schedule).unwrap();
            let [before_from, from, to] = weeks_before(&schedule, "2026-01-12T12:00:00Z".parse().unwrap());
            let (previous, week) = (counted_range(before_from, from), counted_range(from, to));
            assert_eq!((previous.to, week.to), (week.from, Step::Hour.floor(week.to)), "{zone}");
            assert_eq!(week.to.since(week.from), Step::Day.length() * 7, "{zone}");
        }
    }

    #[test]
    fn the_week_before_has_seven_local_days_too() {
        let schedule = json!({"weekday": "mon", "time": "08:00", "zone": "Europe/Berlin", "channel": "ops"});
        let schedule: ReportSchedule = serde_json::from_value(schedule).unwrap();
        for (at, weeks) in [
            ("2026-11-02T07:00:00Z", ["2026-10-18T22:00:00Z", "2026-10-25T23:00:00Z", "2026-11-01T23:00:00Z"]),
            ("2026-10-26T07:00:00Z", ["2026-10-11T22:00:00Z", "2026-10-18T22:00:00Z", "2026-10-25T23:00:00Z"]),
            ("2026-04-06T06:00:00Z", ["2026-03-22T23:00:00Z", "2026-03-29T22:00:00Z", "2026-04-05T22:00:00Z"]),
        ] {
            assert_eq!(weeks_before(&schedule, at.parse().unwrap()).map(|at| at.to_string()), weeks, "{at}");
        }
    }
}
