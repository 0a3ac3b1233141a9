//! One action on many jobs or runs: counts the matches of a filter, asks the user for consent, and then applies the
//! action.

use std::io::{IsTerminal as _, Write as _};

use clap::Args;
use rondel_core::filter::{Filter, Scope};
use rondel_core::words::counted;
use serde_json::{Value, json};

use crate::client::{Body, Client, text_of};
use crate::exit::{Exit, Failure, output_or_verdict};
use crate::format::{Format, FormatArgs};
use crate::output;
use crate::terminal::harmless_text;

/// Maximum number of names shown when the user is asked for consent.
const NAMES_MAX: usize = 20;
/// Maximum number of problems in the report.
const PROBLEMS_MAX: usize = 20;

/// The arguments that conflict with the name of a single job or run. `dry_run` and `after` require `filter`, but clap does
/// not enforce this next to a name, because the name conflicts with `filter`. If they were not in this list, clap would
/// accept `--dry-run` next to a name, and the flag would have no effect.
pub(crate) const FLAGS_FOR_MANY: [&str; 3] = ["filter", "dry_run", "after"];

/// Selects many jobs or runs by a filter.
#[derive(Debug, Args)]
pub(crate) struct BulkArgs {
    /// Select everything that passes this filter, such as 'app:orders'; at most 500 per request
    #[arg(long, value_name = "FILTER")]
    pub(crate) filter: Option<String>,
    /// Count what passes the filter, and change nothing
    #[arg(long, requires = "filter")]
    dry_run: bool,
    /// Continue after this place, which an earlier request reported
    #[arg(long, value_name = "PLACE", requires = "filter")]
    after: Option<String>,
    /// Do not ask for confirmation
    #[arg(short, long)]
    yes: bool,
}

/// An action on jobs or runs, and the words for it in messages.
pub(crate) struct Bulk<'a> {
    /// The resource: `jobs` or `runs`.
    pub(crate) collection: &'a str,
    /// The noun for messages, in the singular: `job`.
    pub(crate) noun: &'a str,
    /// The action's name in the API: `pause`.
    pub(crate) action: &'a str,
    /// The participle for messages: `paused`.
    pub(crate) participle: &'a str,
    /// The fields of the request besides the action and the selection.
    pub(crate) extra_fields: Value,
}

impl Bulk<'_> {
    /// Applies the action to the job or run with this id.
    pub(crate) async fn apply_to_one(&self, client: &Client, id: &str, format: FormatArgs) -> Result<(), Failure> {
        let answer = post(client, self, &json!({ "ids": [id] })).await?;
        let counts = answer.value()?;
        if counts["matched"] == 0 && counts["left_out"] == 0 {
            return Err(Failure::new(Exit::NotFound, format!("there is no {} {}", self.noun, harmless_text(id))));
        }
        report(&answer, self, false, format)
    }
}

impl BulkArgs {
    /// Counts the matches of the filter, asks for consent unless `--yes` is given, and applies the action. With `--dry-run`,
    /// it only counts.
    pub(crate) async fn run(&self, client: &Client, bulk: &Bulk<'_>, format: FormatArgs) -> Result<(), Failure> {
        let filter = self.filter.as_deref().unwrap_or_default();
        // In a script, an unset variable gives an empty filter, quoted or not. With --yes, an empty filter must not select
        // everything.
        let scope = if bulk.collection == "runs" { Scope::Runs } else { Scope::Jobs };
        let is_empty = Filter::parse(filter, scope).is_ok_and(|filter| filter.is_empty());
        if is_empty && self.yes && !self.dry_run {
            let noun = bulk.noun;
            let message =
                format!("--filter is empty, which every {noun} passes; with --yes, write 'app:*' for all {noun}s");
            return Err(Failure::refused(message));
        }
        let count_answer = post(client, bulk, &json!({"q": filter, "after": self.after, "dry_run": true})).await?;
        let search = count_answer.value()?;
        let matched_count = search["matched"].as_u64().unwrap_or_default();
        // A search that found no match may have stopped at its limit before the end. The report then names the place to
        // continue from.
        if self.dry_run || (matched_count == 0 && search["has_more"] == true) {
            return report(&count_answer, bulk, true, format);
        }
        if matched_count == 0 {
            output::print_message(&format!("no {} passes the filter; nothing was done", bulk.noun));
            return match format.format {
                Format::Json | Format::Jsonl | Format::Yaml => {
                    output::print_document(count_answer.text(), format.format)
                }
                Format::Name | Format::Table | Format::Wide => Ok(()),
            };
        }
        if !self.yes {
            ask_for_consent(bulk, &search, matched_count)?;
            if let Some(selection) = selection_by_names(&search) {
                let answer = post(client, bulk, &selection).await?;
                return report(&with_continuation(&answer, &search)?, bulk, false, format);
            }
        }
        let selection = json!({"q": filter, "after": self.after, "expected_count": matched_count});
        let answer = post(client, bulk, &selection).await?;
        report(&answer, bulk, false, format)
    }
}

