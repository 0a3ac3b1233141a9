//! The plan of a job at a scan: which of its fires become runs now, which were missed, and when it fires next.
//!
//! Everything from the job's `next_fire_at` up to the end of the look-ahead window is planned, in order; the misfire policy decides about
//! fires that are later than the tolerance.

use crate::id::JobId;
use crate::job::Job;
use crate::misfire::{MissedSpan, catch_up_limit, join_spans, skip_missed};
use crate::schedule::just_before;
use crate::spec::{MisfireKeep, MisfirePolicy};
use crate::status::Trigger;
use crate::time::Timestamp;
use crate::timetable::Fire;

/// Maximum number of fires of one job that are claimed together.
pub const FIRE_COUNT_MAX: usize = 100;

/// The instants that a plan depends on.
#[derive(Clone, Copy, Debug)]
pub struct LookAhead {
    pub now: Timestamp,
    /// When the servers last had no due fire left to claim: a fire that became late after that is late, not missed.
    pub caught_up_at: Timestamp,
    /// The end of the look-ahead: later fires are left for later scans.
    pub end: Timestamp,
}

impl LookAhead {
    /// The instant for which the misfire policy measures how late a fire is.
    fn judged_at(self) -> Timestamp {
        self.caught_up_at.min(self.now)
    }
}

/// A fire that becomes a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedFire {
    /// The planned instant.
    pub fire_at: Timestamp,
    /// When it may start: the planned instant plus jitter. A missed fire gets no jitter unless its schedule is a fixed delay, so that runs
    /// of one job stay in the order of their instants. A fire that a maintenance window held back starts after the window.
    pub due_at: Timestamp,
    /// Why it exists.
    pub trigger: Trigger,
}

/// The result of planning one job at a scan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Runs to insert, sorted by planned instant.
    pub fires: Vec<PlannedFire>,
    /// The missed fires that are skipped.
    pub missed: Option<MissedSpan>,
    /// The fires inside of a maintenance window, which are skipped.
    pub skipped_in_window: Vec<MissedSpan>,
    /// The first fire that this plan does not cover, or the instant from which to search for it. `None` if there is none, and for a fixed
    /// delay whose run is among `fires`, because the next fire counts from the end of that run.
    pub next: Option<Timestamp>,
    /// The first fire that a maintenance window holds back. Fires from here up to `next` are decided when the job is next planned outside
    /// of windows.
    pub held_from: Option<Timestamp>,
}

/// Plans a job whose next fire is `next_fire_at`.
#[must_use]
pub fn plan(job: &Job, id: JobId, anchor: Timestamp, next_fire_at: Timestamp, look_ahead: LookAhead) -> Plan {
    plan_before(job, (id, anchor), next_fire_at, look_ahead, None)
}

/// Like [`plan`], but plans only the fires before the instant `before`, if it is given.
pub(crate) fn plan_before(
    job: &Job,
    (id, anchor): (JobId, Timestamp),
    next_fire_at: Timestamp,
    look_ahead: LookAhead,
    before: Option<Timestamp>,
) -> Plan {
    let look_ahead = LookAhead {
        end: before.map_or(look_ahead.end, |before| look_ahead.end.min(just_before(before))),
        ..look_ahead
    };
    if let Some(delay) = job.timetable.delay() {
        return plan_delay(job, id, next_fire_at, look_ahead.now + delay, look_ahead);
    }
    let missed_before = before.into_iter().fold(missed_before(job, id, look_ahead), std::cmp::min);
    let missed_plan = skip_missed(&job.timetable, anchor, next_fire_at, missed_before, catch_up_limit(job));
    let late_fires = missed_plan.catch_up.into_iter();
    let mut fires: Vec<PlannedFire> =
        late_fires.map(|fire| PlannedFire { fire_at: fire.at, due_at: fire.at, trigger: Trigger::Misfire }).collect();
    if missed_plan.next_missed.is_some() {
        return Plan { fires, missed: missed_plan.span, next: missed_plan.next_missed, ..Plan::default() };
    }
    let mut cursor = missed_plan.through;
    for fire in job.timetable.fires(anchor, missed_plan.through, look_ahead.end).take(FIRE_COUNT_MAX) {
        fires.push(PlannedFire { fire_at: fire.at, due_at: fire.due_at(id), trigger: fire.trigger });
        cursor = fire.at;
    }
    Plan { fires, missed: missed_plan.span, next: job.timetable.next_scan_after(anchor, cursor), ..Plan::default() }
}

