//! Jobs that are declared in code: which declaration counts, and what it does to a job that exists.
//!
//! Executors of one build declare the same set of jobs. During a deployment executors of two builds live side by side, and each sends its
//! own set at every hello. These rules keep a job from changing back and forth:
//!
//! - The age of a declaration (a job's name with the text of its definition) counts from the first set that contained
//!   it. Sending it again does not make it younger.
//! - Of the declarations of living executors, the youngest counts. The first executor of a new build brings a change; one of
//!   the old build that reconnects or restarts does not revert it.
//! - A rollback to an old build takes effect once the last executor of the new build is gone.
//!
//! Edits by users take precedence: see [`declaration_step`].

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::spec::JobSpec;
use crate::time::Timestamp;

/// The jobs that executors of one build declare.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeclaredJobs {
    /// When this set was first seen.
    pub first_seen_at: Timestamp,
    /// When this set was last seen with a living executor.
    pub last_seen_at: Timestamp,
    /// The text of each job's definition, keyed by the job's name.
    pub jobs: BTreeMap<String, String>,
}

/// The declarations that count, out of several sets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EffectiveDeclarations {
    /// The text of the declaration that counts, for each job that living executors declare.
    pub jobs: BTreeMap<String, String>,
    /// Jobs that were declared before, and that no living executor declares. Empty while no executor lives.
    pub gone: BTreeSet<String>,
}

/// Decides which declarations count. Sets last seen before `living_since` have no living executor; they still determine the age of a
/// declaration.
///
/// ```
/// use rondel_core::Timestamp;
/// use rondel_core::declared::{DeclaredJobs, effective_declarations};
///
/// let set = |first, last, text: &str| DeclaredJobs {
///     first_seen_at: Timestamp::from_secs(first),
///     last_seen_at: Timestamp::from_secs(last),
///     jobs: [("report".to_owned(), text.to_owned())].into(),
/// };
/// let both = [set(10, 100, "old"), set(90, 100, "new")];
/// assert_eq!(effective_declarations(&both, Timestamp::from_secs(95)).jobs["report"], "new");
/// ```
#[must_use]
pub fn effective_declarations(sets: &[DeclaredJobs], living_since: Timestamp) -> EffectiveDeclarations {
    let mut first_seen_by_declaration: BTreeMap<(&str, &str), Timestamp> = BTreeMap::new();
    for set in sets {
        for (name, text) in &set.jobs {
            let first_seen_at = first_seen_by_declaration.entry((name, text)).or_insert(set.first_seen_at);
            *first_seen_at = (*first_seen_at).min(set.first_seen_at);
        }
    }
    let living_sets: Vec<&DeclaredJobs> = sets.iter().filter(|set| set.last_seen_at >= living_since).collect();
    if living_sets.is_empty() {
        return EffectiveDeclarations::default();
    }
    let mut youngest_declarations: BTreeMap<&str, (Timestamp, &str)> = BTreeMap::new();
    for (name, text) in living_sets.iter().flat_map(|set| &set.jobs) {
        // Of two declarations with the same age, every node must choose the same one: the greater text.
        let first_seen_and_text = (first_seen_by_declaration[&(name.as_str(), text.as_str())], text.as_str());
        let youngest_declaration = youngest_declarations.entry(name).or_insert(first_seen_and_text);
        *youngest_declaration = (*youngest_declaration).max(first_seen_and_text);
    }
    let gone_names =
        sets.iter().flat_map(|set| set.jobs.keys()).filter(|name| !youngest_declarations.contains_key(name.as_str()));
    EffectiveDeclarations {
        gone: gone_names.cloned().collect(),
        jobs: youngest_declarations.into_iter().map(|(name, (_, text))| (name.to_owned(), text.to_owned())).collect(),
    }
}

/// The effect of a declaration on an existing job.
#[derive(Clone, Debug, PartialEq)]
pub enum DeclarationStep {
    /// No effect: the declaration has not changed.
    Nothing,
    /// The declaration is stored; the definition stays as it is.
    Remember,
    /// The declaration becomes the definition, and is stored.
    Change(Box<JobSpec>),
}

