//! The picker of roles: rows with a role and a place, each selected from a list.

use rondel_core::access::{Permission, Role};

use super::account::parse_grant_lines;
use super::form::Fields;
use super::texts::Texts;
use crate::call::{GlobalCall, visible_namespaces};
use crate::grants::GrantJson;
use crate::problem::Problem;

/// Maximum number of places in the list.
const PLACE_COUNT_MAX: usize = 500;
/// Maximum number of rows in a form.
const ROW_COUNT_MAX: usize = 100;
const FIELD_PREFIX: &str = "grant.";

/// A role at a place, as the user selected it. A row without a role is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct GrantRow {
    pub(super) role: String,
    /// `namespace`, `namespace/app`, or empty for everywhere.
    pub(super) place: String,
    pub(super) is_invalid: bool,
}

/// The rows, and the roles and places that they offer.
pub(super) struct GrantPicker {
    pub(super) rows: Vec<GrantRow>,
    /// The roles with their names.
    pub(super) roles: Vec<(&'static str, &'static str)>,
    /// The places with their names.
    pub(super) places: Vec<(String, String)>,
}

/// The roles and places to offer. A page with many pickers reads them once.
pub(super) struct GrantChoices {
    roles: Vec<(&'static str, &'static str)>,
    places: Vec<(String, String)>,
}

impl GrantChoices {
    pub(super) async fn read<Q>(call: &GlobalCall<Q>, t: &'static Texts) -> Result<Self, Problem> {
        let engine = call.engine();
        let mut places = vec![(String::new(), t.place_everywhere.to_owned())];
        for namespace in visible_namespaces(engine, &call.caller).await? {
            places.push((namespace.name.clone(), t.place_namespace(&namespace.name)));
            let mut apps = engine.store().apps(namespace.id).await?;
            apps.retain(|app| call.caller.rights.allow(Permission::View, namespace.id, Some(app.id)));
            for app in apps {
                let app_path = format!("{}/{}", namespace.name, app.name);
                places.push((app_path.clone(), app_path));
            }
        }
        places.truncate(PLACE_COUNT_MAX);
        Ok(Self { roles: role_choices(t).to_vec(), places })
    }

    /// Leaves out the role that only tokens can have.
    pub(super) fn for_users(mut self) -> Self {
        self.roles.retain(|(word, _)| *word != Role::Executor.as_str());
        self
    }

    /// A picker with these rows and one empty row.
    pub(super) fn picker(&self, mut rows: Vec<GrantRow>) -> GrantPicker {
        if rows.last().is_none_or(|last| !last.role.is_empty()) {
            rows.push(GrantRow::default());
        }
        let mut places = self.places.clone();
        for row in &rows {
            // A selected place remains selected, even if it no longer exists or is beyond [`PLACE_COUNT_MAX`].
            if !places.iter().any(|(value, _)| *value == row.place) {
                places.push((row.place.clone(), row.place.clone()));
            }
        }
        GrantPicker { rows, roles: self.roles.clone(), places }
    }
}

/// The roles with their names.
pub(super) const fn role_choices(t: &Texts) -> [(&'static str, &'static str); 5] {
    [
        (Role::Viewer.as_str(), t.role_viewer),
        (Role::Operator.as_str(), t.role_operator),
        (Role::Editor.as_str(), t.role_editor),
        (Role::Admin.as_str(), t.role_admin),
        (Role::Executor.as_str(), t.role_executor),
    ]
}

pub(super) fn grant_text(grant: &GrantJson, t: &Texts) -> String {
    let role = role_choices(t).into_iter().find(|(word, _)| *word == grant.role.as_str()).map_or("", |(_, name)| name);
    match place_text(grant).as_str() {
        "" => format!("{role} · {}", t.place_everywhere),
        place => format!("{role} · {place}"),
    }
}

