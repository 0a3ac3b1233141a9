//! A server takes over the runs of a dead server, but the executors of these runs never reach it. Its roll call goes
//! through a third server.

#![cfg(test)]

use rondel_sim::{Options, relay};

/// In each seed, the server dies at another instant.
const SEEDS: u64 = 20;

#[test]
fn a_roll_call_is_relayed_by_the_server_that_has_the_executors() {
    for seed in 1..=SEEDS {
        let report = relay(seed, Options::default());
        assert!(report.violations.is_empty(), "seed {seed}: {:#?}", report.violations);
        assert!(report.run_count > 80, "nothing happens in seed {seed}: {report:?}");
    }
}

#[cfg(debug_assertions)]
#[test]
fn a_roll_call_without_that_is_noticed() {
    let options = Options { mutant: Some(rondel_sim::Mutant::NoRelay), ..Options::default() };
    let is_shown = |seed| relay(seed, options).violations.iter().any(|violation| violation.starts_with("L1 roll call"));
    assert!((1..=SEEDS).any(is_shown));
}
