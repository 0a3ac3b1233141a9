//! Paths that documents name exist, and `cargo run` finds the programs that they start.

use std::path::{Component, Path, PathBuf};

use super::{WORKSPACE, files, read, root};

/// Endings of words that count as files of this repository even without a known first folder.
const ENDINGS: [&str; 7] = [".rs", ".sql", ".proto", ".md", ".toml", ".html", ".yml"];

#[test]
fn paths_in_documents_exist() {
    let files = files();
    let mut missing = Vec::new();
    for document in documents(&files) {
        let text = without_fences(&read(document));
        for word in code_words(&text).filter(|word| looks_like_a_path(word)) {
            if !exists(word, document, &files) {
                missing.push(format!("{}: `{word}`", document.display()));
            }
        }
        for link in links(&text) {
            let folder = document.parent().expect("a file lies in a folder");
            if !root().join(folder).join(link).exists() {
                missing.push(format!("{}: link to {link}", document.display()));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

/// Each step of the life of a run begins with the file and the function that take it, and these exist.
#[test]
fn the_life_of_a_run_names_a_file_and_a_function_for_each_step() {
    let text = read(Path::new("docs/ARCHITECTURE.md"));
    let (_, walk) = text.split_once("## The life of a run").expect("the section");
    let (walk, _) = walk.split_once("\n## ").expect("a section after it");
    let steps: Vec<(&str, &str)> = walk.lines().filter_map(|line| line.split_once(". **")).collect();
    assert!(steps.len() >= 15, "{steps:?}");
    let mut functions = Vec::new();
    for (position, (number, step)) in steps.iter().enumerate() {
        assert_eq!(number.parse(), Ok(position + 1), "{step}");
        let (_, place) = step.split_once(".** ").unwrap_or_else(|| panic!("step {number} has no name: {step}"));
        let words: Vec<&str> = place.split('`').collect();
        let [_, file, ", ", function, rest, ..] = words[..] else { panic!("step {number}: {step}") };
        assert!(rest.starts_with(':'), "step {number} names one file and one function: {step}");
        let is_defined = read(Path::new(file)).lines().any(|line| line.contains(&format!("fn {function}(")));
        assert!(is_defined, "step {number}: {file} has no function {function}");
        functions.push((file, function));
    }
    let count = functions.len();
    functions.sort_unstable();
    functions.dedup();
    assert_eq!(functions.len(), count, "two steps name the same function");
}

/// Each row of the code index has its own noun, in alphabetical order, and names files that contain its names.
#[test]
fn the_code_index_names_existing_code() {
    let text = read(Path::new("docs/CODE_INDEX.md"));
    let rows: Vec<Vec<&str>> = text
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"))
        .map(|row| row.split(" | ").collect())
        .skip(1)
        .collect();
    assert!(rows.len() > 100, "{} rows", rows.len());
    let mut wrong = Vec::new();
    let nouns: Vec<String> = rows.iter().map(|row| row[0].replace('`', "").to_lowercase()).collect();
    wrong.extend(nouns.windows(2).filter(|pair| pair[0] >= pair[1]).map(|pair| format!("not in order: {pair:?}")));
    for row in &rows {
        assert_eq!(row.len(), 4, "{row:?}");
        for cell in row[1..].iter().filter(|cell| **cell != "–") {
            for pair in cell.split(", ") {
                let words: Vec<&str> = pair.split('`').collect();
                let ["", file, " ", name, ""] = words[..] else { panic!("not a file and a name: {pair}") };
                let kinds = ["fn", "struct", "enum", "trait", "const", "type", "function"];
                let text = read(Path::new(file));
                let is_named = |at: usize| !text[at..].starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
                let is_there = kinds.iter().any(|kind| {
                    let definition = format!("{kind} {name}");
                    text.match_indices(&definition).any(|(at, _)| is_named(at + definition.len()))
                });
                let is_method = |line: &str| line.trim_start().starts_with(&format!("{name}(")) && line.ends_with('{');
                let is_there = is_there || file.ends_with(".js") && text.lines().any(is_method);
                if !is_there {
                    wrong.push(format!("{}: {file} does not define {name}", row[0]));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

fn documents(files: &[PathBuf]) -> Vec<&PathBuf> {
    let is_document = |path: &&PathBuf| {
        *path == Path::new("README.md") || (path.starts_with("docs") && path.extension().is_some_and(|end| end == "md"))
    };
    let documents: Vec<_> = files.iter().filter(is_document).collect();
    assert!(!documents.is_empty(), "there is no README.md");
    documents
}

/// Cargo starts a program that is named, or the only one there is, or the one that the packages' `default-run` names.
#[test]
fn cargo_run_finds_its_program() {
    let files = files();
    let mut commands = 0;
    for document in documents(&files) {
        for command in read(document).lines().filter_map(|line| line.trim().strip_prefix("cargo run ")) {
            commands += 1;
            let cargo_options = command.split(" -- ").next().unwrap_or(command);
            let found = programs(cargo_options);
            assert_eq!(found.len(), 1, "{}: cargo run {command}: starts one of {found:?}", document.display());
        }
    }
    assert!(commands > 3, "the documents start programs by cargo");
    assert_eq!(programs("--release"), ["rondel"]);
    assert_eq!(programs("-p rondel-tests --bin check"), ["check"]);
    assert_eq!(programs("-p rondel-cli --bin nosuch"), [""; 0]);
}

/// The programs among which `cargo run` with these options would have to choose.
fn programs(options: &str) -> Vec<&str> {
    let words: Vec<&str> = options.split_whitespace().collect();
    let after = |option: &str| words.iter().position(|word| *word == option).and_then(|at| words.get(at + 1).copied());
    let mut packages = WORKSPACE.workspace_default_packages();
    if let Some(name) = after("-p") {
        packages.retain(|package| package.name.as_str() == name);
    }
    let default_program = packages.iter().find_map(|package| package.default_run.as_deref());
    let wanted_program = after("--bin").or(default_program);
    let targets = packages.iter().flat_map(|package| &package.targets).filter(|target| target.is_bin());
    targets
        .map(|target| target.name.as_str())
        .filter(|name| wanted_program.is_none_or(|wanted_program| wanted_program == *name))
        .collect()
}

/// A path from the root, from the document's folder, or the end of some file's path (`scan.rs` in a crate's section).
fn exists(word: &str, document: &Path, files: &[PathBuf]) -> bool {
    let folder = document.parent().expect("a file lies in a folder");
    root().join(word).exists()
        || root().join(folder).join(word).exists()
        || files.iter().any(|file| file.ends_with(word))
}

fn looks_like_a_path(word: &str) -> bool {
    let is_plain = word.chars().all(|c| c.is_ascii_alphanumeric() || "._-/".contains(c));
    let mut components = Path::new(word).components();
    let first = components.find_map(|component| match component {
        Component::Normal(name) => Some(name),
        Component::Prefix(_) | Component::RootDir | Component::CurDir | Component::ParentDir => None,
    });
    let is_ours = first.is_some_and(|first| word.contains('/') && root().join(first).exists());
    is_plain
        && !word.starts_with('/')
        && (is_ours || ENDINGS.iter().any(|ending| word.ends_with(ending) && word != *ending))
}

/// The words inside backticks, without a line number at the end (`scan.rs:12`) or a leading `./`.
fn code_words(text: &str) -> impl Iterator<Item = &str> {
    let spans = text.split('`').skip(1).step_by(2);
    spans.flat_map(str::split_whitespace).map(|word| {
        let word = word.split(':').next().unwrap_or(word);
        word.strip_prefix("./").unwrap_or(word)
    })
}

/// The targets of links into the repository, without their anchors.
fn links(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).filter_map(|rest| rest.split(')').next()).filter_map(|target| {
        let target = target.split('#').next().unwrap_or(target);
        (!target.is_empty() && !target.contains("://") && !target.starts_with("mailto:")).then_some(target)
    })
}

/// The text without fenced blocks, which contain examples.
fn without_fences(text: &str) -> String {
    let mut is_inside_fence = false;
    let mut plain = String::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_inside_fence = !is_inside_fence;
        } else if !is_inside_fence {
            plain.push_str(line);
            plain.push('\n');
        }
    }
    plain
}

#[test]
fn paths_and_other_words_are_distinguished() {
    for path in ["tests/run", "scan.rs", "crates/core", "scheduler/scan.rs", "docs/GONE.md", "migrations/nosuch"] {
        assert!(looks_like_a_path(path), "{path}");
    }
    for other in
        ["/api/v1/runs", "rondel", "cargo", "DIR/admin.token", "a/b", "*.rs", "scheduler/", ".rs", "1.94", "docs"]
    {
        assert!(!looks_like_a_path(other), "{other}");
    }
    let text =
        without_fences("see `./tests/run NAME`, [a](docs/x.md#y)\n```\n`gone.rs`\n```\nand [b](https://b) `scan.rs:7`");
    assert_eq!(code_words(&text).collect::<Vec<_>>(), ["tests/run", "NAME", "scan.rs"]);
    assert_eq!(links(&text).collect::<Vec<_>>(), ["docs/x.md"]);
}
