//! Compares files of jobs with the server, and applies them.

use std::collections::BTreeMap;
use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;

use clap::Args;
use reqwest::{Method, StatusCode};
use rondel_core::words::counted;
use serde::Deserialize;

use super::files::{Entry, read_all};
use super::planned::{Item, Summary, lines_of_item};
use crate::client::{AnswerError, Body, Call, Client, Refusal, answer_errors};
use crate::exit::{Exit, Failure, output_or_verdict};
use crate::format::{Format, FormatArgs};
use crate::paint::Paint;
use crate::progress::Progress;
use crate::terminal::harmless_text;
use crate::{clock, output};

const APPLY_PATH: [&str; 2] = ["jobs", "apply"];
/// How many errors are listed.
const ERRORS_MAX: usize = 20;
/// How many other jobs with the same error are named.
const OTHER_JOBS_MAX: usize = 10;
/// How many different warnings are shown.
const WARNINGS_MAX: usize = 10;

#[derive(Debug, Args)]
pub(super) struct FileArgs {
    /// A YAML or JSON file with jobs, or a folder of such files; - for stdin. May be repeated
    #[arg(short, long = "file", value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Remove the jobs of this app that are not in the files; those that code declares stay
    #[arg(long, value_name = "APP")]
    prune_app: Option<String>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  rondel job plan -f jobs.yaml\n  rondel job plan -f jobs/ --prune-app billing --exit-code\n\n\
    Exit codes: 0 nothing to change, or without --exit-code; 10 with --exit-code, if something would change; 2 the files are invalid"
)]
pub(super) struct PlanArgs {
    #[command(flatten)]
    files: FileArgs,
    /// End with exit code 10 if something would change
    #[arg(long)]
    exit_code: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  rondel job apply -f jobs.yaml\n  rondel job apply -f jobs/ --prune-app billing --yes\n  rondel job export --app billing | sed s/Berlin/Paris/ | rondel job apply -f -\n\n\
    All files are checked before anything is saved. Applied again, they change nothing."
)]
pub(super) struct ApplyArgs {
    #[command(flatten)]
    files: FileArgs,
    /// Do not ask before jobs are removed; required for --prune-app without a terminal
    #[arg(short, long)]
    yes: bool,
}

/// The server's answer, if it arrives in one piece and not line by line.
#[derive(Debug, Deserialize)]
struct ApplyReport {
    items: Vec<Item>,
    summary: Summary,
    /// Stands for the jobs that the list would remove; sent back with the consent to remove them.
    #[serde(default)]
    removals: Option<String>,
}

/// A line of an answer that arrives line by line.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Line {
    End { summary: Summary },
    EarlyEnd { ended: EarlyEnd },
    Job(Box<Item>),
}

/// The failure after which the rest of a list was not saved.
#[derive(Debug, Deserialize)]
struct EarlyEnd {
    message: String,
}

impl FileArgs {
    fn query(&self) -> Vec<(&str, &str)> {
        self.prune_app.as_deref().map(|app| ("prune_app", app)).into_iter().collect()
    }

    /// Requests a dry run from the server.
    async fn plan(&self, client: &Client, entries: &[Entry]) -> Result<Body, Failure> {
        let mut query = self.query();
        query.push(("dry_run", "true"));
        let body = Some(("application/json", request_body(entries)));
        let answer =
            client.call(Call { method: Method::POST, path: &APPLY_PATH, query: &query, body, headers: &[] }).await?;
        answer.map_err(|refusal| refusal_failure(client, entries, &refusal))
    }
}

fn request_body(entries: &[Entry]) -> String {
    let texts: Vec<&str> = entries.iter().map(|entry| &*entry.text).collect();
    format!("[{}]", texts.join(","))
}

/// The failure for a refusal, with places in the files instead of pointers into the list.
fn refusal_failure(client: &Client, entries: &[Entry], refusal: &Refusal) -> Failure {
    let refusal_errors = answer_errors(&refusal.text);
    if refusal.status != StatusCode::UNPROCESSABLE_ENTITY || refusal_errors.is_empty() {
        return client.failure(refusal);
    }
    let mut lines_shown: Vec<String> =
        refusal_errors.iter().take(ERRORS_MAX).map(|error| error_line(entries, error)).collect();
    if refusal_errors.len() > ERRORS_MAX {
        lines_shown.push(format!("and {} more", refusal_errors.len() - ERRORS_MAX));
    }
    match lines_shown.as_slice() {
        [single_line] => Failure::refused(format!("{single_line}; nothing was saved")),
        lines => Failure::refused(format!("the files are invalid; nothing was saved\n  {}", lines.join("\n  "))),
    }
}

