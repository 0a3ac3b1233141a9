//! The logs of runs: page by page, or followed line by line.

use std::time::Duration;

use clap::Args;
use serde::Deserialize;

use serde_json::Value;
use serde_json::value::RawValue;

use crate::client::{Body, Client, Lines, text_of};
use crate::exit::{Exit, Failure};
use crate::format::{Format, FormatArgs};
use crate::list::PAGE_LEN_MAX;
use crate::output;
use crate::retry::retry_while_unreachable;
use crate::terminal::harmless_text;

/// Maximum number of lines in one answer of the server.
const PAGE_LEN: &str = "5000";
/// The pause before a followed log is opened again whose stream ended too early.
const RECONNECT_DELAY: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  rondel run logs 42 --tail 100 --severity error,warn\n  rondel run logs -f --job report.daily"
)]
pub(super) struct LogsArgs {
    /// The run's id
    #[arg(value_name = "RUN", required_unless_present = "job")]
    id: Option<String>,
    /// The newest begun run of this job
    #[arg(long, value_name = "NAME", conflicts_with = "id")]
    job: Option<String>,
    /// Follow the log until the run has ended
    #[arg(short, long)]
    follow: bool,
    /// The attempt; by default the newest
    #[arg(long, value_name = "N")]
    attempt: Option<u32>,
    /// Only lines of these levels, with commas between them: trace, debug, info, warn, error, stdout, stderr
    #[arg(long, value_name = "LEVELS")]
    level: Option<String>,
    /// Only lines with this text, ignoring case; the server searches for them; --grep is an alias
    #[arg(long, value_name = "TEXT", alias = "grep")]
    contains: Option<String>,
    /// Only lines of these severities, with commas between them: error, warn, info, debug; the severity of printed lines follows from their text
    #[arg(long, value_name = "SEVERITIES")]
    severity: Option<String>,
    /// Begin this many lines before the end
    #[arg(long, value_name = "N", conflicts_with = "from_line")]
    tail: Option<u32>,
    /// Begin with this line; the first is 1
    #[arg(long, value_name = "N")]
    from_line: Option<u32>,
}

/// A line of a log, as the API shows it.
#[derive(Debug, Deserialize)]
struct Line {
    at: String,
    level: String,
    line: String,
}

/// A page of a log.
#[derive(Debug, Deserialize)]
struct Page<'a> {
    #[serde(borrow)]
    items: Vec<&'a RawValue>,
    next_cursor: Option<String>,
    /// How many lines the log had; only the first page has this number.
    line_count: Option<u64>,
    /// The number of the last line that was read or searched.
    end_line: Option<u64>,
}

impl Page<'_> {
    /// Whether the log had more lines than those of this first page when the server counted them.
    fn has_more(&self) -> bool {
        self.next_cursor.is_some() && !self.items.is_empty() && !self.has_end(self.line_count)
    }

    /// Whether the page reaches the end of a log with this number of lines.
    fn has_end(&self, line_count: Option<u64>) -> bool {
        self.end_line.zip(line_count).is_some_and(|(end_line, line_count)| end_line >= line_count)
    }
}

/// The last line of a followed log.
#[derive(Debug, Deserialize)]
struct End {
    complete: bool,
    next_cursor: Option<String>,
}

pub(super) async fn print(client: &Client, args: &LogsArgs, format: FormatArgs) -> Result<(), Failure> {
    if format.format == Format::Name {
        return Err(Failure::refused("a log has no names: use -o table, json or jsonl"));
    }
    let id = match (&args.id, &args.job) {
        (Some(id), _) => id.clone(),
        (None, Some(job)) => newest_begun_run(client, job).await?,
        (None, None) => return Err(Failure::refused("name a run, or a job with --job")),
    };
    let attempt = args.attempt.map(|attempt| attempt.to_string());
    let parameters =
        [("attempt", &attempt), ("level", &args.level), ("contains", &args.contains), ("severity", &args.severity)];
    let query: Vec<_> = parameters.iter().filter_map(|(name, value)| Some((*name, value.as_deref()?))).collect();
    let start = match (args.tail, args.from_line) {
        (Some(count), _) => Some(("tail", count.to_string())),
        (_, line) => line.map(|line| ("from_line", line.to_string())),
    };
    let log = Log { client, path: ["runs", &id, "logs"], query, start, format: format.format };
    let has_lines = if args.follow { log.follow().await? } else { log.print_pages().await? };
    let is_whole = !log.is_search() && args.from_line.is_none_or(|line| line <= 1);
    if log.is_plain() && !has_lines { explain_missing_log(client, &id, args.attempt, is_whole).await } else { Ok(()) }
}

/// Explains a missing log: an attempt that ended before it began wrote nothing, and only the message of its run has the cause.
async fn explain_missing_log(client: &Client, id: &str, attempt: Option<u32>, is_whole: bool) -> Result<(), Failure> {
    let run = client.get(&["runs", id], &[]).await?.value()?;
    if let Some(explanation) = missing_log_explanation(&run, attempt, is_whole) {
        output::print_message(&harmless_text(&explanation));
    }
    Ok(())
}

