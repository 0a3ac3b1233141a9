//! The output formats of commands.

use clap::{Args, ValueEnum};

/// The heading under which the help lists these flags.
const HEADING: &str = "Output";

/// The format of the output on stdout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// A table
    Table,
    /// A table with every field that fits into a cell
    Wide,
    /// The answer of the server, unchanged
    Json,
    /// One JSON document per line and item
    Jsonl,
    /// The same as JSON, in YAML
    Yaml,
    /// Names or ids alone, one per line
    Name,
}

/// The flags for the output format.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct FormatArgs {
    /// The form of the output
    #[arg(short = 'o', long = "output", global = true, value_enum, default_value_t = Format::Table, value_name = "FORM", help_heading = HEADING)]
    pub(crate) format: Format,
    /// Leave out a table's first line
    #[arg(long, global = true, help_heading = HEADING)]
    pub(crate) no_headers: bool,
    /// A table's columns, with commas between them: headers, or fields such as retry.max
    #[arg(long, global = true, value_parser = parse_columns, value_name = "COLUMNS", help_heading = HEADING)]
    pub(crate) columns: Option<Columns>,
    /// Show times in UTC, not in the zone of this machine
    #[arg(long, global = true, help_heading = HEADING)]
    pub(crate) utc: bool,
}

/// The columns of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Columns(pub(crate) &'static [String]);

fn parse_columns(text: &str) -> Result<Columns, String> {
    let names: Vec<String> = text.split(',').map(|name| name.trim().to_owned()).collect();
    if names.iter().any(String::is_empty) {
        return Err("a name is missing between two commas".to_owned());
    }
    // Leaked, so that `Columns` can be passed by value. The names are parsed once, and needed until the process ends.
    Ok(Columns(Vec::leak(names)))
}
