//! Exports jobs as a file.

use clap::Args;

use crate::client::Client;
use crate::exit::Failure;
use crate::format::{Format, FormatArgs};
use crate::output;

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  rondel job export > jobs.yaml\n  rondel job export --app billing -o json\n  rondel job export report.daily"
)]
pub(super) struct ExportArgs {
    /// Only this job
    #[arg(value_name = "JOB", add = crate::complete::job_names())]
    name: Option<String>,
    /// Only jobs of this app
    #[arg(long, value_name = "NAME", conflicts_with = "name")]
    app: Option<String>,
}

impl ExportArgs {
    /// Prints YAML, or JSON with `-o json`.
    pub(super) async fn run(&self, client: &Client, format: FormatArgs) -> Result<(), Failure> {
        let format_name = match format.format {
            Format::Json => "json",
            Format::Table | Format::Wide | Format::Yaml => "yaml",
            Format::Jsonl | Format::Name => {
                return Err(Failure::refused("-o: an export is YAML, or with -o json JSON"));
            }
        };
        let parameters = [("name", self.name.as_deref()), ("app", self.app.as_deref()), ("format", Some(format_name))];
        let query: Vec<_> = parameters.iter().filter_map(|(name, value)| Some((*name, (*value)?))).collect();
        output::print_answer(client.get(&["jobs", "export"], &query).await?.text())
    }
}
