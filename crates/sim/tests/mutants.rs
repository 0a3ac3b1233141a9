//! Each safeguard is taken out once, and the checker must notice: with a seed that is known to show it.

#![cfg(test)]
#![cfg(debug_assertions)]

use std::collections::BTreeSet;

use rondel_sim::{Mutant, Options, simulate};

/// What is taken out, a seed that shows it, and the rule that it breaks there.
const CAUGHT: &[(&str, u64, &str)] = &[];

#[test]
fn every_mutant_is_caught() {
    let listed: BTreeSet<&str> = CAUGHT.iter().map(|(name, ..)| *name).collect();
    let all: BTreeSet<&str> = Mutant::ALL.iter().map(|(name, _)| *name).collect();
    assert_eq!(listed, all, "left: this table; right: the mutants");
    let mut missed = Vec::new();
    for (name, seed, rule) in CAUGHT {
        let mutant = Mutant::ALL.iter().find(|(known, _)| known == name).map(|(_, mutant)| *mutant);
        let with = simulate(*seed, Options { mutant, ..Options::default() });
        if !with.violations.iter().any(|violation| violation.starts_with(rule)) {
            missed.push(format!("{name}: seed {seed} shows {:?}", with.violations));
        }
        let without = simulate(*seed, Options::default());
        assert!(without.violations.is_empty(), "seed {seed} is clean by itself: {:#?}", without.violations);
    }
    assert!(missed.is_empty(), "look for other seeds (--mutant NAME --seeds 2000): {missed:#?}");
}