/// Fires before this instant are missed, whatever their jitter.
pub(crate) fn missed_before(job: &Job, id: JobId, look_ahead: LookAhead) -> Timestamp {
    look_ahead.judged_at() - job.misfire.tolerance - job.timetable.jitter_max_of(id)
}

/// Plans a job with a fixed delay, which has one fire at a time. If that fire was missed and is skipped, the delay starts
/// again.
fn plan_delay(job: &Job, id: JobId, fire_at: Timestamp, next: Timestamp, look_ahead: LookAhead) -> Plan {
    let jitter = job.timetable.schedules.iter().find_map(|schedule| schedule.jitter);
    let due_at = Fire { at: fire_at, trigger: Trigger::Interval, jitter }.due_at(id);
    let is_missed = due_at < look_ahead.judged_at() - job.misfire.tolerance;
    if job.timetable.schedules.iter().any(|schedule| schedule.end.is_some_and(|end| fire_at > end)) {
        return Plan::default();
    }
    if fire_at > look_ahead.end {
        return Plan { next: Some(fire_at), ..Plan::default() };
    }
    if is_missed && job.misfire.policy == MisfirePolicy::Skip {
        let span = MissedSpan { first: fire_at, last: fire_at, count: 1, trigger: Trigger::Interval };
        return Plan { missed: Some(span), next: Some(next), ..Plan::default() };
    }
    let trigger = if is_missed { Trigger::Misfire } else { Trigger::Interval };
    Plan { fires: vec![PlannedFire { fire_at, due_at, trigger }], ..Plan::default() }
}

/// All fires that a job would have had from one instant through another, both included, as one span. A fixed delay has one fire, at `from`.
#[must_use]
pub fn span_between(job: &Job, anchor: Timestamp, from: Timestamp, through: Timestamp) -> Option<MissedSpan> {
    if job.timetable.delay().is_some() {
        return Some(MissedSpan { first: from, last: from, count: 1, trigger: Trigger::Interval });
    }
    let mut total_span: Option<MissedSpan> = None;
    let mut next_from = Some(from);
    while let Some(from) = next_from {
        let missed_plan = skip_missed(&job.timetable, anchor, from, just_after(through), (0, MisfireKeep::Newest));
        total_span = join_spans(total_span, missed_plan.span);
        next_from = missed_plan.next_missed;
    }
    total_span
}

/// The fires of a span that have no row yet, as the spans between the rows. `stored` has the first and the last fire of each row of the job's
/// schedules, sorted; rows before and after the span change nothing.
///
/// The instant of a span's first fire is the key of its row. If that fire had a row, the span would not be stored, and its other fires would
/// be in no row. A job has rows at or after its next fire if an edit made it follow other schedules or fire again, or if the clock stepped
/// back.
#[must_use]
pub fn spans_without_rows(
    job: &Job,
    anchor: Timestamp,
    span: MissedSpan,
    stored: &[(Timestamp, Timestamp)],
) -> Vec<MissedSpan> {
    if job.timetable.delay().is_some() {
        let has_row = stored.iter().any(|(first, _)| *first == span.first);
        return if has_row { Vec::new() } else { vec![span] };
    }
    let (mut spans, mut from) = (Vec::new(), span.first);
    for (first, last) in stored {
        spans.extend(span_between(job, anchor, from, just_before(*first).min(span.last)));
        from = from.max(just_after(*last));
    }
    spans.extend(span_between(job, anchor, from, span.last));
    spans
}

