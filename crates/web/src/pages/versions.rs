//! The versions of a job: the changes of each edit, a comparison of two versions, and a form to restore one.

use askama::Template;
use axum::response::Response;
use http::StatusCode;
use rondel_core::diff::{self, Change};
use rondel_store::catalog::JobRecord;
use serde_json::json;

use super::activity_rows::{ChangeRow, change_row};
use super::as_code::AsCode;
use super::edit_effect::EditEffect;
use super::form::Fields;
use super::moment::Moment;
use super::shell::{MissingRoles, Nav, Page, Shell, html};
use super::texts::Texts;
use super::zones;
use crate::api::jobs::{diff_versions, find, restore_version, version_spec, versions_before};
use crate::etag::IfMatch;
use crate::path::{self, Named};
use crate::problem::Problem;
use crate::query::{FromQuery, Reader};
use crate::redirect::redirect_to;

/// How many versions the page lists.
const VERSION_COUNT: usize = 30;
/// How many changed fields the summary of an edit names.
const NAMED_FIELD_COUNT: usize = 4;

/// The two versions to compare, and where the list of versions continues.
#[derive(Debug)]
pub(super) struct VersionsQuery {
    pub(super) from: Option<i64>,
    pub(super) to: Option<i64>,
    pub(super) before_version: Option<i64>,
}

impl FromQuery for VersionsQuery {
    fn from_query(reader: &mut Reader) -> Self {
        let parse_version = |text: &str| match text.parse::<i64>() {
            Ok(version) if (1..=i64::from(i32::MAX)).contains(&version) => Ok(version),
            _ => Err(format!("{text:?} is not the number of a version")),
        };
        Self {
            from: reader.parsed("from", parse_version),
            to: reader.parsed("to", parse_version),
            before_version: reader.parsed("before", parse_version),
        }
    }
}

#[derive(Template)]
#[template(path = "versions.html")]
struct VersionsPage {
    shell: Shell,
    t: &'static Texts,
    missing_roles: MissingRoles,
    name: String,
    newest_version: i64,
    rows: Vec<VersionRow>,
    /// The version before which the list continues on the next page; `None` on the last page.
    older_than: Option<i64>,
    comparison: Option<Comparison>,
    code: AsCode,
}

struct VersionRow {
    version: i64,
    author: String,
    at: Moment,
    /// The fields that differ from the previous version; `None` if that version is not on the page.
    summary: Option<String>,
    is_from: bool,
    is_to: bool,
}

/// The comparison of two versions.
struct Comparison {
    from: i64,
    to: i64,
    changes: Vec<ChangeRow>,
    /// How restoring the older version would affect the upcoming fires; `None` if it is the current version, or if its fires cannot be
    /// computed.
    edit_effect: Option<EditEffect>,
    restore_code: AsCode,
}

pub(super) async fn page(page: Page<VersionsQuery>, Named(name, ..): Named<path::Job>) -> Result<Response, Problem> {
    let record = find(&page.call, &name).await?;
    zones::set_job(&record.spec);
    let query = page.query();
    let to = query.to.unwrap_or(record.version);
    let from = query.from.unwrap_or_else(|| (to - 1).max(1));
    let before_version = query.before_version.unwrap_or(i64::MAX);
    let versions = versions_before(&page.call, record.id, before_version, VERSION_COUNT + 1).await?;
    let older_than = (versions.len() > VERSION_COUNT).then(|| versions[VERSION_COUNT - 1].version);
    let now = page.engine().now();
    let rows = versions.iter().enumerate().take(VERSION_COUNT).map(|(index, version)| VersionRow {
        version: version.version,
        author: version.author.clone(),
        at: Moment::new(version.created_at, now, page.t),
        summary: versions.get(index + 1).map(|before_version| {
            changes_summary(&diff::changes(&before_version.definition, &version.definition), page.t)
        }),
        is_from: version.version == from,
        is_to: version.version == to,
    });
    let rows = rows.collect();
    let comparison = match record.version > 1 {
        true => Some(compare(&page, &record, from, to).await?),
        false => None,
    };
    let template = VersionsPage {
        shell: page.shell(Nav::Jobs),
        t: page.t,
        missing_roles: page.missing_roles(Some(record.app)),
        newest_version: record.version,
        rows,
        older_than,
        comparison,
        code: page.code(("GET", &format!("/api/v1/jobs/{name}/versions")), None, &format!("job versions {name}")),
        name,
    };
    html(StatusCode::OK, &template)
}

async fn compare(
    page: &Page<VersionsQuery>,
    record: &JobRecord,
    from_version: i64,
    to_version: i64,
) -> Result<Comparison, Problem> {
    let changes = diff_versions(&page.call, record, from_version, to_version).await?;
    let name = &record.spec.name;
    let edit_effect = match from_version == record.version {
        true => None,
        false => {
            let mut spec = version_spec(&page.call, record, from_version).await?;
            spec.enabled = record.spec.enabled;
            // The older version may use a calendar that no longer exists. Its fires cannot be computed, but the rest of the comparison is
            // shown.
            EditEffect::compare(&page.call, Some(record), &spec, page.t).await.ok()
        }
    };
    Ok(Comparison {
        from: from_version,
        to: to_version,
        changes: changes.iter().map(change_row).collect(),
        edit_effect,
        restore_code: page.code(
            ("POST", &format!("/api/v1/jobs/{name}/restore")),
            Some(&json!({"version": from_version})),
            &format!("job restore {name} {from_version}"),
        ),
    })
}

/// The fields that an edit changed, in one line.
fn changes_summary(changes: &[Change], t: &Texts) -> String {
    let mut fields: Vec<&str> = changes
        .iter()
        .map(|change| change.pointer.trim_start_matches('/').split('/').next().unwrap_or_default())
        .collect();
    fields.dedup();
    let field_list = fields.iter().take(NAMED_FIELD_COUNT).copied().collect::<Vec<_>>().join(t.list_separator);
    match fields.len() {
        0 => t.versions_same.to_owned(),
        count if count > NAMED_FIELD_COUNT => format!("{field_list} +{}", count - NAMED_FIELD_COUNT),
        _ => field_list,
    }
}

/// Saves an earlier version as the newest one.
pub(super) async fn restore(
    page: Page,
    Named(name, ..): Named<path::Job>,
    fields: Fields,
) -> Result<Response, Problem> {
    let version = fields.get("version").parse().unwrap_or_default();
    // The restore fails if another edit was saved after the page was shown.
    let shown_version = fields.get("newest").parse::<i64>().map_or(IfMatch::Any, |newest| IfMatch::OneOf(vec![newest]));
    let record_after = restore_version(&page.call, &name, &shown_version, version).await?;
    page.call.note.changed_to(&record_after.spec);
    Ok(redirect_to(&format!("/jobs/{name}/versions")))
}
