//! Tests of plans under maintenance windows.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::plan::plan;

const ID: JobId = JobId::new(1);

fn job(schedule: &serde_json::Value, policy: &str) -> Job {
    let misfire = json!({"policy": policy, "max": 2});
    let spec = json!({"name": "a", "app": "b", "handler": "c", "schedule": schedule, "misfire": misfire});
    serde_json::from_value::<crate::JobSpec>(spec).unwrap().compile().unwrap()
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_secs(seconds)
}

fn closed(from: i64, to: i64, fires: FiresInside) -> MaintenanceWindow {
    let (namespace, app) = (NamespaceId::new(1), None);
    MaintenanceWindow { id: MaintenanceId::new(1), namespace, app, starts_at: at(from), ends_at: at(to), fires }
}

fn look_ahead(now: i64) -> LookAhead {
    LookAhead { now: at(now), caught_up_at: at(now), end: at(now + 5) }
}

fn plan_from(job: &Job, (next, held_from): (i64, Option<i64>), now: i64, windows: &[MaintenanceWindow]) -> Plan {
    let cursor = Cursor { next_fire_at: at(next), held_from: held_from.map(at) };
    plan_within(job, (ID, at(0)), cursor, look_ahead(now), windows)
}

fn plan_at(job: &Job, next: i64, now: i64, windows: &[MaintenanceWindow]) -> Plan {
    plan_from(job, (next, None), now, windows)
}

fn spans(plan: &Plan) -> Vec<(i64, i64, i64)> {
    plan.skipped_in_window.iter().map(|span| (span.first.second(), span.last.second(), span.count)).collect()
}

fn fires(plan: &Plan) -> Vec<(i64, i64)> {
    plan.fires.iter().map(|fire| (fire.fire_at.second(), fire.due_at.second())).collect()
}

#[test]
fn no_fire_is_planned_into_a_window_and_the_first_after_it_is() {
    let job = job(&json!({"every": "1s"}), "skip");
    let windows = [closed(102, 104, FiresInside::Skip)];
    let before = plan_at(&job, 100, 100, &windows);
    assert_eq!((fires(&before), before.next), (vec![(100, 100), (101, 101)], Some(at(102))));
    let inside = plan_at(&job, 102, 100, &windows);
    assert_eq!((fires(&inside), spans(&inside), inside.next), (vec![], vec![(102, 103, 2)], Some(at(104))));
    let after = plan_at(&job, 104, 102, &windows);
    assert_eq!((fires(&after)[0], after.skipped_in_window.len()), ((104, 104), 0), "its end is not inside");
    assert_eq!(plan_at(&job, 100, 100, &[]), plan(&job, ID, at(0), at(100), look_ahead(100)));
}

#[test]
fn a_long_window_is_planned_a_minute_at_a_time() {
    let job = job(&json!({"every": "10s"}), "once");
    let windows = [closed(100, 10_000, FiresInside::Skip)];
    let plan = plan_at(&job, 100, 98, &windows);
    assert_eq!((spans(&plan), plan.next), (vec![(100, 150, 6)], Some(at(160))));
    let rare = self::job(&json!({"every": "1000s"}), "once");
    let plan = plan_at(&rare, 1000, 998, &windows);
    assert_eq!((spans(&plan), plan.next), (vec![(1000, 1000, 1)], Some(at(2000))), "it fires inside once more");
}

/// An edit within the next minute finds the row of the fires that are ahead, because it is short.
#[test]
fn after_a_long_stall_past_fires_and_those_ahead_have_separate_rows() {
    let job = job(&json!({"every": "10s"}), "once");
    let windows = [closed(100, 10_000, FiresInside::Skip)];
    let past = plan_at(&job, 100, 400, &windows);
    assert_eq!((spans(&past), past.next), (vec![(100, 390, 30)], Some(at(400))));
    let ahead = plan_at(&job, 400, 400, &windows);
    assert_eq!((spans(&ahead), ahead.next), (vec![(400, 450, 6)], Some(at(460))));
    let short = plan_at(&job, 100, 160, &windows);
    assert_eq!((spans(&short), short.next), (vec![(100, 210, 12)], Some(at(220))));
}

