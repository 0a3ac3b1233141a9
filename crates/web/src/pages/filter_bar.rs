//! The filter bar above a list: the filter as text, a chip for each term that removes the term, and suggestions while the user types.

use askama::Template;
use axum::response::Response;
use http::StatusCode;
use rondel_core::filter::{Filter, FilterError, Names, Scope, Suggestion, suggest};
use rondel_core::name;
use rondel_store::catalog::JobQuery;

use super::shell::{Page, html};
use super::texts::Texts;
use crate::problem::Problem;
use crate::query::{FromQuery, Reader};
use crate::redirect::query_pair;

/// How many names of each kind are read for the suggestions.
const SUGGESTED_NAME_COUNT_MAX: usize = 200;

#[derive(Debug)]
pub(super) struct Chip {
    pub(super) term: String,
    /// The URL of the list without this term.
    pub(super) href: String,
}

/// An error in the filter. The text of the filter is split into the parts before, in and after the error.
#[derive(Debug)]
pub(super) struct FilterFault {
    pub(super) text_before: String,
    pub(super) wrong_text: String,
    pub(super) text_after: String,
    pub(super) message: String,
}

/// A predefined filter, offered as a link.
#[derive(Debug)]
pub(super) struct Preset {
    pub(super) name: String,
    pub(super) href: String,
    pub(super) is_current: bool,
}

