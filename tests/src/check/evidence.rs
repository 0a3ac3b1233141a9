//! The evidence that the checker judges: starts, rows, jobs and calls.

use serde_json::Value;

use crate::instants::{length_millis, millis};

/// Everything that is known of a system when its ledger is read.
#[derive(Debug, Clone, Default)]
pub struct Evidence {
    /// When the ledger was read, in milliseconds since 1970.
    pub read_at_ms: i64,
    /// The starts and ends that handlers recorded.
    pub starts: Vec<Start>,
    /// Executors that were killed.
    pub died: Vec<Died>,
    /// Executors that were paused for a while (by SIGSTOP).
    pub paused: Vec<Paused>,
    /// The jobs, as the API shows them at the reading.
    pub jobs: Vec<JobFacts>,
    /// All runs, as the API shows them at the reading.
    pub runs: Vec<RunRow>,
    /// The calls that were made, with their answers.
    pub calls: Vec<Call>,
}

/// One start of a handler.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Start {
    /// The run's id.
    pub run: String,
    /// The number of the attempt, from 1.
    pub attempt: i64,
    /// The job's name.
    pub job: String,
    /// The planned instant.
    pub fire_at_ms: i64,
    /// The index of the shard.
    pub shard: i64,
    /// The fencing token: the term, and the number within the term.
    pub token: (i64, i64),
    /// The id of the process.
    pub pid: i64,
    /// When the handler began.
    pub begin_ms: i64,
    /// When it ended, and whether it succeeded (`None` if the handler was dropped). `None` if its process died before.
    pub end: Option<(i64, Option<bool>)>,
}

/// A process that was killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Died {
    /// The id of the process.
    pub pid: i64,
    /// When it was killed.
    pub at_ms: i64,
}

/// A process that was paused for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Paused {
    /// The id of the process.
    pub pid: i64,
    /// When the pause began.
    pub from_ms: i64,
    /// When the pause ended.
    pub to_ms: i64,
}

/// The facts about a job that the checks need.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct JobFacts {
    /// Its name.
    pub name: String,
    /// Whether its schedule fires.
    pub enabled: bool,
    /// The period of a job with one fixed rate.
    pub period_ms: Option<i64>,
    /// Whether it has any schedule.
    pub is_scheduled: bool,
    /// When it was made.
    pub created_ms: i64,
    /// Whether its delivery is at most once.
    pub at_most_once: bool,
    /// Whether its runs are serial in the whole cluster.
    pub is_serial: bool,
    /// Maximum number of retries.
    pub retry_max: i64,
    /// The next fire.
    pub next_fire_ms: Option<i64>,
}

impl JobFacts {
    /// Reads `GET /api/v1/jobs/{name}`.
    #[must_use]
    pub fn from_json(job: &Value) -> Option<Self> {
        let schedule = &job["schedule"];
        let period = schedule["every"].as_str().and_then(length_millis);
        let has_more =
            ["start", "end", "jitter"].iter().any(|key| !schedule[key].is_null()) || !job["calendar"].is_null();
        Some(Self {
            name: job["name"].as_str()?.to_owned(),
            enabled: job["enabled"].as_bool().unwrap_or(true),
            period_ms: period.filter(|period| *period > 0 && !has_more),
            is_scheduled: !schedule.is_null() && schedule["after"].is_null(),
            created_ms: job["created_at"].as_str().and_then(millis)?,
            at_most_once: job["delivery"] == "at_most_once",
            is_serial: matches!(job["overlap"]["policy"].as_str(), None | Some("serial"))
                && matches!(job["overlap"]["scope"].as_str(), None | Some("cluster")),
            retry_max: job["retry"]["max"].as_i64().unwrap_or(0),
            next_fire_ms: job["next_fire_at"].as_str().and_then(millis),
        })
    }
}

/// A run, with its attempts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RunRow {
    /// Its id.
    pub id: String,
    /// The job's name.
    pub job: String,
    /// The planned instant.
    pub fire_at_ms: i64,
    /// The index of the shard; `None` for the row of a whole broadcast.
    pub shard: Option<i64>,
    /// What caused it, such as `cron` or `manual`.
    pub trigger: String,
    /// Its status.
    pub status: String,
    /// The reason for its status, if there is one.
    pub reason: Option<String>,
    /// The number of the current attempt.
    pub attempt: i64,
    /// When a handler began.
    pub started_ms: Option<i64>,
    /// When it got its verdict.
    pub finished_ms: Option<i64>,
    /// The last fire for which the row stands, if there are several.
    pub span_end_ms: Option<i64>,
    /// The attempts, if they were read.
    pub attempts: Vec<Attempt>,
}

/// An attempt of a run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Attempt {
    /// Its number, from 1.
    pub number: i64,
    /// How it ended.
    pub status: String,
    /// Why there is another one.
    pub reason: Option<String>,
}

impl RunRow {
    /// Reads a run of a list, or `GET /api/v1/runs/{id}`.
    #[must_use]
    pub fn from_json(run: &Value) -> Option<Self> {
        let text = |key: &str| run[key].as_str().map(str::to_owned);
        let instant = |key: &str| run[key].as_str().and_then(millis);
        let attempts = run["attempts"].as_array().into_iter().flatten();
        Some(Self {
            id: text("id")?,
            job: text("job")?,
            fire_at_ms: instant("fire_at")?,
            shard: run["shard_index"].as_i64(),
            trigger: text("trigger")?,
            status: text("status")?,
            reason: text("reason"),
            attempt: run["attempt"].as_i64()?,
            started_ms: instant("started_at"),
            finished_ms: instant("finished_at"),
            span_end_ms: instant("span_end_at"),
            attempts: attempts
                .filter_map(|attempt| {
                    Some(Attempt {
                        number: attempt["attempt"].as_i64()?,
                        status: attempt["status"].as_str()?.to_owned(),
                        reason: attempt["reason"].as_str().map(str::to_owned),
                    })
                })
                .collect(),
        })
    }

    /// Whether it comes from its job's schedule.
    pub(super) fn is_scheduled(&self) -> bool {
        ["cron", "interval", "once", "misfire"].contains(&self.trigger.as_str())
    }

    /// Whether it has no verdict yet.
    pub(super) fn is_open(&self) -> bool {
        ["pending", "waiting", "running"].contains(&self.status.as_str())
    }
}

/// A call to the API.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Call {
    /// When it was sent.
    pub sent_ms: i64,
    /// When its answer arrived.
    pub done_ms: i64,
    /// The HTTP method, such as `POST`.
    pub method: String,
    /// The path, from `/api/v1` on.
    pub path: String,
    /// The body that was sent.
    pub body: Value,
    /// The status of the answer; `None` if there was no answer.
    pub status: Option<u16>,
    /// The answer.
    pub answer: Value,
}

impl Call {
    /// Reads a line of a history.
    #[must_use]
    pub fn from_json(line: &Value) -> Option<Self> {
        Some(Self {
            sent_ms: line["sent_ms"].as_i64()?,
            done_ms: line["done_ms"].as_i64()?,
            method: line["method"].as_str()?.to_owned(),
            path: line["path"].as_str()?.to_owned(),
            body: line["body"].clone(),
            status: line["status"].as_u64().and_then(|status| u16::try_from(status).ok()),
            answer: line["answer"].clone(),
        })
    }

    /// Whether it was acknowledged.
    #[must_use]
    pub fn is_acknowledged(&self) -> bool {
        self.status.is_some_and(|status| (200..300).contains(&status))
    }
}
