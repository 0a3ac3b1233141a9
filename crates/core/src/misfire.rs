//! The misfire policy of a job: what happens to fires that did not run in time.
//!
//! A fire is missed if it was already later than the job's tolerance before a server could claim it, because servers or the database were
//! down. The policy decides how many missed fires run late; the others become one [`MissedSpan`], a single row of the ledger. A fire that
//! became late while servers were at work (more was due than they could claim or send) is not missed: it runs, and its [`Lateness`] records
//! why it is late.

use std::time::Duration;

use crate::id::{JobId, NodeId, RunId};
use crate::job::Job;
use crate::reason::Reason;
use crate::run::{Run, RunJob};
use crate::schedule::{Schedule, just_before};
use crate::spec::{MisfireKeep, MisfirePolicy};
use crate::status::{RunStatus, Trigger};
use crate::time::Timestamp;
use crate::timetable::{Fire, Timetable};
use crate::word_enum::word_enum;

/// How many missed fires one plan walks through for a job with several schedules or a calendar; the next scan plans the rest. The missed
/// fires of one plain schedule are counted without walking.
pub const MISSED_COUNT_MAX: usize = 100_000;
/// Missed fires that are skipped: one row of the ledger stands for all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissedSpan {
    /// The first of these fires. It is the key of the row.
    pub first: Timestamp,
    pub last: Timestamp,
    /// How many fires there are.
    pub count: i64,
    /// What would have triggered the first fire.
    pub trigger: Trigger,
}

impl MissedSpan {
    /// The span's row of the ledger, skipped for `reason`. `owner` is the node that writes it, with its epoch.
    #[must_use]
    #[expect(clippy::too_many_arguments, reason = "a row is made of all of these")]
    pub fn row(
        self,
        id: RunId,
        run_job: RunJob,
        job: &Job,
        reason: Reason,
        owner: (NodeId, i64),
        now: Timestamp,
    ) -> Run {
        let run = Run {
            status: RunStatus::Skipped,
            reason: Some(reason),
            finished_at: Some(now),
            span_end_at: (self.count > 1).then_some(self.last),
            span_count: self.count,
            ..Run::new(id, run_job, self.first, self.trigger, owner)
        };
        if job.is_sharded() { run.for_all_shards() } else { run }
    }
}

/// How a plan divides the missed fires.
pub(crate) struct MissedPlan {
    /// The missed fires that run late.
    pub(crate) catch_up: Vec<Fire>,
    /// The missed fires that do not run.
    pub(crate) span: Option<MissedSpan>,
    /// Every fire up to this instant is decided.
    pub(crate) through: Timestamp,
    /// The first missed fire that is left to the next plan, if there are more than [`MISSED_COUNT_MAX`].
    pub(crate) next_missed: Option<Timestamp>,
}

/// Decides the missed fires of a timetable from `from` to just before `before`: at most `count` of them run late, the oldest or the newest
/// (`keep`), and the others are skipped.
pub(crate) fn skip_missed(
    table: &Timetable,
    anchor: Timestamp,
    from: Timestamp,
    before: Timestamp,
    (count, keep): (usize, MisfireKeep),
) -> MissedPlan {
    let through = just_before(from);
    let first_missed = table.next_until(anchor, through, just_before(before));
    let Some(first_missed) = first_missed else {
        return MissedPlan { catch_up: Vec::new(), span: None, through, next_missed: None };
    };
    if let Some(schedule) = table.only_schedule()
        && let Some(last) = schedule.prev_before(anchor, before)
    {
        return skip_missed_plain(schedule, anchor, (first_missed.at, last), (count, keep));
    }
    skip_missed_walking(table, anchor, first_missed, before, (count, keep))
}

/// How many missed fires run late, and whether these are the newest or the oldest.
pub(crate) fn catch_up_limit(job: &Job) -> (usize, MisfireKeep) {
    match job.misfire.policy {
        MisfirePolicy::Skip => (0, MisfireKeep::Newest),
        MisfirePolicy::Once => (1, MisfireKeep::Newest),
        MisfirePolicy::All => (usize::try_from(job.misfire.max).unwrap_or(usize::MAX), job.misfire.keep),
    }
}

