//! Edits the definition of a job, either in fields or as YAML. The server converts each into the other.

use askama::Template;
use axum::response::Response;
use http::StatusCode;
use rondel_admin::jobs::{self, JobError};
use rondel_core::{JobSpec, diff};
use rondel_store::catalog::JobRecord;
use serde_json::Value;

use super::activity_rows::{ChangeRow, change_row};
use super::as_code::AsCode;
use super::calendar_form::error_lines;
use super::form::Fields;
use super::job_form::{Errors, JobForm};
use super::job_new::FieldSuggestions;
use super::job_params;
use super::params_form::{FieldKind, ParamField};
use super::shell::{Nav, Page, Shell, html};
use super::texts::Texts;
use super::zones;
use crate::api::jobs::body::{from_value, parse_named};
use crate::api::jobs::{find, version_spec};
use crate::path::{self, Named};
use crate::problem::{Code, Problem};
use crate::redirect::redirect_to;
use crate::yaml;

#[derive(Template)]
#[template(path = "job_edit.html")]
struct EditPage {
    shell: Shell,
    t: &'static Texts,
    name: String,
    form: JobForm,
    param_fields: Vec<ParamField>,
    errors: Errors,
    suggestions: FieldSuggestions,
    is_new: bool,
    /// The current name of the job.
    current_name: String,
    /// The version on which the next save will be based.
    version: i64,
    /// The version that another caller has saved since the form was loaded.
    conflict_version: Option<i64>,
    /// Whether the next save is still based on the version before the other caller's change, so that it overwrites nothing.
    is_unmerged: bool,
    /// The whole definition, as YAML.
    definition_text: String,
    /// Whether the definition is edited as YAML.
    is_definition_open: bool,
    definition_errors: Vec<String>,
    /// The changes that saving would make to the definition that another caller has saved.
    conflict_changes: Vec<ChangeRow>,
    /// The API request and the command that save this definition.
    code: AsCode,
}

/// The fields of the form, and their errors.
struct EditInput {
    form: JobForm,
    sent_fields: Option<Fields>,
    errors: Errors,
    /// The definition as the user typed it; `None` if it is edited in fields.
    definition_text: Option<String>,
    definition_errors: Vec<String>,
    /// The version that another caller has saved since the form was loaded.
    conflict_version: Option<i64>,
    /// The version on which the input is based, if the input has not been merged into the newer one. The next save must be based on it too:
    /// based on the newer version, it would undo the other caller's changes.
    unmerged_version: Option<i64>,
}

impl EditInput {
    fn from_record(record: &JobRecord) -> Self {
        let form = JobForm::from_spec(&record.spec);
        Self {
            form,
            sent_fields: None,
            errors: Errors::default(),
            definition_text: None,
            definition_errors: Vec::new(),
            conflict_version: None,
            unmerged_version: None,
        }
    }

    /// The definition in the form; `None` if it has errors.
    fn spec(&mut self, record: &JobRecord, t: &'static Texts) -> Option<JobSpec> {
        let Some(definition_text) = &self.definition_text else {
            let saved_document = serde_json::to_value(&record.spec).unwrap_or_default();
            return self.form.spec(saved_document, t).map_err(|errors| self.errors = errors).ok();
        };
        let parsed_spec = parse_definition(definition_text, &record.spec.name);
        parsed_spec.map_err(|problem| self.definition_errors = error_lines(&problem, t.lang())).ok()
    }

    fn add_problem(&mut self, problem: &Problem, t: &Texts) {
        if self.definition_text.is_some() {
            self.definition_errors = error_lines(problem, t.lang());
        } else {
            self.form.add_problem(&mut self.errors, problem, t);
        }
    }

    /// Merges the user's changes into the definition that another caller has saved. If the version on which the form is based cannot be
    /// read, the input stays as the user typed it. Input with errors cannot be merged before they are corrected.
    async fn rebase(&mut self, page: &Page, record: &JobRecord, seen_version: i64) {
        let Ok(base_spec) = version_spec(&page.call, record, seen_version).await else { return };
        let document = |spec: &JobSpec| serde_json::to_value(spec).unwrap_or_default();
        let base_document = document(&base_spec);
        let edited_spec = match &self.definition_text {
            Some(definition_text) => parse_definition(definition_text, &record.spec.name).ok(),
            None => self.form.spec(base_document.clone(), page.t).ok(),
        };
        let Some(edited_spec) = edited_spec else {
            self.unmerged_version = Some(seen_version);
            return;
        };
        let merged_document = diff::merge(&base_document, &document(&edited_spec), &document(&record.spec));
        if let Ok(spec) = from_value(merged_document)
            && self.definition_text.is_none()
        {
            self.form = JobForm::from_spec(&spec);
            self.sent_fields = None;
        }
    }

