//! `rondel alert rule`: rules, each with a condition to watch and the channels to report to.

use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use reqwest::{Method, StatusCode};
use rondel_core::Timestamp;
use serde_json::{Value, json};

use super::condition::ConditionArgs;
use super::rule_words::{dry_run_text, print_warnings, with_flags};
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
    /// How urgent the rule's incidents are
    #[arg(long, value_enum, value_name = "SEVERITY")]
    severity: Option<Severity>,
    /// A channel to report to; may be repeated
    #[arg(long = "channel", value_name = "CHANNEL")]
    channels: Vec<String>,
    /// How often an open incident is reported again until it is acknowledged; the word never turns this off
    #[arg(long, value_name = "DURATION")]
    repeat: Option<String>,
    /// How long further occurrences are collected before they are reported
    #[arg(long, value_name = "DURATION")]
    digest: Option<String>,
    /// The number of open incidents beyond which further incidents are reported together
    #[arg(long, value_name = "N")]
    group_over: Option<u32>,
    /// The channel to report to if an incident was not acknowledged in time
    #[arg(long, value_name = "CHANNEL", requires = "escalate_after")]
    escalate_to: Option<String>,
    /// The time from the beginning of an incident to its escalation
    #[arg(long, value_name = "DURATION", requires = "escalate_to")]
    escalate_after: Option<String>,
    /// A note for the readers of the rule's messages, such as a link to a runbook
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

const VIEW: View = View { name: "name", headers: &["NAME", "WHEN", "CHANNELS", "SEVERITY", "ENABLED"], row };
const SUBJECT_VIEW: View = View { name: "name", headers: &["KIND", "NAME", "APP"], row: subject_row };

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
        let (mut document, etag) = match &self.file {
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
            let dry_run = self.send(client, (Method::POST, &path, &[]), document_text(&document)).await?.value()?;
            let items: Vec<Value> = dry_run["subjects"].as_array().cloned().unwrap_or_default();
            crate::output::print_message(&dry_run_text(&dry_run));
            return SUBJECT_VIEW.print_items(&items, format);
        }
        let path = ["alert-rules", self.name.as_str()];
        // With `if-match`, the server refuses the change if another user has changed the rule since it was read.
        let headers: Vec<(&str, &str)> = etag.as_deref().map(|etag| ("if-match", etag)).into_iter().collect();
        let answer = self.send(client, (Method::PUT, &path, &headers), document_text(&document)).await?;
        VIEW.print_row(&answer, format)?;
        print_warnings(&answer.value()?);
        Ok(())
    }

    /// Sends a rule. Without `--file`, a refusal names the flags that set the refused fields.
    async fn send(
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

    fn apply_flags(&self, document: &mut Value) {
        let scope = [("job", &self.job), ("app", &self.app), ("label", &self.label)];
        for (kind, name) in scope.iter().filter_map(|(kind, name)| name.as_ref().map(|name| (*kind, name))) {
            document["scope"] = json!({ kind: name });
        }
        if self.all_jobs {
            document["scope"] = json!("all");
        }
        if let Some(condition) = self.condition.document(&document["condition"]) {
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

/// The stored rule without the fields that the server adds, and the tag of its version for `if-match`; `None` if there
/// is no such rule.
async fn stored_rule(client: &Client, name: &str) -> Result<Option<(Value, Option<String>)>, Failure> {
    let path = ["alert-rules", name];
    let call = Call { method: Method::GET, path: &path, query: &[], body: None, headers: &[] };
    let rule = match client.call(call).await? {
        Ok(body) => body.value()?,
        Err(refusal) if refusal.status == StatusCode::NOT_FOUND => return Ok(None),
        Err(refusal) => return Err(client.failure(&refusal)),
    };
    let etag = rule["version"].as_i64().map(|version| format!("\"v{version}\""));
    Ok(Some((definition(rule), etag)))
}

/// A rule without the fields that the server adds.
fn definition(mut rule: Value) -> Value {
    if let Some(fields) = rule.as_object_mut() {
        for server_field in
            ["namespace", "version", "sentence", "author", "created_at", "updated_at", "check_at", "warnings"]
        {
            fields.remove(server_field);
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
