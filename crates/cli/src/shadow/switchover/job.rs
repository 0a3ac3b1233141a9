//! The jobs that a command switches, in their state when the command began.

use std::collections::BTreeMap;
use std::time::Duration;

use rondel_core::Timestamp;
use rondel_store::foreign::xxl_job::JobStatus;
use serde_json::Value;

use super::outcome::RunLocation;
use crate::client::Client;
use crate::shadow::jobs;

/// A saved definition applies to all fires that are due at least this long after the save.
pub(super) const HOLD_DELAY: Duration = Duration::from_secs(1);
/// Maximum number of concurrent calls of the API.
pub(super) const CALL_COUNT_MAX: usize = 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::shadow) enum Direction {
    Promote,
    Demote,
}

/// A job that exists on both sides.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) name: String,
    pub(super) app: String,
    pub(super) handler: String,
    /// The number of the job in XXL-JOB.
    pub(super) number: i64,
    pub(super) is_shadow: bool,
    pub(super) is_enabled: bool,
    /// The seam of the last switch: the instant from which the mode applies. `None` if it applies without a seam.
    pub(super) mode_from: Option<Timestamp>,
    pub(super) updated_at: Option<Timestamp>,
    /// Whether the job has a schedule of its own.
    pub(super) has_schedule: bool,
    pub(super) parents: Vec<String>,
    pub(super) children: Vec<String>,
}

impl Job {
    pub(super) fn read(job: &Value) -> Option<Self> {
        let instant = |key: &str| job[key].as_str().and_then(|at| at.parse().ok());
        let names = |key: &str| -> Vec<String> {
            job[key].as_array().into_iter().flatten().filter_map(|name| Some(name.as_str()?.to_owned())).collect()
        };
        let single_schedule = std::slice::from_ref(&job["schedule"]);
        let schedules = job["schedule"].as_array().map_or(single_schedule, Vec::as_slice);
        let has_fires =
            |schedule: &Value| ["cron", "every", "delay", "at"].iter().any(|kind| schedule[kind].is_string());
        Some(Self {
            name: job["name"].as_str()?.to_owned(),
            app: job["app"].as_str()?.to_owned(),
            handler: job["handler"].as_str()?.to_owned(),
            number: jobs::xxl_number(job)?,
            is_shadow: job["mode"] == "shadow",
            is_enabled: job["enabled"] == true,
            mode_from: instant("mode_from"),
            updated_at: instant("updated_at"),
            has_schedule: schedules.iter().any(has_fires),
            parents: names("parents"),
            children: names("children"),
        })
    }

    /// Whether a schedule currently fires the job.
    pub(super) const fn is_firing(&self) -> bool {
        self.has_schedule && self.is_enabled
    }

    /// Whether only other jobs fire this job.
    pub(super) fn is_follower(&self) -> bool {
        !self.has_schedule && !self.parents.is_empty()
    }
}

/// The jobs to switch and their relatives, in their state when the command began.
pub(super) struct Switchover<'a> {
    pub(super) client: &'a Client,
    pub(super) jobs: Vec<Job>,
    /// Parents and children that the command does not name.
    pub(super) relatives: BTreeMap<String, Relative>,
    /// The status of the jobs in XXL-JOB, keyed by their numbers.
    pub(super) xxl_status: BTreeMap<i64, JobStatus>,
}

impl Switchover<'_> {
    /// Whether a user, and no command, stopped the job in XXL-JOB: its row there has no mark. Both commands mark the row of a job before it
    /// can be stopped on both sides, and XXL-JOB removes the mark when it starts or stops the job.
    pub(super) fn was_stopped_in_xxl_job(&self, job: &Job) -> bool {
        let is_stopped = |status: &JobStatus| !status.is_running && status.next_ms == 0;
        job.is_shadow && self.xxl_status.get(&job.number).is_some_and(is_stopped)
    }

    /// Where a job runs before the command changes anything.
    pub(super) fn run_location(&self, job: &Job) -> RunLocation {
        let is_running = self.xxl_status.get(&job.number).is_some_and(|status| status.is_running);
        let fires_in_xxl_job = is_running || !job.has_schedule;
        match (job.is_shadow, fires_in_xxl_job) {
            (true, true) => RunLocation::XxlJob,
            (false, true) if is_running && !job.is_enabled => RunLocation::XxlJob,
            (false, true) if is_running && !job.is_follower() => RunLocation::Both,
            (false, false) if !job.is_enabled => RunLocation::Neither,
            (true, false) => RunLocation::Neither,
            (false, _) => RunLocation::Rondel,
        }
    }
}

/// A parent or child that the command does not name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Relative {
    pub(super) is_shadow: bool,
    /// Whether the job was imported from XXL-JOB, so that it has a number there.
    pub(super) is_imported: bool,
}

pub(super) const fn instant_of_millis(ms: i64) -> Timestamp {
    Timestamp::from_millis(ms)
}
