//! Manifests, migrations and sources are consistent.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::{WORKSPACE, files, read, root};

/// Maximum number of lines of a file. A longer file has a second idea, which belongs into its own file.
const LINE_COUNT_MAX: usize = 500;

/// The databases, by the names of their folders under `migrations/`.
const DATABASES: [&str; 3] = ["mysql", "postgres", "sqlite"];

#[test]
fn migrations_have_equal_names_for_all_databases() {
    let [mysql, postgres, sqlite] = DATABASES.map(|database| {
        let names = files()
            .into_iter()
            .filter_map(|path| path.strip_prefix(format!("migrations/{database}")).ok().map(Path::to_owned));
        names.collect::<BTreeSet<PathBuf>>()
    });
    assert!(!sqlite.is_empty(), "there are no migrations");
    assert_eq!(sqlite, postgres, "left: sqlite; right: postgres");
    assert_eq!(sqlite, mysql, "left: sqlite; right: mysql");
}

#[test]
fn migrations_have_numbers_without_gaps() {
    let mut numbers: Vec<u32> = files()
        .into_iter()
        .filter_map(|path| Some(path.strip_prefix("migrations/sqlite").ok()?.to_str()?.to_owned()))
        .map(|name| {
            let number = name.split('_').next().and_then(|number| number.parse().ok());
            number.unwrap_or_else(|| panic!("{name} does not begin with a number and _"))
        })
        .collect();
    numbers.sort_unstable();
    assert!(numbers.iter().copied().eq(1..=u32::try_from(numbers.len()).expect("few migrations")), "{numbers:?}");
}

/// An index of PostgreSQL on an existing table is built before the migration, while servers run, and `IF NOT EXISTS` lets the migration find
/// it. The migrations up to 0044 get these words when they are applied.
#[test]
fn migrations_make_indexes_that_may_exist() {
    // The last migration before this rule.
    const LAST_BEFORE: u32 = 44;
    for path in files().into_iter().filter(|path| path.starts_with("migrations/postgres")) {
        let name = path.file_name().and_then(|name| name.to_str()).expect("a name").to_owned();
        let number: u32 = name.split('_').next().and_then(|number| number.parse().ok()).expect("a number");
        let text = read(&path);
        let made_here = |statement: &str| {
            let table = statement.split(" ON ").nth(1).and_then(|rest| rest.split_whitespace().next());
            table.is_some_and(|table| text.contains(&format!("CREATE TABLE {table} ")))
        };
        for statement in text.split(';').map(str::trim_start).filter(|statement| statement.contains("CREATE INDEX ")) {
            let may_exist = statement.contains("CREATE INDEX IF NOT EXISTS ");
            assert!(number <= LAST_BEFORE || may_exist || made_here(statement), "{name}: IF NOT EXISTS: {statement}");
        }
    }
}

#[test]
fn every_crate_inherits_the_settings_of_the_workspace() {
    for package in WORKSPACE.workspace_packages() {
        let path = package.manifest_path.strip_prefix(root()).expect("crates lie in the root");
        let manifest: toml::Table = read(path.as_std_path()).parse().expect("a manifest is TOML");
        let inherits = |table: &str, key: Option<&str>| {
            let table = manifest.get(table);
            let entry = key.map_or(table, |key| table.and_then(|table| table.get(key)));
            entry.and_then(|entry| entry.get("workspace")).and_then(toml::Value::as_bool) == Some(true)
        };
        assert!(inherits("lints", None), "{path}: [lints] workspace = true");
        for key in ["version", "edition", "rust-version", "license"] {
            assert!(inherits("package", Some(key)), "{path}: {key}.workspace = true");
        }
    }
}

/// A `select!` without `biased` chooses at random, so that a seed of the simulation would not repeat the same history.
#[test]
fn the_engine_does_not_choose_at_random() {
    let mut complaints = Vec::new();
    for path in files().into_iter().filter(|path| path.starts_with("crates/admin/src")) {
        let text = read(&path);
        let lines: Vec<&str> = text.lines().collect();
        let is_random = |pair: &&[&str]| pair[0].contains("select! {") && pair[1].trim() != "biased;";
        complaints
            .extend(lines.windows(2).filter(is_random).map(|pair| format!("{}: {}", path.display(), pair[1].trim())));
    }
    assert!(complaints.is_empty(), "write `biased;` first, and its branches in their order: {complaints:#?}");
}

#[test]
fn no_source_is_longer_than_its_bound() {
    let is_written = |path: &&PathBuf| {
        path.extension().is_some_and(|ending| ending == "rs")
            && !path.components().any(|part| part.as_os_str() == "generated")
    };
    let lengths =
        files().iter().filter(is_written).map(|path| (read(path).lines().count(), path.clone())).collect::<Vec<_>>();
    assert!(lengths.len() > 100, "the sources are found");
    let long: Vec<_> = lengths.into_iter().filter(|(line_count, _)| *line_count > LINE_COUNT_MAX).collect();
    assert!(long.is_empty(), "split these by noun, at most {LINE_COUNT_MAX} lines each: {long:#?}");
}

#[test]
fn nothing_is_left_for_later_in_the_sources() {
    // Put together here, so that this file does not find itself.
    let words = [concat!("FIX", "ME"), concat!("to", "do!("), concat!("unimple", "mented!("), concat!("#[", "ignore")];
    let mut complaints = Vec::new();
    for path in files().iter().filter(|path| path.extension().is_some_and(|ending| ending == "rs")) {
        for (index, line) in read(path).lines().enumerate() {
            if words.iter().any(|word| line.contains(word)) {
                complaints.push(format!("{}:{}: {}", path.display(), index + 1, line.trim()));
            }
        }
    }
    assert!(complaints.is_empty(), "{complaints:#?}");
}
