//! Turns a trigger and its job into a definition, and records the outcome for each of their fields.

use serde_json::{Map, Value, json};

use super::ImportOptions;
use super::naming::Naming;
use super::properties::{self, JobData};
use crate::import::dump::Row;
use crate::import::result::Outcome::{Changed, Kept, NotNeeded, NotSupported};
use crate::import::result::{Entry, ImportResult, Outcome};

const PRIORITY_MAX: i64 = 9;

/// The rows that a definition is made from.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    pub(super) job: &'a Row,
    pub(super) trigger: Option<&'a Row>,
    /// The trigger's row of `CRON_TRIGGERS` or `SIMPLE_TRIGGERS`.
    pub(super) timing: Option<&'a Row>,
    /// Whether exactly one trigger of the job is not in Quartz's state COMPLETE.
    pub(super) is_only_trigger: bool,
    pub(super) options: &'a ImportOptions<'a>,
}

/// A definition under construction, and the report on it.
pub(super) struct Draft<'a> {
    pub(super) source: &'a Source<'a>,
    pub(super) entry: Entry,
    job: Map<String, Value>,
    pub(super) is_enabled: bool,
}

pub(super) fn add(source: &Source<'_>, result: &mut ImportResult) {
    let naming = Naming::new(source);
    let name = naming.make_name(result);
    let entry = Entry::new(naming.place(), naming.title());
    let mut draft = Draft { source, entry, job: Map::new(), is_enabled: true };
    draft.set("name", name.clone());
    draft.set("app", source.options.app);
    draft.set_labels(&naming, &name);
    draft.set_handler();
    draft.set_params();
    let schedule_result = draft.set_schedule();
    draft.set_policies();
    draft.record_other_columns(if schedule_result.is_ok() {
        "has no counterpart"
    } else {
        "is left out with its trigger"
    });
    draft.set("enabled", draft.is_enabled);
    match schedule_result {
        Ok(()) => result.add(draft.entry, draft.job),
        Err(reason) => result.leave_out(draft.entry, reason),
    }
}