#[test]
fn held_fires_run_at_the_end_of_the_window_by_the_misfire_policy() {
    let windows = [closed(100, 130, FiresInside::Hold)];
    for (policy, kept, skipped) in [
        ("skip", vec![], vec![(100, 120, 3)]),
        ("once", vec![(120, 130)], vec![(100, 110, 2)]),
        ("all", vec![(110, 130), (120, 130)], vec![(100, 100, 1)]),
    ] {
        let job = job(&json!({"every": "10s"}), policy);
        let inside = plan_at(&job, 100, 98, &windows);
        assert_eq!((fires(&inside), spans(&inside)), (vec![], vec![]), "{policy}");
        assert_eq!((inside.next, inside.held_from), (Some(at(130)), Some(at(100))), "{policy}");
        let end = plan_from(&job, (130, Some(100)), 128, &windows);
        assert_eq!((fires(&end), spans(&end)), (kept, skipped), "{policy}");
        assert_eq!((end.next, end.held_from), (Some(at(130)), None), "{policy}");
    }
    let oldest = json!({"name": "a", "app": "b", "handler": "c", "schedule": {"every": "10s"},
        "misfire": {"policy": "all", "max": 1, "keep": "oldest"}});
    let oldest = serde_json::from_value::<crate::JobSpec>(oldest).unwrap().compile().unwrap();
    let end = plan_from(&oldest, (130, Some(100)), 128, &windows);
    assert_eq!((fires(&end), spans(&end)), (vec![(100, 130)], vec![(110, 120, 2)]));
}

#[test]
fn after_a_window_that_ends_early_held_fires_run_within_a_minute() {
    let long = [closed(100, 4_000, FiresInside::Hold)];
    let hourly = job(&json!({"every": "30s"}), "once");
    let first = plan_at(&hourly, 120, 118, &long);
    assert_eq!((first.next, first.held_from), (Some(at(180)), Some(at(120))), "it is looked at each minute");
    let ended = [closed(100, 170, FiresInside::Hold)];
    let end = plan_from(&hourly, (180, Some(120)), 178, &ended);
    assert_eq!((fires(&end), spans(&end), end.next), (vec![(150, 180)], vec![(120, 120, 1)], Some(at(180))));
}

#[test]
fn held_fires_wait_for_the_end_of_the_last_of_overlapping_windows() {
    let job = job(&json!({"every": "10s"}), "once");
    let windows = [closed(100, 150, FiresInside::Skip), closed(120, 140, FiresInside::Hold)];
    let first = plan_at(&job, 100, 98, &windows);
    assert_eq!((spans(&first), first.next), (vec![(100, 110, 2)], Some(at(120))));
    let second = plan_at(&job, 120, 118, &windows);
    assert_eq!((second.next, second.held_from), (Some(at(150)), Some(at(120))));
    let end = plan_from(&job, (150, Some(120)), 148, &windows);
    assert_eq!((fires(&end), spans(&end)), (vec![(130, 150)], vec![(120, 120, 1), (140, 140, 1)]));
}

#[test]
fn the_policy_decides_once_although_a_skipping_window_divides_the_held_fires() {
    let windows =
        [closed(100, 130, FiresInside::Hold), closed(120, 160, FiresInside::Skip), closed(150, 180, FiresInside::Hold)];
    for (policy, kept, skipped) in [
        ("skip", vec![], vec![(100, 120, 3), (130, 140, 2), (150, 170, 3)]),
        ("once", vec![(170, 180)], vec![(100, 120, 3), (130, 140, 2), (150, 160, 2)]),
        ("all", vec![(160, 180), (170, 180)], vec![(100, 120, 3), (130, 140, 2), (150, 150, 1)]),
    ] {
        let end = plan_from(&job(&json!({"every": "10s"}), policy), (180, Some(100)), 178, &windows);
        assert_eq!((fires(&end), spans(&end), end.next), (kept, skipped, Some(at(180))), "{policy}");
    }
    let oldest = json!({"name": "a", "app": "b", "handler": "c", "schedule": {"every": "10s"},
        "misfire": {"policy": "all", "max": 4, "keep": "oldest"}});
    let oldest = serde_json::from_value::<crate::JobSpec>(oldest).unwrap().compile().unwrap();
    let end = plan_from(&oldest, (180, Some(100)), 178, &windows);
    assert_eq!(fires(&end), [(100, 180), (110, 180), (120, 180), (150, 180)]);
    assert_eq!(spans(&end), [(130, 140, 2), (160, 170, 2)]);
}