/// Decides what a declaration does to a job with the definition `current`; `before` is the previous declaration.
///
/// The definition follows the declaration while no user has edited it, that is, while it equals the previous declaration. A pause or a
/// resumption is not such an edit: a paused job still gets its new schedule, and stays paused.
#[must_use]
pub fn declaration_step(current: &JobSpec, before: Option<&JobSpec>, declared: &JobSpec) -> DeclarationStep {
    let Some(before) = before else { return DeclarationStep::Remember };
    if before == declared {
        return DeclarationStep::Nothing;
    }
    if current == declared || !drift(current, before).is_empty() {
        return DeclarationStep::Remember;
    }
    let enabled = if current.enabled == before.enabled { declared.enabled } else { current.enabled };
    DeclarationStep::Change(Box::new(JobSpec { enabled, ..declared.clone() }))
}

/// The names of the fields in which a definition differs from its declaration in code. `enabled` is left out: a pause is not an edit.
#[must_use]
pub fn drift(current: &JobSpec, declared: &JobSpec) -> Vec<String> {
    let (current_fields, declared_fields) = (fields(current), fields(declared));
    let names: BTreeSet<&String> = current_fields.keys().chain(declared_fields.keys()).collect();
    let is_edited = |name: &&String| *name != "enabled" && current_fields.get(*name) != declared_fields.get(*name);
    names.into_iter().filter(is_edited).cloned().collect()
}

fn fields(spec: &JobSpec) -> serde_json::Map<String, Value> {
    match serde_json::to_value(spec) {
        Ok(Value::Object(fields)) => fields,
        // A definition always serializes to an object.
        Ok(_) | Err(_) => serde_json::Map::new(),
    }
}

/// Sorts jobs so that parents come before their children. The jobs of a cycle, and all jobs below them, come last, in the order of their
/// names.
#[must_use]
pub fn parents_first(specs: Vec<JobSpec>) -> Vec<JobSpec> {
    let mut specs_by_name: BTreeMap<String, JobSpec> =
        specs.into_iter().map(|spec| (spec.name.clone(), spec)).collect();
    let ordered_names = names_in_order(&specs_by_name);
    let mut ordered_specs: Vec<JobSpec> = ordered_names.iter().filter_map(|name| specs_by_name.remove(name)).collect();
    ordered_specs.extend(specs_by_name.into_values());
    ordered_specs
}

/// The names of jobs, each after its parents. The jobs of a cycle and all jobs below them are left out. The work grows with the number of
/// edges, not with the length of the chains.
fn names_in_order(specs: &BTreeMap<String, JobSpec>) -> Vec<String> {
    let mut open_parent_counts: BTreeMap<&str, usize> = BTreeMap::new();
    let mut children: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, spec) in specs {
        let parent_names: BTreeSet<&str> =
            parents(spec).map(String::as_str).filter(|parent| specs.contains_key(*parent)).collect();
        open_parent_counts.insert(name, parent_names.len());
        for parent in parent_names {
            children.entry(parent).or_default().push(name);
        }
    }
    let mut ordered_names = Vec::with_capacity(specs.len());
    let mut free_names: BTreeSet<&str> =
        open_parent_counts.iter().filter(|(_, count)| **count == 0).map(|(name, _)| *name).collect();
    while !free_names.is_empty() {
        let next_names = std::mem::take(&mut free_names);
        for child in next_names.iter().flat_map(|name| children.get(name).into_iter().flatten()) {
            let Some(count) = open_parent_counts.get_mut(child) else { continue };
            *count -= 1;
            if *count == 0 {
                free_names.insert(child);
            }
        }
        ordered_names.extend(next_names.into_iter().map(str::to_owned));
    }
    ordered_names
}

