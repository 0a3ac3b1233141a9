//! How calendars refer to one another, and the expansion of their rules.

use std::collections::{BTreeMap, BTreeSet};

use crate::calendars;
use rondel_core::calendar::{Calendar, CalendarSpec, RULE_COUNT_MAX};
use rondel_core::{FieldError, NamespaceId};
use rondel_store::StoreError;
use rondel_store::calendars::{CalendarChange, CalendarSaved};

use super::{CALENDAR_COUNT_MAX, CalendarError, PAGE};
use crate::node::Node;

/// Maximum number of rounds of [`expand_until_settled`]. The healing loop finishes calendars that still change after the last round.
const ROUND_COUNT_MAX: usize = 5;

pub(super) type NamedCalendars = BTreeMap<String, CalendarSpec>;

/// The calendars of a namespace, keyed by their names, each with the names of the calendars to which its rule refers.
#[derive(Debug, Default)]
pub(crate) struct Composition(BTreeMap<String, Vec<String>>);

impl Composition {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// The names of the calendars whose rules refer to the calendar `name` directly, not only through other calendars.
    pub(super) fn direct_dependents(&self, name: &str) -> Vec<String> {
        let refers_to_it = |parts: &Vec<String>| parts.iter().any(|part| part == name);
        self.0.iter().filter(|(_, parts)| refers_to_it(parts)).map(|(name, _)| name.clone()).collect()
    }

    /// The names of the calendars that depend on the calendar `name`, directly or through others.
    pub(super) fn all_dependents(&self, name: &str) -> Vec<String> {
        let mut dependents = BTreeSet::new();
        let mut names_to_read = vec![name.to_owned()];
        while let Some(part) = names_to_read.pop() {
            names_to_read.extend(
                self.direct_dependents(&part).into_iter().filter(|composed| dependents.insert(composed.clone())),
            );
        }
        dependents.into_iter().collect()
    }

    /// The names of the calendars whose rules refer to other calendars.
    pub(crate) fn composed_calendars(&self) -> Vec<String> {
        self.0.iter().filter(|(_, parts)| !parts.is_empty()).map(|(name, _)| name.clone()).collect()
    }
}

pub(crate) async fn composition(node: &Node, namespace: NamespaceId) -> Result<Composition, StoreError> {
    let mut parts_by_name = BTreeMap::new();
    let mut after_name: Option<String> = None;
    // Concurrent saves may have exceeded the limit, so up to twice that number of calendars is read.
    while parts_by_name.len() < 2 * CALENDAR_COUNT_MAX {
        let page = node.store().calendars(namespace, after_name.as_deref(), PAGE).await?;
        let Some(last_record) = page.last() else { break };
        after_name = Some(last_record.spec.name.clone());
        let part_names = |spec: &CalendarSpec| spec.named_calendars().into_iter().map(str::to_owned).collect();
        parts_by_name.extend(page.iter().map(|record| (record.spec.name.clone(), part_names(&record.spec))));
    }
    Ok(Composition(parts_by_name))
}

/// The calendars that the spec depends on, directly or through others, keyed by their names. A name that no calendar has is left out.
/// `replacement` replaces the saved calendar with the same name. Fails if the spec depends on more than [`RULE_COUNT_MAX`] names.
pub(super) async fn read_dependencies(
    node: &Node,
    namespace: NamespaceId,
    spec: &CalendarSpec,
    replacement: Option<&CalendarSpec>,
) -> Result<NamedCalendars, CalendarError> {
    let mut parts = NamedCalendars::new();
    let mut names_to_read: Vec<String> = spec.named_calendars().into_iter().map(str::to_owned).collect();
    let mut seen_names: BTreeSet<String> = names_to_read.iter().cloned().collect();
    while let Some(part_name) = names_to_read.pop() {
        if seen_names.len() > RULE_COUNT_MAX {
            let message = format!("is made of more than {RULE_COUNT_MAX} calendars");
            return Err(CalendarError::Invalid(vec![FieldError::new("/rule", message)]));
        }
        let part_spec = match replacement.filter(|replacement| replacement.name == part_name) {
            Some(replacement) => Some(replacement.clone()),
            None => calendars::find(node, namespace, &part_name).await?.map(|record| record.spec),
        };
        let Some(part_spec) = part_spec else { continue };
        names_to_read.extend(
            part_spec.named_calendars().into_iter().map(str::to_owned).filter(|part| seen_names.insert(part.clone())),
        );
        parts.insert(part_name, part_spec);
    }
    Ok(parts)
}

/// Expands and saves the named calendars whose parts have changed, and repeats this until all match their parts, at most [`ROUND_COUNT_MAX`]
/// times. Returns the number of saves.
pub(crate) async fn expand_until_settled(
    node: &Node,
    namespace: NamespaceId,
    names: &[String],
) -> Result<u64, CalendarError> {
    let mut count = 0;
    for _ in 0..ROUND_COUNT_MAX {
        let mut is_settled = true;
        for name in names {
            match expand_one(node, namespace, name).await? {
                ExpandResult::Unchanged => {}
                ExpandResult::Saved => (count, is_settled) = (count + 1, false),
                ExpandResult::Lost => is_settled = false,
            }
        }
        if is_settled {
            break;
        }
    }
    Ok(count)
}

async fn expand_one(node: &Node, namespace: NamespaceId, name: &str) -> Result<ExpandResult, CalendarError> {
    let Some(record) = calendars::find(node, namespace, name).await? else { return Ok(ExpandResult::Unchanged) };
    let parts = read_dependencies(node, namespace, &record.spec, None).await?;
    let part_rule = |name: &str| parts.get(name).cloned();
    if let Err(errors) = Calendar::compile(&record.spec, part_rule) {
        // A part was deleted, or the parts became circular, while this calendar was being saved.
        let error = errors.first().map(ToString::to_string).unwrap_or_default();
        tracing::warn!(calendar = name, error, "the calendar is not changed: its parts no longer fit together");
        return Ok(ExpandResult::Unchanged);
    }
    let expansion = record.spec.expanded(part_rule);
    if expansion == record.expanded_rule {
        return Ok(ExpandResult::Unchanged);
    }
    let change = CalendarChange {
        id: record.id,
        namespace,
        expected_version: Some(record.version),
        spec: &record.spec,
        expanded_rule: &expansion,
        author: "calendar",
        now: node.now(),
    };
    match node.store().save_calendar(change).await? {
        CalendarSaved::Created(_) | CalendarSaved::Changed(_) => Ok(ExpandResult::Saved),
        CalendarSaved::Conflict(_) => Ok(ExpandResult::Lost),
    }
}

/// Result of expanding one calendar.
enum ExpandResult {
    /// Nothing was saved: the calendar already matches its parts, its parts no longer fit together, or it no longer exists.
    Unchanged,
    /// A new expansion was saved.
    Saved,
    /// Another caller changed the calendar first.
    Lost,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calendars_are_followed_through_one_another() {
        let parts = |parts: &[&str]| parts.iter().map(|part| (*part).to_owned()).collect();
        let composition = Composition(BTreeMap::from([
            ("days".to_owned(), Vec::new()),
            ("work".to_owned(), parts(&["days"])),
            ("night".to_owned(), parts(&["work", "days"])),
            ("other".to_owned(), Vec::new()),
        ]));
        assert_eq!(composition.direct_dependents("work"), ["night"]);
        assert_eq!(composition.all_dependents("days"), ["night", "work"]);
        assert_eq!(composition.composed_calendars(), ["night", "work"]);
        assert!(composition.all_dependents("other").is_empty());
    }
}
