//! `rondel alert silence`: messages that are kept back for a time.

use clap::{Args, Subcommand};
use rondel_core::Timestamp;
use rondel_core::time::parse_duration;
use serde_json::{Value, json};

use crate::client::{Client, text_of, time_of};
use crate::clock;
use crate::delete::delete;
use crate::exit::Failure;
use crate::format::FormatArgs;
use crate::view::View;

#[derive(Debug, Args)]
pub(crate) struct SilenceArgs {
    #[command(subcommand)]
    command: SilenceCommand,
}

#[derive(Debug, Subcommand)]
enum SilenceCommand {
    /// List the silences that have not ended
    List,
    /// Keep messages back that match all that is given; without a rule, a job and an app, all of the namespace
    Add {
        /// Messages of this rule
        #[arg(long, value_name = "RULE")]
        rule: Option<String>,
        /// Messages about this job
        #[arg(long, value_name = "JOB")]
        job: Option<String>,
        /// Messages about this app and its jobs
        #[arg(long, value_name = "APP")]
        app: Option<String>,
        /// For how long
        #[arg(long = "for", value_name = "DURATION", required_unless_present = "until")]
        length: Option<String>,
        /// Until when
        #[arg(long, value_name = "INSTANT", conflicts_with = "length")]
        until: Option<String>,
        /// Why
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
    /// End a silence now
    End {
        /// The silence's id
        #[arg(value_name = "ID")]
        id: String,
    },
}

const VIEW: View = View { name: "id", headers: &["ID", "RULE", "JOB", "APP", "ENDS", "AUTHOR", "REASON"], row };

impl SilenceArgs {
    pub(crate) async fn run(self, client: &Client, format: FormatArgs) -> Result<(), Failure> {
        match self.command {
            SilenceCommand::List => VIEW.list(&client.get(&["silences"], &[]).await?, format),
            SilenceCommand::Add { rule, job, app, length, until, reason } => {
                let ends_at = match (length, until) {
                    (Some(length), _) => {
                        let length =
                            parse_duration(&length).map_err(|error| Failure::refused(format!("--for: {error}")))?;
                        (clock::now() + length).to_string()
                    }
                    (None, until) => until.unwrap_or_default(),
                };
                let body = json!({"rule": rule, "job": job, "app": app, "ends_at": ends_at, "reason": reason.unwrap_or_default()});
                VIEW.line(&client.post(&["silences"], &body.to_string()).await?, format)
            }
            SilenceCommand::End { id } => {
                delete(client, &["silences", &id], &[], &format!("ended silence {id}"), format).await
            }
        }
    }
}

fn row(silence: &Value, now: Timestamp) -> Vec<String> {
    vec![
        text_of(&silence["id"]),
        text_of(&silence["rule"]),
        text_of(&silence["job"]),
        text_of(&silence["app"]),
        time_of(&silence["ends_at"], now),
        text_of(&silence["author"]),
        text_of(&silence["reason"]),
    ]
}
