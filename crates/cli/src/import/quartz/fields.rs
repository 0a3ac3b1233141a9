//! Turns a trigger and its job into a definition, and records the outcome for each of their fields.

use rondel_core::Timestamp;
use rondel_core::labels::check_value;
use serde_json::{Map, Value, json};

use super::properties::{self, Data};
use crate::import::dump::Row;
use crate::import::found::Outcome::{Changed, Kept, NotNeeded, NotSupported};
use crate::import::found::{Entry, Found, Outcome};

const PRIORITY_MAX: i64 = 9;

/// The rows that a definition is made from, and its app and zone.
pub(super) struct Source<'a> {
    pub(super) job: &'a Row,
    pub(super) trigger: Option<&'a Row>,
    /// The trigger's row of `CRON_TRIGGERS` or `SIMPLE_TRIGGERS`.
    pub(super) timing: Option<&'a Row>,
    pub(super) app: &'a str,
    pub(super) zone: &'a str,
}

/// A definition under construction, and the report on it.
struct Draft<'a> {
    source: &'a Source<'a>,
    entry: Entry,
    job: Map<String, Value>,
    is_enabled: bool,
}

pub(super) fn add(source: &Source<'_>, found: &mut Found) {
    let text = |row: Option<&Row>, column: &str| row.and_then(|row| row.get(column)).cloned().unwrap_or_default();
    let (group, job) = (text(Some(source.job), "job_group"), text(Some(source.job), "job_name"));
    let trigger = text(source.trigger, "trigger_name");
    let place = if group == "DEFAULT" { String::new() } else { format!("{group}-") };
    let stem = if trigger.is_empty() || trigger == job { job.clone() } else { format!("{job}-{trigger}") };
    let scheduler = text(Some(source.job), "sched_name");
    let identity = [scheduler, group.clone(), job.clone(), text(source.trigger, "trigger_group"), trigger.clone()];
    let name = found.name(&format!("{place}{stem}"), &identity.join("\0"));
    let from = match source.trigger {
        Some(row) => format!("trigger {}.{trigger} of job {group}.{job}", text(Some(row), "trigger_group")),
        None => format!("job {group}.{job}"),
    };
    let mut draft = Draft { source, entry: Entry::new(from, job), job: Map::new(), is_enabled: true };
    draft.set("name", name.clone());
    draft.set("app", source.app);
    draft.work(&name);
    let scheduled = draft.schedule();
    draft.policies();
    draft.set("enabled", draft.is_enabled);
    match scheduled {
        Ok(()) => found.add(draft.entry, draft.job),
        Err(why) => found.leave_out(draft.entry, why),
    }
}

