//! The plan of a job at a scan: which of its fires become runs now, which were missed, and when it fires next.
//!
//! Everything from the job's `next_fire_at` up to the end of the look-ahead window is planned, in order; the misfire
//! policy decides over what is later than the tolerance.

use crate::id::{JobId, NodeId, RunId};
use crate::job::Job;
use crate::run::{Reason, Run, RunOf, RunStatus, Trigger};
use crate::schedule::{Schedule, just_before};
use crate::spec::{MisfireKeep, MisfirePolicy};
use crate::time::Timestamp;
use crate::timetable::{Fire, Timetable};

/// How many missed fires of several schedules, or of one with a calendar, one plan walks through; what is left is
/// planned by the next scan. Those of one plain schedule are counted without walking.
pub const MISSED_COUNT_MAX: usize = 100_000;
/// How many fires of one job are claimed at once.
pub const FIRE_COUNT_MAX: usize = 100;

/// The instants that a plan depends on.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// The present.
    pub now: Timestamp,
    /// The end of the look-ahead: later fires are left for later scans.
    pub end: Timestamp,
}

/// A fire that becomes a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedFire {
    /// The planned instant.
    pub fire_at: Timestamp,
    /// When it may start: the planned instant with its jitter. A missed one keeps its own, so that runs of one job stay in
    /// the order of their instants.
    pub due_at: Timestamp,
    /// Why it exists.
    pub trigger: Trigger,
}

/// Missed fires that are passed over: one row of the ledger however many they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissedSpan {
    /// The first of them, the row's key.
    pub first: Timestamp,
    /// The last of them.
    pub last: Timestamp,
    /// How many they are.
    pub count: i64,
    /// What would have triggered the first.
    pub trigger: Trigger,
}

impl MissedSpan {
    /// Its row of the ledger: skipped for this reason. `owner` is the node that writes it, and its epoch.
    #[must_use]
    #[expect(clippy::too_many_arguments, reason = "a row is made of all of these")]
    pub fn row(self, id: RunId, of: RunOf, job: &Job, reason: Reason, owner: (NodeId, i64), now: Timestamp) -> Run {
        let run = Run {
            status: RunStatus::Skipped,
            reason: Some(reason),
            finished_at: Some(now),
            span_end_at: (self.count > 1).then_some(self.last),
            span_count: self.count,
            ..Run::new(id, of, self.first, self.trigger, owner)
        };
        if job.is_sharded() { run.for_all_shards() } else { run }
    }
}

/// What a scan does about one job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Runs to insert, in order.
    pub fires: Vec<PlannedFire>,
    /// What is passed over.
    pub missed: Option<MissedSpan>,
    /// The first fire that this plan does not cover, or the instant at which to search on for it; `None` where there is
    /// none, and for a delay whose run is among `fires`: its end gives the next.
    pub next: Option<Timestamp>,
}

/// Plans a job whose next fire is `next_fire_at`.
#[must_use]
pub fn plan(job: &Job, id: JobId, anchor: Timestamp, next_fire_at: Timestamp, window: Window) -> Plan {
    if let Some(delay) = job.timetable.delay() {
        return plan_delay(job, id, next_fire_at, window.now + delay, window);
    }
    let missed_before = window.now - job.misfire.tolerance - job.timetable.jitter_max();
    let missed = skip_missed(&job.timetable, anchor, next_fire_at, missed_before, catch_up(job));
    let late = missed.catch_up.into_iter();
    let mut fires: Vec<PlannedFire> =
        late.map(|fire| PlannedFire { fire_at: fire.at, due_at: fire.at, trigger: Trigger::Misfire }).collect();
    if missed.more.is_some() {
        return Plan { fires, missed: missed.span, next: missed.more };
    }
    let mut cursor = missed.through;
    for fire in job.timetable.fires(anchor, missed.through, window.end).take(FIRE_COUNT_MAX) {
        fires.push(PlannedFire { fire_at: fire.at, due_at: fire.due_at(id), trigger: fire.trigger });
        cursor = fire.at;
    }
    Plan { fires, missed: missed.span, next: job.timetable.next_look_after(anchor, cursor) }
}

/// A fixed delay has one fire at a time. Where that was missed and is passed over, the wait begins anew.
fn plan_delay(job: &Job, id: JobId, fire_at: Timestamp, next: Timestamp, window: Window) -> Plan {
    let jitter = job.timetable.schedules.iter().find_map(|schedule| schedule.jitter);
    let due_at = Fire { at: fire_at, trigger: Trigger::Interval, jitter }.due_at(id);
    let is_missed = due_at < window.now - job.misfire.tolerance;
    if job.timetable.schedules.iter().any(|schedule| schedule.end.is_some_and(|end| fire_at > end)) {
        return Plan { fires: Vec::new(), missed: None, next: None };
    }
    if fire_at > window.end {
        return Plan { fires: Vec::new(), missed: None, next: Some(fire_at) };
    }
    if is_missed && job.misfire.policy == MisfirePolicy::Skip {
        let span = MissedSpan { first: fire_at, last: fire_at, count: 1, trigger: Trigger::Interval };
        return Plan { fires: Vec::new(), missed: Some(span), next: Some(next) };
    }
    let trigger = if is_missed { Trigger::Misfire } else { Trigger::Interval };
    Plan { fires: vec![PlannedFire { fire_at, due_at, trigger }], missed: None, next: None }
}