fn place_text(grant: &GrantJson) -> String {
    match (&grant.namespace, &grant.app) {
        (Some(namespace), Some(app)) => format!("{namespace}/{app}"),
        (Some(namespace), None) => namespace.clone(),
        (None, _) => String::new(),
    }
}

pub(super) fn rows_of_grants(grants: &[GrantJson]) -> Vec<GrantRow> {
    let row =
        |grant: &GrantJson| GrantRow { role: grant.role.to_string(), place: place_text(grant), is_invalid: false };
    grants.iter().map(row).collect()
}

/// The rows of a submitted form; `None` if the form has no picker.
pub(super) fn sent_rows(fields: &Fields) -> Option<Vec<GrantRow>> {
    let mut rows: Vec<GrantRow> = Vec::new();
    let mut has_picker = false;
    for (name, value) in fields.with_prefix(FIELD_PREFIX) {
        has_picker = true;
        let Some((index, part)) = name[FIELD_PREFIX.len()..].split_once('.') else { continue };
        let Some(index) = index.parse::<usize>().ok().filter(|index| *index < ROW_COUNT_MAX) else { continue };
        if rows.len() <= index {
            rows.resize(index + 1, GrantRow::default());
        }
        match part {
            "role" => value.trim().clone_into(&mut rows[index].role),
            "place" => value.trim().clone_into(&mut rows[index].place),
            _ => {}
        }
    }
    rows.retain(|row| !row.role.is_empty());
    has_picker.then_some(rows)
}

/// The grants in a submitted form, from its picker or from its lines of text; `None` if it has neither.
pub(super) fn sent_grants(fields: &Fields) -> Result<Option<Vec<GrantJson>>, Problem> {
    let Some(rows) = sent_rows(fields) else { return fields.get_if_sent("grants").map(parse_grant_lines).transpose() };
    let line = |row: &GrantRow| format!("{} {}", row.role, row.place);
    parse_grant_lines(&rows.iter().map(line).collect::<Vec<_>>().join("\n")).map(Some)
}

/// Marks the rows to which a problem refers. Returns whether there are any.
pub(super) fn mark_wrong_rows(rows: &mut [GrantRow], problem: &Problem) -> bool {
    let mut is_marked = false;
    let pointers = problem.complaints().iter().filter_map(|complaint| complaint.pointer.as_deref());
    for pointer in pointers.chain([problem.detail()]) {
        let index = pointer
            .strip_prefix("/grants/")
            .and_then(|pointer_in_grants| pointer_in_grants.split(['/', ':']).next()?.parse::<usize>().ok());
        if let Some(row) = index.and_then(|index| rows.get_mut(index)) {
            row.is_invalid = true;
            is_marked = true;
        }
    }
    is_marked
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read_and_empty_ones_left_out() {
        let fields = Fields::from([
            ("grant.0.role", "operator"),
            ("grant.0.place", "default/billing"),
            ("grant.1.role", ""),
            ("grant.1.place", "default"),
            ("grant.2.role", "viewer"),
            ("grant.2.place", ""),
            ("grant.999999.role", "admin"),
        ]);
        let grants = sent_grants(&fields).unwrap().unwrap();
        assert_eq!(
            grants.iter().map(super::super::account::grant_line).collect::<Vec<_>>(),
            ["operator default/billing", "viewer"]
        );
        assert_eq!(sent_grants(&Fields::from([])).unwrap().map(|grants| grants.len()), None);
        let lines = Fields::from([("grants", "viewer default")]);
        assert_eq!(sent_grants(&lines).unwrap().map(|grants| grants.len()), Some(1));
    }

    #[test]
    fn a_problem_is_shown_at_its_row() {
        let mut rows = vec![GrantRow::default(), GrantRow::default()];
        assert!(mark_wrong_rows(&mut rows, &crate::body::refuse_value("/grants/1/app", "there is no app x")));
        assert!(!rows[0].is_invalid && rows[1].is_invalid);
        assert!(!mark_wrong_rows(&mut rows, &crate::body::refuse_value("/name", "is empty")));
    }
}