    const fn status(&self) -> StatusCode {
        if self.conflict_version.is_some() { StatusCode::CONFLICT } else { StatusCode::UNPROCESSABLE_ENTITY }
    }
}

/// A definition as a YAML list of one item, with its fields in the order of the API.
fn definition_as_list(spec: &JobSpec) -> String {
    let document = spec.document();
    let fields: Vec<(&str, &Value)> = document.fields.iter().map(|(name, value)| (*name, value)).collect();
    yaml::write(&[fields])
}

pub(super) fn definition_as_yaml(spec: &JobSpec) -> String {
    let lines = definition_as_list(spec);
    lines.lines().map(|line| line.get(2..).unwrap_or_default()).collect::<Vec<_>>().join("\n") + "\n"
}

/// Parses a definition in YAML or JSON. The name may be left out.
fn parse_definition(text: &str, name: &str) -> Result<JobSpec, Problem> {
    if text.trim_start().starts_with(['{', '[']) {
        return parse_named(text.as_bytes(), name);
    }
    let refuse = |message: String| Problem::new(Code::InvalidYaml, message);
    let documents = yaml::documents(text).map_err(|error| refuse(error.to_string()))?;
    let mut items = documents.into_iter().flat_map(yaml::Node::items);
    let (Some(item), None) = (items.next(), items.next()) else {
        return Err(refuse("expected one definition".to_owned()));
    };
    let mut document = item.value();
    if let Value::Object(fields) = &mut document {
        fields.entry("name").or_insert_with(|| Value::from(name));
    }
    from_value(document)
}

/// The API request and the command that save a definition: of a new job, or of the job `current_name`.
fn job_code(page: &Page, current_name: Option<&str>, spec: &JobSpec) -> AsCode {
    let path = current_name.map(|name| format!("/api/v1/jobs/{name}"));
    let request = path.as_deref().map_or(("POST", "/api/v1/jobs"), |path| ("PUT", path));
    let document = serde_json::to_value(spec.document()).unwrap_or_default();
    AsCode::with_document(&page.call.namespace.name, request, &document, ("job apply", &definition_as_list(spec)))
}

#[derive(Template)]
#[template(path = "job_code.html")]
struct CodePart {
    t: &'static Texts,
    code: Option<AsCode>,
    error: Option<String>,
}

/// The API request and the command for the fields typed so far.
pub(super) async fn code_part(page: Page, fields: Fields) -> Result<Response, Problem> {
    let (current_name, parsed_spec) = edited_job(&page, &fields).await;
    let code = match parsed_spec {
        Ok(spec) => CodePart { t: page.t, code: Some(job_code(&page, current_name.as_deref(), &spec)), error: None },
        Err(errors) => CodePart { t: page.t, code: None, error: Some(errors.all().join("; ")) },
    };
    html(StatusCode::OK, &code)
}

/// The name of the edited job, and the definition in the fields.
async fn edited_job(page: &Page, fields: &Fields) -> (Option<String>, Result<JobSpec, Errors>) {
    let mut document = Value::Object(serde_json::Map::new());
    let mut current_name = None;
    let name = fields.get("was");
    if !name.is_empty()
        && let Ok(record) = find(&page.call, name).await
    {
        document = serde_json::to_value(&record.spec).unwrap_or_default();
        current_name = Some(record.spec.name);
    }
    (current_name, JobForm::from(fields).spec(document, page.t))
}

#[derive(Template)]
#[template(path = "job_yaml.html")]
struct YamlPart {
    t: &'static Texts,
    definition_text: String,
    error: Option<String>,
}