/// Joins spans that follow each other into one span with the sum of their counts; `None` without spans.
#[must_use]
pub fn join_all_spans(spans: impl IntoIterator<Item = MissedSpan>) -> Option<MissedSpan> {
    spans.into_iter().fold(None, |joined_span, span| join_spans(joined_span, Some(span)))
}

const fn just_after(at: Timestamp) -> Timestamp {
    Timestamp::from_millis(at.as_millis() + 1)
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
        plan(job, JobId::new(1), at(0), at(next), LookAhead { now: at(now), caught_up_at: at(now), end: at(now + 5) })
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

    /// The present lateness of a fire does not count: the policy judges how late it was when the servers had last claimed everything.
    #[test]
    fn fires_that_became_late_during_a_scan_are_not_missed() {
        let (every, late) = (json!({"every": "10s"}), |fire_at, trigger| (fire_at, trigger));
        let interval = Trigger::Interval;
        for (policy, caught_up, expected, missed_count) in [
            ("skip", 97, vec![late(100, interval), late(110, interval), late(120, interval)], 0),
            ("once", 105, vec![late(100, interval), late(110, interval), late(120, interval)], 0),
            ("skip", 106, vec![late(110, interval), late(120, interval)], 1),
            ("skip", 116, vec![late(120, interval)], 2),
            ("once", 116, vec![late(110, Trigger::Misfire), late(120, interval)], 1),
            // The clock stepped back after the servers had caught up.
            ("skip", 130, vec![late(120, interval)], 2),
        ] {
            let look_ahead = LookAhead { now: at(118), caught_up_at: at(caught_up), end: at(123) };
            let planned = plan(&job(&every, &json!({"policy": policy})), JobId::new(1), at(0), at(100), look_ahead);
            let fires: Vec<_> = planned.fires.iter().map(|fire| (fire.fire_at.second(), fire.trigger)).collect();
            let count = planned.missed.map_or(0, |span| span.count);
            assert_eq!((fires, count), (expected, missed_count), "{policy}, caught up at {caught_up}");
        }
        let delay = job(&json!({"delay": "20s"}), &json!({"policy": "skip"}));
        let planned = |caught_up| {
            let look_ahead = LookAhead { now: at(157), caught_up_at: at(caught_up), end: at(162) };
            plan(&delay, JobId::new(1), at(0), at(100), look_ahead)
        };
        assert_eq!((instants(&planned(105)), planned(105).missed), (vec![100], None));
        assert_eq!((instants(&planned(106)), planned(106).missed.is_some()), (vec![], true));
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
        assert_eq!(first.missed.map(|span| span.count), Some(99_999));
        assert_eq!((first.fires.len(), first.next), (0, Some(at(99_999))));
        let last = plan_at(&job(&both, &json!({"policy": "once"})), 120_000, 125_000);
        assert_eq!(instants(&last), (124_994..=125_005).collect::<Vec<_>>());
    }

    #[test]
    fn the_newest_run_where_one_missed_fire_more_than_a_plan_walks_through() {
        let job = job(&json!([{"every": "1s"}, {"every": "2s"}]), &json!({"policy": "all", "max": 3}));
        let first = plan_at(&job, 0, 100_006);
        assert_eq!((first.fires.len(), first.next), (0, Some(at(99_997))));
        let second = plan_at(&job, 99_997, 100_006);
        assert_eq!([&first, &second].map(|plan| plan.missed.map_or(0, |span| span.count)), [99_997, 1]);
        assert_eq!(instants(&second), (99_998..=100_011).collect::<Vec<_>>());
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
    fn a_span_leaves_out_the_fires_that_have_a_row() {
        let every = json!({"every": "10s"});
        let several = json!([{"every": "10s"}, {"every": "20s"}]);
        for (schedule, stored, expected) in [
            (&every, vec![], vec![(100, 150, 6)]),
            (&every, vec![(100, 100)], vec![(110, 150, 5)]),
            (&several, vec![(100, 100), (110, 110), (120, 120)], vec![(130, 150, 3)]),
            (&every, vec![(120, 120)], vec![(100, 110, 2), (130, 150, 3)]),
            (&several, vec![(120, 120), (140, 150)], vec![(100, 110, 2), (130, 130, 1)]),
            // A row may stand for fires before and after the span, or for an instant that is no fire.
            (&every, vec![(50, 110), (130, 200)], vec![(120, 120, 1)]),
            (&every, vec![(95, 112), (105, 105)], vec![(120, 150, 4)]),
            (&every, vec![(160, 200)], vec![(100, 150, 6)]),
            (&every, vec![(100, 150)], vec![]),
            (&every, vec![(100, 120), (110, 140), (150, 150)], vec![]),
        ] {
            let job = job(schedule, &json!({}));
            let span = span_between(&job, at(0), at(100), at(150)).unwrap();
            let stored_rows: Vec<_> = stored.iter().map(|(first, last)| (at(*first), at(*last))).collect();
            let spans = spans_without_rows(&job, at(0), span, &stored_rows);
            let found: Vec<_> =
                spans.iter().map(|span| (span.first.second(), span.last.second(), span.count)).collect();
            assert_eq!(found, expected, "{stored:?}");
            let (first, last) = (expected.first(), expected.last());
            let joined =
                first.zip(last).map(|(first, last)| (first.0, last.1, expected.iter().map(|span| span.2).sum()));
            let found = join_all_spans(spans).map(|span| (span.first.second(), span.last.second(), span.count));
            assert_eq!(found, joined);
        }
    }

    #[test]
    fn a_delay_fires_no_more_after_its_end() {
        let job = job(&json!({"delay": "20s", "end_at": "1970-01-01T00:01:00Z"}), &json!({}));
        let look_ahead = LookAhead { now: at(59), caught_up_at: at(59), end: at(64) };
        let plan = |second| {
            let at = Timestamp::from_secs(second);
            plan(&job, JobId::new(1), Timestamp::EPOCH, at, look_ahead)
        };
        assert_eq!(plan(60).fires.len(), 1);
        assert_eq!(plan(61), Plan::default());
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

    /// All fires of a job have the same jitter, so the policy decides over each fire whose own start was missed.
    #[test]
    fn a_fire_with_jitter_is_missed_as_soon_as_its_own_start_is() {
        let jittered = json!({"every": "10s", "jitter": {"max": "60s"}});
        for (policy, late_count) in [("skip", 0), ("once", 1), ("all", 2)] {
            let planned = plan_at(&job(&jittered, &json!({"policy": policy, "max": 2})), 100, 300);
            let (late, in_time): (Vec<_>, Vec<_>) =
                planned.fires.iter().partition(|fire| fire.trigger == Trigger::Misfire);
            assert_eq!(late.len(), late_count, "{policy}");
            assert!(in_time.iter().all(|fire: &PlannedFire| fire.due_at >= at(295)), "{policy}: {in_time:?}");
            assert!(in_time.first().is_some_and(|first| first.due_at < at(305)), "{policy}: {in_time:?}");
        }
    }

    #[test]
    fn the_last_fire_of_a_schedule_runs() {
        let plan = plan_at(&job(&json!({"at": "1970-01-01T00:02:00Z"}), &json!({})), 120, 118);
        assert_eq!((instants(&plan), plan.next), (vec![120], None));
    }

    proptest! {
        /// For any schedule, policy and delays between scans: each fire is run or skipped, exactly once.
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

    #[test]
    fn a_delay_is_missed_beyond_its_tolerance_and_waits_up_to_the_end_of_the_window() {
        let job = job(&json!({"delay": "20s"}), &json!({"policy": "skip", "tolerance": "10s"}));
        let spans = |next, now| plan_at(&job, next, now).missed.map(|span| span.count);
        assert_eq!((spans(100, 110), spans(100, 111)), (None, Some(1)));
        let ahead = |next| plan_at(&job, next, 100);
        assert_eq!((instants(&ahead(105)), ahead(105).next), (vec![105], None));
        assert_eq!((instants(&ahead(106)), ahead(106).next), (vec![], Some(at(106))));
    }
}