#[derive(Debug)]
pub(super) struct FilterBar {
    /// The path of the list.
    pub(super) action: &'static str,
    /// The path that returns the suggestions.
    pub(super) suggest_url: &'static str,
    pub(super) text: String,
    pub(super) label: &'static str,
    pub(super) hint: &'static str,
    /// Further parameters to keep in the URL of the list.
    pub(super) other_parameters: Vec<(&'static str, String)>,
    pub(super) chips: Vec<Chip>,
    pub(super) fault: Option<FilterFault>,
}

impl FilterBar {
    pub(super) fn new(
        (action, suggest_url): (&'static str, &'static str),
        (text, filter): (&str, &Result<Filter, FilterError>),
        other_parameters: Vec<(&'static str, String)>,
        t: &'static Texts,
    ) -> Self {
        let terms = filter.as_ref().map(Filter::terms).unwrap_or_default();
        let url_without = |index: usize| {
            let other_terms = terms
                .iter()
                .enumerate()
                .filter(|(other_index, _)| *other_index != index)
                .map(|(_, term)| term.as_str());
            list_url(action, &other_terms.collect::<Vec<_>>().join(" "), &other_parameters)
        };
        let chips = terms.iter().enumerate().map(|(index, term)| Chip { term: term.clone(), href: url_without(index) });
        Self {
            action,
            suggest_url,
            text: filter.as_ref().map_or_else(|_| text.to_owned(), ToString::to_string),
            label: t.filter_label,
            hint: if action == "/jobs" { t.filter_hint_jobs } else { t.filter_hint },
            chips: chips.collect(),
            other_parameters,
            fault: filter.as_ref().err().map(|error| FilterFault::new(text, error, t)),
        }
    }
}

impl FilterFault {
    fn new(text: &str, error: &FilterError, t: &Texts) -> Self {
        let chars: Vec<char> = text.chars().collect();
        let start_index = (error.column - 1).min(chars.len());
        let end_index = (start_index + error.length).min(chars.len());
        let slice_text = |from: usize, to: usize| chars[from..to].iter().collect::<String>();
        let message = error.sentence(t.lang());
        Self {
            text_before: slice_text(0, start_index),
            wrong_text: slice_text(start_index, end_index),
            text_after: slice_text(end_index, chars.len()),
            message,
        }
    }
}

/// The URL of a list with a filter.
pub(super) fn list_url(action: &str, filter: &str, other_parameters: &[(&'static str, String)]) -> String {
    let mut pairs: Vec<String> = Vec::new();
    if !filter.is_empty() {
        pairs.push(query_pair("q", filter));
    }
    pairs.extend(other_parameters.iter().map(|(key, value)| query_pair(key, value)));
    if pairs.is_empty() { action.to_owned() } else { format!("{action}?{}", pairs.join("&")) }
}

/// Presets for these filters, with the current one marked.
pub(super) fn presets(action: &'static str, current: &str, filters: &[(&'static str, &'static str)]) -> Vec<Preset> {
    let preset = |(name, filter): &(&'static str, &'static str)| Preset {
        name: (*name).to_owned(),
        href: list_url(action, filter, &[]),
        is_current: current == *filter,
    };
    filters.iter().map(preset).collect()
}

/// The query parameters for suggestions: the text typed so far, and the position of the cursor in it, in characters.
#[derive(Debug)]
pub(crate) struct SuggestQuery {
    text: String,
    at: Option<usize>,
}

impl FromQuery for SuggestQuery {
    fn from_query(reader: &mut Reader) -> Self {
        let at = |text: &str| text.parse::<usize>().map_err(|_| format!("{text:?} is not a position in a text"));
        Self { text: reader.single("q").unwrap_or_default(), at: reader.parsed("at", at) }
    }
}

#[derive(Template)]
#[template(path = "suggestions.html")]
struct Suggestions {
    suggestions: Vec<Suggestion>,
}

pub(super) async fn for_runs(page: Page<SuggestQuery>) -> Result<Response, Problem> {
    suggestions(&page, Scope::Runs).await
}

pub(super) async fn for_jobs(page: Page<SuggestQuery>) -> Result<Response, Problem> {
    suggestions(&page, Scope::Jobs).await
}

async fn suggestions(page: &Page<SuggestQuery>, scope: Scope) -> Result<Response, Problem> {
    let SuggestQuery { text, at: caret } = page.query();
    let caret = caret.unwrap_or_else(|| text.chars().count());
    let text_before: String = text.chars().take(caret).collect();
    let word = text_before.rsplit(char::is_whitespace).next().unwrap_or_default().trim_start_matches('-');
    let (key, value) = word.split_once([':', '：']).unwrap_or(("", ""));
    let (store, namespace, visible_apps) = (page.engine().store(), page.call.namespace.id, page.call.visible_apps());
    let is_visible = |app| visible_apps.as_ref().is_none_or(|visible_apps| visible_apps.contains(&app));
    let (mut apps, mut jobs, mut executors, mut labels) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    match key {
        "app" => {
            let app_records = store.apps(namespace).await?;
            apps = app_records
                .into_iter()
                .filter(|app| is_visible(app.id))
                .map(|app| app.name)
                .take(SUGGESTED_NAME_COUNT_MAX)
                .collect();
        }
        "job" => {
            let name_part = value.rsplit(',').next().unwrap_or_default().to_ascii_lowercase();
            let name_part = Some(name_part).filter(|name_part| name::check(name_part).is_ok());
            jobs = find_jobs(page, name_part).await?.into_iter().map(|job| job.spec.name).collect();
        }
        "label" => {
            let job_records = find_jobs(page, None).await?;
            labels = job_records
                .iter()
                .flat_map(|job| &job.spec.labels)
                .map(|(key, value)| format!("{key}={value}"))
                .collect();
            labels.sort();
            labels.dedup();
        }
        "executor" => {
            let (executor_items, _) = crate::api::executors::page(&page.call, None, suggested_name_count_max()).await?;
            executors = executor_items.into_iter().map(|executor| executor.name).collect();
            executors.sort();
            executors.dedup();
        }
        _ => {}
    }
    let names = Names { apps: &apps, jobs: &jobs, executors: &executors, labels: &labels };
    html(StatusCode::OK, &Suggestions { suggestions: suggest(text, caret, scope, &names) })
}

fn suggested_name_count_max() -> u32 {
    u32::try_from(SUGGESTED_NAME_COUNT_MAX).unwrap_or(u32::MAX)
}

async fn find_jobs(
    page: &Page<SuggestQuery>,
    name_part: Option<String>,
) -> Result<Vec<rondel_store::catalog::JobRecord>, Problem> {
    let limit = suggested_name_count_max();
    let query = JobQuery { within: page.call.visible_apps(), name_contains: name_part, limit, ..JobQuery::default() };
    Ok(page.engine().store().jobs(page.call.namespace.id, &query).await?)
}