/// What a plan does about the fires that are later than the tolerance.
struct PassedOver {
    /// They run late.
    catch_up: Vec<Fire>,
    /// They do not run.
    span: Option<MissedSpan>,
    /// Nothing up to here is left.
    through: Timestamp,
    /// There are more than one plan walks through; the first of those.
    more: Option<Timestamp>,
}

fn skip_missed(
    table: &Timetable,
    anchor: Timestamp,
    from: Timestamp,
    before: Timestamp,
    (count, keep): (usize, MisfireKeep),
) -> PassedOver {
    let through = just_before(from);
    let first = table.next_until(anchor, through, just_before(before));
    let Some(first) = first else { return PassedOver { catch_up: Vec::new(), span: None, through, more: None } };
    if let Some(schedule) = table.plain()
        && let Some(last) = schedule.prev_before(anchor, before)
    {
        return pass_over_plain(schedule, anchor, (first.at, last), (count, keep));
    }
    pass_over_walking(table, anchor, first, before, (count, keep))
}

/// Everything that a job would have fired from one instant through another, both included. For the one fire of a delay, that
/// instant.
#[must_use]
pub fn all_between(job: &Job, anchor: Timestamp, from: Timestamp, through: Timestamp) -> Option<MissedSpan> {
    if job.timetable.delay().is_some() {
        return Some(MissedSpan { first: from, last: from, count: 1, trigger: Trigger::Interval });
    }
    let mut whole: Option<MissedSpan> = None;
    let mut begin = Some(from);
    while let Some(from) = begin {
        let before = Timestamp::from_millis(through.as_millis() + 1);
        let part = skip_missed(&job.timetable, anchor, from, before, (0, MisfireKeep::Newest));
        whole = match (whole, part.span) {
            (Some(whole), Some(part)) => Some(MissedSpan { last: part.last, count: whole.count + part.count, ..whole }),
            (whole, part) => whole.or(part),
        };
        begin = part.more;
    }
    whole
}

/// How many missed fires run, and which of them.
fn catch_up(job: &Job) -> (usize, MisfireKeep) {
    match job.misfire.policy {
        MisfirePolicy::Skip => (0, MisfireKeep::Newest),
        MisfirePolicy::Once => (1, MisfireKeep::Newest),
        MisfirePolicy::All => (usize::try_from(job.misfire.max).unwrap_or(usize::MAX), job.misfire.keep),
    }
}

fn pass_over_plain(
    schedule: &Schedule,
    anchor: Timestamp,
    (first, last): (Timestamp, Timestamp),
    (count, keep): (usize, MisfireKeep),
) -> PassedOver {
    let total = schedule.count_between(anchor, first, last);
    let fire = |at| Fire { at, trigger: schedule.trigger(), jitter: schedule.jitter };
    // One more than is made up for: the end of what is passed over.
    let mut kept: Vec<Timestamp> = match keep {
        MisfireKeep::Newest => {
            let earlier = |at: &Timestamp| schedule.prev_before(anchor, *at).filter(|at| *at >= first);
            std::iter::successors(Some(last), earlier).take(count.saturating_add(1)).collect()
        }
        MisfireKeep::Oldest => {
            let later = |at: &Timestamp| schedule.next_after(anchor, *at).filter(|at| *at <= last);
            std::iter::successors(Some(first), later).take(count.saturating_add(1)).collect()
        }
    };
    let edge = if kept.len() > count { kept.pop() } else { None };
    if keep == MisfireKeep::Newest {
        kept.reverse();
    }
    let passed = total.saturating_sub(u64::try_from(kept.len()).unwrap_or(u64::MAX));
    let span = edge.map(|edge| {
        let (first, last) = if keep == MisfireKeep::Newest { (first, edge) } else { (edge, last) };
        MissedSpan { first, last, count: i64::try_from(passed).unwrap_or(i64::MAX), trigger: schedule.trigger() }
    });
    PassedOver { catch_up: kept.into_iter().map(fire).collect(), span, through: last, more: None }
}