#[test]
fn fires_that_a_server_finds_late_run_neither_inside_nor_from_inside() {
    let job = job(&json!({"every": "10s"}), "once");
    let windows = [closed(100, 200, FiresInside::Skip)];
    let found_inside = plan_at(&job, 70, 120, &windows);
    assert_eq!((fires(&found_inside), found_inside.held_from), (vec![], Some(at(70))), "missed: it waits");
    let end = plan_from(&job, (200, Some(70)), 198, &windows);
    assert_eq!((fires(&end), spans(&end)), (vec![(90, 200)], vec![(70, 80, 2), (100, 190, 10)]), "not those inside");
    assert_eq!(end.next, Some(at(200)));
    let late = plan_at(&job, 90, 92, &windows);
    assert_eq!(fires(&late), [(90, 90)], "late, not missed");
    let found_after = plan_at(&job, 80, 230, &windows);
    assert_eq!((fires(&found_after), found_after.next), (vec![(90, 90)], Some(at(100))));
    let inside = plan_at(&job, 100, 230, &windows);
    assert_eq!((spans(&inside), inside.next), (vec![(100, 190, 10)], Some(at(200))));
}

#[test]
fn a_delay_waits_for_the_end() {
    let job = job(&json!({"delay": "20s"}), "skip");
    let windows = [closed(100, 130, FiresInside::Skip)];
    let plan = plan_at(&job, 110, 108, &windows);
    assert_eq!((plan.fires.len(), plan.skipped_in_window.len(), plan.next), (0, 0, Some(at(130))));
    assert_eq!(fires(&plan_at(&job, 130, 128, &windows)), [(130, 130)]);
}

#[test]
fn windows_are_about_their_namespace_or_app() {
    let all = closed(1, 2, FiresInside::Skip);
    let one = MaintenanceWindow { app: Some(AppId::new(7)), ..all.clone() };
    let covers =
        |window: &MaintenanceWindow, namespace, app| window.covers(NamespaceId::new(namespace), AppId::new(app));
    assert!(covers(&all, 1, 7) && covers(&all, 1, 8) && !covers(&all, 2, 7));
    assert!(covers(&one, 1, 7) && !covers(&one, 1, 8));
    assert!(all.has(at(1)) && !all.has(at(2)) && !all.has(at(0)));
}

fn fires_inside() -> impl Strategy<Value = FiresInside> {
    prop::sample::select(vec![FiresInside::Skip, FiresInside::Hold])
}

proptest! {
    /// If a job is scanned each second, no fire runs inside of a window, each fire has one verdict, and plans after the windows
    /// are the same as without windows. One window may end early.
    #[test]
    fn nothing_runs_inside_of_windows_and_nothing_is_lost(
        period in 1_i64..25,
        policy in prop::sample::select(vec!["skip", "once", "all"]),
        placed in prop::collection::vec((10_i64..120, 1_i64..150, fires_inside()), 1..4),
        ended_at in prop::option::of(20_i64..200),
    ) {
        let job = job(&json!({"every": format!("{period}s")}), policy);
        let mut windows: Vec<MaintenanceWindow> =
            placed.iter().map(|(from, length, fires)| closed(*from, from + length, *fires)).collect();
        let mut cursor = Cursor { next_fire_at: at(0), held_from: None };
        let (mut seen, mut plans_after) = (Vec::new(), 0);
        for now in 0..400 {
            if ended_at == Some(now) && windows[0].starts_at <= at(now) {
                windows[0].ends_at = windows[0].ends_at.min(at(now));
            }
            let is_open = |instant: Timestamp| windows.iter().any(|one| one.has(instant));
            if cursor.next_fire_at > at(now + 3) {
                continue;
            }
            let planned = plan_within(&job, (ID, at(0)), cursor, look_ahead(now), &windows);
            for fire in &planned.fires {
                prop_assert!(!is_open(fire.due_at.max(at(now))), "{fire:?} at {now} in {windows:?}");
                seen.push(fire.fire_at.second());
            }
            prop_assert!(planned.missed.is_none(), "nothing is missed by a server that is there: {planned:?}");
            for span in &planned.skipped_in_window {
                seen.extend((0..span.count).map(|n| span.first.second() + n * period));
            }
            let is_after = cursor.held_from.is_none() && windows.iter().all(|one| one.ends_at <= cursor.next_fire_at);
            if is_after {
                plans_after += 1;
                let without = plan(&job, ID, at(0), cursor.next_fire_at, look_ahead(now));
                prop_assert_eq!(&planned, &without);
            }
            cursor = Cursor { next_fire_at: planned.next.unwrap(), held_from: planned.held_from };
        }
        seen.sort_unstable();
        let expected: Vec<i64> = (0..).map(|n| n * period).take_while(|fire| at(*fire) < cursor.next_fire_at).collect();
        prop_assert_eq!(seen, expected);
        prop_assert!(plans_after > 0 && cursor.held_from.is_none());
    }
}