/// Why the newest attempt of a run wrote nothing. `None` if it began, if it has not ended, or if the log of an earlier attempt was requested.
/// `is_whole` states whether the whole log was requested, and not only some of its lines.
fn missing_log_explanation(run: &Value, attempt: Option<u32>, is_whole: bool) -> Option<String> {
    let newest_attempt = run["attempt"].as_u64().unwrap_or(1);
    let is_newest = attempt.is_none_or(|attempt| u64::from(attempt) == newest_attempt);
    if !is_newest || !run["started_at"].is_null() || run["finished_at"].is_null() {
        return None;
    }
    let (status, message) = (text_of(&run["status"]), text_of(&run["message"]));
    if status == "unknown" || run["reason"] == "executor_lost" {
        return is_whole.then(|| format!("no line has arrived, but the handler may have begun; {status}: {message}"));
    }
    // The run's row has the start of the newest attempt only: an earlier one may have begun.
    Some(match newest_attempt {
        0 | 1 => format!("the run never began, so it wrote nothing; {status}: {message}"),
        _ => format!(
            "attempt {newest_attempt} never began, so it wrote nothing; {status}: {message}; the attempt before it: --attempt {}",
            newest_attempt - 1
        ),
    })
}

/// The id of the newest begun run of a job. It may be on any page of the list, because newer runs may be waiting or skipped.
async fn newest_begun_run(client: &Client, job: &str) -> Result<String, Failure> {
    let limit = PAGE_LEN_MAX.to_string();
    let mut cursor: Option<String> = None;
    loop {
        let mut query = vec![("job", job), ("limit", limit.as_str())];
        query.extend(cursor.as_deref().map(|cursor| ("cursor", cursor)));
        let page = client.get(&["runs"], &query).await?.value()?;
        let mut runs = page["items"].as_array().into_iter().flatten();
        if let Some(begun_run) = runs.find(|run| !run["started_at"].is_null()) {
            return Ok(text_of(&begun_run["id"]));
        }
        let Some(next_cursor) = page["next_cursor"].as_str() else {
            return Err(Failure::new(Exit::NotFound, format!("no run of job {job} has begun yet")));
        };
        cursor = Some(next_cursor.to_owned());
    }
}

struct Log<'a> {
    client: &'a Client,
    path: [&'a str; 3],
    query: Vec<(&'a str, &'a str)>,
    /// Where the first page begins: the name and value of a query parameter; `None` for the first line.
    start: Option<(&'a str, String)>,
    format: Format,
}

impl Log<'_> {
    /// Prints the lines written so far. Returns whether there are any.
    async fn print_pages(&self) -> Result<bool, Failure> {
        let mut body = self.request_page(None).await?;
        let mut requested_cursor = None;
        let first_page: Page<'_> = parse_json(body.text())?;
        // A run that logs constantly has further lines at each request.
        let line_count = first_page.line_count;
        if !self.is_search() && self.format == Format::Json && !first_page.has_more() {
            output::print_json(body.text())?;
            return Ok(!first_page.items.is_empty());
        }
        drop(first_page);
        let (mut items, mut has_lines) = (Vec::new(), false);
        loop {
            let page: Page<'_> = parse_json(body.text())?;
            let has_end = page.has_end(line_count);
            let (count, next_cursor) = (page.items.len(), page.next_cursor);
            has_lines |= count > 0;
            for item in page.items {
                match self.format {
                    Format::Json => items.push(item.get().to_owned()),
                    Format::Table | Format::Wide | Format::Jsonl | Format::Yaml | Format::Name => {
                        self.print_line(item.get())?
                    }
                }
            }
            match next_cursor {
                // A page of a search may be empty although more lines follow. The search then continues, but only if the
                // cursor has changed.
                Some(cursor)
                    if !has_end && (count > 0 || (self.is_search() && requested_cursor.as_ref() != Some(&cursor))) =>
                {
                    body = self.request_page(Some(&cursor)).await?;
                    requested_cursor = Some(cursor);
                }
                next_cursor => {
                    self.write_document(&items, next_cursor.as_deref())?;
                    return Ok(has_lines);
                }
            }
        }
    }

    /// Whether the output is text for a terminal, and not JSON.
    fn is_plain(&self) -> bool {
        matches!(self.format, Format::Table | Format::Wide)
    }

    fn is_search(&self) -> bool {
        self.query.iter().any(|(name, _)| matches!(*name, "level" | "contains" | "severity"))
    }

    /// Prints the lines written so far and all further lines, until the run has ended. Returns whether there are any.
    async fn follow(&self) -> Result<bool, Failure> {
        let (mut lines, mut has_lines) = (self.open(None).await?, false);
        loop {
            let end = loop {
                let Some(line) = lines.next().await? else {
                    return Err(Failure::new(Exit::Unreachable, "the server ended the log before its end"));
                };
                match serde_json::from_str::<End>(&line) {
                    Ok(end) => break end,
                    Err(_) => {
                        self.print_line(&line)?;
                        has_lines = true;
                    }
                }
            };
            match end {
                // The server stops, or the stream has reached its maximum duration.
                End { complete: false, next_cursor: Some(cursor) } => {
                    tokio::time::sleep(RECONNECT_DELAY).await;
                    lines = retry_while_unreachable(None, async || self.open(Some(&cursor)).await).await?;
                }
                End { .. } => return Ok(has_lines),
            }
        }
    }

    /// Opens the stream after this cursor or, with `None`, at the start of the first page.
    async fn open(&self, after_cursor: Option<&str>) -> Result<Lines, Failure> {
        let mut query = self.query.clone();
        query.push(("follow", "true"));
        query.extend(self.start_param(after_cursor));
        self.client.follow(&self.path, &query).await
    }

    async fn request_page(&self, after_cursor: Option<&str>) -> Result<Body, Failure> {
        let mut query = self.query.clone();
        query.push(("limit", PAGE_LEN));
        // The server counts the lines only for a page that begins at a line.
        query.push(self.start_param(after_cursor).unwrap_or(("from_line", "1")));
        self.client.get(&self.path, &query).await
    }

    /// The query parameter for where a page begins: after this cursor, or else at the start of the first page.
    fn start_param<'s>(&'s self, after_cursor: Option<&'s str>) -> Option<(&'s str, &'s str)> {
        let start = || self.start.as_ref().map(|(name, value)| (*name, value.as_str()));
        after_cursor.map(|after_cursor| ("after", after_cursor)).or_else(start)
    }

    fn print_line(&self, json: &str) -> Result<(), Failure> {
        match self.format {
            Format::Json | Format::Jsonl | Format::Yaml | Format::Name => output::print_json(json),
            Format::Table | Format::Wide => output::print_lines(&log_line(&parse_json(json)?)),
        }
    }

    /// With `-o json`, writes the items of all pages as one document. In other formats, the lines have already been written.
    fn write_document(&self, items: &[String], next_cursor: Option<&str>) -> Result<(), Failure> {
        if self.format != Format::Json {
            return Ok(());
        }
        let next_cursor = serde_json::to_string(&next_cursor)?;
        output::print_json(&format!("{{\"items\":[{}],\"next_cursor\":{next_cursor}}}", items.join(",")))
    }
}

