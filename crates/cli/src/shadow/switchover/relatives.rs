//! Jobs that follow others: a child fires on the side on which its parents fire.
//!
//! In XXL-JOB a parent triggers its children regardless of their status. In Rondel a run in shadow mode triggers no
//! children, and a child in shadow mode sends nothing. Therefore one command switches parents and children together, or none
//! of them.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::join_all;
use rondel_store::foreign::xxl_job::JobStatus;
use serde_json::Value;

use super::job::{CALL_COUNT_MAX, Direction, Job, Relative, Switchover};
use crate::client::Client;
use crate::exit::{Exit, Failure};
use crate::shadow::jobs::{self, NUMBER_LABEL};

/// How many names a sentence lists.
const NAME_COUNT_MAX: usize = 10;

/// The parents and children of these jobs, keyed by name, except the jobs themselves and deleted jobs.
pub(super) async fn read(client: &Client, jobs: &[Job]) -> Result<BTreeMap<String, Relative>, Failure> {
    let job_names: BTreeSet<&String> = jobs.iter().map(|job| &job.name).collect();
    let relative_names = jobs.iter().flat_map(|job| job.parents.iter().chain(&job.children));
    let names: BTreeSet<&String> = relative_names.filter(|name| !job_names.contains(name)).collect();
    let names: Vec<&String> = names.into_iter().collect();
    let mut relatives = BTreeMap::new();
    for chunk in names.chunks(CALL_COUNT_MAX) {
        for (name, relative) in
            chunk.iter().zip(join_all(chunk.iter().map(|name| read_parent_or_child(client, name))).await)
        {
            relatives.extend(relative?.map(|relative| ((*name).clone(), relative)));
        }
    }
    Ok(relatives)
}

async fn read_parent_or_child(client: &Client, name: &str) -> Result<Option<Relative>, Failure> {
    let job: Value = match client.get(&["jobs", name], &[]).await {
        Ok(body) => body.value()?,
        Err(failure) if failure.exit() == Exit::NotFound => return Ok(None),
        Err(failure) => return Err(failure.with_hint("; nothing was changed")),
    };
    Ok(Some(Relative { is_shadow: job["mode"] == "shadow", is_imported: jobs::xxl_number(&job).is_some() }))
}

/// The jobs that are not switched, with the reason.
pub(super) fn refusals(direction: Direction, switch: &Switchover<'_>) -> BTreeMap<String, String> {
    let mut refusals = BTreeMap::new();
    for job in &switch.jobs {
        let reason = own_reason(direction, switch, job).or_else(|| relatives_reason(direction, switch, job));
        refusals.extend(reason.map(|reason| (job.name.clone(), reason)));
    }
    propagate_refusals(direction, &switch.jobs, &mut refusals);
    refusals
}

/// Why a job is not switched, regardless of its relatives.
fn own_reason(direction: Direction, switch: &Switchover<'_>, job: &Job) -> Option<String> {
    let Some(status) = switch.xxl_status.get(&job.number) else {
        return Some(format!("XXL-JOB has no job {}; nothing was changed", job.number));
    };
    if let Some(other_job) =
        switch.jobs.iter().find(|other_job| other_job.number == job.number && other_job.name != job.name)
    {
        return Some(format!(
            "job {} has the same number {} in its label {NUMBER_LABEL}: if the handler was changed in XXL-JOB, the import gave the job a new name; \
             delete the one that the last import did not write",
            other_job.name, job.number
        ));
    }
    if let Some(reason) = pause_reason(direction, job, *status) {
        return Some(reason);
    }
    let (is_shadow, verb) = match direction {
        Direction::Promote => (true, "runs"),
        Direction::Demote => (false, "does not run"),
    };
    let is_not_switched = |name: &&String| {
        let is_switched_job_shadow =
            switch.jobs.iter().find(|other_job| other_job.name == **name).map(|other_job| other_job.is_shadow);
        is_switched_job_shadow.or_else(|| Some(switch.relatives.get(*name)?.is_shadow)) == Some(is_shadow)
    };
    let parents: Vec<&String> = job.parents.iter().filter(is_not_switched).collect();
    if job.has_schedule && !parents.is_empty() {
        return Some(format!(
            "it has a schedule of its own, and follows from {}, which {verb} in XXL-JOB: no instant is right for both. Take one of the \
             two away",
            name_list(&parents)
        ));
    }
    schedule_reason(direction, job, *status)
}

/// Why a pause keeps a job from being switched. A job that is paused in Rondel is switched and stays paused, unless it
/// fires in XXL-JOB: then it is not clear whether it should fire.
fn pause_reason(direction: Direction, job: &Job, status: JobStatus) -> Option<String> {
    match direction {
        _ if job.is_enabled => None,
        _ if job.is_follower() => {
            Some("it is paused here, and XXL-JOB runs a child whatever its status is: resume it first".to_owned())
        }
        Direction::Promote if status.is_running => {
            Some("it is paused here, and runs in XXL-JOB: resume it here, or stop it there first".to_owned())
        }
        Direction::Promote | Direction::Demote => None,
    }
}

