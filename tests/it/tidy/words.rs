//! Words that read as translated do not come back: `words.tsv` has each one with its replacement, and the folders and files
//! that are free of it.

use std::path::Path;

use super::{files, read};

/// A word, its replacement, and where it must not occur.
struct Row<'a> {
    word: &'a str,
    replacement: &'a str,
    areas: Vec<&'a str>,
}

const TABLE: &str = include_str!("words.tsv");

fn rows(table: &str) -> Vec<Row<'_>> {
    table.lines().filter(|line| !line.starts_with('#')).map(row).collect()
}

fn row(line: &str) -> Row<'_> {
    let columns: Vec<&str> = line.split('\t').collect();
    assert_eq!(columns.len(), 3, "three columns: {line:?}");
    Row { word: columns[0], replacement: columns[1], areas: columns[2].split(' ').collect() }
}

/// Whether a line has the word by itself: not as a part of a longer one. A word in small letters is found in any case.
fn has(line: &str, word: &str) -> bool {
    let is_prose = word.chars().all(|c| c.is_lowercase() || c == ' ');
    let line = if is_prose { line.to_lowercase() } else { line.to_owned() };
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let (begins, ends) = (word.starts_with(is_part), word.ends_with(is_part));
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back().filter(|_| begins);
        let after = line[at + word.len()..].chars().next().filter(|_| ends);
        !before.is_some_and(is_part) && !after.is_some_and(is_part)
    })
}

/// Text that is written here, in the languages of the table.
fn is_text(path: &Path) -> bool {
    const ENDINGS: [&str; 13] =
        ["rs", "md", "toml", "sql", "proto", "html", "css", "js", "txt", "yaml", "yml", "json", "tsv"];
    let is_ours = !path.components().any(|part| part.as_os_str() == "generated" || part.as_os_str() == "vendor");
    let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
    is_ours && ENDINGS.contains(&ending) && path != Path::new("tests/it/tidy/words.tsv")
}

#[test]
fn words_that_went_do_not_come_back() {
    let rows = rows(TABLE);
    let files: Vec<_> = files().into_iter().filter(|path| is_text(path)).collect();
    let mut found = Vec::new();
    for path in &files {
        let held: Vec<_> = rows.iter().filter(|row| row.areas.iter().any(|area| path.starts_with(area))).collect();
        if held.is_empty() {
            continue;
        }
        for (index, line) in read(path).lines().enumerate() {
            for Row { word, replacement, .. } in held.iter().filter(|row| has(line, row.word)) {
                found.push(format!("{}:{}: {word:?}: write {replacement}", path.display(), index + 1));
            }
        }
    }
    assert!(found.is_empty(), "{found:#?}");
    for area in rows.iter().flat_map(|row| &row.areas) {
        assert!(files.iter().any(|path| path.starts_with(area)), "words.tsv: there is no {area}");
    }
}

#[test]
fn a_word_is_found_by_itself() {
    assert!(has("Nobody listens", "nobody") && has("it told: no", "told") && has("2 job(s)", "(s)"));
    assert!(!has("is_nobody_there", "nobody") && !has("a told_one", "told") && !has("essay", "say"));
    assert!(has("struct Known {", "struct Known") && !has("struct KnownSeat {", "struct Known"));
    let table = "# a comment\nnobody\tno caller\tdocs README.md";
    assert_eq!(rows(table)[0].areas, ["docs", "README.md"]);
}