/// A selection that names the jobs which the user agreed to change, because by now the filter may match others. `None`
/// for runs: the search counts them without naming them.
fn selection_by_names(search: &Value) -> Option<Value> {
    let jobs = search["jobs"].as_array().filter(|jobs| !jobs.is_empty())?;
    Some(json!({ "names": jobs }))
}

/// Copies `has_more` and `after` from the preceding search into the answer: an action on names does not report them.
fn with_continuation(body: &Body, search: &Value) -> Result<Body, Failure> {
    let mut answer = body.value()?;
    for field in ["has_more", "after"] {
        answer[field] = search[field].clone();
    }
    Ok(Body::new(answer.to_string()))
}

async fn post(client: &Client, bulk: &Bulk<'_>, selection: &Value) -> Result<Body, Failure> {
    let mut body = json!({ "action": bulk.action });
    for fields in [selection, &bulk.extra_fields].into_iter().filter_map(Value::as_object) {
        for (key, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
            body[key.as_str()] = value.clone();
        }
    }
    client.post(&[&format!("{}:bulk", bulk.collection)], &body.to_string()).await
}

/// Asks for consent. Fails if the user does not agree, or if there is no terminal.
fn ask_for_consent(bulk: &Bulk<'_>, search: &Value, matched_count: u64) -> Result<(), Failure> {
    let count = counted(matched_count, bulk.noun);
    if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        let message = format!("{count} would be {}, and there is no terminal to ask for consent", bulk.participle);
        return Err(Failure::refused(format!("{message}: add --yes, or look first with --dry-run; nothing was done")));
    }
    let names: Vec<String> = affected_names(search).into_iter().take(NAMES_MAX).collect();
    let names_text = if names.is_empty() { String::new() } else { format!(": {}", harmless_text(&names.join(", "))) };
    let unnamed_count = matched_count.saturating_sub(u64::try_from(names.len()).unwrap_or(0));
    let unnamed_text =
        if names.is_empty() || unnamed_count == 0 { String::new() } else { format!(" and {unnamed_count} more") };
    write!(std::io::stderr(), "{}: {count}{names_text}{unnamed_text}? [y/N] ", bulk.action).ok();
    let mut reply = String::new();
    std::io::stdin().read_line(&mut reply)?;
    match reply.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(Failure::from_text("nothing was done")),
    }
}

/// The names of the jobs in an answer, or the ids of the runs that a retry created.
fn affected_names(answer: &Value) -> Vec<String> {
    let name_lists = ["jobs", "made"].into_iter().filter_map(|key| answer[key].as_array());
    name_lists.flatten().map(text_of).collect()
}

