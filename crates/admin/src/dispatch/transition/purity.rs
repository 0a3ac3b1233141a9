//! Decisions use no runtime: this test reads all sources that [`on`](super::on) depends on.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Words that no file with decisions of the dispatcher may contain.
const FORBIDDEN: &[&str] = &["tokio", "async ", ".await", "Instant::now", "SystemTime", "rand::"];

#[test]
fn no_file_that_decides_names_a_runtime_or_a_clock() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut to_read = vec![PathBuf::from("dispatch/transition.rs")];
    let mut seen = BTreeSet::new();
    while let Some(file) = to_read.pop() {
        if !seen.insert(file.clone()) {
            continue;
        }
        let text = fs::read_to_string(src.join(&file)).unwrap();
        let text = text.split("#[cfg(test)]").next().unwrap_or_default();
        let code: Vec<&str> = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
        let is_of_dispatcher = file.starts_with("dispatch");
        for word in FORBIDDEN.iter().take(if is_of_dispatcher { FORBIDDEN.len() } else { 1 }) {
            assert!(!code.iter().any(|line| line.contains(word)), "{} has {word}", file.display());
        }
        if is_of_dispatcher {
            to_read.extend(imports(&code.join(" ")).iter().filter_map(|path| source_of(&src, &file, path)));
        }
    }
    assert!(seen.len() > 30 && seen.contains(Path::new("scheduler/in_memory.rs")), "{seen:?}");
}

/// The paths that a file imports, each in full.
fn imports(code: &str) -> Vec<String> {
    let mut paths = Vec::new();
    for statement in code.split(';').map(str::trim) {
        if let Some((_, tree)) = statement.rsplit_once("use ").filter(|(before, _)| before.len() < 30) {
            expand("", tree, &mut paths);
        }
    }
    paths
}

fn expand(prefix: &str, tree: &str, paths: &mut Vec<String>) {
    let Some((head, rest)) = tree.split_once('{') else {
        return paths.push(format!("{prefix}{}", tree.trim()));
    };
    let prefix = format!("{prefix}{}", head.trim());
    let (mut depth, mut from) = (0, 0);
    let inner = rest.rsplit_once('}').map_or(rest, |(inner, _)| inner);
    for (index, letter) in inner.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                expand(&prefix, &inner[from..index], paths);
                from = index + 1;
            }
            _ => {}
        }
    }
    expand(&prefix, &inner[from..], paths);
}

/// The file of this crate that contains the item at this path.
fn source_of(src: &Path, file: &Path, path: &str) -> Option<PathBuf> {
    let mut parts: Vec<&str> = path.split("::").collect();
    let mut folder = match parts.remove(0) {
        "crate" => PathBuf::new(),
        "super" => file.parent()?.to_path_buf(),
        _ => return None,
    };
    // These items of `cluster` are in files that use no runtime, although other files of that folder do.
    let exported = [("SwitchBoard", "cluster/switches.rs"), ("DepartureBoard", "cluster/departing.rs")];
    if let Some((_, file)) = exported.iter().find(|(name, _)| parts.last() == Some(name)) {
        return Some(PathBuf::from(file));
    }
    let mut found = None;
    for part in parts {
        let candidates = [folder.join(format!("{part}.rs")), folder.join(part).join("mod.rs")];
        found = candidates.into_iter().find(|file| src.join(file).exists()).or(found);
        folder.push(part);
    }
    found
}
