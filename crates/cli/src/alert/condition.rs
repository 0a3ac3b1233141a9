//! The condition of a rule on the command line.

use clap::Args;
use rondel_core::alert::{Condition, disk};
use serde_json::{Map, Value, json};

use crate::exit::Failure;

#[derive(Debug, Args)]
pub(super) struct ConditionArgs {
    /// A run failed after its last attempt
    #[arg(long, group = "condition")]
    failed: bool,
    /// This many runs failed in a row
    #[arg(long, value_name = "N", group = "condition")]
    failures_in_row: Option<u32>,
    /// This percentage of runs failed within the window
    #[arg(long, value_name = "PERCENT", groups = ["condition", "counted"])]
    failure_rate: Option<u32>,
    /// The window over which the failure rate, or the growth of the table of runs, is measured; 1h by default
    #[arg(long, value_name = "DURATION", requires = "counted")]
    window: Option<String>,
    /// Minimum number of runs for a failure rate; 10 by default
    #[arg(long, value_name = "N", requires = "failure_rate")]
    min_runs: Option<u64>,
    /// A fire was skipped
    #[arg(long, group = "condition")]
    skipped: bool,
    /// Count only fires that were skipped for this reason, such as `no_executor`; may be repeated; an empty value means any reason
    #[arg(long = "reason", value_name = "REASON", requires = "skipped")]
    reasons: Vec<String>,
    /// A scheduled run has waited for this long without starting
    #[arg(long, value_name = "DURATION", group = "condition")]
    late_by: Option<String>,
    /// No run planned in the 24 hours before this time of day has succeeded by then
    #[arg(long, value_name = "HH:MM", group = "condition", requires = "zone")]
    not_succeeded_by: Option<String>,
    /// The time zone of --not-succeeded-by
    #[arg(long = "time-zone", alias = "zone", value_name = "ZONE", requires = "not_succeeded_by")]
    zone: Option<String>,
    /// The days of the week, such as mon,tue; an empty value means every day
    #[arg(long, value_name = "DAYS", value_delimiter = ',', requires = "not_succeeded_by")]
    weekdays: Vec<String>,
    /// Only on the days of this calendar; an empty value means no calendar
    #[arg(long, value_name = "CALENDAR", requires = "not_succeeded_by")]
    calendar: Option<String>,
    /// No run has succeeded for this long
    #[arg(long, value_name = "DURATION", group = "condition")]
    no_success_for: Option<String>,
    /// A run has been running for longer than this
    #[arg(long, value_name = "DURATION", group = "condition")]
    running_longer: Option<String>,
    /// A run has been running for longer than N times the 95th percentile of run durations
    #[arg(long, value_name = "N", group = "condition")]
    running_longer_p95: Option<u32>,
    /// An app with jobs has no executor
    #[arg(long, group = "condition")]
    no_executor: bool,
    /// Only executors with this handler count; an empty value means any handler
    #[arg(long, value_name = "HANDLER", requires = "no_executor")]
    handler: Option<String>,
    /// A server was lost
    #[arg(long, group = "condition")]
    node_lost: bool,
    /// A loop of a server has been failing for this long
    #[arg(long, value_name = "DURATION", group = "condition")]
    loop_failing: Option<String>,
    /// An access token expires within this time
    #[arg(long, value_name = "DURATION", group = "condition")]
    token_expiring: Option<String>,
    /// The TLS certificate of a server expires within this time
    #[arg(long, value_name = "DURATION", group = "condition")]
    certificate_expiring: Option<String>,
    /// A disk of a server has less free: 10% or 20GiB
    #[arg(long, value_name = "FREE", group = "condition", value_parser = disk::parse)]
    disk_low: Option<Condition>,
    /// At least this many runs were planned within the window
    #[arg(long, value_name = "N", groups = ["condition", "counted"])]
    ledger_growth: Option<u64>,
}

impl ConditionArgs {
    /// The condition that the flags give; `None` if they give none. Fields without a flag keep their stored values, if
    /// `stored_condition` is of the same kind.
    pub(super) fn document(&self, stored_condition: &Value) -> Option<Value> {
        let mut condition = self.given_condition()?;
        for kind in ["failure_rate", "ledger_growth", "skipped", "not_succeeded_by", "no_executor"] {
            let Some(fields) = condition.get_mut(kind).and_then(Value::as_object_mut) else { continue };
            for (field, value) in stored_condition[kind].as_object().into_iter().flatten() {
                fields.entry(field.as_str()).or_insert_with(|| value.clone());
            }
            if matches!(kind, "failure_rate" | "ledger_growth") {
                fields.entry("window").or_insert_with(|| json!("1h"));
            }
        }
        Some(condition)
    }

