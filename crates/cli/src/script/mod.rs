//! `rondel script`: scripts that the server keeps, and their signatures.

mod key;
mod push;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use rondel_core::Timestamp;
use serde_json::{Value, json};

use crate::client::{Client, ClientArgs, text_of, time_text};
use crate::delete::delete;
use crate::exit::Failure;
use crate::format::{Format, FormatArgs};
use crate::terminal::harmless_text;
use crate::view::View;
use crate::{list, output};

use self::push::{PushArgs, SignArgs};

#[derive(Debug, Args)]
pub(crate) struct ScriptArgs {
    #[command(flatten)]
    client: ClientArgs,
    #[command(flatten)]
    format: FormatArgs,
    #[command(subcommand)]
    command: ScriptCommand,
}

#[derive(Debug, Subcommand)]
enum ScriptCommand {
    /// List the scripts by name
    List(list::BoundArgs),
    /// Show a script, or one of its versions
    Show(ShowArgs),
    /// Save a file as a new version of a script
    Push(PushArgs),
    /// List the versions of a script, newest first
    Versions(BoundedArgs),
    /// Show what differs between two versions
    Diff(DiffArgs),
    /// Make a version the newest one again
    Restore(RestoreArgs),
    /// List the jobs that use a script
    Jobs(BoundedArgs),
    /// Delete a script that no job uses
    Delete(NameArgs),
    /// Make a key for signatures: FILE with the secret part, and FILE.pub for agents
    Key(KeyArgs),
    /// Print the signature of a file, without a server
    Sign(SignArgs),
}

#[derive(Debug, Args)]
struct NameArgs {
    /// The script's name
    #[arg(value_name = "NAME")]
    name: String,
}

#[derive(Debug, Args)]
struct ShowArgs {
    /// The script's name
    #[arg(value_name = "NAME")]
    name: String,
    /// Which version; else the newest
    #[arg(long, value_name = "N")]
    version: Option<u32>,
    /// Print only the source, unchanged
    #[arg(long)]
    source: bool,
}

#[derive(Debug, Args)]
struct BoundedArgs {
    /// The script's name
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    bounds: list::BoundArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  rondel script diff close-orders\n  rondel script diff close-orders --from 3 --to 7"
)]
struct DiffArgs {
    /// The script's name
    #[arg(value_name = "NAME")]
    name: String,
    /// From this version; by default the previous one
    #[arg(long, value_name = "N")]
    from: Option<u32>,
    /// To this version; by default the newest
    #[arg(long, value_name = "N")]
    to: Option<u32>,
}

#[derive(Debug, Args)]
struct RestoreArgs {
    /// The script's name
    #[arg(value_name = "NAME")]
    name: String,
    /// Which version
    #[arg(value_name = "VERSION")]
    version: u32,
    /// The note of the new version
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
}

#[derive(Debug, Args)]
struct KeyArgs {
    /// The file for the secret part; it must not exist
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

const VIEW: View = View { name: "name", headers: &["NAME", "LANGUAGE", "VERSION", "SAVED", "AUTHOR", "NOTE"], row };
const VERSION_VIEW: View =
    View { name: "version", headers: &["VERSION", "SAVED", "AUTHOR", "SIGNED", "NOTE"], row: version_row };
const JOB_VIEW: View = View { name: "name", headers: &["NAME"], row: |job, _| vec![text_of(&job["name"])] };

impl ScriptArgs {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        if let ScriptCommand::Key(args) = &self.command {
            return key::make_key_pair(&args.file);
        }
        let (client, format) = (self.client.client()?, self.format);
        match self.command {
            ScriptCommand::List(bounds) => {
                VIEW.print_list(&list::read(&client, "scripts", &[], &bounds).await?, format)
            }
            ScriptCommand::Show(args) => args.run(&client, format).await,
            ScriptCommand::Push(args) => VIEW.print_row(&args.run(&client).await?, format),
            ScriptCommand::Versions(args) => {
                let path = ["scripts", &args.name, "versions"];
                VERSION_VIEW.print_list(&list::read_at(&client, &path, &[], &args.bounds).await?, format)
            }
            ScriptCommand::Diff(args) => args.run(&client, format).await,
            ScriptCommand::Restore(args) => {
                let mut body = json!({"version": args.version});
                if let Some(note) = args.note {
                    body["note"] = note.into();
                }
                VIEW.print_row(&client.post(&["scripts", &args.name, "restore"], &body.to_string()).await?, format)
            }
            ScriptCommand::Jobs(args) => {
                let path = ["scripts", &args.name, "jobs"];
                JOB_VIEW.print_list(&list::read_at(&client, &path, &[], &args.bounds).await?, format)
            }
            ScriptCommand::Delete(args) => {
                delete(&client, &["scripts", &args.name], &[], &format!("deleted {}", args.name), format).await
            }
            ScriptCommand::Sign(args) => args.run(client.namespace()),
            ScriptCommand::Key(args) => key::make_key_pair(&args.file),
        }
    }
}

impl ShowArgs {
    async fn run(&self, client: &Client, format: FormatArgs) -> Result<(), Failure> {
        let version = self.version.map(|version| version.to_string());
        let query: Vec<_> = version.as_deref().map(|version| ("version", version)).into_iter().collect();
        let body = client.get(&["scripts", &self.name], &query).await?;
        if !self.source {
            return VIEW.print_object(&body, format);
        }
        // Unchanged, so that stdout redirected to a file is the script; for a terminal it is made harmless.
        let source = text_of(&body.value()?["source"]);
        output::print_raw(&source)
    }
}

impl DiffArgs {
    async fn run(&self, client: &Client, format: FormatArgs) -> Result<(), Failure> {
        let (from, to) = (self.from.map(|from| from.to_string()), self.to.map(|to| to.to_string()));
        let parameters = [("from", from.as_deref()), ("to", to.as_deref())];
        let query: Vec<_> = parameters.iter().filter_map(|(name, value)| Some((*name, (*value)?))).collect();
        let body = client.get(&["scripts", &self.name, "diff"], &query).await?;
        if let Format::Json | Format::Jsonl | Format::Yaml = format.format {
            return output::print_document(body.text(), format.format);
        }
        let value = body.value()?;
        let text = text_of(&value["text"]);
        let lines: Vec<_> = text.lines().map(|line| harmless_text(line).to_string()).collect();
        if lines.is_empty() {
            output::print_message(&format!("versions {} and {} have the same source", value["from"], value["to"]));
            return Ok(());
        }
        output::print_lines(&lines.join("\n"))
    }
}

fn row(script: &Value, now: Timestamp) -> Vec<String> {
    vec![
        text_of(&script["name"]),
        text_of(&script["language"]),
        text_of(&script["version"]),
        time_text(&script["updated_at"], now),
        text_of(&script["author"]),
        text_of(&script["note"]),
    ]
}

fn version_row(version: &Value, now: Timestamp) -> Vec<String> {
    vec![
        text_of(&version["version"]),
        time_text(&version["updated_at"], now),
        text_of(&version["author"]),
        if version["signature"].is_string() { "yes" } else { "no" }.to_owned(),
        text_of(&version["note"]),
    ]
}