fn skip_missed_plain(
    schedule: &Schedule,
    anchor: Timestamp,
    (first, last): (Timestamp, Timestamp),
    (count, keep): (usize, MisfireKeep),
) -> MissedPlan {
    let missed_count = schedule.count_between(anchor, first, last);
    let fire = |at| Fire { at, trigger: schedule.trigger(), jitter: schedule.jitter };
    // This takes one fire more than the number that runs late. The extra fire is skipped: it is the last fire of the
    // span if the newest fires run late, and the first fire if the oldest do.
    let mut instants: Vec<Timestamp> = match keep {
        MisfireKeep::Newest => {
            let previous_fire = |at: &Timestamp| schedule.prev_before(anchor, *at).filter(|at| *at >= first);
            std::iter::successors(Some(last), previous_fire).take(count.saturating_add(1)).collect()
        }
        MisfireKeep::Oldest => {
            let next_fire = |at: &Timestamp| schedule.next_after(anchor, *at).filter(|at| *at <= last);
            std::iter::successors(Some(first), next_fire).take(count.saturating_add(1)).collect()
        }
    };
    let extra_fire_at = if instants.len() > count { instants.pop() } else { None };
    if keep == MisfireKeep::Newest {
        instants.reverse();
    }
    let skipped_count = missed_count.saturating_sub(u64::try_from(instants.len()).unwrap_or(u64::MAX));
    let span = extra_fire_at.map(|extra_fire_at| {
        let (first, last) = if keep == MisfireKeep::Newest { (first, extra_fire_at) } else { (extra_fire_at, last) };
        MissedSpan { first, last, count: i64::try_from(skipped_count).unwrap_or(i64::MAX), trigger: schedule.trigger() }
    });
    MissedPlan { catch_up: instants.into_iter().map(fire).collect(), span, through: last, next_missed: None }
}

fn skip_missed_walking(
    table: &Timetable,
    anchor: Timestamp,
    first: Fire,
    before: Timestamp,
    (count, keep): (usize, MisfireKeep),
) -> MissedPlan {
    let fires_after_first = table.fires(anchor, first.at, just_before(before));
    let mut walk = std::iter::once(first).chain(fires_after_first);
    let mut missed_fires: Vec<Fire> = walk.by_ref().take(MISSED_COUNT_MAX).collect();
    let mut next_missed = walk.next().map(|fire| fire.at);
    let last_read = missed_fires.last().map_or(first.at, |fire| fire.at);
    let mut catch_up = match keep {
        MisfireKeep::Newest => missed_fires.split_off(missed_fires.len().saturating_sub(count)),
        MisfireKeep::Oldest => {
            let later_fires = missed_fires.split_off(count.min(missed_fires.len()));
            std::mem::replace(&mut missed_fires, later_fires)
        }
    };
    if keep == MisfireKeep::Newest && next_missed.is_some() {
        // More missed fires follow, so the newest are not known yet. The fires kept so far are left to the next plan, which
        // begins at the first of them. They are fewer than the fires of this plan, so each plan makes progress.
        next_missed = catch_up.first().map(|fire| fire.at).or(next_missed);
        catch_up.clear();
    }
    MissedPlan { catch_up, span: span(&missed_fires), through: next_missed.map_or(last_read, just_before), next_missed }
}

/// Lets at most `count` fires of all these plans together run late, and skips the others. The plans must be sorted by time.
pub(crate) fn limit_late_fires(plans: &mut [MissedPlan], (count, keep): (usize, MisfireKeep)) {
    let mut count_left = count;
    let limit_plan = |plan: &mut MissedPlan| {
        let kept_count = plan.catch_up.len().min(count_left);
        count_left -= kept_count;
        let dropped_fires = match keep {
            MisfireKeep::Newest => {
                let kept_fires = plan.catch_up.split_off(plan.catch_up.len() - kept_count);
                std::mem::replace(&mut plan.catch_up, kept_fires)
            }
            MisfireKeep::Oldest => plan.catch_up.split_off(kept_count),
        };
        plan.span = join_spans(plan.span, span(&dropped_fires));
    };
    match keep {
        MisfireKeep::Newest => plans.iter_mut().rev().for_each(limit_plan),
        MisfireKeep::Oldest => plans.iter_mut().for_each(limit_plan),
    }
}

/// Joins two spans that follow each other, given in either order, into one.
pub(crate) fn join_spans(a: Option<MissedSpan>, b: Option<MissedSpan>) -> Option<MissedSpan> {
    let (Some(a), Some(b)) = (a, b) else { return a.or(b) };
    let (earlier_span, later_span) = if a.first <= b.first { (a, b) } else { (b, a) };
    Some(MissedSpan { last: later_span.last, count: earlier_span.count + later_span.count, ..earlier_span })
}

fn span(missed_fires: &[Fire]) -> Option<MissedSpan> {
    let (first, last) = (missed_fires.first()?, missed_fires.last()?);
    Some(MissedSpan {
        first: first.at,
        last: last.at,
        count: i64::try_from(missed_fires.len()).unwrap_or(i64::MAX),
        trigger: first.trigger,
    })
}

/// A fire whose run was planned in time but never sent.
#[derive(Clone, Copy, Debug)]
pub struct UnsentFire {
    /// Its instant.
    pub fire_at: Timestamp,
    /// When it should have started.
    pub due_at: Timestamp,
}

