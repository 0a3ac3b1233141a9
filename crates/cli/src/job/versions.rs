//! The versions of a job's definition, and the differences between them.

use clap::Args;
use rondel_core::Timestamp;
use serde_json::Value;

use crate::client::{Body, Client, text_of, time_text};
use crate::exit::Failure;
use crate::format::{Format, FormatArgs};
use crate::terminal::harmless_text;
use crate::view::View;
use crate::{list, output};

#[derive(Debug, Args)]
pub(super) struct VersionsArgs {
    /// The job's name
    #[arg(value_name = "JOB", add = crate::complete::job_names())]
    name: String,
    #[command(flatten)]
    bounds: list::BoundArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  rondel job diff report.daily\n  rondel job diff report.daily --from 3 --to 7")]
pub(super) struct DiffArgs {
    /// The job's name
    #[arg(value_name = "JOB", add = crate::complete::job_names())]
    name: String,
    /// From this version; by default the previous one
    #[arg(long, value_name = "N")]
    from: Option<u32>,
    /// To this version; by default the newest
    #[arg(long, value_name = "N")]
    to: Option<u32>,
}

#[derive(Debug, Args)]
pub(super) struct RestoreArgs {
    /// The job's name
    #[arg(value_name = "JOB")]
    name: String,
    /// Which version
    #[arg(value_name = "VERSION")]
    version: u32,
}

/// Maximum number of versions in one answer of the server: each version may be long.
const PAGE_LEN_MAX: usize = 50;

const VIEW: View = View { name: "version", headers: &["VERSION", "SAVED", "AUTHOR"], row };

/// Lists the versions, the newest first.
pub(super) async fn list(client: &Client, args: &VersionsArgs, format: FormatArgs) -> Result<(), Failure> {
    let path = ["jobs", &args.name, "versions"];
    VIEW.print_list(&list::read_in_pages(client, &path, &[], (&args.bounds, PAGE_LEN_MAX)).await?, format)
}

/// Prints the differences between two versions.
pub(super) async fn diff(client: &Client, args: &DiffArgs, format: FormatArgs) -> Result<(), Failure> {
    let (from, to) = (args.from.map(|from| from.to_string()), args.to.map(|to| to.to_string()));
    let parameters = [("from", from.as_deref()), ("to", to.as_deref())];
    let query: Vec<_> = parameters.iter().filter_map(|(name, value)| Some((*name, (*value)?))).collect();
    let body = client.get(&["jobs", &args.name, "versions", "diff"], &query).await?;
    match format.format {
        Format::Json | Format::Jsonl | Format::Yaml => output::print_document(body.text(), format.format),
        Format::Table | Format::Wide | Format::Name => {
            let value = body.value()?;
            let text = text_of(&value["text"]);
            let lines: Vec<_> = text.lines().map(|line| harmless_text(line).to_string()).collect();
            if lines.is_empty() {
                output::print_message(&format!("versions {} and {} are the same", value["from"], value["to"]));
                return Ok(());
            }
            output::print_lines(&lines.join("\n"))
        }
    }
}

/// Restores a version; returns the job.
pub(super) async fn restore(client: &Client, args: &RestoreArgs) -> Result<Body, Failure> {
    let body = serde_json::json!({ "version": args.version }).to_string();
    client.post(&["jobs", &args.name, "restore"], &body).await
}

fn row(version: &Value, now: Timestamp) -> Vec<String> {
    vec![text_of(&version["version"]), time_text(&version["created_at"], now), text_of(&version["author"])]
}
