//! Reads the log of XXL-JOB, and reports its fires to the server.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use chrono::{DateTime, LocalResult, NaiveDateTime, TimeZone};
use clap::Args;
use rondel_core::Timestamp;
use rondel_core::cron::parse_zone;
use rondel_core::shadow::compare::OldOutcome;
use rondel_core::time::parse_duration;
use rondel_store::foreign::xxl_job::{LogRow, XxlDatabase};
use serde_json::{Value, json};

use super::jobs;
use crate::client::Client;
use crate::exit::{Exit, Failure};
use crate::terminal::harmless_text;
use crate::{clock, output};

/// Maximum number of rows of the log in one query.
const PAGE_LEN: u32 = 1_000;
/// How often the log is read.
const READ_PERIOD: Duration = Duration::from_secs(30);
/// How often the jobs are read again. They are also read when a row may belong to a new job.
const JOBS_PERIOD: Duration = Duration::from_secs(60);

/// Trigger types of scheduled runs, in the three languages of XXL-JOB: fires of the schedule, and runs that make up for
/// missed fires.
const SCHEDULED_TYPES: [&str; 6] =
    ["Cron触发", "调度过期补偿", "Cron觸發", "調度過期補償", "Cron trigger", "Misfire compensation trigger"];
/// Trigger types of other runs: by hand, as a child, as a retry, or by the API.
const UNSCHEDULED_TYPES: [&str; 12] = [
    "手动触发",
    "父任务触发",
    "失败重试触发",
    "API触发",
    "手動觸發",
    "父任務觸發",
    "失敗重試觸發",
    "API觸發",
    "Manual trigger",
    "Parent job trigger",
    "Fail retry trigger",
    "Api trigger",
];
/// Maximum difference between clocks. A row that is further in the future was written in another zone.
const CLOCK_AHEAD_MAX: Duration = Duration::from_secs(300);
/// New rows that are older than this were written in another zone.
const CLOCK_BEHIND_MAX: Duration = Duration::from_secs(1_800);
/// How many unknown trigger types are reported.
const UNKNOWN_COUNT_MAX: usize = 20;
/// Maximum length of a trigger type in a report.
const TRIGGER_TYPE_LEN_MAX: usize = 60;

#[derive(Debug, Args)]
pub(super) struct FollowArgs {
    /// The database of XXL-JOB; the user needs only to read it
    #[arg(long, value_name = "URL", env = "RONDEL_SHADOW_SOURCE", hide_env_values = true)]
    source: String,
    /// The zone that XXL-JOB's servers write times in
    #[arg(long, value_name = "ZONE")]
    time_zone: String,
    /// The name of the source in reports
    #[arg(long, value_name = "NAME", default_value = "xxl-job")]
    name: String,
    /// Report the existing rows, and end
    #[arg(long)]
    once: bool,
    /// How far back the first report begins
    #[arg(long, value_name = "DURATION", default_value = "1d", value_parser = parse_duration)]
    since: Duration,
    /// Rows younger than this are read later: XXL-JOB still writes into them
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = parse_duration)]
    settle: Duration,
}

