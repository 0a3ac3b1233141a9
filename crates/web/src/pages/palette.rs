//! The palette, which finds jobs, pages and actions by a few letters, and a run by its id. It works as a page; with the script, its list
//! is shown in a dialog.

use askama::Template;
use axum::response::Response;
use http::StatusCode;
use rondel_core::RunId;
use rondel_core::access::Permission;
use rondel_core::name::NAME_LEN_MAX;
use rondel_store::catalog::{JobQuery, JobRecord};

use super::shell::{Nav, Page, Shell, html};
use super::texts::Texts;
use crate::problem::Problem;
use crate::query::{FromQuery, Reader};

/// How many jobs are offered at most.
const JOB_COUNT: usize = 8;
/// How many jobs are read at most to find those whose names have every word.
const READ_JOB_COUNT: u32 = 64;
/// Maximum length of a query, in characters.
const QUERY_LEN_MAX: usize = NAME_LEN_MAX;

/// The query parameter of the palette: the text that the user typed.
#[derive(Debug)]
pub(super) struct PaletteQuery(String);

impl FromQuery for PaletteQuery {
    fn from_query(reader: &mut Reader) -> Self {
        Self(reader.single("q").unwrap_or_default().chars().take(QUERY_LEN_MAX).collect())
    }
}

/// An entry that the user can choose.
struct PaletteEntry {
    words: String,
    /// The kind of the entry.
    kind: &'static str,
    url: String,
    /// Whether choosing the entry submits a form instead of following a link.
    is_form: bool,
    /// Why the caller may not choose the entry; `None` if the caller may.
    missing_role: Option<&'static str>,
}

impl PaletteEntry {
    fn link(label: &str, kind: &'static str, url: &str) -> Self {
        Self { words: label.to_owned(), kind, url: url.to_owned(), is_form: false, missing_role: None }
    }
}

#[derive(Template)]
#[template(path = "palette.html")]
struct PalettePage {
    shell: Shell,
    t: &'static Texts,
    query_text: String,
    entries: Vec<PaletteEntry>,
}

pub(super) async fn page(page: Page<PaletteQuery>) -> Result<Response, Problem> {
    let query_text = page.query().0.trim().to_lowercase();
    let words: Vec<&str> = query_text.split_whitespace().collect();
    let verb = Verb::from_words(&words, page.t);
    let job_words = if verb.is_some() { &words[1..] } else { &words[..] };
    let jobs = find_jobs(&page, job_words).await?;
    let mut entries = Vec::new();
    match verb {
        Some(verb) => {
            // Sentences of the console name a run as `run ID`, so these words also find the run.
            if matches!(verb, Verb::Run) {
                entries.extend(find_run(&page, job_words).await?);
            }
            entries.extend(jobs.iter().map(|job| verb.to_entry(&page, job)));
        }
        None => {
            entries.extend(find_run(&page, &words).await?);
            entries.extend(jobs.iter().map(|job| {
                PaletteEntry::link(&job.spec.name, page.t.palette_job, &format!("/jobs/{}", job.spec.name))
            }));
            let is_admin = page.call.caller.may_anywhere(Permission::Cluster);
            let pages = page_names(page.t, is_admin).filter(|(name, path)| matches_name(name, path, &words));
            entries.extend(pages.map(|(name, path)| PaletteEntry::link(name, page.t.palette_page, path)));
            if let Some(job) = jobs.first() {
                let switch = if job.spec.enabled { Verb::Pause } else { Verb::Resume };
                entries.extend([Verb::Run, switch].map(|verb| verb.to_entry(&page, job)));
            }
        }
    }
    let query_text = page.query().0.clone();
    html(StatusCode::OK, &PalettePage { shell: page.shell(Nav::None), t: page.t, query_text, entries })
}

/// The run whose id was typed.
async fn find_run(page: &Page<PaletteQuery>, words: &[&str]) -> Result<Option<PaletteEntry>, Problem> {
    let [word] = words else { return Ok(None) };
    let Ok(id) = word.parse::<RunId>() else { return Ok(None) };
    let run = page.engine().store().runs(&[id]).await?.pop();
    let run = run.filter(|run| run.namespace == page.call.namespace.id && page.call.may_view(run.app));
    Ok(run.map(|_| PaletteEntry::link(&id.to_string(), page.t.col_run, &format!("/runs/{id}"))))
}

