//! The checks of `rondel doctor` on alerts: a report to a channel that does not exist, or is disabled, reaches no reader.

use std::collections::{BTreeMap, BTreeSet};

use reqwest::Method;
use rondel_core::spec::EXPECT_CHANNEL;
use serde_json::Value;

use super::names::first_names;
use crate::client::{Call, Client, text_of};
use crate::list::items;

/// A report that reaches no reader.
#[derive(Debug)]
pub(super) struct AlertProblem {
    pub(super) finding: String,
    /// What to do about it.
    pub(super) remedy: String,
}

/// The channels, and the rules and the report schedule that name channels. The module `cluster` reads the jobs that name
/// channels.
#[derive(Debug, Default)]
pub(super) struct Alerts {
    pub(super) channels: Vec<Value>,
    pub(super) rules: Vec<Value>,
    /// The schedule of the weekly report; `None` if the server does not show it.
    pub(super) report_schedule: Option<Value>,
}

impl Alerts {
    /// Reads the channels, the rules and the schedule; `None` if a call fails, such as for a caller who may not see the channels.
    pub(super) async fn read(client: &Client) -> Option<Self> {
        let channels = items(client, &["channels"], &[]).await.ok()?;
        let rules = items(client, &["alert-rules"], &[]).await.ok()?;
        let call = Call { method: Method::GET, path: &["reports", "schedule"], query: &[], body: None, headers: &[] };
        let report_schedule = client.call(call).await.ok()?.ok().and_then(|body| body.value().ok());
        Some(Self { channels, rules, report_schedule })
    }

    /// The problems with missing channels that an enabled rule, the expectations of a job or the weekly report names.
    pub(super) fn missing_channels(&self, jobs: &BTreeMap<String, Vec<Value>>) -> Vec<AlertProblem> {
        let channel_names: BTreeSet<&str> =
            self.channels.iter().filter_map(|channel| channel["name"].as_str()).collect();
        let remedy = |channel: &str| {
            format!(
                "set it up with rondel alert channel set {channel} --kind KIND, or name one of rondel alert channel list"
            )
        };
        let mut problems = Vec::new();
        for rule in self.rules.iter().filter(|rule| rule["enabled"] == true) {
            let escalation = rule["escalate"].get("channel");
            let rule_channels =
                rule["channels"].as_array().into_iter().flatten().chain(escalation).filter_map(Value::as_str);
            for channel in rule_channels.filter(|channel| !channel_names.contains(channel)) {
                let finding =
                    format!("alert rule {} reports to channel {channel}, which does not exist", text_of(&rule["name"]));
                problems.push(AlertProblem { finding, remedy: remedy(channel) });
            }
        }
        let mut jobs_by_channel: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for job in jobs.values().flatten().filter(|job| job["expect"].is_object()) {
            let channels = job["expect"]["channels"].as_array().map(Vec::as_slice).unwrap_or_default();
            let expected_channels: Vec<&str> = channels.iter().filter_map(Value::as_str).collect();
            let expected_channels = if expected_channels.is_empty() { vec![EXPECT_CHANNEL] } else { expected_channels };
            for channel in expected_channels.into_iter().filter(|channel| !channel_names.contains(channel)) {
                jobs_by_channel.entry(channel).or_default().push(job["name"].as_str().unwrap_or_default());
            }
        }
        for (channel, names) in jobs_by_channel {
            let noun = if names.len() == 1 { "job" } else { "jobs" };
            let finding = format!(
                "the expectations of {noun} {} are reported to channel {channel}, which does not exist",
                first_names(&names)
            );
            problems.push(AlertProblem { finding, remedy: remedy(channel) });
        }
        let report_channel = self.report_schedule.as_ref().and_then(|report| report["channel"].as_str());
        if let Some(channel) = report_channel.filter(|channel| !channel_names.contains(channel)) {
            let finding = format!("the weekly report is sent to channel {channel}, which does not exist");
            problems.push(AlertProblem { finding, remedy: remedy(channel) });
        }
        problems
    }