impl FollowArgs {
    pub(super) async fn run(self, client: &Client) -> Result<(), Failure> {
        let zone = parse_zone(&self.time_zone).map_err(|error| Failure::refused(format!("--time-zone: {error}")))?;
        let mut database = jobs::open_database(&self.source).await?;
        let stored_fires = client.get(&["shadow", "fires"], &[("source", &self.name)]).await?.value()?;
        let mut last_id = match stored_fires["last_id"].as_i64() {
            Some(last_id) => last_id,
            None => {
                let since_text = xxl_time_text(&zone, clock::now().saturating_sub(self.since));
                database.xxl_log_before(&since_text).await.map_err(|error| jobs::database_failure(&error))?
            }
        };
        let mut names = JobNames::read(client).await?;
        let mut unknown_trigger_types = BTreeSet::new();
        let (mut has_read_all, mut has_warned) = (false, false);
        loop {
            match self
                .read_page(client, &mut database, &zone, &mut names, (&mut last_id, &mut unknown_trigger_types))
                .await
            {
                Ok(PageResult { stored_count, is_last, newest_fire_at }) => {
                    let is_old = newest_fire_at.is_some_and(|at| at < clock::now().saturating_sub(CLOCK_BEHIND_MAX));
                    if has_read_all && is_old && !std::mem::replace(&mut has_warned, true) {
                        output::print_message(&format!(
                            "new rows of the log are hours old by --time-zone {}: is that the zone of XXL-JOB's servers?",
                            self.time_zone
                        ));
                    }
                    has_read_all |= is_last;
                    if stored_count > 0 {
                        output::print_message(&format!(
                            "{stored_count} fires of {} stored, up to number {last_id}",
                            self.name
                        ));
                    }
                    if !is_last {
                        continue;
                    }
                }
                Err(failure) if self.once || !is_temporary(&failure) => return Err(failure),
                Err(failure) => {
                    output::print_message(&format!("{}; trying again", failure.message()));
                    if let Ok(new_database) = jobs::open_database(&self.source).await {
                        database = new_database;
                    }
                }
            }
            if self.once {
                return Ok(());
            }
            tokio::time::sleep(READ_PERIOD).await;
            if clock::now().since(names.read_at) >= JOBS_PERIOD {
                names = JobNames::read(client).await.unwrap_or(names);
            }
        }
    }

    /// Reads the page of the log after `last_id`, reports its fires to the server, and advances `last_id`.
    async fn read_page<Z: TimeZone + Sync>(
        &self,
        client: &Client,
        database: &mut XxlDatabase,
        zone: &Z,
        names: &mut JobNames,
        (last_id, unknown_trigger_types): (&mut i64, &mut BTreeSet<String>),
    ) -> Result<PageResult, Failure> {
        let rows = database.xxl_logs(*last_id, PAGE_LEN).await.map_err(|error| jobs::database_failure(&error))?;
        let now = clock::now();
        if let Some((row, fire_at)) = rows
            .iter()
            .find_map(|row| Some((row, fired_at(zone, row, now)?)).filter(|(_, at)| *at > now + CLOCK_AHEAD_MAX))
        {
            return Err(Failure::refused(format!(
                "row {} of xxl_job_log was sent at {fire_at}, and it is {now}: --time-zone {} is not that of XXL-JOB's servers, or a clock is wrong",
                row.id, self.time_zone
            )));
        }
        let settled_before = now.saturating_sub(self.settle);
        let is_settled = |row: &&LogRow| fired_at(zone, row, now).is_none_or(|fire_at| fire_at <= settled_before);
        let settled_rows: Vec<&LogRow> = rows.iter().take_while(is_settled).collect();
        for type_text in settled_rows.iter().filter_map(|row| unknown_trigger_type(row)) {
            if unknown_trigger_types.len() < UNKNOWN_COUNT_MAX && unknown_trigger_types.insert(type_text.clone()) {
                output::print_message(&format!(
                    "the log has runs with the trigger type {:?}, which no known version has: they count as fires of the schedule",
                    harmless_text(&type_text)
                ));
            }
        }
        if settled_rows.iter().any(|row| names.may_lack(row.job, fired_at(zone, row, now))) {
            *names = JobNames::read(client).await?;
        }
        let fires: Vec<Value> =
            settled_rows.iter().filter_map(|row| fire_report(zone, &names.names_by_number, row, now)).collect();
        let mut stored_count = 0;
        if !fires.is_empty() {
            let body = json!({"source": self.name, "fires": fires}).to_string();
            stored_count =
                client.post(&["shadow", "fires"], &body).await?.value()?["stored"].as_u64().unwrap_or_default();
        }
        if let Some(last_row) = settled_rows.last() {
            *last_id = last_row.id;
        }
        let newest_fire_at = settled_rows.iter().filter_map(|row| fired_at(zone, row, now)).max();
        Ok(PageResult { stored_count, is_last: settled_rows.len() < PAGE_LEN as usize, newest_fire_at })
    }
}

/// The names of the jobs by their numbers in XXL-JOB, and when they were read.
struct JobNames {
    names_by_number: BTreeMap<i64, String>,
    read_at: Timestamp,
}

impl JobNames {
    async fn read(client: &Client) -> Result<Self, Failure> {
        let read_at = clock::now();
        Ok(Self { names_by_number: jobs::names_by_number(client).await?, read_at })
    }

