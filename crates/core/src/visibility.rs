//! Hides names of jobs in runs: reasons and messages that the server wrote must not name a job that the caller may not view.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::reason::words::reason_text;
use crate::reason::{Reason, ReasonDetail};
use crate::run::Run;
use crate::status::RunStatus;
use crate::words::Lang;

/// Shown in place of the name of a hidden job.
const A_CHILD: &str = "a child";
/// The texts before and after the name of a parent, in the message of a run that was skipped because of that parent.
const PARENT_PREFIX: &str = "parent job ";
const ENDED_AS_PREFIX: &str = "ended as ";
const DID_NOT_END: &str = "did not end as the definition wants";
const END_WORDS: [(RunStatus, &str); 6] = [
    (RunStatus::Succeeded, "succeeded"),
    (RunStatus::Failed, "failed"),
    (RunStatus::TimedOut, "timed out"),
    (RunStatus::Cancelled, "was cancelled"),
    (RunStatus::Unknown, "has an unknown outcome"),
    (RunStatus::Skipped, "was skipped"),
];

/// The message of a run that failed because of a job that follows from it. `name` is `None` if the message must not name the job.
///
/// ```
/// use rondel_core::RunStatus;
/// use rondel_core::visibility::child_ended;
///
/// assert_eq!(child_ended(Some("load"), RunStatus::TimedOut), "load timed out");
/// ```
#[must_use]
pub fn child_ended(name: Option<&str>, status: RunStatus) -> String {
    let end =
        END_WORDS.iter().find(|(listed_status, _)| *listed_status == status).map_or("has not ended", |(_, end)| end);
    format!("{} {end}", name.unwrap_or(A_CHILD))
}

/// The job that a message of [`child_ended`] names, and the rest of the message.
fn child_named_in(message: &str) -> Option<(&str, &str)> {
    let (name, end) = message.split_once(' ')?;
    END_WORDS.iter().any(|(_, words)| *words == end).then_some((name, end))
}

/// The job that a message about a parent names.
fn parent_in(message: &str) -> Option<&str> {
    let (name, end) = message.strip_prefix(PARENT_PREFIX)?.split_once(' ')?;
    let is_status = |status: &str| status.parse::<RunStatus>().is_ok();
    (end == DID_NOT_END || end.strip_prefix(ENDED_AS_PREFIX).is_some_and(is_status)).then_some(name)
}

/// The job that a message is about, if the server wrote the message about another job than the run's own.
///
/// ```
/// use rondel_core::visibility::job_in;
///
/// assert_eq!(job_in("parent job load ended as failed"), Some("load"));
/// assert_eq!(job_in("load timed out"), Some("load"));
/// assert_eq!(job_in("no space left"), None);
/// ```
#[must_use]
pub fn job_in(message: &str) -> Option<&str> {
    parent_in(message).or_else(|| child_named_in(message).map(|(name, _)| name))
}

/// The names of a namespace's jobs, for a caller who may not view all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VisibleJobs {
    /// Those that the caller may view.
    pub visible_names: BTreeSet<String>,
    /// The others.
    pub hidden_names: BTreeSet<String>,
}

impl VisibleJobs {
    /// The message of a run without the name of a job that the caller may not view; `None` if the message names no such job.
    /// [`conceal`] changes messages in the same way.
    #[must_use]
    pub fn conceal_message(&self, message: &str) -> Option<String> {
        if let Some(parent) = parent_in(message) {
            let is_visible = self.visible_names.contains(parent);
            return (!is_visible).then(|| reason_text(Reason::Parent, &ReasonDetail::default(), Lang::En));
        }
        let (_, end) = child_named_in(message).filter(|(name, _)| self.hidden_names.contains(*name))?;
        Some(format!("{A_CHILD} {end}"))
    }
}

/// The names of other jobs that the server may have written into the runs.
#[must_use]
pub fn named_jobs(runs: &[Run]) -> BTreeSet<String> {
    let parents = runs.iter().filter_map(|run| run.detail.as_ref()?.parent.as_deref());
    let children = runs.iter().filter_map(|run| child_named_in(run.message.as_deref()?).map(|(name, _)| name));
    parents.chain(children).map(str::to_owned).collect()
}

