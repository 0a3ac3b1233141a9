//! The parameters in the form of a job: as fields if its handler declares its parameters, else as JSON.

use std::collections::BTreeSet;

use askama::Template;
use axum::response::Response;
use http::StatusCode;
use rondel_admin::jobs;
use rondel_core::access::Permission;
use serde_json::Value;

use super::form::Fields;
use super::job_form::{Errors, JobForm};
use super::params_form::{self, FieldKind, ParamField};
use super::shell::{Page, html};
use super::texts::Texts;
use crate::problem::Problem;

/// The part of the form that is replaced when the user selects another handler.
#[derive(Template)]
#[template(path = "job_params.html")]
struct ParamsPart {
    t: &'static Texts,
    form: JobForm,
    errors: Errors,
    param_fields: Vec<ParamField>,
}

/// Renders the part again, with the input so far.
pub(super) async fn part(page: Page, sent_fields: Fields) -> Result<Response, Problem> {
    let mut form = JobForm::from(&sent_fields);
    if form.params_by.is_empty() {
        form.params_by = JobForm::default().params_by;
    }
    let param_fields = fields_with_input(&page, &form, Some(&sent_fields)).await?;
    html(StatusCode::OK, &ParamsPart { t: page.t, form, errors: Errors::default(), param_fields })
}

/// The fields for the parameters of the selected handler, with the input so far. Empty if the handler declares no parameters, or if the
/// caller may not edit jobs of the app.
pub(super) async fn fields_with_input(
    page: &Page,
    form: &JobForm,
    sent_fields: Option<&Fields>,
) -> Result<Vec<ParamField>, Problem> {
    let namespace = page.call.namespace.id;
    let schema = jobs::params_schema(page.engine(), namespace, &form.app, &form.handler);
    let Some(schema) = schema else { return Ok(Vec::new()) };
    // Not `check_app_name`, which would make the app the object of the audit entry.
    let refused_apps = page.call.apps_without(Permission::Edit, BTreeSet::from([form.app.clone()])).await?;
    if !refused_apps.is_empty() {
        return Ok(Vec::new());
    }
    let params = match form.params.as_str() {
        "" => Value::Null,
        // Invalid JSON is edited as text. `false` is not an object, so it gets no fields.
        text => serde_json::from_str(text).unwrap_or(Value::Bool(false)),
    };
    let mut fields = params_form::param_fields(schema.document(), &params);
    // If one field is refused, `params` are those before the edit. The other fields are therefore filled in with their own input.
    for field in &mut fields {
        if let Some((_, typed_text)) =
            sent_fields.and_then(|sent_fields| sent_fields.with_prefix(&field.id).find(|(id, _)| *id == field.id))
        {
            typed_text.clone_into(&mut field.value);
        }
    }
    Ok(fields)
}
