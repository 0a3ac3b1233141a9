//! The definition of a job, edited: by fields, or whole as JSON.

use askama::Template;
use axum::response::Response;
use http::StatusCode;
use rondel_admin::jobs::{self, JobError};
use rondel_core::JobSpec;
use rondel_store::catalog::JobRecord;

use super::form::Fields;
use super::job::pretty;
use super::job_form::{Errors, JobForm};
use super::job_new::Offers;
use super::job_params;
use super::params_form::{FieldKind, ParamField};
use super::shell::{Nav, Page, Shell, html};
use super::texts::Texts;
use crate::api::jobs::body::parse_named;
use crate::api::jobs::find;
use crate::path::{self, Named};
use crate::problem::Problem;
use crate::redirect::to;

#[derive(Template)]
#[template(path = "job_edit.html")]
struct EditPage {
    shell: Shell,
    t: &'static Texts,
    name: String,
    form: JobForm,
    param_fields: Vec<ParamField>,
    errors: Errors,
    offers: Offers,
    is_new: bool,
    /// What the next save is made upon.
    version: i64,
    /// The version that another caller made meanwhile.
    conflict: Option<i64>,
    /// The whole definition, as JSON.
    whole: String,
    whole_is_open: bool,
    whole_errors: Vec<String>,
}

/// What was typed, and what is wrong with it.
struct Typed {
    form: JobForm,
    sent: Option<Fields>,
    errors: Errors,
    whole: Option<String>,
    whole_errors: Vec<String>,
    conflict: Option<i64>,
}

impl Typed {
    fn nothing(record: &JobRecord) -> Self {
        let form = JobForm::of(&record.spec);
        Self { form, sent: None, errors: Errors::default(), whole: None, whole_errors: Vec::new(), conflict: None }
    }

    /// The definition that was typed, if it is one.
    fn spec(&mut self, record: &JobRecord, t: &Texts) -> Option<JobSpec> {
        let Some(whole) = &self.whole else {
            let base = serde_json::to_value(&record.spec).unwrap_or_default();
            return self.form.spec(base, t).map_err(|errors| self.errors = errors).ok();
        };
        let parsed = parse_named(whole.as_bytes(), &record.spec.name);
        parsed.map_err(|problem| self.whole_errors = messages(&problem)).ok()
    }

    fn refused(&mut self, problem: &Problem, t: &Texts) {
        if self.whole.is_some() {
            self.whole_errors = messages(problem);
        } else {
            self.form.add_problem(&mut self.errors, problem, t);
        }
    }

    const fn status(&self) -> StatusCode {
        if self.conflict.is_some() { StatusCode::CONFLICT } else { StatusCode::UNPROCESSABLE_ENTITY }
    }
}

/// Each complaint with its place.
fn messages(problem: &Problem) -> Vec<String> {
    let complaints = problem.complaints().iter();
    let mut messages: Vec<String> = complaints
        .map(|complaint| match complaint.pointer.as_deref() {
            None | Some("") => complaint.message.clone(),
            Some(pointer) => format!("{pointer}: {}", complaint.message),
        })
        .collect();
    if messages.is_empty() {
        messages.push(problem.detail().to_owned());
    }
    messages
}

pub(super) async fn page(page: Page, Named(name, ..): Named<path::Job>) -> Result<Response, Problem> {
    let record = find(&page.call, &name).await?;
    show(&page, StatusCode::OK, &record, Typed::nothing(&record)).await
}

pub(super) async fn save(page: Page, Named(name, ..): Named<path::Job>, fields: Fields) -> Result<Response, Problem> {
    let record = find(&page.call, &name).await?;
    let mut typed = Typed::nothing(&record);
    match fields.get("definition") {
        "" => {
            typed.form = JobForm::from(&fields);
            typed.sent = Some(fields.clone());
        }
        whole => typed.whole = Some(whole.to_owned()),
    }
    // A form without a version was made upon nothing that is known.
    let seen = fields.get("version").parse::<i64>().ok();
    if seen != Some(record.version) {
        typed.conflict = Some(record.version);
        return show(&page, typed.status(), &record, typed).await;
    }
    let Some(spec) = typed.spec(&record, page.t) else { return show(&page, typed.status(), &record, typed).await };
    if spec == record.spec {
        return Ok(to(&format!("/jobs/{name}")));
    }
    page.call.check_definition(&spec).await?;
    match jobs::change(page.engine(), &record, spec, seen, page.call.caller.name()).await {
        Ok(saved) => {
            page.call.note.changed_to(&saved.spec);
            return Ok(to(&format!("/jobs/{}", saved.spec.name)));
        }
        Err(JobError::Store(error)) => return Err(error.into()),
        Err(JobError::Conflict { version }) => typed.conflict = Some(version),
        Err(refused) => typed.refused(&page.call.job_problem(refused).await, page.t),
    }
    show(&page, typed.status(), &record, typed).await
}

async fn show(page: &Page, status: StatusCode, record: &JobRecord, typed: Typed) -> Result<Response, Problem> {
    let definition = serde_json::to_value(&record.spec).unwrap_or_default();
    let template = EditPage {
        shell: page.shell(Nav::Jobs),
        t: page.t,
        name: record.spec.name.clone(),
        param_fields: job_params::drawn(page, &typed.form, typed.sent.as_ref()).await?,
        form: typed.form,
        errors: typed.errors,
        offers: Offers::read(page).await?,
        is_new: false,
        version: typed.conflict.unwrap_or(record.version),
        conflict: typed.conflict,
        whole_is_open: typed.whole.is_some(),
        whole: typed.whole.unwrap_or_else(|| pretty(&definition)),
        whole_errors: typed.whole_errors,
    };
    html(status, &template)
}
