use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::id::JobId;
use crate::time::Timestamp;

pub(super) fn all_points(count: usize) -> Vec<HashPoints> {
    (0..count).map(|index| HashPoints::new(&format!("e{index:03}"))).collect()
}

pub(super) fn candidates(all_points: &[HashPoints]) -> Vec<Candidate<'_>> {
    let open = |points| Candidate { hashed_name: points, weight: 1, active: 0, refusal: None, answer: Answer::Missing };
    all_points.iter().map(open).collect()
}

pub(super) fn request<'a>(candidates: &'a [Candidate<'a>]) -> RouteRequest<'a> {
    RouteRequest {
        job: JobId::new(1),
        hash_key: None,
        shard: 0,
        shards: 1,
        attempt: 1,
        executor: None,
        candidates,
        now: Timestamp::EPOCH,
        draw: 0,
        is_wait_over: true,
    }
}

fn once(route: Route, request: &RouteRequest<'_>) -> Choice {
    pick(route, request, &mut Memory::default())
}

/// How often each name is picked in `count` runs.
fn shares(route: Route, candidates: &[Candidate<'_>], memory: &mut Memory, count: u32) -> BTreeMap<String, u32> {
    let mut shares: BTreeMap<String, u32> =
        candidates.iter().map(|candidate| (candidate.hashed_name.name().to_owned(), 0)).collect();
    for turn in 0..count {
        let request = RouteRequest { draw: turn.wrapping_mul(0x9E37_79B9), ..request(candidates) };
        let Choice::Take(index) = pick(route, &request, memory) else { panic!("no executor for {route}") };
        *shares.get_mut(candidates[index].hashed_name.name()).unwrap() += 1;
    }
    shares
}

#[test]
fn no_executor_is_picked_if_none_is_online_or_all_are_full() {
    let all_points = all_points(2);
    let mut full = candidates(&all_points);
    full.iter_mut().for_each(|candidate| candidate.refusal = Some(Refusal::Full));
    for route in Route::ALL {
        for shards in [1, 3] {
            for attempt in [1, 2] {
                let executor = Some("e000");
                assert_eq!(
                    once(*route, &RouteRequest { shards, attempt, executor, ..request(&[]) }),
                    Choice::NoExecutor,
                    "{route}"
                );
                assert_eq!(
                    once(*route, &RouteRequest { shards, attempt, executor, ..request(&full) }),
                    Choice::NoExecutor,
                    "{route}"
                );
            }
        }
    }
}

#[test]
fn first_last_random() {
    let all_points = all_points(4);
    let mut online = candidates(&all_points);
    online[0].refusal = Some(Refusal::Full);
    assert_eq!(once(Route::First, &request(&online)), Choice::Take(1));
    assert_eq!(once(Route::Last, &request(&online)), Choice::Take(3));
    assert_eq!(once(Route::Random, &RouteRequest { draw: 5, ..request(&online) }), Choice::Take(3));
}

#[test]
fn round_takes_each_in_turn_from_a_drawn_start_and_survives_a_shorter_list() {
    let all_points = all_points(3);
    let online = candidates(&all_points);
    let mut memory = Memory::default();
    let mut picks =
        |count: usize| pick(Route::Round, &RouteRequest { draw: 1, ..request(&online[..count]) }, &mut memory);
    let taken: Vec<Choice> = (0..4).map(|_| picks(3)).collect();
    assert_eq!(taken, [1, 2, 0, 1].map(Choice::Take));
    assert_eq!(picks(2), Choice::Take(0));
}

#[test]
fn round_lfu_and_lru_are_even_to_within_one() {
    let all_points = all_points(5);
    let online = candidates(&all_points);
    for route in [Route::Round, Route::Lfu, Route::Lru] {
        for runs in [1, 4, 5, 7, 100, 333] {
            let shares = shares(route, &online, &mut Memory::default(), runs);
            let (least, most) = (shares.values().min().unwrap(), shares.values().max().unwrap());
            assert!(most - least <= 1, "{route} {runs}: {shares:?}");
        }
    }
}

#[test]
fn an_executor_that_joins_is_not_flooded_and_one_that_leaves_is_forgotten() {
    let all_points = all_points(4);
    let online = candidates(&all_points);
    for route in [Route::Lfu, Route::Lru] {
        let mut memory = Memory::default();
        shares(route, &online[..3], &mut memory, 300);
        let with_new = shares(route, &online, &mut memory, 40);
        assert!(with_new.values().all(|count| (9..=11).contains(count)), "{route}: {with_new:?}");
        shares(route, &online[..2], &mut memory, 200);
        let back = shares(route, &online, &mut memory, 40);
        assert!(back.values().all(|count| (9..=11).contains(count)), "{route}: {back:?}");
    }
}

#[test]
fn an_executor_that_is_full_for_a_while_is_not_forgotten() {
    let all_points = all_points(3);
    let online = candidates(&all_points);
    let mut full = online.clone();
    full[0].refusal = Some(Refusal::Full);
    let mut memory = Memory::default();
    shares(Route::Lfu, &online, &mut memory, 30);
    shares(Route::Lfu, &full, &mut memory, 10);
    // `e000` was used ten times, the others fifteen times each.
    assert_eq!(shares(Route::Lfu, &online, &mut memory, 5)["e000"], 5);
    assert_eq!(shares(Route::Lru, &online, &mut Memory::default(), 3)["e000"], 1);
}

#[test]
fn jobs_born_together_do_not_all_begin_with_the_first() {
    let all_points = all_points(4);
    let online = candidates(&all_points);
    for route in [Route::Round, Route::Lfu, Route::Lru, Route::Random, Route::LeastActive] {
        let first = |draw| once(route, &RouteRequest { draw, ..request(&online) });
        let began: std::collections::HashSet<usize> = (0..4)
            .map(|draw| match first(draw) {
                Choice::Take(index) => index,
                other => panic!("{route}: {other:?}"),
            })
            .collect();
        assert_eq!(began.len(), 4, "{route}");
    }
}

/// The values of XXL-JOB 3 for the same three addresses.
#[test]
fn consistent_hash_picks_as_xxl_job_does() {
    let all_points = [7, 8, 9].map(|last| HashPoints::new(&format!("http://127.0.0.1:999{last}/")));
    let online = candidates(&all_points);
    let expected = [9, 9, 9, 8, 8, 9, 8, 8, 8, 7, 8, 8];
    for (job, last) in (1..).zip(expected) {
        let picked = once(Route::ConsistentHash, &RouteRequest { job: JobId::new(job), ..request(&online) });
        assert_eq!(picked, Choice::Take(last - 7), "job {job}");
    }
    // The same executors with names of their own, placed by their addresses, and the ids from XXL-JOB as the keys of the jobs.
    let all_points = [7, 8, 9].map(|last| HashPoints::at(&format!("e{last}"), &format!("http://127.0.0.1:999{last}/")));
    let online = candidates(&all_points);
    for (job, last) in (1..).zip(expected) {
        let key = job.to_string();
        let asked = RouteRequest { job: JobId::new(77), hash_key: Some(&key), ..request(&online) };
        assert_eq!(once(Route::ConsistentHash, &asked), Choice::Take(last - 7), "job {job}");
    }
}

#[test]
fn few_jobs_move_when_an_executor_leaves_and_none_of_the_others_jobs() {
    const JOBS: i64 = 10_000;
    for count in [2, 3, 5, 10, 20] {
        let all_points = all_points(count);
        let online = candidates(&all_points);
        let picks = |online: &[Candidate<'_>]| -> Vec<String> {
            let executor_of_job =
                |job| match once(Route::ConsistentHash, &RouteRequest { job: JobId::new(job), ..request(online) }) {
                    Choice::Take(index) => online[index].hashed_name.name().to_owned(),
                    other => panic!("{other:?}"),
                };
            (1..=JOBS).map(executor_of_job).collect()
        };
        let before = picks(&online);
        for gone in 0..count {
            let mut without = online.clone();
            let gone = without.remove(gone).hashed_name.name().to_owned();
            let moved = before.iter().zip(picks(&without)).filter(|(before, after)| *before != after);
            let moved: Vec<_> = moved.collect();
            assert!(moved.iter().all(|(before, _)| **before == gone), "a job of another executor moved");
            let share = f64::from(u32::try_from(moved.len()).unwrap()) / 10_000.0;
            let fair = 1.0 / f64::from(u32::try_from(count).unwrap());
            assert!(share <= fair + 0.05, "{gone} of {count}: {share} of the jobs moved");
        }
    }
}

#[test]
fn a_weight_is_a_share() {
    let all_points = all_points(3);
    let mut online = candidates(&all_points);
    (online[0].weight, online[1].weight, online[2].weight) = (3, 0, 1);
    let shares_of = shares(Route::Weight, &online, &mut Memory::default(), 10_000);
    assert!((7_300..=7_700).contains(&shares_of["e000"]), "{shares_of:?}");
    assert_eq!(shares_of["e001"], 0);
    online.iter_mut().for_each(|candidate| candidate.weight = 0);
    assert!(shares(Route::Weight, &online, &mut Memory::default(), 300).values().all(|count| *count > 0));
    online.iter_mut().for_each(|candidate| candidate.weight = u32::MAX);
    assert_eq!(once(Route::Weight, &RouteRequest { draw: u32::MAX, ..request(&online) }), Choice::Take(2));
}

#[test]
fn least_active_takes_the_idlest() {
    let all_points = all_points(3);
    let mut online = candidates(&all_points);
    (online[0].active, online[1].active, online[2].active) = (2, 1, 1);
    for draw in 0..4 {
        assert_ne!(once(Route::LeastActive, &RouteRequest { draw, ..request(&online) }), Choice::Take(0));
    }
    online[1].refusal = Some(Refusal::Full);
    assert_eq!(once(Route::LeastActive, &request(&online)), Choice::Take(2));
}

#[test]
fn failover_and_busyover_take_the_first_good_answer_in_list_order() {
    use Answer::{Missing, No, Yes};
    let all_points = all_points(3);
    for (answers, is_wait_over, expected) in [
        ([Yes, Yes, Yes], false, Choice::Take(0)),
        ([No, Yes, Missing], false, Choice::Take(1)),
        ([Missing, Yes, Yes], false, Choice::Wait),
        ([Missing, Yes, Yes], true, Choice::Take(1)),
        ([No, No, Missing], false, Choice::Wait),
        ([No, No, Missing], true, Choice::NoExecutor),
        ([No, No, No], false, Choice::NoExecutor),
        ([Missing, Missing, Missing], false, Choice::Wait),
    ] {
        let mut online = candidates(&all_points);
        online.iter_mut().zip(answers).for_each(|(candidate, answer)| candidate.answer = answer);
        for route in [Route::Failover, Route::Busyover] {
            assert!(question(route).is_some());
            assert_eq!(once(route, &RouteRequest { is_wait_over, ..request(&online) }), expected, "{answers:?}");
        }
    }
}

#[test]
fn a_retry_goes_to_another_one_if_there_is_one() {
    let all_points = all_points(2);
    let mut online = candidates(&all_points);
    online.iter_mut().for_each(|candidate| candidate.answer = Answer::Yes);
    for route in Route::ALL.iter().filter(|route| **route != Route::Broadcast) {
        for (before, other) in [("e000", 1), ("e001", 0)] {
            let retry = RouteRequest { attempt: 2, executor: Some(before), ..request(&online) };
            assert_eq!(once(*route, &retry), Choice::Take(other), "{route}");
        }
        let alone = RouteRequest { attempt: 2, executor: Some("e000"), ..request(&online[..1]) };
        assert_eq!(once(*route, &alone), Choice::Take(0), "{route}");
    }
}

#[test]
fn a_broadcast_shard_goes_where_it_belongs() {
    let all_points = all_points(3);
    let mut online = candidates(&all_points);
    fn shard(online: &[Candidate<'_>], attempt: i32, executor: &str) -> Choice {
        once(
            Route::Broadcast,
            &RouteRequest { shard: 1, shards: 3, attempt, executor: Some(executor), ..request(online) },
        )
    }
    assert_eq!(shard(&online, 1, "e002"), Choice::Take(2));
    assert_eq!(shard(&online[..2], 1, "e002"), Choice::NoExecutor);
    assert_eq!(shard(&online, 2, "e002"), Choice::Take(2));
    assert_eq!(shard(&online[..2], 2, "e002"), Choice::Take(1));
    online[2].refusal = Some(Refusal::Full);
    assert_eq!(shard(&online, 2, "e002"), Choice::NoExecutor);
}

/// Routes the shards of a fire one by one, with one memory for all of them.
fn deal_of(route: Route, online: &[Candidate<'_>], shards: usize, draw: u32) -> Vec<usize> {
    let mut memory = Memory::default();
    let one = |shard| match pick(route, &RouteRequest { shard, shards, draw, ..request(online) }, &mut memory) {
        Choice::Take(index) => index,
        other => panic!("{route}: {other:?}"),
    };
    (0..shards).map(one).collect()
}

proptest! {
    #[test]
    fn shards_are_dealt_evenly(count in 1_usize..8, shards in 1_usize..30, draw: u32) {
        let all_points = all_points(count);
        let mut online = candidates(&all_points);
        online.iter_mut().for_each(|candidate| candidate.answer = Answer::Yes);
        for route in [Route::First, Route::Last, Route::Round, Route::Random, Route::Lfu, Route::Lru, Route::Failover] {
            let mut shares = vec![0; count];
            deal_of(route, &online, shards, draw).into_iter().for_each(|index| shares[index] += 1);
            let spread = shares.iter().max().unwrap() - shares.iter().min().unwrap();
            prop_assert!(spread <= 1, "{} {:?}", route, shares);
        }
    }

    #[test]
    fn only_an_open_executor_is_picked(
        open in prop::collection::vec(any::<bool>(), 0..12),
        turns in prop::collection::vec((any::<u32>(), 0_usize..3, 1_i32..3), 1..20),
    ) {
        let all_points = all_points(open.len());
        let mut online = candidates(&all_points);
        for (candidate, open) in online.iter_mut().zip(&open) {
            candidate.refusal = (!open).then_some(Refusal::Full);
            candidate.answer = Answer::Yes;
        }
        for route in Route::ALL {
            let mut memory = Memory::default();
            for (draw, shard, attempt) in &turns {
                let request = RouteRequest { draw: *draw, shard: *shard, shards: 3, attempt: *attempt, ..request(&online) };
                match pick(*route, &request, &mut memory) {
                    Choice::Take(index) => prop_assert!(open[index]),
                    Choice::NoExecutor => prop_assert!(!open.contains(&true) || *route == Route::Broadcast),
                    Choice::Wait => prop_assert!(false, "{} waits", route),
                }
            }
        }
    }
}

#[test]
fn only_a_further_attempt_avoids_the_executor_before() {
    let all_points = all_points(2);
    let online = candidates(&all_points);
    let after = |route, attempt| once(route, &RouteRequest { attempt, executor: Some("e000"), ..request(&online) });
    assert_eq!((after(Route::First, 1), after(Route::First, 2)), (Choice::Take(0), Choice::Take(1)));
    assert_eq!(after(Route::Broadcast, 2), after(Route::Broadcast, 1));
}

#[test]
fn attempts_draw_different_numbers_and_the_first_draws_the_fires_own() {
    let all_points = all_points(7);
    let online = candidates(&all_points);
    let drawn = |attempt, draw| once(Route::LeastActive, &RouteRequest { attempt, draw, ..request(&online) });
    for draw in 0..7 {
        assert_eq!(drawn(1, draw), Choice::Take(draw as usize));
    }
    assert_eq!(drawn(2, 0), Choice::Take(0x9E37_79B9 % 7));
    assert_eq!(drawn(3, 0), Choice::Take(0x3C6E_F372 % 7));
}
