//! `rondel alert silence`: suppresses matching messages for a time.

use clap::{Args, Subcommand};
use rondel_core::Timestamp;
use rondel_core::time::parse_duration;
use serde_json::{Value, json};

use crate::client::{Client, text_of, time_text};
use crate::delete::delete;
use crate::exit::Failure;
use crate::format::FormatArgs;
use crate::server_clock::server_now;
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
    /// Suppress messages that match all of the given options; without --rule, --job and --app, all messages of the namespace
    #[command(
        after_help = "Examples:\n  rondel alert silence add --job report.daily --for 2h --reason \"known problem\"\n  rondel alert silence add --app billing --until 2026-11-30T06:00:00Z"
    )]
    #[command(group = clap::ArgGroup::new("end").required(true))]
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
        /// For how long, such as 2h
        #[arg(long = "for", value_name = "DURATION", group = "end")]
        length: Option<String>,
        /// Until this RFC 3339 instant
        #[arg(long, value_name = "INSTANT", group = "end")]
        until: Option<String>,
        /// The reason
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
            SilenceCommand::List => VIEW.print_list(&client.get(&["silences"], &[]).await?, format),
            SilenceCommand::Add { rule, job, app, length, until, reason } => {
                let ends_at = match (length, until) {
                    (Some(length), _) => {
                        let length =
                            parse_duration(&length).map_err(|error| Failure::refused(format!("--for: {error}")))?;
                        // The server compares the end with its own clock.
                        (server_now(client).await + length).to_string()
                    }
                    (None, until) => until.unwrap_or_default(),
                };
                let body = json!({"rule": rule, "job": job, "app": app, "ends_at": ends_at, "reason": reason.unwrap_or_default()});
                let answer = client.post(&["silences"], &body.to_string()).await?;
                VIEW.print_row(&answer, format)?;
                super::rule_words::print_warnings(&answer.value()?);
                Ok(())
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
        time_text(&silence["ends_at"], now),
        text_of(&silence["author"]),
        text_of(&silence["reason"]),
    ]
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Silence {
        #[command(flatten)]
        args: SilenceArgs,
    }

    #[test]
    fn an_end_is_needed_by_either_flag() {
        let parsed = |args: &[&str]| Silence::try_parse_from([&["silence", "add"], args].concat());
        let refusal = parsed(&["--job", "a"]).unwrap_err().to_string();
        assert!(refusal.contains("--for <DURATION>") && refusal.contains("--until <INSTANT>"), "{refusal}");
        assert!(parsed(&["--for", "8h"]).is_ok() && parsed(&["--until", "2026-12-24T18:00:00Z"]).is_ok());
        assert!(parsed(&["--for", "8h", "--until", "2026-12-24T18:00:00Z"]).is_err());
    }
}
