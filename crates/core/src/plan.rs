//! The plan of a job at a scan: which of its fires become runs now, which were missed, and when it fires next.
//!
//! Everything from the job's `next_fire_at` up to the end of the look-ahead window is planned, in order; the misfire
//! policy decides over what is later than the tolerance.

use crate::job::Job;
use crate::run::Trigger;
use crate::schedule::next_of_all;
use crate::spec::MisfirePolicy;
use crate::time::Timestamp;

/// How many missed fires one plan looks at; what is left is planned by the next scan.
pub const MISSED_COUNT_MAX: usize = 10_000;
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
    /// When it may start: the planned instant, or now for a missed one.
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

/// What a scan does about one job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Runs to insert, in order.
    pub fires: Vec<PlannedFire>,
    /// What is passed over.
    pub missed: Option<MissedSpan>,
    /// The first fire that this plan does not cover; `None` where there is none.
    pub next: Option<Timestamp>,
}

/// Plans a job whose next fire is `next_fire_at`.
#[must_use]
pub fn plan(job: &Job, anchor: Timestamp, next_fire_at: Timestamp, window: Window) -> Plan {
    let missed_before = window.now - job.misfire.tolerance;
    // The instant before the next fire, so that the fire itself is the first that is found.
    let mut cursor = Timestamp::from_millis(next_fire_at.as_millis().saturating_sub(1));
    let mut missed = Vec::new();
    let mut fires = Vec::new();
    let mut next = None;
    while let Some((fire_at, trigger)) = next_of_all(&job.schedules, anchor, cursor) {
        let full = missed.len() == MISSED_COUNT_MAX || fires.len() == FIRE_COUNT_MAX;
        if fire_at > window.end || full {
            next = Some(fire_at);
            break;
        }
        if fire_at < missed_before {
            missed.push((fire_at, trigger));
        } else {
            fires.push(PlannedFire { fire_at, due_at: fire_at, trigger });
        }
        cursor = fire_at;
    }
    let more_missed = next.is_some_and(|next| next < missed_before);
    let run_count = made_up_count(job, missed.len(), more_missed);
    let made_up: Vec<_> = missed.split_off(missed.len() - run_count);
    let late =
        made_up.into_iter().map(|(fire_at, _)| PlannedFire { fire_at, due_at: window.now, trigger: Trigger::Misfire });
    Plan { fires: late.chain(fires).collect(), missed: span(&missed), next }
}

/// How many of the newest missed fires run. While more missed ones are to come, none of these is among the newest.
fn made_up_count(job: &Job, missed_count: usize, more_missed: bool) -> usize {
    let wanted = match job.misfire.policy {
        _ if more_missed => 0,
        MisfirePolicy::Skip => 0,
        MisfirePolicy::Once => 1,
        MisfirePolicy::All => usize::try_from(job.misfire.max).unwrap_or(usize::MAX),
    };
    wanted.min(missed_count)
}

fn span(missed: &[(Timestamp, Trigger)]) -> Option<MissedSpan> {
    let ((first, trigger), (last, _)) = (missed.first()?, missed.last()?);
    Some(MissedSpan {
        first: *first,
        last: *last,
        count: i64::try_from(missed.len()).unwrap_or(i64::MAX),
        trigger: *trigger,
    })
}

/// What becomes of a run that was planned in time but never sent, and is later than the tolerance now
/// (a crash between its claim and its instant): the misfire policy holds for it too.
///
/// `newest` says whether it is the newest such run of its job.
#[must_use]
pub fn runs_late(job: &Job, due_at: Timestamp, newest: bool, now: Timestamp) -> bool {
    let in_time = due_at >= now - job.misfire.tolerance;
    match job.misfire.policy {
        _ if in_time => true,
        MisfirePolicy::Skip => false,
        MisfirePolicy::Once => newest,
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
        plan(job, at(0), at(next), Window { now: at(now), end: at(now + 5) })
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
        assert_eq!((once.fires[0].due_at, once.fires[0].trigger), (at(157), Trigger::Misfire));
        let all = plan_at(&job(&every, &json!({"policy": "all", "max": 2})), 100, 157);
        assert_eq!((instants(&all), all.missed), (vec![140, 150, 160], missed(100, 130, 4)));
    }

    #[test]
    fn an_outage_of_a_short_period_is_bounded_and_goes_on() {
        let job = job(&json!({"every": "1s"}), &json!({"policy": "once"}));
        let first = plan_at(&job, 0, 25_000);
        assert_eq!(first.missed.map(|span| span.count), Some(10_000));
        assert_eq!((first.fires.len(), first.next), (0, Some(at(10_000))));
        let last = plan_at(&job, 20_000, 25_000);
        assert_eq!(instants(&last), (24_994..=25_005).collect::<Vec<_>>());
    }

    #[test]
    fn the_last_fire_of_a_schedule_runs() {
        let plan = plan_at(&job(&json!({"at": "1970-01-01T00:02:00Z"}), &json!({})), 120, 118);
        assert_eq!((instants(&plan), plan.next), (vec![120], None));
    }

    #[test]
    fn a_late_claimed_run_meets_the_policy() {
        for (policy, newest, in_time, runs) in [
            ("skip", true, false, false),
            ("skip", true, true, true),
            ("once", true, false, true),
            ("once", false, false, false),
            ("all", false, false, true),
        ] {
            let job = job(&json!({"every": "1s"}), &json!({"policy": policy}));
            let due = if in_time { at(98) } else { at(90) };
            assert_eq!(runs_late(&job, due, newest, at(100)), runs, "{policy} {newest} {in_time}");
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
