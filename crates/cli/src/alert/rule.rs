//! `rondel alert rule`: rules, each with a condition to watch and the channels to report to.

use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use reqwest::{Method, StatusCode};
use rondel_core::Timestamp;
use rondel_core::alert::{Condition, disk};
use serde_json::{Map, Value, json};

use super::rule_words::{dry_run_text, warn, with_flags};
use crate::client::{Body, Call, Client, JSON, text_of};
use crate::delete::delete;
use crate::exit::Failure;
use crate::format::FormatArgs;
use crate::input::read_json;
use crate::view::View;

#[derive(Debug, Args)]
pub(crate) struct RuleArgs {
    #[command(subcommand)]
    command: RuleCommand,
}

#[derive(Debug, Subcommand)]
enum RuleCommand {
    /// List the rules by name
    List,
    /// Show a rule
    Show(NameArgs),
    /// Create or change a rule; settings that are left out stay unchanged
    Set(Box<SetArgs>),
    /// Delete a rule; its open incidents are resolved without a message
    Delete(NameArgs),
}

#[derive(Debug, Args)]
struct NameArgs {
    /// The rule's name
    #[arg(value_name = "NAME")]
    name: String,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Severity {
    /// Needs attention now
    Critical,
    /// Can wait until the morning
    Warning,
}

#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("condition").multiple(false),
    group = ArgGroup::new("scope").multiple(false),
    after_help = "Examples:\n  rondel alert rule set close-by-six --job nightly-close --not-succeeded-by 06:00 --time-zone Europe/Berlin --channel slack-oncall\n  rondel alert rule set payments-fail --label team=pay --failures-in-row 3 --severity critical --channel duty --repeat 4h\n  rondel alert rule set servers --node-lost --channel duty --dry-run"
)]
struct SetArgs {
    /// The rule's name
    #[arg(value_name = "NAME")]
    name: String,
    /// A JSON file with the rule, in place of the flags; - for stdin
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["condition", "scope"])]
    file: Option<PathBuf>,
    /// Watch one job
    #[arg(long, value_name = "JOB", group = "scope")]
    job: Option<String>,
    /// Watch the jobs of an app
    #[arg(long, value_name = "APP", group = "scope")]
    app: Option<String>,
    /// Watch the jobs with a label
    #[arg(long, value_name = "KEY=VALUE", group = "scope")]
    label: Option<String>,
    /// Watch all jobs of the namespace, which is the default for a new rule; widens a rule that watches fewer
    #[arg(long, group = "scope")]
    all_jobs: bool,
    #[command(flatten)]
    condition: ConditionArgs,
    /// How urgent it is
    #[arg(long, value_enum, value_name = "SEVERITY")]
    severity: Option<Severity>,
    /// A channel to report to; once per channel
    #[arg(long = "channel", value_name = "CHANNEL")]
    channels: Vec<String>,
    /// How often an open incident is reported again until it is acknowledged; never turns this off
    #[arg(long, value_name = "DURATION")]
    repeat: Option<String>,
    /// How long further occurrences are collected before they are reported
    #[arg(long, value_name = "DURATION")]
    digest: Option<String>,
    /// The number of open incidents from which on further ones are reported together
    #[arg(long, value_name = "N")]
    group_over: Option<u32>,
    /// The channel to report to if an incident was not acknowledged in time
    #[arg(long, value_name = "CHANNEL", requires = "escalate_after")]
    escalate_to: Option<String>,
    /// How long after its beginning an incident escalates
    #[arg(long, value_name = "DURATION", requires = "escalate_to")]
    escalate_after: Option<String>,
    /// What readers of its messages should know, such as a link to a runbook
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
    /// Evaluate the rule from now on
    #[arg(long, conflicts_with = "disabled")]
    enabled: bool,
    /// Do not evaluate the rule
    #[arg(long)]
    disabled: bool,
    /// Show what the rule would match now, and save nothing
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, Args)]
struct ConditionArgs {
    /// A run failed after its last attempt
    #[arg(long, group = "condition")]
    failed: bool,
    /// This many runs failed in a row
    #[arg(long, value_name = "N", group = "condition")]
    failures_in_row: Option<u32>,
    /// This percentage of runs failed within the window
    #[arg(long, value_name = "PERCENT", groups = ["condition", "counted"])]
    failure_rate: Option<u32>,
    /// The window over which the failure rate, or the growth of the table of runs, is measured
    #[arg(long, value_name = "DURATION", requires = "counted", default_value = "1h")]
    window: String,
    /// Minimum number of runs for a failure rate; 10 by default
    #[arg(long, value_name = "N", requires = "failure_rate")]
    min_runs: Option<u64>,
    /// A fire was skipped
    #[arg(long, group = "condition")]
    skipped: bool,
    /// Count only fires that were skipped for this reason, such as `no_executor`; give the flag once for each reason
    #[arg(long = "reason", value_name = "REASON", requires = "skipped")]
    reasons: Vec<String>,
    /// A scheduled run has waited for this long without starting
    #[arg(long, value_name = "DURATION", group = "condition")]
    late_by: Option<String>,
    /// No run planned in the 24 hours before this time of day has succeeded by then
    #[arg(long, value_name = "HH:MM", group = "condition", requires = "zone")]
    not_succeeded_by: Option<String>,
    /// The time zone of that time
    #[arg(long = "time-zone", alias = "zone", value_name = "ZONE", requires = "not_succeeded_by")]
    zone: Option<String>,
    /// The days of the week, such as mon,tue; without them every day
    #[arg(long, value_name = "DAYS", value_delimiter = ',', requires = "not_succeeded_by")]
    weekdays: Vec<String>,
    /// Only on the days of this calendar
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
    /// Only executors with this handler count
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

const VIEW: View = View { name: "name", headers: &["NAME", "WHEN", "CHANNELS", "SEVERITY", "ENABLED"], row };
const SUBJECTS: View = View { name: "name", headers: &["KIND", "NAME", "APP"], row: subject_row };

impl RuleArgs {
    pub(crate) async fn run(self, client: &Client, format: FormatArgs) -> Result<(), Failure> {
        match self.command {
            RuleCommand::List => VIEW.print_list(&client.get(&["alert-rules"], &[]).await?, format),
            RuleCommand::Show(args) => VIEW.print_object(&client.get(&["alert-rules", &args.name], &[]).await?, format),
            RuleCommand::Set(args) => args.run(client, format).await,
            RuleCommand::Delete(args) => {
                let path = ["alert-rules", args.name.as_str()];
                delete(client, &path, &[], &format!("deleted {}", args.name), format).await
            }
        }
    }
}

impl SetArgs {
    async fn run(&self, client: &Client, format: FormatArgs) -> Result<(), Failure> {
        self.condition.check()?;
        let (mut document, tag) = match &self.file {
            Some(file) => (definition(serde_json::from_str(&read_json(file)?)?), None),
            None => stored_rule(client, &self.name).await?.unwrap_or_else(|| (json!({}), None)),
        };
        if !document.is_object() {
            return Err(Failure::refused("a rule is a JSON object"));
        }
        self.apply_flags(&mut document);
        if document["condition"].is_null() {
            let message = "a new rule needs a condition, such as --failures-in-row 3; see --help";
            return Err(Failure::refused(message.to_owned()));
        }
        let document_text = |document: &Value| Some((JSON, document.to_string()));
        if self.dry_run {
            document["name"] = json!(self.name);
            let path = ["alert-rules", "preview"];
            let tried = self.call(client, (Method::POST, &path, &[]), document_text(&document)).await?.value()?;
            let items: Vec<Value> = tried["subjects"].as_array().cloned().unwrap_or_default();
            crate::output::message(&dry_run_text(&tried));
            return SUBJECTS.print_items(&items, format);
        }
        let path = ["alert-rules", self.name.as_str()];
        // With `if-match`, the server refuses the change if another user has changed the rule since it was read.
        let headers: Vec<(&str, &str)> = tag.as_deref().map(|tag| ("if-match", tag)).into_iter().collect();
        let saved = self.call(client, (Method::PUT, &path, &headers), document_text(&document)).await?;
        VIEW.print_row(&saved, format)?;
        warn(&saved.value()?);
        Ok(())
    }

