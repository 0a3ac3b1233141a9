//! `rondel alert incident`: rules that hold for a subject, or did.

use clap::{Args, Subcommand};
use rondel_core::Timestamp;
use serde_json::Value;

use crate::client::{Client, text_of, time_of};
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
        /// Resolved ones too
        #[arg(long)]
        resolved: bool,
        /// Only those about this job
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

const VIEW: View =
    View { name: "id", headers: &["ID", "SEVERITY", "STANDING", "SUMMARY", "SINCE", "ACKNOWLEDGED BY"], row };

impl IncidentArgs {
    pub(crate) async fn run(self, client: &Client, format: FormatArgs) -> Result<(), Failure> {
        match self.command {
            IncidentCommand::List { resolved, job, bounds } => {
                let mut query: Vec<(&str, &str)> = job.as_deref().map(|job| ("job", job)).into_iter().collect();
                if !resolved {
                    query.push(("standing", "firing"));
                }
                VIEW.list(&list::read(client, "incidents", &query, &bounds).await?, format)
            }
            IncidentCommand::Show(args) => VIEW.whole(&client.get(&["incidents", &args.id], &[]).await?, format),
            IncidentCommand::Ack(args) => {
                VIEW.line(&client.post(&["incidents", &args.id, "acknowledge"], "{}").await?, format)
            }
        }
    }
}

fn row(incident: &Value, now: Timestamp) -> Vec<String> {
    vec![
        text_of(&incident["id"]),
        text_of(&incident["severity"]),
        text_of(&incident["standing"]),
        text_of(&incident["summary"]),
        time_of(&incident["started_at"], now),
        text_of(&incident["acknowledged_by"]),
    ]
}
