use super::*;
use crate::dispatch::tests_support::run_due_at;

#[test]
fn a_late_message_about_an_earlier_attempt_does_not_concern_a_later_one() {
    let known = InMemory::default();
    let first = run_due_at(Timestamp::from_secs(1));
    let second = Run { attempt: 2, ..first.clone() };
    assert_eq!(known.admit(vec![first.clone()]).len(), 1);
    assert!(known.has(&first) && !known.has(&second));
    assert_eq!(known.admit(vec![second.clone()]).len(), 0, "it is here until its first attempt is known to be over");
    assert!(known.has_attempt_up_to(first.id, 1) && !known.has_attempt_up_to(first.id, 0));
    known.forget([first.id]);
    assert!(!known.has_later(first.id, 1), "nothing is here any more");
    assert_eq!(known.admit(vec![second.clone()]).len(), 1);
    assert!(!known.has_attempt_up_to(first.id, 1) && known.missing_runs([first.id]).is_empty());
    assert!(known.has_later(first.id, 1) && !known.has_later(first.id, 2));

    known.forget([first.id]);
    assert_eq!(known.admit(vec![first.clone()]).len(), 1);
    known.update_attempts([&second]);
    assert!(!known.has_attempt_up_to(first.id, 1));
    known.update_attempts([&run_due_at(Timestamp::from_secs(2))]);
    assert_eq!(known.len(), 1);
}

#[test]
fn runs_of_an_ended_lease_do_not_hide_runs_taken_over_from_it() {
    let known = InMemory::default();
    let before = run_due_at(Timestamp::from_secs(1));
    let after = Run { node_epoch: 2, ..before.clone() };
    let lease = |epoch| LeaseToken { node: before.node, epoch };
    assert_eq!(known.admit(vec![before.clone()]).len(), 1);
    assert_eq!(known.admit(vec![after.clone()]).len(), 1);
    assert_eq!(known.admit(vec![before.clone(), after.clone()]).len(), 0);
    assert!(known.is_newer(before.id, lease(1)) && !known.is_newer(before.id, lease(2)));
    known.forget_under_lease([(before.id, lease(1))]);
    assert_eq!(known.len(), 1, "the one of before is dropped where it was");
    known.forget_under_lease([(before.id, lease(2))]);
    assert_eq!(known.len(), 0);
}

#[test]
fn runs_without_room_are_left_in_the_store_and_taken_up_in_order() {
    let known = InMemory::new(4);
    let runs: Vec<Run> = (1..=6).map(|second| run_due_at(Timestamp::from_secs(second))).collect();
    let (at, never) = (Timestamp::from_secs, |_: &Run, _: Timestamp| Timestamp::MAX);
    let seconds = |runs: &[Run]| runs.iter().map(|run| run.due_at.second()).collect::<Vec<_>>();
    assert_eq!(seconds(&known.admit_as_of(runs.clone(), 0, at(4))), [1, 2]);
    known.forget([runs[0].id]);
    assert!(known.admit_as_of(runs[5..].to_vec(), 0, at(5)).is_empty(), "it would overtake what is left");
    let job = runs[0].job;
    let bounds = LookBounds { examined_max: 9, returned_max: 9 };
    let left = |now| known.jobs_with_rows_left(None, bounds, at(now)).0;
    assert_eq!((left(0), known.unsent_place_of(job)), (vec![job], Some(UnsentPlace::before(&runs[2]))));
    let page = |from: usize| runs[from..].to_vec();
    let (taken, is_all) = known.take_up(job, page(2), (at(5), never), true);
    assert_eq!((seconds(&taken), is_all), (vec![3], false));
    assert_eq!((known.queued_from(runs[2].id), known.queued_from(runs[1].id)), (Some(at(4)), None));
    assert_eq!(left(9), [], "no room, and none ends");
    let ends_at = |_: &Run, from: Timestamp| if from == at(5) { from } else { at(7) };
    let (taken, is_all) = known.take_up(job, page(3), (at(5), ends_at), true);
    assert_eq!((seconds(&taken), is_all), (vec![5], false), "its queue time is over");
    assert_eq!((left(6), left(7)), (vec![], vec![job]), "the next one ends then");
    known.forget(runs[..5].iter().map(|run| run.id));
    let (taken, is_all) = known.take_up(job, runs[3..4].to_vec(), (at(5), never), false);
    assert_eq!((seconds(&taken), is_all), (vec![4], true));
    assert_eq!(known.unsent_place_of(job), Some(UnsentPlace::of(&runs[3])), "a page follows");
    let (taken, _) = known.take_up(job, page(5), (at(5), never), true);
    assert_eq!((seconds(&taken), known.left_count()), (vec![6], 0));
    let begun = Run { attempt: 2, ..run_due_at(Timestamp::from_secs(9)) };
    let full = InMemory::new(0);
    full.admit(vec![runs[0].clone()]);
    assert_eq!(full.admit_as_of(vec![begun], 0, at(9)).len(), 1, "what has begun is not left");
    assert_eq!(full.admit_as_of(vec![runs[1].clone()], 0, at(9)).len(), 0);
}