fn report(answer: &Body, bulk: &Bulk<'_>, is_dry_run: bool, format: FormatArgs) -> Result<(), Failure> {
    let value = answer.value()?;
    let print_result = match format.format {
        Format::Json | Format::Jsonl | Format::Yaml => output::print_document(answer.text(), format.format),
        Format::Name => output::print_names(affected_names(&value)),
        Format::Table | Format::Wide => {
            output::print_message(&sentence(&value, bulk, is_dry_run));
            Ok(())
        }
    };
    let problems: Vec<&Value> = value["problems"].as_array().into_iter().flatten().collect();
    for problem in problems.iter().take(PROBLEMS_MAX) {
        let subject = ["job", "id"].into_iter().find_map(|key| problem[key].as_str()).unwrap_or_default();
        let message = problem["message"].as_str().unwrap_or_default();
        output::print_message(&format!("{}: {}", harmless_text(subject), harmless_text(message)));
    }
    let verdict = match problems.len() {
        0 => Ok(()),
        count => Err(Failure::from_text(format!("{} could not be {}", counted(count, bulk.noun), bulk.participle))),
    };
    output_or_verdict(print_result, verdict)
}

/// Describes what was done or, in a dry run, what would be done.
fn sentence(answer: &Value, bulk: &Bulk<'_>, is_dry_run: bool) -> String {
    let matched_count = answer["matched"].as_u64().unwrap_or_default();
    let continuation_text = match (answer["has_more"] == true, answer["after"].as_str()) {
        (false, _) => String::new(),
        (true, None) => "; more pass the filter than one request takes".to_owned(),
        (true, Some(cursor)) => {
            format!("; more pass the filter than one request takes, continue with --after {}", harmless_text(cursor))
        }
    };
    if is_dry_run {
        return format!("{} would be {}{continuation_text}", counted(matched_count, bulk.noun), bulk.participle);
    }
    let problem_count = answer["problems"].as_array().map_or(0, Vec::len);
    let unchanged_count = answer["unchanged"].as_u64().unwrap_or_default();
    let failed_count = u64::try_from(problem_count).unwrap_or(u64::MAX);
    let done_count = answer["done"]
        .as_u64()
        .unwrap_or_else(|| matched_count.saturating_sub(unchanged_count).saturating_sub(failed_count));
    let unchanged_text = if unchanged_count > 0 { format!(", {unchanged_count} unchanged") } else { String::new() };
    format!("{} {}{unchanged_text}{continuation_text}", counted(done_count, bulk.noun), bulk.participle)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: Bulk<'_> =
        Bulk { collection: "jobs", noun: "job", action: "pause", participle: "paused", extra_fields: Value::Null };

    #[test]
    fn consent_is_for_the_jobs_that_were_shown() {
        let found = json!({"matched": 2, "jobs": ["a", "b"], "has_more": true, "after": "b"});
        assert_eq!(selection_by_names(&found), Some(json!({"names": ["a", "b"]})));
        assert_eq!(selection_by_names(&json!({"matched": 2, "made": [], "has_more": false})), None);
        let done = Body::new(r#"{"matched": 2, "jobs": ["a", "b"], "has_more": false, "after": null}"#.to_owned());
        assert_eq!(with_continuation(&done, &found).unwrap().value().unwrap(), found);
    }

    #[test]
    fn the_result_is_one_sentence() {
        let expected = |answer: Value, is_dry_run| sentence(&answer, &PAUSE, is_dry_run);
        assert_eq!(expected(json!({"matched": 37, "has_more": false}), true), "37 jobs would be paused");
        let done = json!({"matched": 5, "unchanged": 2, "problems": [{}], "has_more": true});
        let more = "; more pass the filter than one request takes";
        assert_eq!(expected(done, false), format!("2 jobs paused, 2 unchanged{more}"));
        let rest = json!({"matched": 500, "done": 500, "has_more": true, "after": "team.b"});
        assert_eq!(expected(rest, false), format!("500 jobs paused{more}, continue with --after team.b"));
        let retry = Bulk { noun: "run", action: "retry", participle: "retried", ..PAUSE };
        assert_eq!(sentence(&json!({"matched": 3, "done": 1, "problems": []}), &retry, false), "1 run retried");
    }
}
