//! Words that read as translated do not return: `words.tsv` lists each one with its replacement and its exceptions, the
//! folders and files that may still have it.

use std::collections::BTreeSet;
use std::path::Path;

use super::{files, read};

/// A word, its replacement, and the folders and files that may have it.
struct Row<'a> {
    word: &'a str,
    replacement: &'a str,
    exceptions: Vec<&'a str>,
}

const TABLE: &str = include_str!("words.tsv");

fn rows(table: &str) -> Vec<Row<'_>> {
    table.lines().filter(|line| !line.starts_with('#')).map(row).collect()
}

fn row(line: &str) -> Row<'_> {
    let columns: Vec<&str> = line.split('\t').collect();
    assert_eq!(columns.len(), 3, "three columns: {line:?}");
    Row { word: columns[0], replacement: columns[1], exceptions: columns[2].split_whitespace().collect() }
}

impl Row<'_> {
    fn excepts(&self, path: &Path) -> bool {
        self.exceptions.iter().any(|exception| path.starts_with(exception))
    }
}

/// Whether a line has the word as a whole word. A word in lower case is found in any case.
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

/// Whether a file is text of this project, in one of the languages that the table is for.
fn is_text(path: &Path) -> bool {
    /// The table, and its test, whose examples have the words.
    const OF_THE_TABLE: [&str; 2] = ["tests/it/tidy/words.tsv", "tests/it/tidy/words.rs"];
    const ENDINGS: [&str; 13] =
        ["rs", "md", "toml", "sql", "proto", "html", "css", "js", "txt", "yaml", "yml", "json", "tsv"];
    let is_ours = !path.components().any(|part| part.as_os_str() == "generated" || part.as_os_str() == "vendor");
    let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
    is_ours && ENDINGS.contains(&ending) && !OF_THE_TABLE.iter().any(|table| path == Path::new(table))
}

#[test]
fn replaced_words_do_not_return() {
    let rows = rows(TABLE);
    let (mut complaints, mut used) = (Vec::new(), BTreeSet::new());
    for path in files().into_iter().filter(|path| is_text(path)) {
        for (index, line) in read(&path).lines().enumerate() {
            for row in rows.iter().filter(|row| has(line, row.word)) {
                if !row.excepts(&path) {
                    let (word, replacement) = (row.word, row.replacement);
                    complaints.push(format!("{}:{}: {word:?}: write {replacement}", path.display(), index + 1));
                }
                let exceptions = row.exceptions.iter().filter(|exception| path.starts_with(exception));
                used.extend(exceptions.map(|exception| (row.word, *exception)));
            }
        }
    }
    assert!(complaints.is_empty(), "{complaints:#?}");
    for row in &rows {
        for exception in &row.exceptions {
            let is_used = used.contains(&(row.word, *exception));
            assert!(is_used, "words.tsv: {exception} does not have {:?} any more: remove the exception", row.word);
        }
    }
}

#[test]
fn a_word_is_found_by_itself() {
    assert!(has("Nobody listens", "nobody") && has("it told: no", "told") && has("2 job(s)", "(s)"));
    assert!(!has("is_nobody_there", "nobody") && !has("a told_one", "told") && !has("essay", "say"));
    assert!(has("struct Known {", "struct Known") && !has("struct KnownSeat {", "struct Known"));
    let table = "# a comment\nnobody\tno caller\tdocs README.md\nwhoever\tthe caller\t";
    let rows = rows(table);
    assert!(rows[0].excepts(Path::new("docs/API.md")) && rows[0].excepts(Path::new("README.md")));
    assert!(!rows[0].excepts(Path::new("docs_of_web/API.md")) && !rows[1].excepts(Path::new("docs/API.md")));
}
