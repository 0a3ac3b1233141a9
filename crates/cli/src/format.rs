//! In which form a command prints what it has to say.

use clap::{Args, ValueEnum};

/// Where the help lists these flags.
const HEADING: &str = "Output";

/// What stands on stdout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people
    Table,
    /// What the server answered, as it stands
    Json,
    /// One JSON document per line and item
    Jsonl,
    /// Names or ids alone, one per line
    Name,
}

/// The flags for it.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct FormatArgs {
    /// The form of the output
    #[arg(short = 'o', long = "output", global = true, value_enum, default_value_t = Format::Table, value_name = "FORM", help_heading = HEADING)]
    pub(crate) format: Format,
    /// Leave out a table's first line
    #[arg(long, global = true, help_heading = HEADING)]
    pub(crate) no_headers: bool,
}
