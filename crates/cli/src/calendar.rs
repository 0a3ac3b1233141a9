//! `rondel calendar`: business calendars.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use rondel_core::Timestamp;
use serde_json::{Map, Value};

use crate::client::{Client, ClientArgs, text_of, time_text};
use crate::delete::delete;
use crate::exit::Failure;
use crate::format::FormatArgs;
use crate::input::{read_json, read_text};
use crate::view::View;
use crate::{list, output};

#[derive(Debug, Args)]
pub(crate) struct CalendarArgs {
    #[command(flatten)]
    client: ClientArgs,
    #[command(flatten)]
    format: FormatArgs,
    #[command(subcommand)]
    command: CalendarCommand,
}

#[derive(Debug, Subcommand)]
enum CalendarCommand {
    /// List the calendars by name
    List(list::BoundArgs),
    /// Show a calendar
    Get(NameArgs),
    /// Save a calendar from a file, and replan the jobs that use it
    Apply(ApplyArgs),
    /// Save a calendar from the days of an iCalendar or CSV file
    Import(ImportArgs),
    /// List the calendars and jobs that use a calendar
    Users(UsersArgs),
    /// Delete a calendar that nothing uses
    Delete(NameArgs),
}

#[derive(Debug, Args)]
struct NameArgs {
    /// The calendar's name
    #[arg(value_name = "NAME")]
    name: String,
}

#[derive(Debug, Args)]
struct UsersArgs {
    /// The calendar's name
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    bounds: list::BoundArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  rondel calendar get cn -o json > cn.json && rondel calendar apply -f cn.json")]
struct ApplyArgs {
    /// A JSON file with the calendar; - for stdin
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  rondel calendar import cn holidays.ics --as workdays --years 2026..2030 --dry-run\n  rondel calendar import closed days.csv"
)]
struct ImportArgs {
    /// The calendar's name
    #[arg(value_name = "NAME")]
    name: String,
    /// The file; - for stdin
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The kind of file; by default, the extension of the file decides
    #[arg(long, value_enum, value_name = "KIND")]
    kind: Option<FileKind>,
    /// Whether the calendar contains these days, or the working days except these days
    #[arg(long = "as", value_enum, default_value_t = CalendarDays::Days, value_name = "WHAT")]
    calendar_days: CalendarDays,
    /// The years for which to expand entries that repeat for ever: 2026 or 2026..2030
    #[arg(long, value_name = "YEARS")]
    years: Option<String>,
    /// Show the calendar and save nothing
    #[arg(long)]
    dry_run: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FileKind {
    /// iCalendar
    Ics,
    /// Columns date, name and kind
    Csv,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum CalendarDays {
    /// These days
    Days,
    /// Monday to Friday except these days, and the make-up days
    Workdays,
}

/// Fields that the server adds in its answers and refuses in a definition.
const ANSWER_FIELDS: [&str; 4] = ["namespace", "version", "created_at", "updated_at"];

const VIEW: View = View { name: "name", headers: &["NAME", "DESCRIPTION", "VERSION", "UPDATED"], row };
const USER_VIEW: View = View { name: "name", headers: &["KIND", "NAME"], row: user_row };

impl CalendarArgs {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let (client, format) = (self.client.client()?, self.format);
        match self.command {
            CalendarCommand::List(bounds) => {
                VIEW.print_list(&list::read(&client, "calendars", &[], &bounds).await?, format)
            }
            CalendarCommand::Get(args) => {
                VIEW.print_object(&client.get(&["calendars", &args.name], &[]).await?, format)
            }
            CalendarCommand::Apply(args) => apply(&client, &args.file, format).await,
            CalendarCommand::Import(args) => args.run(&client, format).await,
            CalendarCommand::Users(args) => {
                let path = ["calendars", &args.name, "users"];
                USER_VIEW.print_list(&list::read_at(&client, &path, &[], &args.bounds).await?, format)
            }
            CalendarCommand::Delete(args) => {
                delete(&client, &["calendars", &args.name], &[], &format!("deleted {}", args.name), format).await
            }
        }
    }
}

async fn apply(client: &Client, file: &Path, format: FormatArgs) -> Result<(), Failure> {
    let text = read_json(file)?;
    let document: Value = serde_json::from_str(&text)?;
    let Some(name) = document["name"].as_str() else {
        return Err(Failure::refused(format!("{}: /name: is missing: the calendar's name", file.display())));
    };
    VIEW.print_row(&client.put(&["calendars", name], &definition(&document, &text)).await?, format)
}

/// The text without `ANSWER_FIELDS`, so that the output of `rondel calendar get` can be applied.
fn definition<'t>(document: &Value, text: &'t str) -> Cow<'t, str> {
    let Some(fields) = document.as_object() else { return Cow::Borrowed(text) };
    if !ANSWER_FIELDS.iter().any(|name| fields.contains_key(*name)) {
        return Cow::Borrowed(text);
    }
    let definition_fields = fields.iter().filter(|(name, _)| !ANSWER_FIELDS.contains(&name.as_str()));
    let definition_fields: Map<String, Value> =
        definition_fields.map(|(name, value)| (name.clone(), value.clone())).collect();
    Cow::Owned(Value::Object(definition_fields).to_string())
}

impl ImportArgs {
    async fn run(&self, client: &Client, format: FormatArgs) -> Result<(), Failure> {
        let kind = match self.kind()? {
            FileKind::Ics => "ics",
            FileKind::Csv => "csv",
        };
        let day_kind = match self.calendar_days {
            CalendarDays::Days => "days",
            CalendarDays::Workdays => "workdays",
        };
        let mut query = vec![("format", kind), ("as", day_kind)];
        query.extend(self.years.as_deref().map(|years| ("years", years)));
        if self.dry_run {
            query.push(("dry_run", "true"));
        }
        let body = client.post_file(&["calendars", &self.name, "import"], &query, read_text(&self.file)?).await?;
        // A calendar that was not saved has no values for the columns of a list.
        if self.dry_run { output::print_json(body.text()) } else { VIEW.print_row(&body, format) }
    }

    fn kind(&self) -> Result<FileKind, Failure> {
        let extension = self.file.extension().map(|extension| extension.to_ascii_lowercase());
        match (self.kind, extension.as_deref().and_then(|extension| extension.to_str())) {
            (Some(kind), _) => Ok(kind),
            (None, Some("ics")) => Ok(FileKind::Ics),
            (None, Some("csv")) => Ok(FileKind::Csv),
            (None, _) => {
                let message = format!("{}: neither .ics nor .csv; set --kind", self.file.display());
                Err(Failure::refused(message))
            }
        }
    }
}

fn row(calendar: &Value, now: Timestamp) -> Vec<String> {
    vec![
        text_of(&calendar["name"]),
        text_of(&calendar["description"]),
        text_of(&calendar["version"]),
        time_text(&calendar["updated_at"], now),
    ]
}

fn user_row(user: &Value, _now: Timestamp) -> Vec<String> {
    vec![text_of(&user["kind"]), text_of(&user["name"])]
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Import {
        #[command(flatten)]
        args: ImportArgs,
    }

    #[test]
    fn the_kind_of_a_file_is_in_its_name() {
        let kind = |args: &[&str]| Import::try_parse_from([&["import", "c"], args].concat()).unwrap().args.kind().ok();
        assert_eq!(kind(&["a.ics"]), Some(FileKind::Ics));
        assert_eq!(kind(&["A.CSV"]), Some(FileKind::Csv));
        assert_eq!(kind(&["-"]), None);
        assert_eq!(kind(&["-", "--kind", "csv"]), Some(FileKind::Csv));
    }
}