impl Draft<'_> {
    pub(super) fn set(&mut self, field: &str, value: impl Into<Value>) {
        self.job.insert(field.to_owned(), value.into());
    }

    pub(super) fn record(&mut self, row: Option<&Row>, column: &str, outcome: Outcome, counterpart: impl Into<String>) {
        if let Some(value) = row.and_then(|row| row.get(column)) {
            self.entry.record_field(column, value, outcome, counterpart);
        }
    }

    fn record_job(&mut self, column: &str, outcome: Outcome, counterpart: impl Into<String>) {
        self.record(Some(self.source.job), column, outcome, counterpart);
    }

    pub(super) fn record_trigger(&mut self, column: &str, outcome: Outcome, counterpart: impl Into<String>) {
        self.record(self.source.trigger, column, outcome, counterpart);
    }

    fn job_text(&self, column: &str) -> String {
        self.source.job.get(column).cloned().unwrap_or_default()
    }

    pub(super) fn trigger_text(&self, column: &str) -> String {
        self.source.trigger.and_then(|row| row.get(column)).cloned().unwrap_or_default()
    }

    pub(super) fn number(row: Option<&Row>, column: &str) -> i64 {
        row.and_then(|row| row.get(column)).and_then(|text| text.trim().parse().ok()).unwrap_or_default()
    }

    fn is_set(&self, column: &str) -> bool {
        matches!(self.job_text(column).to_ascii_lowercase().as_str(), "1" | "true" | "t" | "y")
    }

    fn set_labels(&mut self, naming: &Naming, name: &str) {
        for column in ["job_name", "job_group"] {
            self.record_job(column, Kept, format!("name {name}"));
        }
        for column in ["trigger_name", "trigger_group"] {
            self.record_trigger(column, Kept, format!("name {name}"));
        }
        let labels = naming.origin_labels();
        if labels.contains_key("quartz-scheduler") {
            self.record_job("sched_name", Kept, "the label quartz-scheduler");
        } else {
            self.record_job("sched_name", NotSupported, "is no label");
        }
        self.set("labels", labels);
    }

    fn set_handler(&mut self) {
        let class = self.job_text("job_class_name");
        let handler = class.replace('$', ".");
        let (outcome, counterpart) = match handler == class {
            true => (Kept, format!("handler {handler}")),
            false => (Changed, format!("the handler is called {handler}: a name has no $")),
        };
        self.record_job("job_class_name", outcome, counterpart);
        self.set("handler", handler);
        let (job_description, trigger_description) = (self.job_text("description"), self.trigger_text("description"));
        self.record_job("description", Kept, "description");
        if job_description.is_empty() || trigger_description.is_empty() || job_description == trigger_description {
            self.record_trigger("description", Kept, "description");
        } else {
            self.record_trigger(
                "description",
                NotSupported,
                format!("{trigger_description:?} is dropped: the job has its own"),
            );
        }
        self.set("description", if job_description.is_empty() { trigger_description } else { job_description });
    }

    /// Sets the parameters. If job data cannot be read, the job is not enabled, because a run without the data would do
    /// something else.
    fn set_params(&mut self) {
        let mut params = Map::new();
        for (row, owner) in [(Some(self.source.job), "the job"), (self.source.trigger, "the trigger")] {
            let Some(hex) = row.and_then(|row| row.get("job_data")) else { continue };
            let (outcome, counterpart) = match properties::read(hex) {
                JobData::Nothing => (NotNeeded, "is empty"),
                JobData::Texts(texts) => {
                    params.extend(texts);
                    (Kept, "params, those of the trigger over those of the job")
                }
                JobData::Other => {
                    self.is_enabled = false;
                    (
                        NotSupported,
                        "is a serialized object of Java with other values than texts, which is not read. The job is not enabled: set params by hand, and enable it",
                    )
                }
            };
            self.entry.record_field("job_data", &format!("of {owner}: {} bytes", hex.len() / 2), outcome, counterpart);
        }
        if !params.is_empty() {
            self.set("params", params);
        }
    }

    fn set_policies(&mut self) {
        let is_nonconcurrent = self.is_set("is_nonconcurrent");
        let policy = if is_nonconcurrent { "serial" } else { "allow" };
        let counterpart = format!("overlap.policy {policy}");
        if is_nonconcurrent && self.source.trigger.is_some() && !self.source.is_only_trigger {
            let explanation = "which keeps the runs of this trigger apart: each trigger of the job is a job of its own here, and Quartz kept the runs of \
                        all of them apart; for that, give these jobs the same concurrency.key, with concurrency.max 1";
            self.record_job("is_nonconcurrent", Changed, format!("{counterpart}, {explanation}"));
        } else {
            self.record_job("is_nonconcurrent", Kept, counterpart);
        }
        self.set("overlap", json!({"policy": policy}));
        let requests_recovery = self.is_set("requests_recovery");
        let delivery = if requests_recovery { "at_least_once" } else { "at_most_once" };
        self.record_job("requests_recovery", Kept, format!("delivery {delivery}"));
        self.set("delivery", delivery);
        self.record_job("is_durable", NotNeeded, "a job stays until it is deleted");
        let (outcome, counterpart) = match self.is_set("is_update_data") {
            true => (NotSupported, "a run cannot change the params of the next one"),
            false => (NotNeeded, "runs do not change their data"),
        };
        self.record_job("is_update_data", outcome, counterpart);
        let priority = Self::number(self.source.trigger, "priority");
        let new_priority = priority.clamp(0, PRIORITY_MAX);
        self.record_trigger(
            "priority",
            if new_priority == priority { Kept } else { Changed },
            format!("priority {new_priority}"),
        );
        if self.source.trigger.is_some() {
            self.set("priority", new_priority);
        }
        let is_simple = self.trigger_text("trigger_type") == "SIMPLE";
        let (count, instruction) =
            (Self::number(self.source.timing, "repeat_count"), Self::number(self.source.trigger, "misfire_instr"));
        let policy = match instruction {
            -1 => "all",
            0 if is_simple && count < 0 => "skip",
            0 | 1 => "once",
            2 | 3 if is_simple => "once",
            _ => "skip",
        };
        if self.source.trigger.is_some() {
            let counterpart =
                format!("misfire.policy {policy}, with Quartz's default threshold of 60 s as the tolerance");
            // After a late fire of a simple trigger, Quartz plans the next fires from the moment of that fire.
            match is_simple && count != 0 && (matches!(instruction, 1..=3) || (instruction == 0 && count > 0)) {
                true => self.record_trigger(
                    "misfire_instr",
                    Changed,
                    format!("{counterpart}; Quartz also moves all later instants by the delay, and here they stay"),
                ),
                false => self.record_trigger("misfire_instr", Kept, counterpart),
            }
            self.set("misfire", json!({"policy": policy, "tolerance": "60s"}));
        }
    }

    /// Records the outcome for the columns that no other step has recorded.
    fn record_other_columns(&mut self, counterpart: &str) {
        for row in [Some(self.source.job), self.source.trigger, self.source.timing].into_iter().flatten() {
            for (column, value) in row {
                if !self.entry.fields.iter().any(|field| field.name == *column) {
                    self.entry.record_field(column, value, NotSupported, counterpart);
                }
            }
        }
    }
}
