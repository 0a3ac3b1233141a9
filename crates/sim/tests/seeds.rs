//! The simulation as a test: no seed breaks a rule, and each seed does the same whenever it is run.

#![cfg(test)]

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rondel_sim::{Options, Outcome, simulate};
use tokio::time::Instant;

/// Runs seeds on two threads: the first `count_min` seeds in any case, and further ones until the time is up. Returns
/// how many it ran.
fn simulate_each(seeds: std::ops::Range<u64>, count_min: u64, check: impl Fn(&Outcome) + Sync) -> u64 {
    let (next, began) = (AtomicU64::new(seeds.start), Instant::now());
    let count = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    let is_over = seed >= seeds.start + count_min && began.elapsed() > TIME;
                    if seed >= seeds.end || is_over {
                        return;
                    }
                    check(&simulate(seed, Options::default()));
                    count.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    count.into_inner()
}

#[test]
fn no_seed_breaks_a_rule() {
    assert_clean_from(1);
}

#[test]
fn no_seed_with_small_bounds_breaks_a_rule() {
    assert_clean_from(SMALL_BOUNDS_FROM);
}

#[test]
fn no_seed_that_sends_ahead_breaks_a_rule() {
    assert_clean_from(AHEAD_FROM);
}

#[test]
fn no_seed_of_a_single_server_breaks_a_rule() {
    assert_clean_from(SINGLE_FROM);
}

#[test]
fn no_seed_with_shared_limits_breaks_a_rule() {
    assert_clean_from(LIMITED_FROM);
}

fn assert_clean_from(first: u64) {
    let failed = Mutex::new(Vec::new());
    let (starts, runs) = (AtomicU64::new(0), AtomicU64::new(0));
    let count = simulate_each(first..first + SEED_COUNT_MAX, SEED_COUNT_MIN, |outcome| {
        starts.fetch_add(outcome.start_count as u64, Ordering::Relaxed);
        runs.fetch_add(outcome.run_count as u64, Ordering::Relaxed);
        if !outcome.violations.is_empty() {
            failed.lock().unwrap().push((outcome.seed, outcome.violations.clone()));
        }
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "replay with `cargo run -p rondel-sim -- --seed N --trace`: {failed:#?}");
    let (starts, runs) = (starts.into_inner(), runs.into_inner());
    assert!(starts > 20 * count && runs > 20 * count, "a world in which nothing happens: {starts}, {runs}");
    println!("{count} seeds are clean");
}

/// How many seeds a test run simulates, at least and at most; in between, the time decides. `rondel-sim` is the command for
/// long runs.
const SEED_COUNT_MIN: u64 = 100;
const SEED_COUNT_MAX: u64 = 3_000;
const TIME: Duration = Duration::from_secs(20);
/// From this seed on, each page size and bound of the engine is two, three or its usual value.
const SMALL_BOUNDS_FROM: u64 = 100_000_001;
/// From this seed on, triggers are sent ahead of their instants as well.
const AHEAD_FROM: u64 = 300_000_001;
/// From this seed on, there is one server. After a restart, it takes over its old lease immediately.
const SINGLE_FROM: u64 = 400_000_001;
/// From this seed on, there are several servers, and most jobs share limits.
const LIMITED_FROM: u64 = 500_000_001;

/// Seeds that once showed a fault, of the engine or of the checker, which is fixed now. Test runs do not reach them otherwise.
/// Seed 827,640 did not come to an end.
const FIXED_SEEDS: &[u64] = &[
    989,
    1223,
    1716,
    1990,
    4872,
    5047,
    11_239,
    53_305,
    60_264,
    110_091,
    110_571,
    134_474,
    311_514,
    411_071,
    509_169,
    522_841,
    541_437,
    560_084,
    827_640,
    1_043_331,
    1_518_581,
    2_501_841,
    3_507_477,
    3_519_904,
    4_508_970,
    5_138_754,
    5_212_249,
    5_228_400,
    5_259_308,
    5_292_513,
    6_003_155,
    6_017_741,
    6_034_256,
    6_065_037,
    6_200_200,
    6_209_528,
    6_213_671,
    10_001_654,
    10_037_412,
    20_068_994,
    21_067_341,
    30_014_499,
    30_038_700,
    30_043_227,
    100_000_935,
    100_001_377,
    130_000_506,
    130_041_442,
    143_112_782,
    144_004_734,
    144_528_173,
    144_586_351,
    145_083_686,
    145_148_406,
    145_288_904,
    147_026_539,
    147_046_706,
    148_059_251,
    149_046_409,
    149_172_041,
    149_356_067,
    151_000_771,
    152_042_094,
    152_049_482,
    152_093_716,
    153_064_018,
    157_299_629,
    158_306_982,
    158_313_683,
    158_533_571,
    158_569_986,
    160_211_043,
    162_558_987,
    163_395_448,
    163_725_001,
    164_486_143,
    400_000_094,
    500_001_933,
    500_004_082,
    500_055_579,
];

#[test]
fn fixed_seeds_stay_clean() {
    for seed in FIXED_SEEDS {
        let outcome = simulate(*seed, Options::default());
        assert!(outcome.violations.is_empty(), "seed {seed}: {:#?}", outcome.violations);
    }
}

#[test]
fn a_seed_does_the_same_each_time() {
    let hashes_by_seed = Mutex::new(std::collections::BTreeMap::new());
    let note = |outcome: &Outcome| {
        let known_hash = hashes_by_seed.lock().unwrap().insert(outcome.seed, outcome.hash);
        assert!(
            known_hash.is_none_or(|known_hash| known_hash == outcome.hash),
            "seed {} went another way",
            outcome.seed
        );
    };
    simulate_each(1..101, 100, note);
    simulate_each(1..101, 100, note);
    let hashes = std::mem::take(&mut *hashes_by_seed.lock().unwrap());
    let distinct: std::collections::BTreeSet<u64> = hashes.values().copied().collect();
    assert_eq!((hashes.len(), distinct.len()), (100, 100), "each seed is a world of its own");
    // Runs of this seed once differed: after a pause, chance decided whether a node's scan had been woken or had come
    // early.
    (0..6).for_each(|_| note(&simulate(200_000_322, Options::default())));
}