    /// Whether the job of a row may have been imported since the names were read. If the row is much older than the
    /// names, its job was not imported when it fired.
    fn may_lack(&self, number: i64, fired_at: Option<Timestamp>) -> bool {
        !self.names_by_number.contains_key(&number) && fired_at.is_some_and(|at| at + CLOCK_AHEAD_MAX > self.read_at)
    }
}

struct PageResult {
    /// How many fires of the page the server stored.
    stored_count: u64,
    is_last: bool,
    /// When the newest row of the page was sent.
    newest_fire_at: Option<Timestamp>,
}

/// Whether a failure may be temporary: a server or a database that cannot be reached for a while.
fn is_temporary(failure: &Failure) -> bool {
    matches!(failure.exit(), Exit::Unreachable | Exit::Failed | Exit::NotFound)
}

/// The report of a row; `None` for jobs that were not imported, for shards after the first, and for runs that no
/// schedule fired.
fn fire_report<Z: TimeZone>(zone: &Z, names: &BTreeMap<i64, String>, row: &LogRow, now: Timestamp) -> Option<Value> {
    let (job, fire_at) = (names.get(&row.job)?, fired_at(zone, row, now)?);
    let is_first_shard = row.sharding.split('/').next().is_none_or(|shard| shard.is_empty() || shard == "0");
    if !is_first_shard
        || UNSCHEDULED_TYPES.iter().any(|ignored_type| ignored_type.eq_ignore_ascii_case(trigger_type(row)))
    {
        return None;
    }
    let executor: String = row.executor.chars().take(255).collect();
    Some(json!({
        "job": job, "source_id": row.id, "started_at": fire_at, "executor": executor, "outcome": outcome_of_row(row).as_str(),
    }))
}

/// The trigger type of a row, as XXL-JOB writes it.
fn trigger_type(row: &LogRow) -> &str {
    let first_line = row.message.split("<br>").next().unwrap_or_default();
    first_line.split_once(['：', ':']).map_or(first_line, |(_, type_text)| type_text).trim()
}

/// The trigger type of a row, if no known version of XXL-JOB writes it. Such a row counts as a fire of the schedule.
fn unknown_trigger_type(row: &LogRow) -> Option<String> {
    let type_text = trigger_type(row);
    let is_known =
        SCHEDULED_TYPES.iter().chain(&UNSCHEDULED_TYPES).any(|known_type| known_type.eq_ignore_ascii_case(type_text));
    (!type_text.is_empty() && !is_known).then(|| type_text.chars().take(TRIGGER_TYPE_LEN_MAX).collect())
}

fn outcome_of_row(row: &LogRow) -> OldOutcome {
    match (row.trigger_code, row.handle_code) {
        (_, 200) => OldOutcome::Succeeded,
        (0 | 200, 0) => OldOutcome::Started,
        _ => OldOutcome::Failed,
    }
}

/// When a row was sent. When clocks are set back, an hour comes twice, and a local time in it has two instants. The later one
/// counts, unless it lies ahead: rows are read soon after they were written.
fn fired_at<Z: TimeZone>(zone: &Z, row: &LogRow, now: Timestamp) -> Option<Timestamp> {
    let local_time = NaiveDateTime::parse_from_str(row.trigger_time.as_deref()?, "%Y-%m-%d %H:%M:%S%.f").ok()?;
    let instant = |at: DateTime<Z>| Timestamp::from_secs(at.timestamp());
    match zone.from_local_datetime(&local_time) {
        LocalResult::Ambiguous(earlier, later) => {
            let later = instant(later);
            Some(if later <= now + CLOCK_AHEAD_MAX { later } else { instant(earlier) })
        }
        LocalResult::Single(at) => Some(instant(at)),
        LocalResult::None => None,
    }
}