    /// The problems with disabled channels that an enabled rule, the expectations of a job or the weekly report names.
    pub(super) fn disabled_channels(&self, jobs: &BTreeMap<String, Vec<Value>>) -> Vec<AlertProblem> {
        let rules = self.rules.iter().filter(|rule| rule["enabled"] == true);
        let expectations = jobs.values().flatten().map(|job| &job["expect"]).filter(|expect| expect.is_object());
        let is_used = |channel: &str| {
            let names_channel = |document: &Value| {
                let escalation = document["escalate"]["channel"].as_str();
                let named_channels = document["channels"].as_array().into_iter().flatten().filter_map(Value::as_str);
                named_channels.chain(escalation).any(|name| name == channel)
            };
            let is_default = |expect: &Value| expect["channels"].as_array().is_none_or(Vec::is_empty);
            rules.clone().any(names_channel)
                || expectations
                    .clone()
                    .any(|expect| names_channel(expect) || is_default(expect) && channel == EXPECT_CHANNEL)
                || self.report_schedule.as_ref().is_some_and(|report| report["channel"] == channel)
        };
        let disabled_channels = self.channels.iter().filter(|channel| channel["enabled"] == false);
        let used_names =
            disabled_channels.filter_map(|channel| channel["name"].as_str()).filter(|channel| is_used(channel));
        used_names
            .map(|channel| AlertProblem {
                finding: format!("channel {channel} is disabled: the messages of alerts for it are dropped"),
                remedy: format!("rondel alert channel set {channel} --enable"),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rules_without_a_channel_are_named() {
        let alerts = Alerts {
            channels: vec![json!({"name": "ops"})],
            rules: vec![
                json!({"name": "good", "enabled": true, "channels": ["ops"]}),
                json!({"name": "off", "enabled": false, "channels": ["gone"]}),
                json!({"name": "quiet", "enabled": true, "channels": []}),
                json!({"name": "half", "enabled": true, "channels": ["ops"], "escalate": {"channel": "gone"}}),
            ],
            report_schedule: Some(json!({"channel": "mail"})),
        };
        let job = |name: &str, expect: Value| json!({"name": name, "expect": expect});
        let jobs = vec![
            job("a", json!({"late": "1m", "channels": ["gone"]})),
            job("b", json!({"late": "1m", "channels": ["ops"]})),
            job("c", json!({"late": "1m"})),
            job("d", Value::Null),
        ];
        let checks = alerts.missing_channels(&BTreeMap::from([("billing".to_owned(), jobs)]));
        let problems: Vec<&str> = checks.iter().map(|check| check.finding.as_str()).collect();
        assert_eq!(
            problems,
            [
                "alert rule half reports to channel gone, which does not exist",
                "the expectations of job c are reported to channel default, which does not exist",
                "the expectations of job a are reported to channel gone, which does not exist",
                "the weekly report is sent to channel mail, which does not exist",
            ]
        );
        assert!(checks[0].remedy.contains("rondel alert channel set gone"), "{checks:#?}");
        assert_eq!(alerts.disabled_channels(&BTreeMap::new()).len(), 0);
        assert_eq!(Alerts::default().missing_channels(&BTreeMap::new()).len(), 0);
    }

    #[test]
    fn disabled_channels_in_use_are_named() {
        let channel = |name: &str, enabled: bool| json!({"name": name, "enabled": enabled});
        let alerts = Alerts {
            channels: vec![
                channel("ops", true),
                channel("duty", false),
                channel("default", false),
                channel("mail", false),
                channel("old", false),
            ],
            rules: vec![
                json!({"name": "a", "enabled": true, "channels": ["ops"], "escalate": {"channel": "duty"}}),
                json!({"name": "off", "enabled": false, "channels": ["old"]}),
            ],
            report_schedule: Some(json!({"channel": "mail"})),
        };
        let jobs = vec![json!({"name": "b", "expect": {"late": "1m"}}), json!({"name": "c", "expect": null})];
        let problems = alerts.disabled_channels(&BTreeMap::from([("billing".to_owned(), jobs)]));
        let remedies: Vec<&str> = problems.iter().map(|problem| problem.remedy.as_str()).collect();
        let enable = ["duty", "default", "mail"].map(|name| format!("rondel alert channel set {name} --enable"));
        assert_eq!(remedies, enable);
    }
}
