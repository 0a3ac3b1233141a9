//! Shell completion of the names of contexts, and of jobs and other objects on the server.

use std::ffi::OsStr;
use std::time::Duration;

use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};

use crate::client::{ClientArgs, text_of};
use crate::contexts::Contexts;
use crate::runtime;

/// How long a completion waits for the server: a longer wait is not worth it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// How many names are requested: a longer list would not be read.
const COUNT_MAX: &str = "100";

/// Completes the name of a job.
pub(crate) fn job_names() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed_text: &OsStr| names_from_server("jobs", typed_text))
}

/// Completes the name of an app.
pub(crate) fn app_names() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed_text: &OsStr| names_from_server("apps", typed_text))
}

/// Completes the name of an executor.
pub(crate) fn executor_names() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed_text: &OsStr| names_from_server("executors", typed_text))
}

/// Completes the name of a context.
pub(crate) fn context_names() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed_text: &OsStr| {
        let (Some(typed_text), Ok(contexts)) = (typed_text.to_str(), Contexts::read()) else { return Vec::new() };
        let matching_names = contexts.all().map(|(name, _)| name).filter(|name| name.starts_with(typed_text));
        matching_names.map(CompletionCandidate::new).collect()
    })
}

/// Names from the server, or none if the call fails. The environment and the context select the server: a completer
/// does not see the flags.
fn names_from_server(collection: &'static str, typed_text: &OsStr) -> Vec<CompletionCandidate> {
    let Some(typed_text) = typed_text.to_str() else { return Vec::new() };
    let mut names = Vec::new();
    let call_result = runtime::run(async {
        let client = ClientArgs::default().client()?;
        // The lists of apps and executors have no filter.
        let query = [("q", typed_text), ("limit", COUNT_MAX)];
        let query = if collection == "jobs" && !typed_text.is_empty() {
            &query[..]
        } else if collection == "jobs" {
            &query[1..]
        } else {
            &[]
        };
        if let Ok(body) = tokio::time::timeout(ANSWER_TIMEOUT, client.get(&[collection], query)).await {
            let body = body?.value()?;
            names.extend(body["items"].as_array().into_iter().flatten().map(|item| text_of(&item["name"])));
        }
        Ok(())
    });
    // The shell shows no errors of completions.
    drop(call_result);
    names.retain(|name| name.starts_with(typed_text));
    names.into_iter().map(CompletionCandidate::new).collect()
}