/// An error with its place, `jobs.yaml:4:11: /schedule/cron: …`, and the other jobs with the same error.
fn error_line(entries: &[Entry], error: &AnswerError) -> String {
    let message = &error.message;
    let Some((place, pointer)) = locate(entries, &error.pointer) else { return message.clone() };
    let mut line = format!("{place}: {pointer}{}{message}", if pointer.is_empty() { "" } else { ": " });
    if error.count > 1 {
        let other_indexes = error.indexes.iter().skip(1).take(OTHER_JOBS_MAX);
        let names = other_indexes.filter_map(|index| Some(entries.get(*index)?.label(*index))).collect::<Vec<_>>();
        let more_text = if error.count > names.len() + 1 { ", …" } else { "" };
        line.push_str(&format!(
            "; the same in {}: {}{more_text}",
            counted(error.count - 1, "other job"),
            harmless_text(&names.join(", "))
        ));
    }
    line
}

/// Resolves `/3/schedule/cron` to a place in a file, and to the pointer below the job; `None` if the pointer names no job.
fn locate<'a>(entries: &[Entry], pointer: &'a str) -> Option<(String, &'a str)> {
    let index_and_path = pointer.strip_prefix('/')?;
    let index_len = index_and_path.find('/').unwrap_or(index_and_path.len());
    let entry = entries.get(index_and_path[..index_len].parse::<usize>().ok()?)?;
    Some((entry.place(&index_and_path[index_len..]), &index_and_path[index_len..]))
}

impl PlanArgs {
    pub(super) async fn run(&self, client: &Client, format: FormatArgs) -> Result<(), Failure> {
        let entries = read_all(&self.files.files)?;
        let body = self.files.plan(client, &entries).await?;
        let answer: ApplyReport = parse_answer(body.text())?;
        let print_result = print_plan(&body, &answer, format);
        if matches!(format.format, Format::Table | Format::Wide) {
            match answer.summary {
                summary if summary.has_no_changes() => {
                    output::print_message(&format!("nothing to change: {}", summary.words()))
                }
                summary => output::print_message(&format!("applied, this would make {}", summary.words())),
            }
        }
        let has_changes = self.exit_code && !answer.summary.has_no_changes();
        output_or_verdict(print_result, if has_changes { Err(Failure::silent(Exit::Changes)) } else { Ok(()) })
    }
}

fn parse_answer<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, Failure> {
    serde_json::from_str(text).map_err(|error| Failure::of("the server's answer is not understood", &error))
}

fn print_plan(body: &Body, answer: &ApplyReport, format: FormatArgs) -> Result<(), Failure> {
    match format.format {
        Format::Json | Format::Yaml => output::print_document(body.text(), format.format),
        Format::Jsonl => {
            let page = body.page()?;
            output::print_json(&page.items.iter().map(|item| item.get()).collect::<Vec<_>>().join("\n"))
        }
        Format::Name => {
            let changed_items = answer.items.iter().filter(|item| item.action != "unchanged");
            output::print_names(changed_items.map(|item| &item.name))
        }
        Format::Table | Format::Wide => {
            let (paint, now) = (Paint::of_stdout(), clock::now());
            print_warnings(answer.items.iter());
            output::print_lines(&answer.items.iter().map(|item| lines_of_item(item, paint, now)).collect::<String>())
        }
    }
}

/// Prints each warning once, with the number of jobs that have it.
fn print_warnings<'a>(items: impl Iterator<Item = &'a Item>) {
    let mut jobs_by_warning: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for item in items {
        for warning in &item.warnings {
            jobs_by_warning.entry(warning).or_default().push(&item.name);
        }
    }
    let count = jobs_by_warning.len();
    for (warning, jobs) in jobs_by_warning.into_iter().take(WARNINGS_MAX) {
        let jobs = match jobs.as_slice() {
            [single_job] => (*single_job).to_owned(),
            names => format!("{} jobs", names.len()),
        };
        output::print_message(&format!("warning: {}: {}", harmless_text(&jobs), harmless_text(warning)));
    }
    if count > WARNINGS_MAX {
        output::print_message(&format!("and {} more warnings", count - WARNINGS_MAX));
    }
}

impl ApplyArgs {
    pub(super) async fn run(&self, client: &Client, format: FormatArgs) -> Result<(), Failure> {
        let entries = read_all(&self.files.files)?;
        let agreed_removals = match self.files.prune_app.is_some() && !self.yes {
            true => self.ask_for_consent(client, &entries).await?,
            false => None,
        };
        let mut query = self.files.query();
        query.extend(agreed_removals.as_deref().map(|removals| ("removals", removals)));
        if matches!(format.format, Format::Json | Format::Yaml) {
            return apply_at_once(client, &entries, &query, format).await;
        }
        let answer = client.post_for_lines(&APPLY_PATH, &query, request_body(&entries)).await?;
        let mut answer = answer.map_err(|refusal| refusal_failure(client, &entries, &refusal))?;
        let progress = Progress::new(entries.len(), "applying");
        let (mut items, mut summary) = (Vec::new(), None);
        while let Some(text) = answer.next().await? {
            match parse_answer(&text)? {
                Line::End { summary: sent_summary } => summary = Some(sent_summary),
                Line::EarlyEnd { ended } => {
                    drop(progress);
                    return Err(Failure::new(Exit::Failed, harmless_text(&ended.message).to_string()));
                }
                Line::Job(item) => {
                    progress.step();
                    items.push((*item, text));
                }
            }
        }
        drop(progress);
        let Some(summary) = summary else {
            let message = format!("the server broke off after {} of {} jobs; apply again", items.len(), entries.len());
            return Err(Failure::new(Exit::Unreachable, message));
        };
        items.sort_by_key(|(item, _)| item.index.unwrap_or(usize::MAX));
        let print_result = report_items(&items, format);
        if matches!(format.format, Format::Table | Format::Wide) {
            output::print_message(&if summary.has_no_changes() {
                format!("nothing changed: {}", summary.words())
            } else {
                summary.words()
            });
        }
        output_or_verdict(print_result, check_failures(items.iter().map(|(item, _)| item)))
    }