/// Whether the misfire policy still runs a fire that was planned in time but never sent, because a server crashed between its
/// claim and its instant. `taken_up_at` is when this server took the run over. A fire within the tolerance always runs. If the
/// policy runs one missed fire, it is the newest one of the job, whether that fire already has a row or a scan has yet to find
/// it.
#[must_use]
pub fn runs_late(job: &Job, (id, anchor): (JobId, Timestamp), fire: UnsentFire, taken_up_at: Timestamp) -> bool {
    if fire.due_at >= taken_up_at - job.misfire.tolerance {
        return true;
    }
    let missed_before = taken_up_at - job.misfire.tolerance - job.timetable.jitter_max_of(id);
    match job.misfire.policy {
        MisfirePolicy::Skip => false,
        MisfirePolicy::Once => job.timetable.next_until(anchor, fire.fire_at, just_before(missed_before)).is_none(),
        MisfirePolicy::All => true,
    }
}

word_enum! {
    /// Why a server was late to start a fire.
    LateBecause {
        /// Servers were at work, but had more fires to start than they could manage.
        Overload = "overload",
        /// The fire was already late when a server took it up: servers or the database had been down.
        Outage = "outage",
    }
}

/// How late a server was ready to start a run, and why. Waits for executors, limits and earlier runs come later, and are not included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lateness {
    pub because: LateBecause,
    /// The delay between the time when the run was due and the time when a server was ready to start it.
    pub by: Duration,
}

/// Shorter delays do not count as late.
pub const LATE_FROM: Duration = Duration::from_secs(1);

/// The lateness of a fire that a server is ready to start at `now`; `None` below [`LATE_FROM`]. `taken_up_at` is when the servers had last
/// claimed everything that was due, or when this server took the run over.
#[must_use]
pub fn lateness(due_at: Timestamp, taken_up_at: Timestamp, now: Timestamp) -> Option<Lateness> {
    let by = now.since(due_at);
    let because = if due_at < taken_up_at.min(now) { LateBecause::Outage } else { LateBecause::Overload };
    (by >= LATE_FROM).then_some(Lateness { because, by })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::spec::JobSpec;

    #[test]
    fn a_late_claimed_run_meets_the_policy() {
        for (policy, fire_at, runs) in [
            ("skip", 94, false),
            ("skip", 95, true),
            ("once", 94, true),
            ("once", 93, false),
            ("once", 95, true),
            ("all", 50, true),
        ] {
            let spec = json!({"name": "a", "app": "b", "handler": "c", "schedule": {"every": "1s"}, "misfire": {"policy": policy}});
            let job = serde_json::from_value::<JobSpec>(spec).unwrap().compile().unwrap();
            let fire = UnsentFire { fire_at: Timestamp::from_secs(fire_at), due_at: Timestamp::from_secs(fire_at) };
            let key = (JobId::new(1), Timestamp::EPOCH);
            assert_eq!(runs_late(&job, key, fire, Timestamp::from_secs(100)), runs, "{policy} {fire_at}");
        }
    }

    #[test]
    fn lateness_has_a_reason() {
        for (due_at, taken_up_at, now, expected) in [
            (100, 90, 100, None),
            (100, 90, 101, Some((LateBecause::Overload, 1))),
            (100, 100, 160, Some((LateBecause::Overload, 60))),
            (100, 101, 160, Some((LateBecause::Outage, 60))),
            (100, 200, 160, Some((LateBecause::Outage, 60))),
            (100, 101, 90, None),
        ] {
            let at = Timestamp::from_secs;
            let late = lateness(at(due_at), at(taken_up_at), at(now));
            let expected = expected.map(|(because, by)| Lateness { because, by: Duration::from_secs(by) });
            assert_eq!(late, expected, "due {due_at}, taken up {taken_up_at}, now {now}");
        }
    }

    #[test]
    fn a_span_has_an_end_when_it_is_more_than_one_fire() {
        let job = serde_json::from_value::<JobSpec>(json!({"name": "a", "app": "b", "handler": "c"}));
        let job = job.unwrap().compile().unwrap();
        let run_job = RunJob {
            namespace: crate::NamespaceId::new(1),
            job: JobId::new(1),
            job_version: 1,
            app: crate::AppId::new(1),
        };
        for (count, end) in [(1, None), (2, Some(20))] {
            let (first, last) = (Timestamp::from_secs(10), Timestamp::from_secs(20));
            let span = MissedSpan { first, last, count, trigger: Trigger::Cron };
            let row = span.row(RunId::new(1), run_job, &job, Reason::Misfire, (NodeId::new(1), 1), first);
            assert_eq!((row.span_end_at, row.span_count), (end.map(Timestamp::from_secs), count));
        }
    }
}
