//! Child jobs: in XXL-JOB a parent names its children, in Rondel a child names its parents.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use rondel_core::schedule::PARENT_COUNT_MAX;
use serde_json::{Value, json};

use super::context::{ImportContext, JobDraft};
use super::tables::text;
use crate::import::dump::Row;
use crate::import::result::Outcome::{self, Changed, Kept, NotNeeded, NotSupported};
use crate::import::result::definition_errors;

/// Sets the parents of children, and records the outcome for `child_jobid` and `trigger_status`.
pub(super) fn set_parents(drafts: &mut [JobDraft<'_>], context: &ImportContext<'_>) {
    let index_by_id: HashMap<&str, usize> = drafts.iter().enumerate().map(|(index, draft)| (draft.id, index)).collect();
    let is_accepted: Vec<bool> = drafts
        .iter()
        .map(|draft| draft.job.as_ref().is_ok_and(|job| definition_errors(&Value::Object(job.clone())).is_empty()))
        .collect();
    // Parents, keyed by the index of their child.
    let mut parents: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for parent in 0..drafts.len() {
        let Some(child_ids) = drafts[parent].row.get("child_jobid").cloned() else { continue };
        let mut link_outcomes: Vec<(Outcome, String)> = Vec::new();
        for id in child_ids.split(',').map(str::trim).filter(|id| !id.is_empty()) {
            link_outcomes.push(match index_by_id.get(id).copied() {
                None => (NotNeeded, format!("{id}: there is no such job, and XXL-JOB skips it")),
                Some(child) if child == parent => (NotNeeded, format!("{id}: itself, which XXL-JOB skips")),
                Some(child) => {
                    let name = context.names.get(id).map_or("", String::as_str);
                    let child_parents = parents.get(&child).map_or(&[][..], Vec::as_slice);
                    if !is_accepted[child] || !is_accepted[parent] {
                        (NotSupported, format!("{id}: one of the two jobs is left out"))
                    } else if has_own_schedule(&drafts[child]) {
                        (NotSupported, own_schedule_text(drafts[child].row, name))
                    } else if child_parents.contains(&parent) {
                        (NotNeeded, format!("{id}: named twice"))
                    } else if is_follower_of(&parents, parent, child) {
                        (NotSupported, format!("{name} would close a circle of jobs"))
                    } else if child_parents.len() >= PARENT_COUNT_MAX {
                        (NotSupported, format!("{name} follows from {PARENT_COUNT_MAX} jobs already"))
                    } else {
                        parents.entry(child).or_default().push(parent);
                        link_outcome(&drafts[parent], name)
                    }
                }
            });
        }
        let worst_outcome = [NotSupported, Changed, Kept, NotNeeded]
            .into_iter()
            .find(|outcome| link_outcomes.iter().any(|(line_outcome, _)| line_outcome == outcome));
        let counterparts: Vec<String> = link_outcomes.into_iter().map(|(_, counterpart)| counterpart).collect();
        let counterpart = if counterparts.is_empty() { "names no job".to_owned() } else { counterparts.join("; ") };
        drafts[parent].entry.record_field("child_jobid", &child_ids, worst_outcome.unwrap_or(NotNeeded), counterpart);
    }
    let names: Vec<String> =
        drafts.iter().map(|draft| context.names.get(draft.id).cloned().unwrap_or_default()).collect();
    for (child, draft) in drafts.iter_mut().enumerate() {
        let parent_names: Vec<&str> =
            parents.get(&child).into_iter().flatten().map(|parent| names[*parent].as_str()).collect();
        set_job_parents(draft, &parent_names);
    }
    leave_out_promoted(drafts, &parents);
}

/// Leaves out the jobs that `rondel shadow promote` has switched over, and the jobs that follow them. These jobs are stopped
/// in XXL-JOB because they run in Rondel. Their imported definitions would stop them in Rondel too.
fn leave_out_promoted(drafts: &mut [JobDraft<'_>], parents: &BTreeMap<usize, Vec<usize>>) {
    let mut promoted_indexes: BTreeSet<usize> =
        (0..drafts.len()).filter(|index| is_promoted(drafts[*index].row)).collect();
    loop {
        let follower_of_promoted = |(child, parent_indexes): (&usize, &Vec<usize>)| {
            parent_indexes.iter().any(|parent| promoted_indexes.contains(parent)).then_some(*child)
        };
        let child_indexes: BTreeSet<usize> =
            parents.iter().filter_map(follower_of_promoted).filter(|child| !promoted_indexes.contains(child)).collect();
        if child_indexes.is_empty() {
            break;
        }
        promoted_indexes.extend(child_indexes);
    }
    for index in promoted_indexes {
        let draft = &mut drafts[index];
        if draft.job.is_ok() {
            draft.job = Err("it was switched over by rondel shadow promote, and stays as it is here".to_owned());
        }
    }
}

/// Whether a promotion stopped the job. A promotion leaves the next instant in the row; XXL-JOB itself sets it to 0
/// when it stops a job.
fn is_promoted(row: &Row) -> bool {
    let column_number = |column| text(row, column).and_then(|text| text.parse::<i64>().ok()).unwrap_or(0);
    column_number("trigger_status") == 0 && column_number("trigger_next_time") > 0
}

fn is_running(row: &Row) -> bool {
    text(row, "trigger_status").map(str::trim) == Some("1")
}

/// Whether a job has a schedule in addition to its parents. Before version 2.3 every job had to have a schedule. In
/// these versions the schedule of a stopped job does not count, because XXL-JOB does not fire the job by it.
fn has_own_schedule(draft: &JobDraft<'_>) -> bool {
    let is_unused = !is_running(draft.row) && !draft.row.contains_key("schedule_type");
    !is_unused && draft.job.as_ref().is_ok_and(|job| job.contains_key("schedule"))
}

/// The advice for a child with a schedule.
fn own_schedule_text(row: &Row, name: &str) -> String {
    match is_running(row) {
        true => format!(
            "{name} has a schedule of its own, and a job has a schedule or follows from others: make two jobs of it"
        ),
        false => format!(
            "{name} has a schedule, which is stopped there, and a job has a schedule or follows from others: give it the schedule type NONE there, \
             and import again"
        ),
    }
}

fn link_outcome(parent: &JobDraft<'_>, name: &str) -> (Outcome, String) {
    if text(parent.row, "executor_route_strategy") == Some("SHARDING_BROADCAST") {
        return (Changed, format!("{name} ran after each shard that succeeded: here once, after all of them"));
    }
    (Kept, format!("{name} has it in schedule.after"))
}

/// Sets the parents of a job, and whether it is enabled.
fn set_job_parents(draft: &mut JobDraft<'_>, parent_names: &[&str]) {
    let (status, is_started) = (draft.row.get("trigger_status").cloned(), is_running(draft.row));
    // XXL-JOB cannot start a job without a schedule, but its users can still trigger the job.
    let has_schedule = draft.job.as_ref().is_ok_and(|job| job.contains_key("schedule"));
    let (outcome, counterpart) = match (is_started, parent_names.is_empty()) {
        (true, _) => (Kept, "enabled"),
        // XXL-JOB ignores the status of a child.
        (false, false) => (Changed, "enabled: a stopped child runs after its parents there, too"),
        (false, true) if !has_schedule => {
            (Kept, "enabled: without a schedule it only runs when it is triggered, as there")
        }
        (false, true) => (Kept, "not enabled"),
    };
    if parent_names.len() > 1 {
        draft.entry.note_change(format!(
            "ran after each of {}: here once for each fire that they share, after all of them",
            parent_names.join(", ")
        ));
    }
    if let Ok(job) = &mut draft.job {
        job.insert("enabled".to_owned(), (is_started || !parent_names.is_empty() || !has_schedule).into());
        if !parent_names.is_empty() {
            let replaced_schedule = job.insert("schedule".to_owned(), json!({"after": parent_names, "on": "success"}));
            if let (Some(_), Some(cron)) = (replaced_schedule, draft.row.get("job_cron")) {
                draft.entry.fields.retain(|field| field.name != "job_cron");
                draft.entry.record_field(
                    "job_cron",
                    cron,
                    Changed,
                    "is left out: it is stopped there, where each job has one, and the job only follows from others",
                );
            }
        }
    }
    if let Some(status) = status {
        draft.entry.record_field("trigger_status", &status, outcome, counterpart);
    }
}

/// Whether `job` follows `other_job`, directly or through other jobs.
fn is_follower_of(parents: &BTreeMap<usize, Vec<usize>>, job: usize, other_job: usize) -> bool {
    let (mut unseen_jobs, mut seen_jobs) = (vec![job], std::collections::HashSet::new());
    while let Some(current_job) = unseen_jobs.pop() {
        if current_job == other_job {
            return true;
        }
        if seen_jobs.insert(current_job) {
            unseen_jobs.extend(parents.get(&current_job).into_iter().flatten());
        }
    }
    false
}