    /// Shows which jobs would be removed, and asks for consent. Fails if the user does not agree, or if there is no terminal.
    /// Returns what stands for these jobs: by now the list may remove others, to which the user did not agree.
    async fn ask_for_consent(&self, client: &Client, entries: &[Entry]) -> Result<Option<String>, Failure> {
        let app = self.files.prune_app.as_deref().unwrap_or_default();
        if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
            return Err(Failure::refused(format!(
                "--prune-app {app} removes jobs, and there is no terminal to ask for consent: add --yes, or look first with \
                 rondel job plan --prune-app {app}; nothing was saved"
            )));
        }
        let body = self.files.plan(client, entries).await?;
        let answer: ApplyReport = parse_answer(body.text())?;
        let removed_jobs: Vec<_> =
            answer.items.iter().filter(|item| item.action == "removed").map(|item| harmless_text(&item.name)).collect();
        if removed_jobs.is_empty() {
            return Ok(answer.removals);
        }
        write!(std::io::stderr(), "remove {}: {}? [y/N] ", counted(removed_jobs.len(), "job"), removed_jobs.join(", "))
            .ok();
        let mut reply = String::new();
        std::io::stdin().read_line(&mut reply)?;
        match reply.trim() {
            "y" | "Y" | "yes" => Ok(answer.removals),
            _ => Err(Failure::from_text("nothing was saved")),
        }
    }
}

/// Applies all jobs, and prints the server's answer unchanged.
async fn apply_at_once(
    client: &Client,
    entries: &[Entry],
    query: &[(&str, &str)],
    format: FormatArgs,
) -> Result<(), Failure> {
    let body = Some(("application/json", request_body(entries)));
    let answer = client.call(Call { method: Method::POST, path: &APPLY_PATH, query, body, headers: &[] }).await?;
    let body = answer.map_err(|refusal| refusal_failure(client, entries, &refusal))?;
    let print_result = output::print_document(body.text(), format.format);
    output_or_verdict(print_result, check_failures(parse_answer::<ApplyReport>(body.text())?.items.iter()))
}

fn report_items(items: &[(Item, String)], format: FormatArgs) -> Result<(), Failure> {
    let (paint, now) = (Paint::of_stdout(), clock::now());
    match format.format {
        Format::Json | Format::Jsonl | Format::Yaml => {
            output::print_json(&items.iter().map(|(_, text)| text.as_str()).collect::<Vec<_>>().join("\n"))
        }
        Format::Name => {
            let changed_items = items.iter().filter(|(item, _)| item.action != "unchanged");
            output::print_names(changed_items.map(|(item, _)| &item.name))
        }
        Format::Table | Format::Wide => {
            print_warnings(items.iter().map(|(item, _)| item));
            output::print_lines(&items.iter().map(|(item, _)| lines_of_item(item, paint, now)).collect::<String>())
        }
    }
}

/// Fails if a job failed, with the exit code for the first failed job.
fn check_failures<'a>(items: impl Iterator<Item = &'a Item>) -> Result<(), Failure> {
    let failed_items: Vec<_> = items.filter_map(|item| Some((item, item.error.as_ref()?))).collect();
    let Some((item, error)) = failed_items.first() else { return Ok(()) };
    let exit = match error.code.as_str() {
        "version_mismatch" | "job_exists" | "job_is_parent" | "job_not_found" => Exit::Conflict,
        _ => Exit::Failed,
    };
    let count_text =
        if failed_items.len() > 1 { format!(" (the first of {})", failed_items.len()) } else { String::new() };
    let (name, message) = (harmless_text(&item.name), harmless_text(&error.message));
    Err(Failure::new(exit, format!("{name} was not saved{count_text}: {message}; the others were: apply again")))
}

#[cfg(test)]
mod tests {
    use super::super::files::entries_of_yaml;
    use super::*;

    #[test]
    fn a_pointer_becomes_a_place_in_the_file() {
        let entries = entries_of_yaml("- name: a\n- name: b\n  schedule:\n    cron: x\n", "jobs.yaml").unwrap();
        assert_eq!(locate(&entries, "/1/schedule/cron"), Some(("jobs.yaml:4:11".to_owned(), "/schedule/cron")));
        assert_eq!(locate(&entries, "/0"), Some(("jobs.yaml:1:3".to_owned(), "")));
        assert_eq!(locate(&entries, "/7/name"), None);
        assert_eq!(locate(&entries, ""), None);
    }
}
