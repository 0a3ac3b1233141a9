//! The simulation as a test: clean seeds are clean, and each seed does the same whenever it is run.

#![cfg(test)]

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use rondel_sim::{Options, Outcome, simulate};

/// Runs seeds on two threads.
fn each(seeds: std::ops::Range<u64>, look: impl Fn(&Outcome) + Sync) {
    let next = AtomicU64::new(seeds.start);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    look(&simulate(seed, Options::default()));
                }
            });
        }
    });
}

#[test]
fn no_seed_breaks_a_rule() {
    let failed = Mutex::new(Vec::new());
    let (starts, runs) = (AtomicU64::new(0), AtomicU64::new(0));
    each(1..SEED_COUNT + 1, |outcome| {
        starts.fetch_add(outcome.start_count as u64, Ordering::Relaxed);
        runs.fetch_add(outcome.run_count as u64, Ordering::Relaxed);
        if !outcome.violations.is_empty() && !KNOWN.contains(&outcome.seed) {
            failed.lock().unwrap().push((outcome.seed, outcome.violations.clone()));
        }
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "replay with `cargo run -p rondel-sim -- --seed N --trace`: {failed:#?}");
    let (starts, runs) = (starts.into_inner(), runs.into_inner());
    assert!(starts > 20 * SEED_COUNT && runs > 20 * SEED_COUNT, "a world in which nothing happens: {starts}, {runs}");
}

/// How many seeds a test run looks at; the long run is a command of its own.
const SEED_COUNT: u64 = 300;

/// Seeds that break a rule, each with what they show: faults of the engine that are known and not mended. Whoever mends one
/// takes it out.
const KNOWN: &[u64] = &[
    // Runs stay pending; the last two since the tick makes one call more for runs that somebody asked for.
    107, 196, 219,
];

#[test]
fn a_seed_does_the_same_each_time() {
    let first = Mutex::new(std::collections::BTreeMap::new());
    let note = |outcome: &Outcome| {
        let known = first.lock().unwrap().insert(outcome.seed, outcome.hash);
        assert!(known.is_none_or(|known| known == outcome.hash), "seed {} went another way", outcome.seed);
    };
    each(1..101, note);
    each(1..101, note);
    let hashes = first.into_inner().unwrap();
    let distinct: std::collections::BTreeSet<u64> = hashes.values().copied().collect();
    assert_eq!((hashes.len(), distinct.len()), (100, 100), "each seed is a world of its own");
}