/// Removes from a run the names of jobs that the caller may not view. `visible_names` are the jobs that the caller may view,
/// `hidden_names` those that the caller may not. A parent's name stays only if it is in `visible_names`, since a parent that no longer
/// exists is in neither. In the message only names in `hidden_names` are removed, since a handler's message can look like one about a
/// child.
pub fn conceal(run: &mut Run, visible_names: &BTreeSet<String>, hidden_names: &BTreeSet<String>) {
    let mut texts = None;
    if let Some(detail) =
        run.detail.as_mut().filter(|detail| detail.parent.as_ref().is_some_and(|name| !visible_names.contains(name)))
    {
        let text_before = run.reason.map(|reason| reason_text(reason, detail, Lang::En));
        Arc::make_mut(detail).parent = None;
        texts = text_before.zip(run.reason.map(|reason| reason_text(reason, detail, Lang::En)));
    }
    if let Some((_, after)) = texts.filter(|(before, _)| run.message.as_ref() == Some(before)) {
        run.message = Some(after);
    }
    let child = run.message.as_deref().and_then(child_named_in).filter(|(name, _)| hidden_names.contains(*name));
    if let Some(message) = child.map(|(_, end)| format!("{A_CHILD} {end}")) {
        run.message = Some(message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::RunJob;
    use crate::{AppId, JobId, NamespaceId, NodeId, RunId, Timestamp, Trigger};

    fn run(detail: Option<ReasonDetail>, message: &str) -> Run {
        let run_job = RunJob { namespace: NamespaceId::new(1), job: JobId::new(1), job_version: 1, app: AppId::new(1) };
        let run = Run::new(RunId::new(1), run_job, Timestamp::EPOCH, Trigger::Parent, (NodeId::new(1), 1));
        let reason = detail.is_some().then_some(Reason::Parent);
        Run { reason, detail: detail.map(Arc::new), message: Some(message.to_owned()), ..run }
    }

    #[test]
    fn names_of_hidden_jobs_are_not_shown() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        let (visible_names, hidden_names) = (names(&["open"]), names(&["vault"]));
        let by = |parent: &str| ReasonDetail {
            parent: Some(parent.to_owned()),
            parent_status: Some(RunStatus::Failed),
            ..ReasonDetail::default()
        };
        for (detail, message, expected) in [
            (Some(by("vault")), "parent job vault ended as failed", "a parent job did not end as the definition wants"),
            (Some(by("gone")), "parent job gone ended as failed", "a parent job did not end as the definition wants"),
            (Some(by("open")), "parent job open ended as failed", "parent job open ended as failed"),
            (None, "vault failed", "a child failed"),
            (None, "open failed", "open failed"),
            (None, "backup failed", "backup failed"),
            (None, "vault is empty", "vault is empty"),
        ] {
            let mut run = run(detail, message);
            assert!(named_jobs(std::slice::from_ref(&run)).len() <= 1);
            conceal(&mut run, &visible_names, &hidden_names);
            assert_eq!(run.message.as_deref(), Some(expected));
            let visible_jobs = VisibleJobs { visible_names: visible_names.clone(), hidden_names: hidden_names.clone() };
            assert_eq!(visible_jobs.conceal_message(message).as_deref().unwrap_or(message), expected);
            assert_eq!(visible_jobs.conceal_message(expected), None);
            assert!(run.detail.is_none_or(|detail| detail.parent.as_ref().is_none_or(|name| name == "open")));
        }
    }

    #[test]
    fn the_end_of_a_child_is_read_back() {
        for (status, end) in END_WORDS {
            let message = child_ended(Some("load"), status);
            assert_eq!(message, format!("load {end}"));
            assert_eq!(child_named_in(&message), Some(("load", end)));
        }
        assert_eq!(child_ended(None, RunStatus::Running), format!("{A_CHILD} has not ended"));
        assert_eq!(child_named_in("load exploded"), None);
    }

    #[test]
    fn the_end_of_a_parent_is_read_back() {
        for parent_status in [None, Some(RunStatus::TimedOut), Some(RunStatus::Skipped)] {
            let detail = ReasonDetail { parent: Some("load".to_owned()), parent_status, ..ReasonDetail::default() };
            assert_eq!(job_in(&reason_text(Reason::Parent, &detail, Lang::En)), Some("load"));
        }
        for other in
            [reason_text(Reason::Parent, &ReasonDetail::default(), Lang::En).as_str(), "parent job load ended as usual"]
        {
            assert_eq!(job_in(other), None, "{other}");
        }
    }
}
