//! `rondel app`: groups of executors that run the same handlers.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use rondel_core::Timestamp;
use serde_json::{Value, json};

use crate::client::{Client, ClientArgs, text_of, time_text};
use crate::delete::delete;
use crate::exit::Failure;
use crate::format::FormatArgs;
use crate::terminal::harmless_text;
use crate::token_file;
use crate::view::View;

#[derive(Debug, Args)]
pub(crate) struct AppArgs {
    #[command(flatten)]
    client: ClientArgs,
    #[command(flatten)]
    format: FormatArgs,
    #[command(subcommand)]
    command: AppCommand,
}

#[derive(Debug, Subcommand)]
enum AppCommand {
    /// List the apps
    List,
    /// List the handlers of an app's online executors, and their parameters
    Handlers {
        /// The app's name
        #[arg(value_name = "APP", add = crate::complete::app_names())]
        name: String,
    },
    /// Send no new runs to the app's executors; due runs wait for at most the queue timeout of their job
    Drain {
        /// The app's name
        #[arg(value_name = "APP", add = crate::complete::app_names())]
        name: String,
    },
    /// Send the app's runs to its executors again
    Activate {
        /// The app's name
        #[arg(value_name = "APP", add = crate::complete::app_names())]
        name: String,
    },
    /// Skip the app's due runs, and cancel its running ones
    Stop {
        /// The app's name
        #[arg(value_name = "APP", add = crate::complete::app_names())]
        name: String,
    },
    /// Show, add and remove executors of XXL-JOB by their addresses
    Address {
        #[command(subcommand)]
        command: AddressCommand,
    },
    /// Create an app, so that executors can connect before its first job exists
    Create {
        /// Its name
        #[arg(value_name = "APP")]
        name: String,
    },
}

#[derive(Debug, Subcommand)]
enum AddressCommand {
    /// List the addresses, and show whether each answers and has a valid token
    List {
        /// The app's name
        #[arg(value_name = "APP", add = crate::complete::app_names())]
        name: String,
    },
    /// Register an executor of XXL-JOB by its address: it stays until it is removed, and gets runs while it answers
    Add {
        /// The app's name
        #[arg(value_name = "APP", add = crate::complete::app_names())]
        name: String,
        /// The executor's URL, such as `http://10.0.0.5:9999/`
        #[arg(value_name = "ADDRESS")]
        address: String,
        /// The file with the token, of kind xxl, with which the executor is configured
        #[arg(long, value_name = "FILE")]
        executor_token_file: PathBuf,
    },
    /// Remove an address; its executor gets no more runs, unless it registers itself
    Remove {
        /// The app's name
        #[arg(value_name = "APP", add = crate::complete::app_names())]
        name: String,
        /// Its address
        #[arg(value_name = "ADDRESS")]
        address: String,
    },
}

const VIEW: View = View { name: "name", headers: &["NAME", "STATE", "EXECUTORS"], row };

const ADDRESS_VIEW: View =
    View { name: "address", headers: &["ADDRESS", "EXECUTOR", "STATUS", "ADDED"], row: address_row };

const HANDLER_VIEW: View = View { name: "name", headers: &["NAME", "EXECUTORS", "PARAMS"], row: handler_row };

impl AppArgs {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let client = self.client.client()?;
        match self.command {
            AppCommand::List => VIEW.print_list(&client.get(&["apps"], &[]).await?, self.format),
            AppCommand::Handlers { name } => {
                HANDLER_VIEW.print_list(&client.get(&["apps", &name, "handlers"], &[]).await?, self.format)
            }
            AppCommand::Drain { name } => set_state(&client, &name, "draining", self.format).await,
            AppCommand::Activate { name } => set_state(&client, &name, "active", self.format).await,
            AppCommand::Stop { name } => set_state(&client, &name, "stopped", self.format).await,
            AppCommand::Address { command } => command.run(&client, self.format).await,
            AppCommand::Create { name } => {
                VIEW.print_row(&client.post(&["apps"], &json!({ "name": name }).to_string()).await?, self.format)
            }
        }
    }
}

impl AddressCommand {
    async fn run(self, client: &Client, format: FormatArgs) -> Result<(), Failure> {
        match self {
            Self::List { name } => {
                ADDRESS_VIEW.print_list(&client.get(&["apps", &name, "addresses"], &[]).await?, format)
            }
            Self::Add { name, address, executor_token_file } => {
                let token = token_file::read_existing(&executor_token_file)?;
                let body = json!({ "address": address, "token": token.reveal() }).to_string();
                ADDRESS_VIEW.print_row(&client.post(&["apps", &name, "addresses"], &body).await?, format)
            }
            Self::Remove { name, address } => {
                let sentence = format!("removed {address}; it gets no more runs, unless it registers itself");
                delete(client, &["apps", &name, "addresses"], &[("address", address.as_str())], &sentence, format).await
            }
        }
    }
}

async fn set_state(client: &Client, app: &str, state: &str, format: FormatArgs) -> Result<(), Failure> {
    let body = json!({ "state": state }).to_string();
    VIEW.print_row(&client.put(&["apps", app, "state"], &body).await?, format)
}

fn row(app: &Value, _now: Timestamp) -> Vec<String> {
    vec![text_of(&app["name"]), text_of(&app["state"]), text_of(&app["executor_count"])]
}

fn address_row(address: &Value, now: Timestamp) -> Vec<String> {
    let status = match (address["token_ended"] == true, address["online"] == true) {
        (true, _) => "token ended",
        (false, true) => "online",
        (false, false) => "offline",
    };
    vec![
        text_of(&address["address"]),
        text_of(&address["executor"]),
        status.to_owned(),
        time_text(&address["added_at"], now),
    ]
}

fn handler_row(handler: &Value, _now: Timestamp) -> Vec<String> {
    let executor_count = handler["executors"].as_array().map_or(0, Vec::len);
    vec![text_of(&handler["name"]), executor_count.to_string(), params_text(&handler["params_schema"])]
}

/// The fields of a schema, the required ones first and the others in brackets: `table [rows]`. A schema without fields is
/// shown as its type.
fn params_text(schema: &Value) -> String {
    let Some(fields) = schema["properties"].as_object() else {
        return schema["type"].as_str().unwrap_or_default().to_owned();
    };
    let is_required = |name: &str| {
        schema["required"].as_array().is_some_and(|names| names.iter().any(|required_name| required_name == name))
    };
    let (required_fields, optional_fields): (Vec<&String>, Vec<&String>) =
        fields.keys().partition(|name| is_required(name));
    let optional_fields = optional_fields.into_iter().map(|name| format!("[{name}]"));
    harmless_text(&required_fields.into_iter().cloned().chain(optional_fields).collect::<Vec<_>>().join(" "))
        .into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_that_must_be_there_come_first() {
        let schema = json!({"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "required": ["c"]});
        for (schema, text) in
            [(schema, "c [a] [b]"), (json!(null), ""), (json!({"type": "string"}), "string"), (json!(true), "")]
        {
            assert_eq!(params_text(&schema), text);
        }
    }
}