/// The fields typed so far, as YAML, for the other tab of the form.
pub(super) async fn yaml_part(page: Page, fields: Fields) -> Result<Response, Problem> {
    let (_, parsed_spec) = edited_job(&page, &fields).await;
    let (definition_text, error) = match parsed_spec {
        Ok(spec) => (definition_as_yaml(&spec), None),
        Err(errors) => (String::new(), Some(errors.all().join("; "))),
    };
    html(StatusCode::OK, &YamlPart { t: page.t, definition_text, error })
}

pub(super) async fn page(page: Page, Named(name, ..): Named<path::Job>) -> Result<Response, Problem> {
    let record = find(&page.call, &name).await?;
    render_page(&page, StatusCode::OK, &record, EditInput::from_record(&record)).await
}

pub(super) async fn save(page: Page, Named(name, ..): Named<path::Job>, fields: Fields) -> Result<Response, Problem> {
    let record = find(&page.call, &name).await?;
    let mut input = EditInput::from_record(&record);
    match fields.get("definition") {
        "" => {
            input.form = JobForm::from(&fields);
            input.sent_fields = Some(fields.clone());
        }
        definition_text => input.definition_text = Some(definition_text.to_owned()),
    }
    // A form without a version is treated as a conflict, like one with an old version.
    let seen_version = fields.get("version").parse::<i64>().ok();
    if seen_version != Some(record.version) {
        input.conflict_version = Some(record.version);
        if let Some(seen_version) = seen_version {
            input.rebase(&page, &record, seen_version).await;
        }
        return render_page(&page, input.status(), &record, input).await;
    }
    let Some(spec) = input.spec(&record, page.t) else {
        return render_page(&page, input.status(), &record, input).await;
    };
    if fields.get("do") == "fields" {
        // Converts the text into fields without saving it.
        let converted_input = EditInput { form: JobForm::from_spec(&spec), ..EditInput::from_record(&record) };
        return render_page(&page, StatusCode::OK, &record, converted_input).await;
    }
    if spec == record.spec {
        return Ok(redirect_to(&format!("/jobs/{name}")));
    }
    page.call.check_definition(&spec).await?;
    match jobs::change(page.engine(), &record, spec, seen_version, page.call.caller.name()).await {
        Ok(record_after) => {
            page.call.note.changed_to(&record_after.spec);
            return Ok(redirect_to(&format!("/jobs/{}", record_after.spec.name)));
        }
        Err(JobError::Store(error)) => return Err(error.into()),
        // The next save finds the newer version, and merges the input into it.
        Err(JobError::Conflict { version }) => {
            (input.conflict_version, input.unmerged_version) = (Some(version), seen_version);
        }
        Err(error) => input.add_problem(&page.call.job_problem(error).await, page.t),
    }
    render_page(&page, input.status(), &record, input).await
}

async fn render_page(
    page: &Page,
    status: StatusCode,
    record: &JobRecord,
    input: EditInput,
) -> Result<Response, Problem> {
    zones::set_job(&record.spec);
    let mut input = input;
    let conflict_changes = match input.conflict_version {
        Some(_) => {
            let edited_spec = input.spec(record, page.t);
            let document = |spec: &JobSpec| serde_json::to_value(spec).unwrap_or_default();
            let changes =
                edited_spec.map(|edited_spec| diff::changes(&document(&record.spec), &document(&edited_spec)));
            changes.unwrap_or_default().iter().map(change_row).collect()
        }
        None => Vec::new(),
    };
    let template = EditPage {
        shell: page.shell(Nav::Jobs),
        t: page.t,
        name: record.spec.name.clone(),
        param_fields: job_params::fields_with_input(page, &input.form, input.sent_fields.as_ref()).await?,
        form: input.form,
        errors: input.errors,
        suggestions: FieldSuggestions::read(page).await?,
        is_new: false,
        current_name: record.spec.name.clone(),
        version: input.unmerged_version.or(input.conflict_version).unwrap_or(record.version),
        conflict_version: input.conflict_version,
        is_unmerged: input.unmerged_version.is_some(),
        is_definition_open: input.definition_text.is_some(),
        definition_text: input.definition_text.unwrap_or_else(|| definition_as_yaml(&record.spec)),
        definition_errors: input.definition_errors,
        conflict_changes,
        code: job_code(page, Some(&record.spec.name), &record.spec),
    };
    html(status, &template)
}