    /// Sends a rule. A refusal names the flags that set the refused fields.
    async fn call(
        &self,
        client: &Client,
        (method, path, headers): (Method, &[&str], &[(&str, &str)]),
        body: Option<(&'static str, String)>,
    ) -> Result<Body, Failure> {
        match client.call(Call { method, path, query: &[], body, headers }).await? {
            Ok(body) => Ok(body),
            Err(mut refusal) => {
                if self.file.is_none() {
                    refusal.text = with_flags(&refusal.text);
                }
                Err(client.failure(&refusal))
            }
        }
    }

    /// Puts the given flags into the rule.
    fn apply_flags(&self, document: &mut Value) {
        let scope = [("job", &self.job), ("app", &self.app), ("label", &self.label)];
        for (kind, name) in scope.iter().filter_map(|(kind, name)| name.as_ref().map(|name| (*kind, name))) {
            document["scope"] = json!({ kind: name });
        }
        if self.all_jobs {
            document["scope"] = json!("all");
        }
        if let Some(condition) = self.condition.document() {
            document["condition"] = condition;
        }
        let severity = self.severity.map(|severity| match severity {
            Severity::Critical => "critical",
            Severity::Warning => "warning",
        });
        let texts =
            [("severity", severity), ("digest", self.digest.as_deref()), ("description", self.description.as_deref())];
        for (field, text) in texts.iter().filter_map(|(field, text)| text.map(|text| (*field, text))) {
            document[field] = json!(text);
        }
        if !self.channels.is_empty() {
            document["channels"] = json!(self.channels);
        }
        if let Some(repeat) = &self.repeat {
            document["repeat"] = if repeat == "never" { Value::Null } else { json!(repeat) };
        }
        if let Some(count) = self.group_over {
            document["group_over"] = json!(count);
        }
        if let Some((channel, after)) = self.escalate_to.as_ref().zip(self.escalate_after.as_ref()) {
            document["escalate"] = json!({"channel": channel, "after": after});
        }
        if self.enabled || self.disabled {
            document["enabled"] = json!(self.enabled);
        }
    }
}

impl ConditionArgs {
    fn document(&self) -> Option<Value> {
        let length = |word: &str, field: &str, length: &Option<String>| {
            length.as_ref().map(|length| json!({ word: { field: length } }))
        };
        let flag = |word: &str, is_set: bool| is_set.then(|| json!({ word: {} }));
        flag("failed", self.failed)
            .or_else(|| self.failures_in_row.map(|count| json!({"failures_in_row": {"count": count}})))
            .or_else(|| {
                let mut rate = json!({"percent": self.failure_rate?, "window": self.window});
                if let Some(count) = self.min_runs {
                    rate["min_runs"] = json!(count);
                }
                Some(json!({ "failure_rate": rate }))
            })
            .or_else(|| self.skipped.then(|| json!({"skipped": {"reasons": self.reasons}})))
            .or_else(|| length("late", "by", &self.late_by))
            .or_else(|| self.deadline())
            .or_else(|| length("no_success_for", "length", &self.no_success_for))
            .or_else(|| length("running_longer", "than", &self.running_longer))
            .or_else(|| self.running_longer_p95.map(|times| json!({"running_longer": {"times_p95": times}})))
            .or_else(|| self.no_executor.then(|| json!({"no_executor": {"handler": self.handler}})))
            .or_else(|| flag("node_lost", self.node_lost))
            .or_else(|| length("loop_failing", "length", &self.loop_failing))
            .or_else(|| length("token_expiring", "within", &self.token_expiring))
            .or_else(|| length("certificate_expiring", "within", &self.certificate_expiring))
            .or_else(|| self.disk_low.as_ref().and_then(|condition| serde_json::to_value(condition).ok()))
            .or_else(|| {
                let growth = |runs| json!({"ledger_growth": {"runs": runs, "window": self.window}});
                self.ledger_growth.map(growth)
            })
    }