/// A line of a log, with terminal control characters escaped: `2026-03-08T07:00:00.250Z info   text`.
fn log_line(line: &Line) -> String {
    format!("{:<24} {:<6} {}", harmless_text(&line.at), harmless_text(&line.level), harmless_text(&line.line))
}

fn parse_json<'a, T: Deserialize<'a>>(json: &'a str) -> Result<T, Failure> {
    serde_json::from_str(json).map_err(|error| Failure::of("the server's answer is not understood", &error))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_an_attempt_that_never_began_is_explained_as_such() {
        let ended = |attempt: u32, status: &str, reason: &str, started_at: Option<&str>| json!({"attempt": attempt, "status": status, "reason": reason, "started_at": started_at, "finished_at": "z", "message": "m"});
        let never = "never began, so it wrote nothing";
        for (run, attempt, expected) in [
            (ended(1, "skipped", "expired", None), None, Some(format!("the run {never}; skipped: m"))),
            (
                ended(3, "failed", "expired", None),
                None,
                Some(format!("attempt 3 {never}; failed: m; the attempt before it: --attempt 2")),
            ),
            (ended(3, "failed", "expired", None), Some(2), None),
            (
                ended(1, "unknown", "executor_lost", None),
                Some(1),
                Some("no line has arrived, but the handler may have begun; unknown: m".to_owned()),
            ),
            (ended(1, "failed", "handler", Some("a")), None, None),
            (json!({"attempt": 1, "status": "pending", "started_at": null, "finished_at": null}), None, None),
        ] {
            assert_eq!(missing_log_explanation(&run, attempt, true), expected, "{run} {attempt:?}");
            let is_unconfirmed = expected.is_some_and(|text| text.starts_with("no line has arrived"));
            let of_some_lines = missing_log_explanation(&run, attempt, false);
            assert!(!is_unconfirmed || of_some_lines.is_none(), "the lines that were not requested may have arrived");
        }
    }

    #[test]
    fn log_lines_and_the_end_are_distinguished() {
        let line = r#"{"seq":1,"at":"2026-03-08T07:00:00Z","level":"stdout","line":"\u001b[2Jboo","attempt":1}"#;
        assert!(serde_json::from_str::<End>(line).is_err());
        assert_eq!(log_line(&parse_json(line).unwrap()), "2026-03-08T07:00:00Z     stdout \\x1b[2Jboo");
        let end = r#"{"complete":false,"status":"running","next_cursor":"abc"}"#;
        assert!(serde_json::from_str::<Line>(end).is_err());
        assert_eq!(serde_json::from_str::<End>(end).unwrap().next_cursor.as_deref(), Some("abc"));
    }
}