fn parents(spec: &JobSpec) -> impl Iterator<Item = &String> {
    spec.schedules().into_iter().filter_map(|(_, schedule)| schedule.after.as_ref()).flatten()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn spec(change: &Value) -> JobSpec {
        let mut spec = json!({"name": "a", "app": "b", "handler": "c"});
        for (key, value) in change.as_object().unwrap() {
            spec[key] = value.clone();
        }
        serde_json::from_value(spec).unwrap()
    }

    fn set(first: i64, last: i64, jobs: &[(&str, &str)]) -> DeclaredJobs {
        let jobs = jobs.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
        DeclaredJobs { first_seen_at: Timestamp::from_secs(first), last_seen_at: Timestamp::from_secs(last), jobs }
    }

    #[track_caller]
    fn check_effective(sets: &[DeclaredJobs], wanted: &[(&str, &str)], gone: &[&str]) {
        let found = effective_declarations(sets, Timestamp::from_secs(100));
        let jobs: Vec<_> = found.jobs.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
        assert_eq!(
            (jobs.as_slice(), found.gone.iter().map(String::as_str).collect::<Vec<_>>()),
            (wanted, gone.to_vec())
        );
    }

    #[test]
    fn a_rolling_deploy_does_not_flap() {
        let old = |last| set(10, last, &[("a", "1"), ("b", "1")]);
        let new = |last| set(90, last, &[("a", "2"), ("c", "1")]);
        check_effective(&[old(100)], &[("a", "1"), ("b", "1")], &[]);
        // Executors of both builds live, and those of either build may have been seen last: the younger text counts, and nothing is gone.
        check_effective(&[old(120), new(100)], &[("a", "2"), ("b", "1"), ("c", "1")], &[]);
        check_effective(&[new(100), old(130)], &[("a", "2"), ("b", "1"), ("c", "1")], &[]);
        // The executors of the old build have left.
        check_effective(&[old(99), new(100)], &[("a", "2"), ("c", "1")], &["b"]);
        // A rollback counts once the executors of the new build have left.
        check_effective(&[old(130), new(99)], &[("a", "1"), ("b", "1")], &["c"]);
        check_effective(&[old(99), new(99)], &[], &[]);
    }

    #[test]
    fn a_text_is_as_old_as_the_first_set_with_it() {
        // The third build adds job `b`, and declares job `a` as the first build did.
        let sets = [set(10, 99, &[("a", "1")]), set(20, 100, &[("a", "2")]), set(30, 100, &[("a", "1"), ("b", "1")])];
        check_effective(&sets, &[("a", "2"), ("b", "1")], &[]);
    }

    #[test]
    fn a_build_without_jobs_takes_them_away() {
        check_effective(&[set(10, 99, &[("a", "1")]), set(20, 100, &[])], &[], &["a"]);
    }

    #[test]
    fn edits_by_users_win() {
        let before = spec(&json!({"schedule": {"every": "1m"}}));
        let declared = spec(&json!({"schedule": {"every": "2m"}, "timeout": "1m"}));
        let edited = spec(&json!({"schedule": {"every": "3m"}}));
        let paused = spec(&json!({"schedule": {"every": "1m"}, "enabled": false}));
        let change = |spec: &JobSpec| DeclarationStep::Change(Box::new(spec.clone()));
        for (current, before, wanted) in [
            (&before, Some(&before), change(&declared)),
            (&paused, Some(&before), change(&JobSpec { enabled: false, ..declared.clone() })),
            (&edited, Some(&before), DeclarationStep::Remember),
            (&declared, Some(&before), DeclarationStep::Remember),
            (&edited, Some(&declared), DeclarationStep::Nothing),
            // A user created the job before code declared it.
            (&before, None, DeclarationStep::Remember),
        ] {
            assert_eq!(declaration_step(current, before, &declared), wanted, "{current:?}");
        }
        assert_eq!(drift(&edited, &declared), ["schedule", "timeout"]);
        assert!(drift(&edited, &edited).is_empty() && drift(&paused, &before).is_empty());
    }

    #[test]
    fn parents_come_before_their_children() {
        let job = |name: &str, parents: &[&str]| {
            let schedule = if parents.is_empty() { json!(null) } else { json!({ "after": parents }) };
            spec(&json!({"name": name, "schedule": schedule}))
        };
        let specs =
            vec![job("a", &["c", "elsewhere"]), job("b", &["a"]), job("c", &[]), job("x", &["y"]), job("y", &["x"])];
        let names: Vec<String> = parents_first(specs).into_iter().map(|spec| spec.name).collect();
        assert_eq!(names, ["c", "a", "b", "x", "y"]);
    }

    #[test]
    fn names_come_after_all_of_their_parents() {
        let spec = |name: &str, parents: &[&str]| {
            let mut spec = serde_json::json!({"name": name, "app": "b", "handler": "c"});
            if !parents.is_empty() {
                spec["schedule"] = serde_json::json!({"after": parents});
            }
            (name.to_owned(), serde_json::from_value::<JobSpec>(spec).unwrap())
        };
        // `a` has two parents, and one of these has a parent itself.
        let specs = BTreeMap::from([
            spec("a", &["b", "c"]),
            spec("b", &["d"]),
            spec("c", &[]),
            spec("d", &[]),
            spec("x", &["y"]),
            spec("y", &["x"]),
        ]);
        assert_eq!(names_in_order(&specs), ["c", "d", "b", "a"]);
    }
}