fn pass_over_walking(
    table: &Timetable,
    anchor: Timestamp,
    first: Fire,
    before: Timestamp,
    (count, keep): (usize, MisfireKeep),
) -> PassedOver {
    let later = table.fires(anchor, first.at, just_before(before));
    let mut walk = std::iter::once(first).chain(later);
    let mut missed: Vec<Fire> = walk.by_ref().take(MISSED_COUNT_MAX).collect();
    let more = walk.next().map(|fire| fire.at);
    let through = missed.last().map_or(first.at, |fire| fire.at);
    let catch_up = match keep {
        // While more are to come, none of these is among the newest.
        MisfireKeep::Newest if more.is_some() => Vec::new(),
        MisfireKeep::Newest => missed.split_off(missed.len().saturating_sub(count)),
        MisfireKeep::Oldest => {
            let passed = missed.split_off(count.min(missed.len()));
            std::mem::replace(&mut missed, passed)
        }
    };
    PassedOver { catch_up, span: span(&missed), through, more }
}

fn span(missed: &[Fire]) -> Option<MissedSpan> {
    let (first, last) = (missed.first()?, missed.last()?);
    Some(MissedSpan {
        first: first.at,
        last: last.at,
        count: i64::try_from(missed.len()).unwrap_or(i64::MAX),
        trigger: first.trigger,
    })
}

/// A run that was planned in time.
#[derive(Clone, Copy, Debug)]
pub struct LateFire {
    /// Its instant.
    pub fire_at: Timestamp,
    /// When it should have started.
    pub due_at: Timestamp,
}

