//! The licences of all crates in the product are on the list in `.deny.toml`.

use std::collections::BTreeSet;
use std::path::Path;

use super::{WORKSPACE, read};

#[test]
fn licences_of_all_crates_are_on_the_list() {
    let settings: toml::Table = read(Path::new(".deny.toml")).parse().expect(".deny.toml is TOML");
    let list = settings["licenses"]["allow"].as_array().expect("licenses.allow is a list");
    let allowed: BTreeSet<_> = list.iter().filter_map(toml::Value::as_str).collect();
    let refused_packages: Vec<_> = WORKSPACE
        .packages
        .iter()
        .filter(|package| !package.license.as_deref().is_some_and(|licence| is_allowed(licence, &allowed)))
        .map(|package| format!("{} {}: {:?}", package.name, package.version, package.license))
        .collect();
    assert!(refused_packages.is_empty(), "{refused_packages:#?}");
}

#[test]
fn the_licence_files_exist() {
    assert!(read(Path::new("LICENSE-MIT")).contains("Permission is hereby granted"));
    assert!(read(Path::new("LICENSE-APACHE")).contains("Version 2.0, January 2004"));
}

/// Whether an expression (`(MIT OR Apache-2.0) AND Unicode-3.0`) can be met by allowed licences alone. The slash is an old
/// way of writing OR.
fn is_allowed(expression: &str, allowed: &BTreeSet<&str>) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<_> = spaced.split_whitespace().collect();
    let mut rest = words.as_slice();
    meets_any(&mut rest, allowed) && rest.is_empty()
}

fn meets_any(words: &mut &[&str], allowed: &BTreeSet<&str>) -> bool {
    let mut is_met = meets_all(words, allowed);
    while let ["OR", rest @ ..] = *words {
        *words = rest;
        is_met |= meets_all(words, allowed);
    }
    is_met
}

fn meets_all(words: &mut &[&str], allowed: &BTreeSet<&str>) -> bool {
    let mut is_met = meets_one(words, allowed);
    while let ["AND", rest @ ..] = *words {
        *words = rest;
        is_met &= meets_one(words, allowed);
    }
    is_met
}

fn meets_one(words: &mut &[&str], allowed: &BTreeSet<&str>) -> bool {
    match *words {
        ["(", rest @ ..] => {
            *words = rest;
            let is_met = meets_any(words, allowed);
            let [")", rest @ ..] = *words else { return false };
            *words = rest;
            is_met
        }
        [licence, "WITH", exception, rest @ ..] => {
            *words = rest;
            allowed.contains(format!("{licence} WITH {exception}").as_str())
        }
        [licence, rest @ ..] => {
            *words = rest;
            allowed.contains(licence)
        }
        [] => false,
    }
}

#[test]
fn expressions_are_understood() {
    let allowed = BTreeSet::from(["MIT", "ISC", "Apache-2.0 WITH LLVM-exception"]);
    for good in ["MIT", "GPL-3.0 OR MIT", "MIT/GPL-3.0", "(GPL-3.0 OR MIT) AND ISC", "Apache-2.0 WITH LLVM-exception"] {
        assert!(is_allowed(good, &allowed), "{good}");
    }
    for bad in ["", "GPL-3.0", "MIT AND GPL-3.0", "(MIT OR ISC) AND GPL-3.0", "Apache-2.0", "(MIT", "MIT ISC"] {
        assert!(!is_allowed(bad, &allowed), "{bad}");
    }
}
