//! `rondel namespace`: tenants and environments.

use clap::{Args, Subcommand};
use rondel_core::Timestamp;
use serde_json::{Value, json};

use crate::client::{ClientArgs, text_of};
use crate::delete::delete;
use crate::exit::Failure;
use crate::format::FormatArgs;
use crate::view::View;

#[derive(Debug, Args)]
pub(crate) struct NamespaceArgs {
    #[command(flatten)]
    client: ClientArgs,
    #[command(flatten)]
    format: FormatArgs,
    #[command(subcommand)]
    command: NamespaceCommand,
}

#[derive(Debug, Subcommand)]
enum NamespaceCommand {
    /// List the namespaces
    List,
    /// Create a namespace
    Create {
        /// Its name
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// Delete a namespace that is empty
    Delete {
        /// Its name
        #[arg(value_name = "NAME")]
        name: String,
    },
}

const VIEW: View = View { name: "name", headers: &["NAME"], row };

impl NamespaceArgs {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let client = self.client.client()?;
        match self.command {
            NamespaceCommand::List => VIEW.print_list(&client.get(&["namespaces"], &[]).await?, self.format),
            NamespaceCommand::Create { name } => {
                let body = json!({ "name": name }).to_string();
                VIEW.print_row(&client.post(&["namespaces"], &body).await?, self.format)
            }
            NamespaceCommand::Delete { name } => {
                delete(&client, &["namespaces", &name], &[], &format!("deleted {name}"), self.format).await
            }
        }
    }
}

fn row(namespace: &Value, _now: Timestamp) -> Vec<String> {
    vec![text_of(&namespace["name"])]
}