    /// Refuses a flag that belongs to a condition which is not given. Clap's `requires` checks this too, but not if a
    /// given condition conflicts with the required one.
    fn check(&self) -> Result<(), Failure> {
        let has_deadline = self.not_succeeded_by.is_some();
        let parts = [
            ("--time-zone", self.zone.is_some(), "--not-succeeded-by", has_deadline),
            ("--weekdays", !self.weekdays.is_empty(), "--not-succeeded-by", has_deadline),
            ("--calendar", self.calendar.is_some(), "--not-succeeded-by", has_deadline),
            ("--min-runs", self.min_runs.is_some(), "--failure-rate", self.failure_rate.is_some()),
            ("--reason", !self.reasons.is_empty(), "--skipped", self.skipped),
            ("--handler", self.handler.is_some(), "--no-executor", self.no_executor),
        ];
        match parts.iter().find(|(_, is_given, _, has_owner)| *is_given && !has_owner) {
            Some((flag, _, owner, _)) => Err(Failure::refused(format!("{flag} goes with {owner} only; leave it out"))),
            None => Ok(()),
        }
    }

    fn deadline(&self) -> Option<Value> {
        let time = self.not_succeeded_by.as_ref()?;
        let mut fields = Map::new();
        fields.insert("time".to_owned(), json!(time));
        fields.insert("zone".to_owned(), json!(self.zone));
        fields.insert("weekdays".to_owned(), json!(self.weekdays));
        fields.insert("calendar".to_owned(), json!(self.calendar));
        Some(json!({ "not_succeeded_by": fields }))
    }
}

/// The stored rule without the fields that the server adds, and the tag of its version for `if-match`; `None` if there
/// is no such rule.
async fn stored_rule(client: &Client, name: &str) -> Result<Option<(Value, Option<String>)>, Failure> {
    let path = ["alert-rules", name];
    let call = Call { method: Method::GET, path: &path, query: &[], body: None, headers: &[] };
    let found = match client.call(call).await? {
        Ok(body) => body.value()?,
        Err(refusal) if refusal.status == StatusCode::NOT_FOUND => return Ok(None),
        Err(refusal) => return Err(client.failure(&refusal)),
    };
    let tag = found["version"].as_i64().map(|version| format!("\"v{version}\""));
    Ok(Some((definition(found), tag)))
}

/// A rule without the fields that the server adds.
fn definition(mut rule: Value) -> Value {
    if let Some(fields) = rule.as_object_mut() {
        for added in ["namespace", "version", "sentence", "author", "created_at", "updated_at", "check_at", "warnings"]
        {
            fields.remove(added);
        }
    }
    rule
}

fn row(rule: &Value, _now: Timestamp) -> Vec<String> {
    let channels: Vec<&str> = rule["channels"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    vec![
        text_of(&rule["name"]),
        text_of(&rule["sentence"]),
        channels.join(","),
        text_of(&rule["severity"]),
        text_of(&rule["enabled"]),
    ]
}

fn subject_row(subject: &Value, _now: Timestamp) -> Vec<String> {
    vec![text_of(&subject["kind"]), text_of(&subject["name"]), text_of(&subject["app"])]
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Set {
        #[command(flatten)]
        args: SetArgs,
    }

    #[track_caller]
    fn changed(args: &[&str]) -> Value {
        let mut document = json!({"condition": {"failed": {}}, "channels": ["old"]});
        Set::try_parse_from([&["set", "r"], args].concat()).unwrap().args.apply_flags(&mut document);
        document
    }

    #[test]
    fn a_rule_that_was_shown_can_be_saved() {
        let shown = json!({
            "name": "r", "condition": {"failed": {}}, "namespace": "default", "version": 3, "sentence": "s", "author": "mia",
            "created_at": "2026-11-01T00:00:00Z", "updated_at": "2026-11-01T00:00:00Z", "check_at": null, "warnings": [],
        });
        assert_eq!(definition(shown), json!({"name": "r", "condition": {"failed": {}}}));
        assert_eq!(definition(json!([1])), json!([1]));
    }

    #[test]
    fn flags_make_a_rule_and_leave_the_rest() {
        let by =
            ["--job", "close", "--not-succeeded-by", "06:00", "--time-zone", "Europe/Berlin", "--channel", "slack"];
        let rule = changed(&by);
        assert_eq!(rule["scope"], json!({"job": "close"}));
        assert_eq!(rule["condition"]["not_succeeded_by"]["zone"], "Europe/Berlin");
        assert_eq!(rule["channels"], json!(["slack"]));
        assert_eq!(changed(&["--severity", "critical"])["channels"], json!(["old"]));
        assert_eq!(changed(&["--failures-in-row", "3"])["condition"], json!({"failures_in_row": {"count": 3}}));
        let growth = changed(&["--ledger-growth", "1000000", "--window", "1d"]);
        assert_eq!(growth["condition"], json!({"ledger_growth": {"runs": 1_000_000, "window": "1d"}}));
        assert_eq!(changed(&["--disk-low", "10%"])["condition"]["disk_low"]["free_percent"], 10);
        assert_eq!(changed(&["--disk-low", "20GiB"])["condition"]["disk_low"]["free"], "20GiB");
        assert_eq!(changed(&["--repeat", "never"])["repeat"], Value::Null);
        let refused = |args: &[&str]| Set::try_parse_from([&["set", "r"], args].concat()).is_err();
        assert!(refused(&["--not-succeeded-by", "06:00"]), "in which zone?");
        assert!(refused(&["--failed", "--window", "1h"]) && refused(&["--disk-low", "10"]));
        let alone = |args: &[&str]| {
            let parsed = Set::try_parse_from([&["set", "r"], args].concat()).map_err(|error| error.to_string())?;
            parsed.args.condition.check().map_err(|failure| failure.message().to_owned())
        };
        for (flag, value) in [("--time-zone", "UTC"), ("--weekdays", "mon"), ("--calendar", "c"), ("--min-runs", "3")] {
            let refused = alone(&["--failed", flag, value]);
            assert!(refused.as_ref().is_err_and(|text| text.contains(flag)), "{flag}: {refused:?}");
        }
        assert!(alone(&["--not-succeeded-by", "06:00", "--zone", "UTC", "--weekdays", "mon"]).is_ok(), "the old name");
        assert!(refused(&["--failed", "--node-lost"]) && refused(&["--job", "a", "--app", "b"]));
    }
}
