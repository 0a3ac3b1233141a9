//! `rondel token`: API tokens, for programs and for executors.

use clap::{Args, Subcommand, ValueEnum};
use rondel_core::Timestamp;
use serde_json::{Value, json};

use crate::client::{ClientArgs, text_of, time_of};
use crate::exit::Failure;
use crate::format::{Format, FormatArgs};
use crate::place::{line_of, roles};
use crate::view::View;
use crate::{list, output};

/// Tokens.
#[derive(Debug, Args)]
pub(crate) struct TokenArgs {
    #[command(flatten)]
    client: ClientArgs,
    #[command(flatten)]
    format: FormatArgs,
    #[command(subcommand)]
    command: TokenCommand,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
    /// The API
    Api,
    /// Executors
    Executor,
}

#[derive(Debug, Subcommand)]
enum TokenCommand {
    /// List one's own tokens; their secrets are not kept
    List {
        /// Everybody's
        #[arg(long)]
        everybody: bool,
        #[command(flatten)]
        bounds: list::BoundArgs,
    },
    /// Create a token, and print it: it is not shown again
    Create {
        /// What people know it by
        #[arg(value_name = "NAME")]
        name: String,
        /// What it is for
        #[arg(long, value_enum, default_value_t = Kind::Api)]
        kind: Kind,
        /// What it may do: ROLE, ROLE:NAMESPACE or ROLE:NAMESPACE/APP; executor:NAMESPACE/APP for one of executors
        #[arg(long = "role", value_name = "ROLE[:PLACE]", required = true)]
        roles: Vec<String>,
        /// How long it works, or never; else 90 days for the API, and for ever for executors
        #[arg(long, value_name = "DURATION")]
        expires_in: Option<String>,
        /// Executors that it lets in may not declare jobs
        #[arg(long)]
        no_declares: bool,
    },
    /// Put a new secret in the place of one, and print it; the old one works on for a while
    Rotate {
        /// The token's id
        #[arg(value_name = "ID")]
        id: String,
        /// How long the old one works on
        #[arg(long, value_name = "DURATION", default_value = "24h")]
        overlap: String,
    },
    /// End a token
    Revoke {
        /// The token's id
        #[arg(value_name = "ID")]
        id: String,
    },
}

const VIEW: View =
    View { name: "id", headers: &["ID", "NAME", "KIND", "BEGINS WITH", "ROLES", "EXPIRES", "LAST USED", "STATE"], row };

impl TokenArgs {
    /// Runs the command.
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let (client, format) = (self.client.client()?, self.format);
        match self.command {
            TokenCommand::List { everybody, bounds } => {
                let query: &[(&str, &str)] = if everybody { &[("all", "true")] } else { &[] };
                let found = list::read(&client, "tokens", query, &bounds).await?;
                VIEW.list(&found, format)?;
                if !everybody && found.page()?.items.is_empty() {
                    output::talk("you have made none; those of others: rondel token list --everybody");
                }
                Ok(())
            }
            TokenCommand::Create { name, kind, roles: wanted, expires_in, no_declares } => {
                let kind = match kind {
                    Kind::Api => "api",
                    Kind::Executor => "executor",
                };
                let body = json!({
                    "kind": kind, "name": name, "grants": roles(&wanted)?, "expires_in": expires_in,
                    "declares": !no_declares,
                });
                secret(&client.post(&["tokens"], &body.to_string()).await?, format)
            }
            TokenCommand::Rotate { id, overlap } => {
                let body = json!({ "overlap": overlap }).to_string();
                secret(&client.post(&["tokens", &id, "rotate"], &body).await?, format)
            }
            TokenCommand::Revoke { id } => {
                client.delete(&["tokens", &id]).await?;
                output::talk(&format!("revoked {id}"));
                Ok(())
            }
        }
    }
}

/// The secret alone on stdout, so that it can go into a file.
fn secret(made: &crate::client::Body, format: FormatArgs) -> Result<(), Failure> {
    if matches!(format.format, Format::Json | Format::Jsonl) {
        return output::data(made.text());
    }
    let value = made.value()?;
    output::talk(&format!("token {} ({}); it is not shown again:", text_of(&value["id"]), text_of(&value["name"])));
    output::data(&text_of(&value["token"]))
}

fn row(token: &Value, now: Timestamp) -> Vec<String> {
    let roles = token["grants"].as_array().map(|grants| grants.iter().map(line_of).collect::<Vec<_>>().join(", "));
    vec![
        text_of(&token["id"]),
        text_of(&token["name"]),
        text_of(&token["kind"]),
        text_of(&token["prefix"]),
        roles.unwrap_or_default(),
        time_of(&token["expires_at"], now),
        time_of(&token["last_used_at"], now),
        if token["revoked_at"].is_null() { String::new() } else { "revoked".to_owned() },
    ]
}