/// An instant in the form in which XXL-JOB writes it.
fn xxl_time_text<Z: TimeZone>(zone: &Z, at: Timestamp) -> String {
    let utc = at.to_utc().unwrap_or_default();
    utc.with_timezone(zone).naive_local().format("%Y-%m-%d %H:%M:%S").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> LogRow {
        LogRow {
            id: 5,
            job: 17,
            trigger_time: Some("2026-11-23 10:30:00".to_owned()),
            executor: "http://10.0.0.5:9999/".to_owned(),
            sharding: String::new(),
            trigger_code: 200,
            handle_code: 200,
            message: "任务触发类型：Cron触发<br>调度机器：10.0.0.1<br>手动触发".to_owned(),
        }
    }

    fn reported(row: &LogRow) -> Option<Value> {
        let zone = parse_zone("Asia/Shanghai").expect("a zone");
        let now = "2026-11-23T02:31:00Z".parse().expect("an instant");
        fire_report(&zone, &BTreeMap::from([(17, "report-17".to_owned())]), row, now)
    }

    #[test]
    fn a_row_of_the_log_is_a_fire_in_its_zone() {
        let expected = json!({
            "job": "report-17", "source_id": 5, "started_at": "2026-11-23T02:30:00Z",
            "executor": "http://10.0.0.5:9999/", "outcome": "succeeded",
        });
        assert_eq!(reported(&row()), Some(expected));
        let ends =
            [(0, 0, "started"), (200, 0, "started"), (500, 0, "failed"), (200, 502, "failed"), (0, 200, "succeeded")];
        for (trigger_code, handle_code, outcome) in ends {
            let fire = reported(&LogRow { trigger_code, handle_code, ..row() }).expect("a fire");
            assert_eq!(fire["outcome"], outcome, "{trigger_code} {handle_code}");
        }
    }

    #[test]
    fn a_row_of_the_hour_that_comes_twice_was_sent_just_now() {
        let zone = parse_zone("Europe/Berlin").expect("a zone");
        let row = LogRow { trigger_time: Some("2026-10-25 02:30:00".to_owned()), ..row() };
        let instant = |time: &str| format!("2026-10-25T{time}:00Z").parse::<Timestamp>().expect("an instant");
        for (now, expected) in [("00:31", "00:30"), ("01:31", "01:30")] {
            assert_eq!(fired_at(&zone, &row, instant(now)), Some(instant(expected)), "{now}");
        }
    }

    #[test]
    fn names_are_read_again_for_a_job_that_may_have_been_imported_since() {
        let names = |number: i64, read_at: &str| JobNames {
            names_by_number: BTreeMap::from([(number, "report".to_owned())]),
            read_at: read_at.parse().expect("an instant"),
        };
        let fired_at = Some("2026-11-23T02:30:00Z".parse().expect("an instant"));
        assert!(names(18, "2026-11-23T02:29:30Z").may_lack(17, fired_at));
        assert!(!names(17, "2026-11-23T02:29:30Z").may_lack(17, fired_at));
        assert!(!names(18, "2026-11-23T03:00:00Z").may_lack(17, fired_at), "of a job that is not here");
        assert!(!names(18, "2026-11-23T02:29:30Z").may_lack(17, None));
    }

    #[test]
    fn other_jobs_shards_and_triggers_are_left_out() {
        let message = |text: &str| LogRow { message: text.to_owned(), ..row() };
        let sharding = |text: &str| LogRow { sharding: text.to_owned(), ..row() };
        assert!(reported(&message("Trigger Type：Cron trigger<br>x")).is_some() && reported(&message("")).is_some());
        assert!(reported(&sharding("0/3")).is_some());
        for type_text in SCHEDULED_TYPES.iter().chain(&UNSCHEDULED_TYPES) {
            let row = message(&format!("任务触发类型：{type_text}<br>调度机器：10.0.0.1"));
            assert_eq!(
                (reported(&row).is_some(), unknown_trigger_type(&row)),
                (SCHEDULED_TYPES.contains(type_text), None),
                "{type_text}"
            );
        }
        let other = message("Trigger Type：Lunar trigger<br>x");
        assert!(reported(&other).is_some(), "what is not known is not lost");
        assert_eq!(unknown_trigger_type(&other).as_deref(), Some("Lunar trigger"));
        let left_out = [
            message("任务触发类型：失败重试触发<br>x"),
            message("任务触发类型：手动触发"),
            message("Trigger Type：Parent job trigger<br>x"),
            sharding("1/3"),
            LogRow { job: 18, ..row() },
            LogRow { trigger_time: None, ..row() },
        ];
        for row in left_out {
            assert_eq!(reported(&row), None, "{row:?}");
        }
    }
}