/// The jobs that have every word in their names.
async fn find_jobs(page: &Page<PaletteQuery>, words: &[&str]) -> Result<Vec<JobRecord>, Problem> {
    let is_name_char = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '_' | '-');
    let Some(first_word) = words.first().filter(|_| words.iter().all(|word| word.chars().all(is_name_char))) else {
        return Ok(Vec::new());
    };
    let (store, namespace) = (page.engine().store(), page.call.namespace.id);
    let (visible_apps, name_contains) = (page.call.visible_apps(), Some((*first_word).to_owned()));
    let query = JobQuery { app: None, within: visible_apps, name_contains, after_name: None, limit: READ_JOB_COUNT };
    let mut jobs = store.jobs(namespace, &query).await?;
    if jobs.len() >= usize::try_from(READ_JOB_COUNT).unwrap_or(usize::MAX) {
        // Jobs whose names merely contain the word can fill the page that was read, so the jobs whose names begin with it are read, too.
        let job_of_name = store.job(namespace, first_word).await?.filter(|job| page.call.may_view(job.app));
        let query = JobQuery { after_name: Some((*first_word).to_owned()), ..query };
        jobs.extend(job_of_name.into_iter().chain(store.jobs(namespace, &query).await?));
    }
    jobs.retain(|job| words.iter().all(|word| job.spec.name.contains(word)));
    // Jobs whose names equal or begin with the first word come first.
    jobs.sort_by_key(|job| {
        (job.spec.name.as_str() != *first_word, !job.spec.name.starts_with(first_word), job.spec.name.clone())
    });
    jobs.dedup_by(|a, b| a.id == b.id);
    jobs.truncate(JOB_COUNT);
    Ok(jobs)
}

/// The pages that the palette offers, with their names.
fn page_names(t: &'static Texts, is_admin: bool) -> impl Iterator<Item = (&'static str, &'static str)> {
    let entries =
        Nav::bar_entries().chain(Nav::more_entries()).filter(move |entry| is_admin || !entry.nav.is_for_admins());
    let entries = entries.map(move |entry| (entry.name(t), entry.path));
    entries.chain([
        (t.jobs_new, "/jobs/new"),
        (t.users_title, "/users"),
        (t.settings_tokens, "/settings/tokens"),
        (t.settings_webhooks, "/settings/webhooks"),
        (t.account_title, "/account"),
        (t.namespaces_title, "/namespaces"),
    ])
}

/// Whether every word is a part of the page's name in the reader's language, or of its path, which is in English.
fn matches_name(name: &str, path: &str, words: &[&str]) -> bool {
    let name = name.to_lowercase();
    words.iter().all(|word| name.contains(word) || path.contains(word))
}

rondel_core::plain_word_enum! {
    Verb {
        Run = "run",
        Pause = "pause",
        Resume = "resume",
    }
}

impl Verb {
    /// The verb with which the words begin, if other words follow.
    fn from_words(words: &[&str], t: &Texts) -> Option<Self> {
        let (first_word, other_words) = words.split_first()?;
        let is_verb = |verb: &Self| *first_word == verb.as_str() || *first_word == verb.local_word(t);
        Self::ALL.into_iter().find(|verb| !other_words.is_empty() && is_verb(verb))
    }

    const fn local_word(self, t: &Texts) -> &'static str {
        match self {
            Self::Run => t.palette_run,
            Self::Pause => t.pause,
            Self::Resume => t.resume,
        }
    }

    fn to_entry(self, page: &Page<PaletteQuery>, job: &JobRecord) -> PaletteEntry {
        let (t, name) = (page.t, &job.spec.name);
        let (words, path) = match self {
            Self::Run => (t.run_job(name), "runs"),
            Self::Pause => (t.pause_job(name), "pause"),
            Self::Resume => (t.resume_job(name), "resume"),
        };
        let is_allowed = page.call.caller.rights.allow(Permission::Operate, page.call.namespace.id, Some(job.app));
        PaletteEntry {
            words,
            kind: t.palette_action,
            url: format!("/jobs/{name}/{path}"),
            is_form: true,
            missing_role: (!is_allowed).then_some(t.needs_operator),
        }
    }
}
