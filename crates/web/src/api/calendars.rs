//! Calendars: lists, saves, imports and deletes them, and lists the jobs that use one.

use axum::response::{IntoResponse as _, Response};
use http::StatusCode;
use http::header::ETAG;
use rondel_admin::calendars::{self, CalendarDependent, CalendarError, ImportAs, ImportFormat, SavedCalendar, import};
use rondel_core::access::Permission::{Edit, View};
use rondel_core::calendar::CalendarSpec;
use rondel_core::words::counted;
use rondel_core::{Timestamp, name};
use rondel_store::calendars::CalendarRecord;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::page::{Page, PageQuery};
use crate::answer::json_response;
use crate::body::{JsonBody, TextBody, parse, read_document, refuse_value};
use crate::call::{Call, forbidden_problem, quoted_input};
use crate::cursor::{Listing, cut_to_page, invalid_cursor_problem};
use crate::etag::{IfMatch, mismatch_problem, version_tag};
use crate::openapi::{Doc, Either, Unnamed};
use crate::parameter::Parameter;
use crate::path::{self, Named};
use crate::problem::{Code, Complaint, Problem};
use crate::query::{FromQuery, Reader};
use crate::routes::Routes;

/// Maximum number of jobs that the refusal to delete a calendar lists.
const NAMED_COUNT_MAX: usize = 10;

#[derive(Debug)]
pub(super) struct ImportQuery {
    format: Option<ImportFormat>,
    import_as: ImportAs,
    years: Option<(i32, i32)>,
    dry_run: bool,
}

impl FromQuery for ImportQuery {
    fn from_query(reader: &mut Reader) -> Self {
        let format = |text: &str| match text {
            "ics" => Ok(ImportFormat::Ics),
            "csv" => Ok(ImportFormat::Csv),
            _ => Err(format!("{} is neither ics nor csv", quoted_input(text))),
        };
        let import_as = |text: &str| match text {
            "days" => Ok(ImportAs::Days),
            "workdays" => Ok(ImportAs::Workdays),
            _ => Err(format!("{} is neither days nor workdays", quoted_input(text))),
        };
        Self {
            format: reader
                .parsed(Parameter::word("format", &["ics", "csv"]).about("The format of the file.").required(), format),
            import_as: reader
                .parsed(
                    Parameter::word("as", &["days", "workdays"])
                        .about("What the file lists: the days of the calendar (`days`, the default), or holidays and make-up days \
                             (`workdays`)."),
                    import_as,
                )
                .unwrap_or(ImportAs::Days),
            years: reader.parsed(
                Parameter::pattern("years", "^[0-9]{4}([.][.][0-9]{4})?$")
                    .about("The years for which events that repeat each year are imported: `2026` or `2026..2030`."),
                parse_years,
            ),
            dry_run: reader.flag("dry_run", "Returns the calendar without saving it."),
        }
    }
}

/// Parses `2026` or `2026..2030`.
pub(crate) fn parse_years(text: &str) -> Result<(i32, i32), String> {
    let (first_year, last_year) = text.split_once("..").unwrap_or((text, text));
    let year = |text: &str| text.parse().ok().filter(|year| (1970..=2199).contains(year));
    year(first_year)
        .zip(year(last_year))
        .filter(|(first_year, last_year)| first_year <= last_year)
        .ok_or_else(|| format!("{} is neither a year such as 2026 nor a span 2026..2030", quoted_input(text)))
}

/// A calendar in a list.
#[derive(Serialize, JsonSchema)]
pub(super) struct CalendarItem<'a> {
    name: &'a str,
    description: &'a str,
    namespace: &'a str,
    version: i64,
    created_at: Timestamp,
    updated_at: Timestamp,
    /// What to do, if this server cannot read the calendar because a newer server saved it.
    #[serde(skip_serializing_if = "Option::is_none")]
    unreadable: Option<String>,
}