/// What becomes of a run that was planned in time but never sent, and is later than the tolerance now
/// (a crash between its claim and its instant): the misfire policy holds for it too. Where only one is to run, that is
/// the newest missed fire of the job, whether it has a row already or a scan is yet to find it.
#[must_use]
pub fn runs_late(job: &Job, anchor: Timestamp, fire: LateFire, now: Timestamp) -> bool {
    if fire.due_at >= now - job.misfire.tolerance {
        return true;
    }
    let missed_before = now - job.misfire.tolerance - job.timetable.jitter_max();
    match job.misfire.policy {
        MisfirePolicy::Skip => false,
        MisfirePolicy::Once => job.timetable.next_until(anchor, fire.fire_at, just_before(missed_before)).is_none(),
        MisfirePolicy::All => true,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn job(schedule: &serde_json::Value, misfire: &serde_json::Value) -> Job {
        let spec = json!({"name": "a", "app": "b", "handler": "c", "schedule": schedule, "misfire": misfire});
        serde_json::from_value::<crate::JobSpec>(spec).unwrap().compile().unwrap()
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_secs(seconds)
    }

    fn plan_at(job: &Job, next: i64, now: i64) -> Plan {
        plan(job, JobId::new(1), at(0), at(next), Window { now: at(now), end: at(now + 5) })
    }

    fn instants(plan: &Plan) -> Vec<i64> {
        plan.fires.iter().map(|fire| fire.fire_at.second()).collect()
    }

    #[test]
    fn all_fires_of_the_window_are_planned_in_order() {
        let job = job(&json!([{"every": "2s"}, {"cron": "0/3 * * * * ?"}]), &json!({}));
        let plan = plan_at(&job, 120, 120);
        assert_eq!(instants(&plan), [120, 122, 123, 124]);
        assert_eq!((plan.missed, plan.next), (None, Some(at(126))));
    }

    #[test]
    fn late_within_the_tolerance_runs() {
        let plan = plan_at(&job(&json!({"every": "10s"}), &json!({})), 100, 105);
        assert_eq!((instants(&plan), plan.missed), (vec![100, 110], None));
        assert_eq!(plan.fires[0].trigger, Trigger::Interval);
    }

    #[test]
    fn the_policy_decides_over_missed_fires() {
        let every = json!({"every": "10s"});
        let missed = |first, last, count| {
            Some(MissedSpan { first: at(first), last: at(last), count, trigger: Trigger::Interval })
        };
        let skip = plan_at(&job(&every, &json!({"policy": "skip"})), 100, 157);
        assert_eq!((instants(&skip), skip.missed), (vec![160], missed(100, 150, 6)));
        let once = plan_at(&job(&every, &json!({"policy": "once"})), 100, 157);
        assert_eq!((instants(&once), once.missed), (vec![150, 160], missed(100, 140, 5)));
        assert_eq!((once.fires[0].due_at, once.fires[0].trigger), (at(150), Trigger::Misfire));
        let all = plan_at(&job(&every, &json!({"policy": "all", "max": 2})), 100, 157);
        assert_eq!((instants(&all), all.missed), (vec![140, 150, 160], missed(100, 130, 4)));
    }

    #[test]
    fn a_long_outage_of_a_plain_schedule_is_one_span_however_long() {
        for schedule in [json!({"every": "1s"}), json!({"cron": "* * * * * ?"})] {
            let table = job(&schedule, &json!({"policy": "once"}));
            let planned = plan_at(&table, 0, 3_000_000);
            assert_eq!(instants(&planned), (2_999_994..=3_000_005).collect::<Vec<_>>());
            let span = planned.missed.unwrap();
            assert_eq!((span.first, span.last, span.count), (at(0), at(2_999_993), 2_999_994));
        }
    }

    #[test]
    fn several_schedules_are_walked_through_in_bounded_steps() {
        let both = json!([{"every": "1s"}, {"every": "2s"}]);
        let first = plan_at(&job(&both, &json!({"policy": "once"})), 0, 125_000);
        assert_eq!(first.missed.map(|span| span.count), Some(100_000));
        assert_eq!((first.fires.len(), first.next), (0, Some(at(100_000))));
        let last = plan_at(&job(&both, &json!({"policy": "once"})), 120_000, 125_000);
        assert_eq!(instants(&last), (124_994..=125_005).collect::<Vec<_>>());
    }

    #[test]
    fn the_oldest_can_be_kept_instead() {
        let every = json!({"every": "10s"});
        for schedule in [every.clone(), json!([every, {"every": "20s"}])] {
            let policy = json!({"policy": "all", "max": 2, "keep": "oldest"});
            let planned = plan_at(&job(&schedule, &policy), 100, 157);
            assert_eq!(instants(&planned), [100, 110, 160]);
            let span = planned.missed.unwrap();
            assert_eq!((span.first, span.last, span.count), (at(120), at(150), 4));
        }
    }

    #[test]
    fn a_delay_fires_no_more_after_its_end() {
        let job = job(&json!({"delay": "20s", "end_at": "1970-01-01T00:01:00Z"}), &json!({}));
        let window = Window { now: Timestamp::from_secs(59), end: Timestamp::from_secs(64) };
        let plan = |second| {
            let at = Timestamp::from_secs(second);
            plan(&job, JobId::new(1), Timestamp::EPOCH, at, window)
        };
        assert_eq!(plan(60).fires.len(), 1);
        assert_eq!(plan(61), Plan { fires: Vec::new(), missed: None, next: None });
    }

    #[test]
    fn a_delay_has_one_fire_and_no_next_before_its_end() {
        let policy = |policy| job(&json!({"delay": "20s"}), &json!({"policy": policy}));
        let ahead = plan_at(&policy("skip"), 103, 100);
        assert_eq!((instants(&ahead), ahead.next), (vec![103], None));
        let skipped = plan_at(&policy("skip"), 100, 157);
        assert_eq!((skipped.fires.len(), skipped.missed.map(|span| span.count)), (0, Some(1)));
        assert_eq!(skipped.next, Some(at(177)));
        let late = plan_at(&policy("once"), 100, 157);
        assert_eq!((late.fires[0].fire_at, late.fires[0].trigger, late.next), (at(100), Trigger::Misfire, None));
    }

    #[test]
    fn jitter_delays_the_start_and_not_the_plan() {
        let jittered = json!({"every": "10s", "jitter": {"max": "8s"}});
        let planned = plan_at(&job(&jittered, &json!({})), 100, 100);
        let late = planned.fires[0].due_at.since(planned.fires[0].fire_at);
        assert!(planned.fires[0].fire_at == at(100) && late.as_secs() <= 8, "{late:?}");
    }

    #[test]
    fn the_last_fire_of_a_schedule_runs() {
        let plan = plan_at(&job(&json!({"at": "1970-01-01T00:02:00Z"}), &json!({})), 120, 118);
        assert_eq!((instants(&plan), plan.next), (vec![120], None));
    }

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
            let job = job(&json!({"every": "1s"}), &json!({"policy": policy}));
            let fire = LateFire { fire_at: at(fire_at), due_at: at(fire_at) };
            assert_eq!(runs_late(&job, at(0), fire, at(100)), runs, "{policy} {fire_at}");
        }
    }

    proptest! {
        /// Whatever the schedule, the policy and the delays between scans: each fire is run or passed over, once.
        #[test]
        fn no_fire_is_dropped_or_planned_twice(
            period in 1_i64..40,
            policy in prop::sample::select(vec!["skip", "once", "all"]),
            pauses in prop::collection::vec(0_i64..60, 1..20),
        ) {
            let job = job(&json!({"every": format!("{period}s")}), &json!({"policy": policy, "max": 3}));
            let (mut now, mut next, mut seen) = (0, at(0), Vec::new());
            for pause in pauses {
                now += pause;
                let plan = plan_at(&job, next.second(), now);
                if let Some(span) = plan.missed {
                    seen.extend((0..span.count).map(|n| span.first.second() + n * period));
                }
                seen.extend(instants(&plan));
                next = plan.next.unwrap();
            }
            let expected: Vec<i64> = (0..).map(|n| n * period).take_while(|fire| *fire < next.second()).collect();
            prop_assert_eq!(seen, expected);
        }
    }
}
