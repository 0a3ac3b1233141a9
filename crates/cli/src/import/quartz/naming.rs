//! The name of a definition, and the labels that name its origin.

use serde_json::{Map, Value};

use super::fields::Source;
use crate::import::dump::Row;
use crate::import::names::hash;
use crate::import::result::{ImportResult, origin_labels};

/// The columns that identify a trigger without a name of its own.
const TIMING_COLUMNS: [&str; 4] = ["cron_expression", "time_zone_id", "repeat_count", "repeat_interval"];
/// The lengths of the parts of a name that Quartz makes: a part of the group's hash, and a UUID.
const RANDOM_LENS: [usize; 6] = [12, 8, 4, 4, 4, 12];

/// The names of a job and its trigger in Quartz.
pub(super) struct Naming {
    scheduler: String,
    group: String,
    job: String,
    trigger_group: String,
    pub(super) trigger: String,
    /// The columns of the trigger's schedule as one text.
    timing: String,
    /// Whether Quartz generated the trigger's name.
    is_random: bool,
    is_only_trigger: bool,
}

impl Naming {
    pub(super) fn new(source: &Source<'_>) -> Self {
        let text = |row: Option<&Row>, column: &str| row.and_then(|row| row.get(column)).cloned().unwrap_or_default();
        let trigger = text(source.trigger, "trigger_name");
        Self {
            scheduler: text(Some(source.job), "sched_name"),
            group: text(Some(source.job), "job_group"),
            job: text(Some(source.job), "job_name"),
            trigger_group: text(source.trigger, "trigger_group"),
            timing: TIMING_COLUMNS.map(|column| text(source.timing, column)).join(" "),
            is_random: is_random(&trigger),
            is_only_trigger: source.is_only_trigger,
            trigger,
        }
    }

    /// Makes the job's name in Rondel.
    pub(super) fn make_name(&self, result: &mut ImportResult) -> String {
        let group_prefix = if self.group == "DEFAULT" { String::new() } else { format!("{}-", self.group) };
        let job = &self.job;
        let stem = match self.trigger.as_str() {
            "" => job.clone(),
            _ if self.is_random && self.is_only_trigger => job.clone(),
            _ if self.is_random => format!("{job}-{:08x}", hash(&self.timing)),
            trigger if trigger == job => job.clone(),
            trigger => format!("{job}-{trigger}"),
        };
        // A random name changes when the application creates its trigger anew, so the schedule identifies the trigger.
        let trigger = if self.is_random { &self.timing } else { &self.trigger };
        let identity = [&self.scheduler, &self.group, job, &self.trigger_group, trigger].map(String::as_str);
        result.names.unique_name(&format!("{group_prefix}{stem}"), &[&identity.join("\0")])
    }

    /// The name in the report.
    pub(super) fn title(&self) -> String {
        if self.trigger.is_empty() { self.job.clone() } else { format!("{}-{}", self.job, self.trigger) }
    }

    pub(super) fn place(&self) -> String {
        let Self { group, job, trigger_group, trigger, .. } = self;
        if trigger.is_empty() {
            return format!("job {group}.{job}");
        }
        format!("trigger {trigger_group}.{trigger} of job {group}.{job}")
    }

    pub(super) fn origin_labels(&self) -> Map<String, Value> {
        let trigger = if self.is_random { "" } else { &self.trigger };
        origin_labels(&[
            ("quartz-scheduler", &self.scheduler),
            ("quartz-group", &self.group),
            ("quartz-job", &self.job),
            ("quartz-trigger-group", if trigger.is_empty() { "" } else { &self.trigger_group }),
            ("quartz-trigger", trigger),
        ])
    }
}

/// Whether Quartz generated a trigger's name because the application gave none: `6da64b5bd2ee-` and a UUID.
fn is_random(trigger: &str) -> bool {
    let trigger_parts: Vec<&str> = trigger.split('-').collect();
    trigger_parts.iter().map(|trigger_part| trigger_part.len()).eq(RANDOM_LENS)
        && trigger_parts.iter().all(|trigger_part| trigger_part.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_quartz_makes_are_random() {
        assert!(is_random("6da64b5bd2ee-3f0e1a52-8a0c-4c5f-9a39-0f2d4c1b7e11"));
        for name in
            ["nightly", "", "3f0e1a52-8a0c-4c5f-9a39-0f2d4c1b7e11", "6da64b5bd2ee-3f0e1a52-8a0c-4c5f-9a39-backupjobxyz"]
        {
            assert!(!is_random(name), "{name}");
        }
    }
}