/// A single calendar.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Calendar")]
pub(super) struct CalendarJson<'a> {
    #[serde(flatten)]
    spec: &'a CalendarSpec,
    namespace: &'a str,
    version: i64,
    created_at: Timestamp,
    updated_at: Timestamp,
}

/// A job or calendar that uses a calendar.
#[derive(Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "CalendarUser")]
pub(super) struct CalendarUserJson {
    #[schemars(extend("enum" = ["calendar", "job"]))]
    kind: String,
    name: String,
}

pub(super) fn routes() -> Routes {
    Routes::new()
        .get(
            "/api/v1/calendars",
            View,
            list,
            Doc::new("List calendars", "By name, without their rules.")
                .json::<Page<CalendarItem<'static>>>(200, "A page of calendars."),
        )
        .get(
            "/api/v1/calendars/{name}",
            View,
            get,
            Doc::new("Get a calendar", "The calendar with its rule.")
                .json::<CalendarJson<'static>>(200, "The calendar.")
                .with("ETag"),
        )
        .put(
            "/api/v1/calendars/{name}",
            Edit,
            put,
            Doc::new(
                "Save a calendar",
                "The answer comes when every job that uses the calendar follows the new version: no fire that is due more than \
                 a second later runs under the old one.",
            )
            .json::<CalendarJson<'static>>(200, "The changed calendar.")
            .with("ETag")
            .json::<CalendarJson<'static>>(201, "The new calendar.")
            .with("ETag")
            .refuses(&[Code::TooManyCalendars])
            .example(json!({
                "description": "days off", "rule": {"days": ["2026-12-24", {"date": "2026-10-01..2026-10-07", "name": "国庆节"}]},
            })),
        )
        .delete(
            "/api/v1/calendars/{name}",
            Edit,
            delete,
            Doc::new("Delete a calendar", "Refused while a job or another calendar uses it.")
                .empty("It was deleted.")
                .refuses(&[Code::CalendarUsed]),
        )
        .post(
            "/api/v1/calendars/{name}/import",
            Edit,
            import_file,
            Doc::new(
                "Import a calendar",
                "The body is an iCalendar or CSV file of at most 1 MiB; its declared type is ignored. The header of a CSV file \
                 names the columns: `date`, and optionally `name` and `kind` (`holiday` or `workday`).",
            )
            .json::<Either<CalendarJson<'static>, CalendarSpec>>(200, "The changed calendar; with `dry_run`, the one that would be saved.")
            .json::<CalendarJson<'static>>(201, "The new calendar.")
            .with("ETag")
            .refuses(&[Code::TooManyCalendars]),
        )
        .get(
            "/api/v1/calendars/{name}/users",
            View,
            list_dependents,
            Doc::new("List the calendars and jobs that use a calendar", "The calendars and jobs that use it.")
                .json::<Page<CalendarUserJson>>(200, "A page of calendars and jobs."),
        )
}

async fn list(call: Call<PageQuery>) -> Result<Response, Problem> {
    let listing = Listing::new("calendars", call.namespace.id);
    let after_name = listing.name_after(call.query.cursor.as_deref(), name::check)?;
    let limit = call.query.limit;
    let store = call.engine().store();
    let mut outlines = store.calendar_outlines(call.namespace.id, after_name.as_deref(), limit + 1).await?;
    let next_cursor = cut_to_page(&mut outlines, limit).map(|last| listing.cursor(&last.name));
    let message = |version| format!("this server cannot read version {version} of the calendar; upgrade this server");
    let items = outlines.iter().map(|outline| CalendarItem {
        name: &outline.name,
        description: &outline.description,
        namespace: &call.namespace.name,
        version: outline.version,
        created_at: outline.created_at,
        updated_at: outline.updated_at,
        unreadable: (!outline.is_readable).then(|| message(outline.version)),
    });
    json_response(StatusCode::OK, &Page { items: items.collect(), next_cursor })
}

async fn get(call: Call, Named(name, ..): Named<path::Calendar>) -> Result<Response, Problem> {
    let record = find(&call, &name).await?;
    calendar_response(&call, StatusCode::OK, &record)
}