impl Draft<'_> {
    fn set(&mut self, field: &str, value: impl Into<Value>) {
        self.job.insert(field.to_owned(), value.into());
    }

    fn account(&mut self, row: Option<&Row>, column: &str, outcome: Outcome, here: impl Into<String>) {
        if let Some(value) = row.and_then(|row| row.get(column)) {
            self.entry.field(column, value, outcome, here);
        }
    }

    fn of_job(&mut self, column: &str, outcome: Outcome, here: impl Into<String>) {
        self.account(Some(self.source.job), column, outcome, here);
    }

    fn of_trigger(&mut self, column: &str, outcome: Outcome, here: impl Into<String>) {
        self.account(self.source.trigger, column, outcome, here);
    }

    fn job_text(&self, column: &str) -> String {
        self.source.job.get(column).cloned().unwrap_or_default()
    }

    fn trigger_text(&self, column: &str) -> String {
        self.source.trigger.and_then(|row| row.get(column)).cloned().unwrap_or_default()
    }

    fn number(row: Option<&Row>, column: &str) -> i64 {
        row.and_then(|row| row.get(column)).and_then(|text| text.trim().parse().ok()).unwrap_or_default()
    }

    fn is_set(&self, column: &str) -> bool {
        matches!(self.job_text(column).to_ascii_lowercase().as_str(), "1" | "true" | "t" | "y")
    }

    fn work(&mut self, name: &str) {
        for column in ["job_name", "job_group"] {
            self.of_job(column, Kept, format!("name {name}"));
        }
        for column in ["trigger_name", "trigger_group"] {
            self.of_trigger(column, Kept, format!("name {name}"));
        }
        let scheduler = self.job_text("sched_name");
        if check_value(&scheduler).is_ok() {
            self.set("labels", json!({"quartz-scheduler": scheduler}));
            self.of_job("sched_name", Kept, "the label quartz-scheduler");
        } else {
            self.of_job("sched_name", NotSupported, "is no label");
        }
        let class = self.job_text("job_class_name");
        let handler = class.replace('$', ".");
        let (outcome, here) = match handler == class {
            true => (Kept, format!("handler {handler}")),
            false => (Changed, format!("the handler is called {handler}: a name has no $")),
        };
        self.of_job("job_class_name", outcome, here);
        self.set("handler", handler);
        let words =
            [self.job_text("description"), self.trigger_text("description")].into_iter().find(|text| !text.is_empty());
        self.set("description", words.unwrap_or_default());
        self.of_job("description", Kept, "description");
        self.of_trigger("description", Kept, "description, where the job has none");
        let mut params = Map::new();
        for (row, whose) in [(Some(self.source.job), "the job"), (self.source.trigger, "the trigger")] {
            let Some(hex) = row.and_then(|row| row.get("job_data")) else { continue };
            let (outcome, here) = match properties::read(hex) {
                Data::Nothing => (NotNeeded, "is empty"),
                Data::Properties(more) => {
                    params.extend(more);
                    (Kept, "params, those of the trigger over those of the job")
                }
                Data::Other => (
                    NotSupported,
                    "is a serialized object of Java, which is not read: set params by hand where it has entries",
                ),
            };
            self.entry.field("job_data", &format!("of {whose}: {} bytes", hex.len() / 2), outcome, here);
        }
        if !params.is_empty() {
            self.set("params", params);
        }
    }

    /// Sets the schedule, or returns why there is none.
    fn schedule(&mut self) -> Result<(), String> {
        let (kind, trigger, timing) = (self.trigger_text("trigger_type"), self.source.trigger, self.source.timing);
        if trigger.is_none() {
            return Ok(());
        }
        let instant =
            |column: &str| Some(Self::number(trigger, column)).filter(|ms| *ms > 0).map(Timestamp::from_millis);
        let (start, mut end) = (instant("start_time"), instant("end_time"));
        let mut schedule = Map::new();
        match (kind.as_str(), timing) {
            ("CRON", Some(row)) => {
                let own = row.get("time_zone_id").map(|zone| java_zone(zone));
                let zone = own.clone().unwrap_or_else(|| self.source.zone.to_owned());
                schedule.insert("cron".to_owned(), row.get("cron_expression").cloned().unwrap_or_default().into());
                schedule.insert("time_zone".to_owned(), zone.clone().into());
                self.account(timing, "cron_expression", Kept, "schedule.cron");
                self.account(timing, "time_zone_id", Kept, format!("schedule.time_zone {zone}"));
            }
            ("SIMPLE", Some(_)) => {
                let (count, every) = (Self::number(timing, "repeat_count"), Self::number(timing, "repeat_interval"));
                if count != 0 && (every < 1000 || every % 1000 != 0) {
                    self.account(timing, "repeat_interval", NotSupported, "whole seconds are the shortest");
                    return Err(format!("it fires each {every} ms: an interval has whole seconds here"));
                }
                if count == 0 {
                    let at = start.map_or_else(String::new, |at| at.to_string());
                    schedule.insert("at".to_owned(), at.into());
                    schedule.insert("if_past".to_owned(), "run".into());
                } else {
                    schedule.insert("every".to_owned(), format!("{}s", every / 1000).into());
                }
                if let (true, Some(start)) = (count > 0, start) {
                    let last = Timestamp::from_millis(start.as_millis().saturating_add(count.saturating_mul(every)));
                    end = Some(end.map_or(last, |end| end.min(last)));
                }
                self.account(timing, "repeat_interval", Kept, "schedule.every, from start_at on");
                self.account(
                    timing,
                    "repeat_count",
                    Kept,
                    match count {
                        0 => "schedule.at: once",
                        1.. => "schedule.end_at: the instant of the last one",
                        _ => "no end",
                    },
                );
                self.account(timing, "times_triggered", NotNeeded, "follows from the instants");
            }
            (other, _) => {
                self.of_trigger("trigger_type", NotSupported, "has no counterpart");
                return Err(format!(
                    "triggers of the kind {other:?} have no counterpart: write it as a cron expression"
                ));
            }
        }
        let is_once = schedule.contains_key("at");
        self.of_trigger("trigger_type", Kept, if is_once { "schedule.at" } else { "schedule" });
        for (column, field, at) in [("start_time", "start_at", start), ("end_time", "end_at", end)] {
            let is_used = at.filter(|_| !is_once);
            self.of_trigger(
                column,
                Kept,
                is_used.map_or_else(|| "no bound".to_owned(), |at| format!("schedule.{field} {at}")),
            );
            if let Some(at) = is_used {
                schedule.insert(field.to_owned(), at.to_string().into());
            }
        }
        self.set("schedule", schedule);
        self.state(is_once);
        Ok(())
    }

    fn state(&mut self, is_once: bool) {
        for column in ["next_fire_time", "prev_fire_time"] {
            self.of_trigger(column, NotNeeded, "follows from the schedule; the past stays there");
        }
        let (outcome, here) = match self.trigger_text("trigger_state").as_str() {
            "PAUSED" | "PAUSED_BLOCKED" => {
                self.is_enabled = false;
                (Kept, "not enabled")
            }
            "COMPLETE" => {
                self.is_enabled = false;
                (Kept, "not enabled: it has fired for the last time")
            }
            "ERROR" => {
                self.is_enabled = false;
                (Changed, "not enabled: Quartz could not make its job, and fired it no more")
            }
            _ if is_once && Self::number(self.source.trigger, "next_fire_time") <= 0 => {
                self.is_enabled = false;
                (Kept, "not enabled: it has fired")
            }
            _ => (Kept, "enabled"),
        };
        self.of_trigger("trigger_state", outcome, here);
        if !self.trigger_text("calendar_name").is_empty() {
            self.is_enabled = false;
            self.of_trigger(
                "calendar_name",
                NotSupported,
                "is a serialized object of Java, which is not read. The job is not enabled, for it would fire at times that the calendar excludes: \
                 make a calendar by rondel calendar apply, name it in the definition, and enable it",
            );
        }
    }

    fn policies(&mut self) {
        let is_alone = self.is_set("is_nonconcurrent");
        let policy = if is_alone { "serial" } else { "allow" };
        self.of_job("is_nonconcurrent", Kept, format!("overlap.policy {policy}"));
        self.set("overlap", json!({"policy": policy}));
        let recovers = self.is_set("requests_recovery");
        let delivery = if recovers { "at_least_once" } else { "at_most_once" };
        self.of_job("requests_recovery", Kept, format!("delivery {delivery}"));
        self.set("delivery", delivery);
        self.of_job("is_durable", NotNeeded, "a job stays until it is deleted");
        let (outcome, here) = match self.is_set("is_update_data") {
            true => (NotSupported, "a run cannot change the params of the next one"),
            false => (NotNeeded, "runs do not change their data"),
        };
        self.of_job("is_update_data", outcome, here);
        let priority = Self::number(self.source.trigger, "priority");
        let kept = priority.clamp(0, PRIORITY_MAX);
        self.of_trigger("priority", if kept == priority { Kept } else { Changed }, format!("priority {kept}"));
        if self.source.trigger.is_some() {
            self.set("priority", kept);
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
            let here = format!("misfire.policy {policy}, with Quartz's default threshold of 60 s as the tolerance");
            // Quartz plans a simple trigger that fires late from that moment on.
            match is_simple && count != 0 && (matches!(instruction, 1..=3) || (instruction == 0 && count > 0)) {
                true => self.of_trigger(
                    "misfire_instr",
                    Changed,
                    format!("{here}; Quartz also moves all later instants by the delay, and here they stay"),
                ),
                false => self.of_trigger("misfire_instr", Kept, here),
            }
            self.set("misfire", json!({"policy": policy, "tolerance": "60s"}));
        }
        for row in [Some(self.source.job), self.source.trigger, self.source.timing].into_iter().flatten() {
            for (column, value) in row {
                if !self.entry.fields.iter().any(|field| field.name == *column) {
                    self.entry.field(column, value, NotSupported, "has no counterpart");
                }
            }
        }
    }
}

/// `GMT+08:00` of Java is `Etc/GMT-8` elsewhere.
fn java_zone(zone: &str) -> String {
    let of = |sign: char| {
        Some((sign, zone.strip_prefix("GMT")?.strip_prefix(sign)?.strip_suffix(":00")?.parse::<u8>().ok()?))
    };
    match of('+').or_else(|| of('-')) {
        Some((_, 0)) => "UTC".to_owned(),
        Some(('+', hours)) => format!("Etc/GMT-{hours}"),
        Some((_, hours)) => format!("Etc/GMT+{hours}"),
        None => zone.to_owned(),
    }
}
