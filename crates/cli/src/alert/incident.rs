//! `rondel alert incident`: incidents, which are open as long as the condition of a rule holds for a subject.

use clap::{Args, Subcommand};
use rondel_core::Timestamp;
use serde_json::Value;

use crate::client::{Client, text_of, time_text};
use crate::exit::Failure;
use crate::format::FormatArgs;
use crate::list;
use crate::view::View;

#[derive(Debug, Args)]
pub(crate) struct IncidentArgs {
    #[command(subcommand)]
    command: IncidentCommand,
}

#[derive(Debug, Subcommand)]
enum IncidentCommand {
    /// List open incidents, the newest first
    List {
        /// Include resolved incidents
        #[arg(long)]
        resolved: bool,
        /// Only incidents about this job
        #[arg(long, value_name = "JOB")]
        job: Option<String>,
        #[command(flatten)]
        bounds: list::BoundArgs,
    },
    /// Show an incident
    Show(IdArgs),
    /// Acknowledge an incident: it is not repeated and does not escalate
    Ack(IdArgs),
}

#[derive(Debug, Args)]
struct IdArgs {
    /// The incident's id
    #[arg(value_name = "ID")]
    id: String,
}

const VIEW: View = View {
    name: "id",
    headers: &["ID", "SEVERITY", "STANDING", "SUMMARY", "SINCE", "REPORTED", "ACKNOWLEDGED BY"],
    row,
};

impl IncidentArgs {
    pub(crate) async fn run(self, client: &Client, format: FormatArgs) -> Result<(), Failure> {
        match self.command {
            IncidentCommand::List { resolved, job, bounds } => {
                let mut query: Vec<(&str, &str)> = job.as_deref().map(|job| ("job", job)).into_iter().collect();
                if !resolved {
                    query.push(("standing", "firing"));
                }
                VIEW.print_list(&list::read(client, "incidents", &query, &bounds).await?, format)
            }
            IncidentCommand::Show(args) => VIEW.print_object(&client.get(&["incidents", &args.id], &[]).await?, format),
            IncidentCommand::Ack(args) => {
                VIEW.print_row(&client.post(&["incidents", &args.id, "acknowledge"], "{}").await?, format)
            }
        }
    }
}

/// When the incident's first message was sent, or why none was sent.
fn reported_text(incident: &Value, now: Timestamp) -> String {
    let count = |field: &str| incident[field].as_array().map_or(0, Vec::len);
    let (channel_count, missing_count) = (count("channels"), count("missing_channels"));
    match incident["fired_at"].is_string() {
        _ if channel_count == 0 => "console only".to_owned(),
        true => time_text(&incident["fired_at"], now),
        false if channel_count == missing_count => "no channel".to_owned(),
        false if incident["group"].is_string() => "by its group".to_owned(),
        false => "not yet".to_owned(),
    }
}

fn row(incident: &Value, now: Timestamp) -> Vec<String> {
    vec![
        text_of(&incident["id"]),
        text_of(&incident["severity"]),
        text_of(&incident["standing"]),
        text_of(&incident["summary"]),
        time_text(&incident["started_at"], now),
        reported_text(incident, now),
        text_of(&incident["acknowledged_by"]),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_incident_without_a_channel_was_not_reported() {
        let now = "2026-11-23T00:00:00Z".parse().unwrap();
        let of = |channels: &[&str], missing: &[&str], fired_at: Value| {
            reported_text(&json!({"channels": channels, "missing_channels": missing, "fired_at": fired_at}), now)
        };
        assert_eq!(of(&[], &[], json!("2026-11-22T23:00:00Z")), "console only");
        assert_eq!(of(&["default"], &["default"], Value::Null), "no channel");
        assert_eq!(of(&["ops", "gone"], &["gone"], Value::Null), "not yet");
        assert!(!of(&["ops"], &[], json!("2026-11-22T23:00:00Z")).contains("no"));
        let member = json!({"channels": ["ops"], "missing_channels": [], "fired_at": null, "group": "7"});
        assert_eq!(reported_text(&member, now), "by its group");
    }
}