async fn put(
    call: Call,
    Named(name, ..): Named<path::Calendar>,
    if_match: IfMatch,
    body: JsonBody<Unnamed<CalendarSpec>>,
) -> Result<Response, Problem> {
    let spec = parse_named(&body.bytes, &name)?;
    call.check(None, forbidden_problem)?;
    let existing_calendar = calendars::find(call.engine(), call.namespace.id, &name).await?;
    save(&call, existing_calendar.as_ref(), &if_match, &spec).await
}

/// Imports a file: its days become a calendar, which is saved. A dry run only shows the calendar.
async fn import_file(
    call: Call<ImportQuery>,
    Named(name, ..): Named<path::Calendar>,
    if_match: IfMatch,
    TextBody(body): TextBody,
) -> Result<Response, Problem> {
    call.check(None, forbidden_problem)?;
    let ImportQuery { format, import_as, years, dry_run } = call.query;
    let format = format.ok_or_else(|| {
        let complaint = Complaint::query("format", "missing_parameter", "is needed: ics or csv");
        Problem::of_complaints(Code::InvalidQuery, vec![complaint])
    })?;
    name::check(&name).map_err(|message| refuse_value("/name", message))?;
    let rule = import(format, &body, import_as, years).map_err(|error| refuse_value("", error.to_string()))?;
    let existing_calendar = calendars::find(call.engine(), call.namespace.id, &name).await?;
    let description = existing_calendar.as_ref().map(|record| record.spec.description.clone()).unwrap_or_default();
    let spec = CalendarSpec { name, description, rule };
    if dry_run {
        calendars::check(call.engine(), call.namespace.id, &spec).await?;
        call.note.mark_dry_run();
        return json_response(StatusCode::OK, &spec);
    }
    save(&call, existing_calendar.as_ref(), &if_match, &spec).await
}

