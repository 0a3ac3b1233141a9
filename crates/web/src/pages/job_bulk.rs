//! Applies one action to many jobs. The first page counts the jobs and asks for confirmation, the second page reports the outcome.

use askama::Template;
use axum::response::Response;
use http::StatusCode;
use rondel_core::Trigger;
use rondel_core::filter::{Filter, Scope};

use super::form::Fields;
use super::sentences::localized;
use super::shell::{Nav, Page, Shell, html};
use super::texts::Texts;
use crate::body::refuse_value;
use crate::job_bulk::{
    BULK_JOB_COUNT_MAX, BulkJobAction, JobAction, JobProblem, SelectedJobs, apply_to_jobs, select_matching,
    select_named,
};
use crate::problem::Problem;
use crate::redirect::{own_path, redirect_to};
use crate::run_filter;

/// How many names of jobs are shown.
const SHOWN_NAME_COUNT_MAX: usize = 60;

#[derive(Template)]
#[template(path = "job_bulk.html")]
struct BulkPage {
    shell: Shell,
    t: &'static Texts,
    title: String,
    action: &'static str,
    /// The label to set, `key=value`, or the key of the label to remove.
    label: String,
    /// The names of the chosen jobs.
    names: Vec<String>,
    /// Whether the action applies to all jobs that match `filter`.
    is_all: bool,
    filter: String,
    /// How many jobs are chosen.
    count: usize,
    /// The names that are shown, at most [`SHOWN_NAME_COUNT_MAX`].
    shown_names: Vec<String>,
    /// How many names are not shown.
    hidden_count: usize,
    has_more: bool,
    /// The name after which this selection begins; empty for the first selection.
    after_name: String,
    /// The name after which the next selection begins, if there is one.
    next_after: Option<String>,
    /// Maximum number of jobs that one request may change.
    max: usize,
    /// The URL of the list to return to.
    return_url: String,
    /// Whether the action was performed.
    is_done: bool,
    /// How many jobs were already in the wanted state.
    unchanged: usize,
    problems: Vec<JobProblem>,
    /// The action that reverts this one, if there is one.
    undo_action: Option<&'static str>,
    /// The jobs that this action has changed.
    changed: Vec<String>,
}

pub(super) async fn act(page: Page, fields: Fields) -> Result<Response, Problem> {
    let t = page.t;
    let (word, action) = parse_action(fields.get("do"))?;
    let bulk_action = BulkJobAction::new(action, fields.get("label"), Trigger::Manual)?;
    let names: Vec<String> = fields.with_prefix("job").map(|(_, name)| name.to_owned()).collect();
    let filter = fields.get("q").to_owned();
    // If no rows are chosen, the action applies to all jobs that match the filter.
    let is_all = fields.get("scope") == "all" || (names.is_empty() && !filter.trim().is_empty());
    let return_url = own_path(fields.get("back")).unwrap_or("/jobs").to_owned();
    if !is_all && names.is_empty() {
        return Ok(redirect_to(&return_url));
    }
    if !is_all && names.len() > BULK_JOB_COUNT_MAX {
        let message = format!("{} jobs; at most {BULK_JOB_COUNT_MAX} at once", names.len());
        return Err(refuse_value("/job", message));
    }
    let after_name = fields.get("after").to_owned();
    let selection = match is_all {
        true => {
            let filter = Filter::parse(&filter, Scope::Jobs).map_err(|error| run_filter::filter_problem(&error))?;
            select_matching(&page.call, &filter, (&bulk_action, Some(after_name.as_str()))).await?
        }
        false => select_named(&page.call, &names).await?,
    };
    let SelectedJobs { names: selected_names, has_more, next_after, missing_jobs } = selection;
    // The request that confirms the action names the jobs that were shown, since other jobs may match by now. It also has the name after
    // which the next selection begins.
    let rest_after = Some(fields.get("rest")).filter(|rest_after| !rest_after.is_empty()).map(str::to_owned);
    let has_more = has_more || rest_after.is_some();
    let next_after = next_after.or(rest_after);
    let names = if is_all { selected_names.clone() } else { names };
    let count = selected_names.len();
    let expected_count = fields.get("expected").parse::<usize>().ok();
    // If more jobs match than were counted, nothing is changed: the page shows the new count and asks again.
    let is_confirmed = expected_count.is_some_and(|expected_count| count <= expected_count && count > 0);
    let outcome = if is_confirmed {
        apply_to_jobs(&page.call, &bulk_action, &selected_names).await
    } else {
        page.call.note.mark_dry_run();
        Default::default()
    };
    let undo_action = match action {
        JobAction::Pause => Some("resume"),
        JobAction::Resume => Some("pause"),
        JobAction::Run | JobAction::Label | JobAction::Unlabel | JobAction::Delete => None,
    };
    let shown_names = if is_confirmed { outcome.changed.clone() } else { selected_names };
    let localized_problem = |problem: JobProblem| {
        let message = localized(t.lang(), &problem.message).into_owned();
        JobProblem { message, ..problem }
    };
    let template = BulkPage {
        shell: page.shell(Nav::Jobs),
        t,
        title: bulk_title(action, is_confirmed, if is_confirmed { outcome.changed.len() } else { count }, t),
        action: word,
        label: fields.get("label").to_owned(),
        names,
        is_all,
        filter,
        count,
        hidden_count: shown_names.len().saturating_sub(SHOWN_NAME_COUNT_MAX),
        shown_names: shown_names.into_iter().take(SHOWN_NAME_COUNT_MAX).collect(),
        has_more,
        after_name,
        next_after,
        max: BULK_JOB_COUNT_MAX,
        return_url,
        is_done: is_confirmed,
        unchanged: outcome.unchanged,
        problems: outcome
            .problems
            .into_iter()
            .chain(missing_jobs)
            .take(SHOWN_NAME_COUNT_MAX)
            .map(localized_problem)
            .collect(),
        undo_action: undo_action.filter(|_| !outcome.changed.is_empty()),
        changed: outcome.changed,
    };
    html(StatusCode::OK, &template)
}

fn parse_action(word: &str) -> Result<(&'static str, JobAction), Problem> {
    let actions = [
        ("pause", JobAction::Pause),
        ("resume", JobAction::Resume),
        ("run", JobAction::Run),
        ("label", JobAction::Label),
        ("unlabel", JobAction::Unlabel),
        ("delete", JobAction::Delete),
    ];
    let action = actions.into_iter().find(|(name, _)| *name == word);
    action.ok_or_else(|| refuse_value("/do", format!("{word:?} is none of pause, resume, run, label, unlabel, delete")))
}

fn bulk_title(action: JobAction, is_done: bool, count: usize, t: &Texts) -> String {
    match (action, is_done) {
        (JobAction::Pause, false) => t.bulk_pause_ask(count),
        (JobAction::Pause, true) => t.bulk_pause_done(count),
        (JobAction::Resume, false) => t.bulk_resume_ask(count),
        (JobAction::Resume, true) => t.bulk_resume_done(count),
        (JobAction::Run, false) => t.bulk_run_ask(count),
        (JobAction::Run, true) => t.bulk_run_done(count),
        (JobAction::Label, false) => t.bulk_label_ask(count),
        (JobAction::Unlabel, false) => t.bulk_unlabel_ask(count),
        (JobAction::Label | JobAction::Unlabel, true) => t.bulk_label_done(count),
        (JobAction::Delete, false) => t.bulk_delete_ask(count),
        (JobAction::Delete, true) => t.bulk_delete_done(count),
    }
}