/// Refuses a child that XXL-JOB also fires by a schedule: the child would lose the fires of that schedule.
fn schedule_reason(direction: Direction, job: &Job, status: JobStatus) -> Option<String> {
    (direction == Direction::Promote && job.is_follower() && status.is_running).then(|| {
        "XXL-JOB fires it by a schedule too, and here it only follows from others: give it that schedule, or stop it there first".to_owned()
    })
}

/// Why a job is not switched without some of its relatives.
fn relatives_reason(direction: Direction, switch: &Switchover<'_>, job: &Job) -> Option<String> {
    let names_where = |names: &'_ [String], is_match: &dyn Fn(Relative) -> bool| -> Vec<String> {
        names
            .iter()
            .filter(|name| switch.relatives.get(*name).is_some_and(|relative| is_match(*relative)))
            .cloned()
            .collect()
    };
    let parents_in_mode = |is_shadow: bool| names_where(&job.parents, &|relative| relative.is_shadow == is_shadow);
    match direction {
        Direction::Promote => {
            let imported_children = names_where(&job.children, &|relative| relative.is_shadow && relative.is_imported);
            let rondel_children = names_where(&job.children, &|relative| relative.is_shadow && !relative.is_imported);
            let parents = parents_in_mode(true);
            if !imported_children.is_empty() {
                Some(format!(
                    "{} in shadow mode: without {} they would fire on neither side; name them too",
                    children_text(&imported_children),
                    if imported_children.len() == 1 { "it" } else { "them" }
                ))
            } else if !rondel_children.is_empty() {
                Some(format!(
                    "{} in shadow mode, and not of XXL-JOB: set mode: active there first",
                    children_text(&rondel_children)
                ))
            } else if job.is_follower() && !parents.is_empty() {
                Some(format!("it follows from {}, which XXL-JOB runs: name all of these too", name_list(&parents)))
            } else {
                None
            }
        }
        Direction::Demote => {
            let imported_children = names_where(&job.children, &|relative| !relative.is_shadow && relative.is_imported);
            let parents = parents_in_mode(false);
            if !imported_children.is_empty() {
                Some(format!(
                    "{} active here, and XXL-JOB would run them: name them too",
                    children_text(&imported_children)
                ))
            } else if job.is_follower() && !parents.is_empty() {
                Some(format!("it follows from {}, which runs here: name all of these too", name_list(&parents)))
            } else {
                None
            }
        }
    }
}

/// Also refuses the jobs whose parent is not switched and, in a promotion, the jobs whose child is not switched.
pub(super) fn propagate_refusals(direction: Direction, jobs: &[Job], refusals: &mut BTreeMap<String, String>) {
    loop {
        let mut new_refusals = BTreeMap::new();
        for job in jobs.iter().filter(|job| !refusals.contains_key(&job.name)) {
            let is_refused = |name: &&String| refusals.contains_key(*name);
            let parent = job.parents.iter().find(is_refused).filter(|_| job.is_follower());
            let child = job.children.iter().find(is_refused).filter(|_| direction == Direction::Promote);
            let reason = match (parent, child) {
                (Some(parent), _) => format!("it follows from {parent}, which is not switched"),
                (None, Some(child)) => format!("its child {child} is not switched"),
                (None, None) => continue,
            };
            new_refusals.insert(job.name.clone(), reason);
        }
        if new_refusals.is_empty() {
            return;
        }
        refusals.extend(new_refusals);
    }
}

/// Names the children of a job that exist only in Rondel, so that XXL-JOB cannot run them.
pub(super) fn children_left_behind(switch: &Switchover<'_>, job: &Job) -> Option<String> {
    let exists_only_here = |name: &&String| {
        switch.relatives.get(*name).is_some_and(|relative| !relative.is_shadow && !relative.is_imported)
    };
    let rondel_children: Vec<&String> = job.children.iter().filter(exists_only_here).collect();
    (!rondel_children.is_empty()).then(|| {
        format!("XXL-JOB does not have its children {}: these do not run meanwhile", name_list(&rondel_children))
    })
}

fn children_text(names: &[String]) -> String {
    let (noun, verb) = if names.len() == 1 { ("child", "is") } else { ("children", "are") };
    format!("its {noun} {} {verb}", name_list(names))
}

fn name_list<T: AsRef<str>>(names: &[T]) -> String {
    let shown_names: Vec<&str> = names.iter().take(NAME_COUNT_MAX).map(AsRef::as_ref).collect();
    let more_count = names.len().saturating_sub(NAME_COUNT_MAX);
    let more_text = if more_count == 0 { String::new() } else { format!(" and {more_count} more") };
    format!("{}{more_text}", shown_names.join(", "))
}