async fn delete(call: Call, Named(name, ..): Named<path::Calendar>, if_match: IfMatch) -> Result<Response, Problem> {
    let record = find(&call, &name).await?;
    let expected_version = if_match.expected_version(record.version)?;
    calendars::delete(call.engine(), call.namespace.id, &name, expected_version).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn list_dependents(call: Call<PageQuery>, Named(name, ..): Named<path::Calendar>) -> Result<Response, Problem> {
    let record = find(&call, &name).await?;
    let listing = Listing::new("calendar users", record.id);
    let after_dependent =
        call.query.cursor.as_deref().map(|cursor| listing.position::<CalendarUserJson>(cursor)).transpose()?;
    let after_dependent = after_dependent.map(|dependent| match dependent.kind.as_str() {
        "calendar" => CalendarDependent::Calendar(dependent.name),
        _ => CalendarDependent::Job(dependent.name),
    });
    let is_name = |dependent: &CalendarDependent| match dependent {
        CalendarDependent::Calendar(name) | CalendarDependent::Job(name) => name::check(name).is_ok(),
    };
    if !after_dependent.iter().all(is_name) {
        return Err(invalid_cursor_problem("does not hold a name"));
    }
    let limit = usize::try_from(call.query.limit).unwrap_or(usize::MAX);
    let visible_apps = call.visible_apps();
    let mut dependents =
        calendars::dependents(call.engine(), &record, visible_apps.as_deref(), after_dependent.as_ref(), limit + 1)
            .await?;
    let last_dependent = cut_to_page(&mut dependents, call.query.limit).cloned();
    let dependent_json = |dependent: CalendarDependent| match dependent {
        CalendarDependent::Calendar(name) => CalendarUserJson { kind: "calendar".to_owned(), name },
        CalendarDependent::Job(name) => CalendarUserJson { kind: "job".to_owned(), name },
    };
    let next_cursor = last_dependent.map(|dependent| listing.cursor(dependent_json(dependent)));
    json_response(StatusCode::OK, &Page { items: dependents.into_iter().map(dependent_json).collect(), next_cursor })
}

/// Parses a calendar. The name may be left out; if it is given, it must equal the name in the path.
pub(crate) fn parse_named(bytes: &[u8], name: &str) -> Result<CalendarSpec, Problem> {
    let mut document = parse(bytes)?;
    if let Value::Object(fields) = &mut document.value {
        fields.entry("name").or_insert_with(|| Value::from(name));
    }
    let spec: CalendarSpec = read_document(document)?;
    if spec.name == name {
        Ok(spec)
    } else {
        Err(refuse_value("/name", format!("{} is not the name in the path: it stays", quoted_input(&spec.name))))
    }
}

async fn save<Q>(
    call: &Call<Q>,
    existing_calendar: Option<&CalendarRecord>,
    if_match: &IfMatch,
    spec: &CalendarSpec,
) -> Result<Response, Problem> {
    if let Some(record) = existing_calendar {
        call.note.before(&record.spec);
    }
    let expected_version = match existing_calendar {
        Some(record) => if_match.expected_version(record.version)?,
        None if if_match.is_given() => return Err(mismatch_problem(0)),
        None => None,
    };
    let outcome = calendars::save(call.engine(), call.namespace.id, spec, expected_version, call.caller.name()).await?;
    let SavedCalendar { record, is_new } = outcome;
    calendar_response(call, if is_new { StatusCode::CREATED } else { StatusCode::OK }, &record)
}

fn calendar_response<Q>(call: &Call<Q>, status: StatusCode, record: &CalendarRecord) -> Result<Response, Problem> {
    call.note.changed_to(&record.spec);
    let body = CalendarJson {
        spec: &record.spec,
        namespace: &call.namespace.name,
        version: record.version,
        created_at: record.created_at,
        updated_at: record.updated_at,
    };
    let mut response = json_response(status, &body)?;
    response.headers_mut().insert(ETAG, version_tag(record.version));
    Ok(response)
}

/// The calendar with this name in the namespace of the call.
pub(crate) async fn find<Q>(call: &Call<Q>, name: &str) -> Result<CalendarRecord, Problem> {
    let record = calendars::find(call.engine(), call.namespace.id, name).await?;
    let detail = || format!("there is no calendar {} in namespace {}", quoted_input(name), call.namespace.name);
    let not_found = || Problem::new(Code::CalendarNotFound, detail());
    let record = record.ok_or_else(not_found)?;
    call.check(None, not_found)?;
    call.note.before(&record.spec);
    Ok(record)
}

impl From<CalendarError> for Problem {
    fn from(error: CalendarError) -> Self {
        match error {
            CalendarError::Invalid(errors) => {
                Self::of_complaints(Code::InvalidBody, errors.into_iter().map(Complaint::from).collect())
            }
            CalendarError::Conflict { version } => mismatch_problem(version),
            CalendarError::Used { calendars, jobs, job_count } => in_use_problem(&calendars, &jobs, job_count),
            error @ CalendarError::TooMany => Self::new(Code::TooManyCalendars, error.to_string()),
            CalendarError::NotFound => Self::new(Code::CalendarNotFound, "the calendar was deleted meanwhile"),
            CalendarError::Store(error) => error.into(),
        }
    }
}

fn in_use_problem(calendars: &[String], jobs: &[String], job_count: u64) -> Problem {
    let list_text = |kind: &str, names: &[String], count: u64| {
        let name_list = names.iter().take(NAMED_COUNT_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
        let suffix = if count > u64::try_from(NAMED_COUNT_MAX).unwrap_or(0) { ", …" } else { "" };
        (count > 0).then(|| format!("{} ({name_list}{suffix})", counted(count, kind)))
    };
    let calendar_count = u64::try_from(calendars.len()).unwrap_or(u64::MAX);
    let user_lists: Vec<String> =
        list_text("calendar", calendars, calendar_count).into_iter().chain(list_text("job", jobs, job_count)).collect();
    Problem::new(Code::CalendarUsed, format!("it is used by {}; take it out of them first", user_lists.join(" and ")))
}