    fn given_condition(&self) -> Option<Value> {
        let length_condition = |condition_name: &str, field: &str, length: &Option<String>| {
            length.as_ref().map(|length| json!({ condition_name: { field: length } }))
        };
        let flag_condition = |condition_name: &str, is_set: bool| is_set.then(|| json!({ condition_name: {} }));
        flag_condition("failed", self.failed)
            .or_else(|| self.failures_in_row.map(|count| json!({"failures_in_row": {"count": count}})))
            .or_else(|| {
                let percent = Some(json!(self.failure_rate?));
                let min_runs = self.min_runs.map(|count| json!(count));
                let fields = [("percent", percent), ("window", flag_value(&self.window)), ("min_runs", min_runs)];
                Some(json!({ "failure_rate": fields_with_value(fields) }))
            })
            .or_else(|| self.skipped.then(|| json!({ "skipped": fields_with_value([("reasons", flag_values(&self.reasons))]) })))
            .or_else(|| length_condition("late", "by", &self.late_by))
            .or_else(|| self.deadline_condition())
            .or_else(|| length_condition("no_success_for", "length", &self.no_success_for))
            .or_else(|| length_condition("running_longer", "than", &self.running_longer))
            .or_else(|| self.running_longer_p95.map(|times| json!({"running_longer": {"times_p95": times}})))
            .or_else(|| self.no_executor.then(|| json!({ "no_executor": fields_with_value([("handler", flag_value(&self.handler))]) })))
            .or_else(|| flag_condition("node_lost", self.node_lost))
            .or_else(|| length_condition("loop_failing", "length", &self.loop_failing))
            .or_else(|| length_condition("token_expiring", "within", &self.token_expiring))
            .or_else(|| length_condition("certificate_expiring", "within", &self.certificate_expiring))
            .or_else(|| self.disk_low.as_ref().and_then(|condition| serde_json::to_value(condition).ok()))
            .or_else(|| {
                let runs = Some(json!(self.ledger_growth?));
                Some(json!({ "ledger_growth": fields_with_value([("runs", runs), ("window", flag_value(&self.window))]) }))
            })
    }

    /// Refuses a flag that belongs to a condition which is not given. Clap's `requires` checks this too, but not if a
    /// given condition conflicts with the required one.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let has_deadline = self.not_succeeded_by.is_some();
        let flag_owners = [
            ("--time-zone", self.zone.is_some(), "--not-succeeded-by", has_deadline),
            ("--weekdays", !self.weekdays.is_empty(), "--not-succeeded-by", has_deadline),
            ("--calendar", self.calendar.is_some(), "--not-succeeded-by", has_deadline),
            ("--min-runs", self.min_runs.is_some(), "--failure-rate", self.failure_rate.is_some()),
            ("--reason", !self.reasons.is_empty(), "--skipped", self.skipped),
            ("--handler", self.handler.is_some(), "--no-executor", self.no_executor),
        ];
        match flag_owners.iter().find(|(_, is_given, _, has_owner)| *is_given && !has_owner) {
            Some((flag, _, owner, _)) => Err(Failure::refused(format!("{flag} goes with {owner} only; leave it out"))),
            None => Ok(()),
        }
    }

    fn deadline_condition(&self) -> Option<Value> {
        let time = Some(json!(self.not_succeeded_by.as_ref()?));
        let (weekdays, calendar) = (flag_values(&self.weekdays), flag_value(&self.calendar));
        let fields = [("time", time), ("zone", flag_value(&self.zone)), ("weekdays", weekdays), ("calendar", calendar)];
        Some(json!({ "not_succeeded_by": fields_with_value(fields) }))
    }
}

/// An object with the fields that have a value.
fn fields_with_value<const N: usize>(fields: [(&str, Option<Value>); N]) -> Map<String, Value> {
    fields.into_iter().filter_map(|(field, value)| Some((field.to_owned(), value?))).collect()
}

/// The value of a flag as JSON: null for an empty text; `None` if the flag is not given.
fn flag_value(value: &Option<String>) -> Option<Value> {
    value.as_ref().map(|name| if name.is_empty() { Value::Null } else { json!(name) })
}

/// The nonempty values of a flag as a JSON list; `None` if the flag is not given.
fn flag_values(values: &[String]) -> Option<Value> {
    let nonempty_values: Vec<&String> = values.iter().filter(|value| !value.is_empty()).collect();
    (!values.is_empty()).then(|| json!(nonempty_values))
}

#[cfg(test)]
mod tests {
    use clap::{ArgGroup, Parser};

    use super::*;

    #[derive(Debug, Parser)]
    #[command(group = ArgGroup::new("condition").multiple(false))]
    struct Set {
        #[command(flatten)]
        condition: ConditionArgs,
    }

    #[test]
    fn flags_of_a_condition_leave_its_other_fields() {
        let condition = |args: &[&str], stored: Value| {
            let parsed = Set::try_parse_from([&["set"], args].concat()).unwrap();
            parsed.condition.document(&stored).unwrap()
        };
        let deadline = json!({"time": "06:00", "zone": "UTC", "weekdays": ["mon"], "calendar": "bank"});
        let stored = json!({ "not_succeeded_by": deadline });
        let later = ["--not-succeeded-by", "07:00", "--time-zone", "UTC"];
        let kept = condition(&later, stored.clone());
        assert_eq!(
            kept["not_succeeded_by"],
            json!({"time": "07:00", "zone": "UTC", "weekdays": ["mon"], "calendar": "bank"})
        );
        let free = condition(&[&later[..], &["--weekdays", "", "--calendar", ""]].concat(), stored);
        assert_eq!(free["not_succeeded_by"], json!({"time": "07:00", "zone": "UTC", "weekdays": [], "calendar": null}));
        let rate = json!({"failure_rate": {"percent": 50, "window": "10m", "min_runs": 5}});
        let higher = condition(&["--failure-rate", "60"], rate.clone());
        assert_eq!(higher, json!({"failure_rate": {"percent": 60, "window": "10m", "min_runs": 5}}));
        assert_eq!(condition(&["--ledger-growth", "9"], rate), json!({"ledger_growth": {"runs": 9, "window": "1h"}}));
        let than = condition(&["--running-longer-p95", "3"], json!({"running_longer": {"than": "1h"}}));
        assert_eq!(than, json!({"running_longer": {"times_p95": 3}}));
    }
}
