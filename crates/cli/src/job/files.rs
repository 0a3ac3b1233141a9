//! Files of jobs: YAML or JSON, single files, folders of them, or stdin.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use rondel_web::yaml::{Node, documents};
use serde_json::Value;
use serde_json::value::RawValue;

use super::json_text::JsonText;
use crate::exit::Failure;
use crate::input::read_document;

/// How many levels of subfolders are read.
const DEPTH_MAX: usize = 8;

/// A job in a file.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) value: Value,
    /// The job as JSON text. For a JSON file it is the original text, so that the server can refuse an object with two
    /// equal keys: `value` has only the last of them.
    pub(super) text: Box<str>,
    file: String,
    source: Source,
}

/// The source text of a job, in which the places of its parts are found.
#[derive(Debug)]
enum Source {
    Json(JsonText),
    Yaml(Node),
}

impl Entry {
    /// The job's name or, without one, its number in the list.
    pub(super) fn label(&self, index: usize) -> String {
        let name = self.value.get("name").and_then(Value::as_str);
        name.map_or_else(|| format!("number {}", index + 1), str::to_owned)
    }

    /// The place of a part of the job: `jobs.yaml:14:9`.
    pub(super) fn place(&self, pointer: &str) -> String {
        let (line, column) = match &self.source {
            Source::Json(text) => text.place(pointer),
            Source::Yaml(node) => node.place(pointer),
        };
        format!("{}:{line}:{column}", self.file)
    }
}

/// The jobs in these files, in the order of `paths`.
pub(super) fn read_all(paths: &[PathBuf]) -> Result<Vec<Entry>, Failure> {
    let mut files = Vec::new();
    for path in paths {
        if path.as_os_str() != "-" && path.is_dir() {
            let count_before = files.len();
            collect_files(path, 0, &mut files)?;
            if files.len() == count_before {
                let message = format!("{}: contains no .yaml, .yml or .json file", path.display());
                return Err(Failure::refused(message));
            }
        } else {
            files.push(path.clone());
        }
    }
    let mut entries = Vec::new();
    for file in &files {
        entries.extend(read(file)?);
    }
    if entries.is_empty() {
        let names: Vec<_> = files.iter().map(|file| file.display().to_string()).collect();
        return Err(Failure::refused(format!("{}: contains no job", names.join(", "))));
    }
    let is_wrapped = |entry: &&Entry| entry.value.get("jobs").is_some() && entry.value.get("name").is_none();
    if let Some(wrapped_list) = entries.iter().find(is_wrapped) {
        let place = wrapped_list.place("/jobs");
        return Err(Failure::refused(format!(
            "{place}: a file holds one job or a list of jobs, without `jobs` around it"
        )));
    }
    Ok(entries)
}

/// The files with jobs in a folder and in its subfolders, sorted by name. Hidden files and folders are skipped. A folder
/// deeper than [`DEPTH_MAX`] is refused if it may have such files: without them, `--prune-app` would remove their jobs.
fn collect_files(folder: &Path, depth: usize, files: &mut Vec<PathBuf>) -> Result<(), Failure> {
    for path in visible_paths(folder)? {
        if !path.is_dir() {
            files.extend(file_kind(&path).is_some().then_some(path));
        } else if depth < DEPTH_MAX {
            collect_files(&path, depth + 1, files)?;
        } else if has_job_files(&path)? {
            let message = format!(
                "{} is too deep: folders are read {DEPTH_MAX} levels down; give one that is nearer to it",
                path.display()
            );
            return Err(Failure::refused(message));
        }
    }
    Ok(())
}

/// Whether a folder has files that may contain jobs, or folders that may have such files.
fn has_job_files(folder: &Path) -> Result<bool, Failure> {
    Ok(visible_paths(folder)?.iter().any(|path| path.is_dir() || file_kind(path).is_some()))
}

/// The files and folders in a folder, sorted by name, without hidden ones.
fn visible_paths(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let failure = |error: std::io::Error| Failure::refused(format!("cannot read {}: {error}", folder.display()));
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failure)? {
        let entry = entry.map_err(failure)?;
        if !entry.file_name().to_string_lossy().starts_with('.') {
            paths.push(entry.path());
        }
    }
    paths.sort();
    Ok(paths)
}

#[derive(Clone, Copy, PartialEq)]
enum FileKind {
    Json,
    Yaml,
}

fn file_kind(path: &Path) -> Option<FileKind> {
    match path.extension()?.to_ascii_lowercase().to_str()? {
        "json" => Some(FileKind::Json),
        "yaml" | "yml" => Some(FileKind::Yaml),
        _ => None,
    }
}

fn read(path: &Path) -> Result<Vec<Entry>, Failure> {
    let text = read_document(path)?;
    let file = if path.as_os_str() == "-" { "stdin".to_owned() } else { path.display().to_string() };
    let is_like_json = text.trim_start().starts_with(['{', '[']);
    if file_kind(path) == Some(FileKind::Json) || (is_like_json && file_kind(path).is_none()) {
        return entries_of_json(&text, &file);
    }
    entries_of_yaml(&text, &file)
}

fn entries_of_json(text: &str, file: &str) -> Result<Vec<Entry>, Failure> {
    let value: Value = serde_json::from_str(text).map_err(|error| {
        Failure::refused(format!("{file}:{}:{}: is not JSON: {}", error.line(), error.column(), reason_text(&error)))
    })?;
    let shared_text: Rc<str> = text.into();
    let entry = |value: Value, text: &str, root: String| {
        let source = Source::Json(JsonText { text: Rc::clone(&shared_text), root });
        Entry { value, text: text.into(), file: file.to_owned(), source }
    };
    Ok(match value {
        Value::Array(items) => {
            let texts: Vec<&RawValue> = serde_json::from_str(text)?;
            let items = items.into_iter().zip(texts).enumerate();
            items.map(|(index, (value, text))| entry(value, text.get(), format!("/{index}"))).collect()
        }
        job => vec![entry(job, text, String::new())],
    })
}

/// The message without the place at its end.
fn reason_text(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.rfind(" at line ").map_or_else(|| text.clone(), |end| text[..end].to_owned())
}

/// The jobs of a YAML text; `file` is its name in errors.
pub(super) fn entries_of_yaml(text: &str, file: &str) -> Result<Vec<Entry>, Failure> {
    let yaml_documents = documents(text)
        .map_err(|error| Failure::refused(format!("{file}:{}:{}: {}", error.line, error.column, error.message)))?;
    let entry = |node: Node| {
        let value = node.value();
        let text = value.to_string().into();
        Entry { value, text, file: file.to_owned(), source: Source::Yaml(node) }
    };
    Ok(yaml_documents.into_iter().flat_map(Node::items).map(entry).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_read_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("b.yaml", "name: b1\n---\n- name: b2\n- name: b3\n");
        write("a.json", "[{\"name\": \"a\"}]");
        write("c/d.yml", "name: d\n");
        write(".hidden.yaml", "name: [\n");
        write("readme.md", "no job");
        // A byte order mark is no part of the text.
        write("e.yaml", "\u{feff}- name: e\r\n  app: x\r\n");
        write("f.json", "\u{feff}[{\"name\": \"f\"}]");
        let entries = read_all(&[folder.path().to_owned()]).unwrap();
        let names: Vec<_> = entries.iter().map(|entry| entry.value["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["a", "b1", "b2", "b3", "d", "e", "f"]);
        assert_eq!(entries[5].value, serde_json::json!({"name": "e", "app": "x"}));
        assert!(entries[3].place("/name").ends_with("b.yaml:4:9"), "{}", entries[3].place("/name"));
        assert!(entries[0].place("/name").ends_with("a.json:1:11"), "{}", entries[0].place("/name"));
    }

    #[test]
    fn a_folder_that_is_too_deep_is_not_skipped() {
        let root = tempfile::tempdir().unwrap();
        let deepest = (0..DEPTH_MAX).fold(root.path().to_owned(), |folder, _| folder.join("a"));
        std::fs::create_dir_all(&deepest).unwrap();
        std::fs::write(deepest.join("b.yaml"), "name: b\n").unwrap();
        assert_eq!(read_all(&[root.path().to_owned()]).unwrap().len(), 1);
        std::fs::create_dir(deepest.join("c")).unwrap();
        std::fs::write(deepest.join("c/notes.txt"), "no job\n").unwrap();
        assert_eq!(read_all(&[root.path().to_owned()]).unwrap().len(), 1, "no file with jobs is left out");
        std::fs::write(deepest.join("c/d.yaml"), "name: d\n").unwrap();
        let refusal = read_all(&[root.path().to_owned()]).unwrap_err();
        assert!(refusal.message().contains("is too deep"), "{}", refusal.message());
    }

    #[test]
    fn a_list_has_nothing_around_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.yaml");
        std::fs::write(&path, "jobs:\n- name: a\n").unwrap();
        let refusal = read_all(&[path]).unwrap_err();
        assert!(refusal.message().contains("without `jobs` around it"), "{}", refusal.message());
    }

    #[test]
    fn duplicate_keys_of_a_json_file_reach_the_server() {
        let twice = r#"{"name": "a", "timeout": "5m", "timeout": "1m"}"#;
        for text in [twice.to_owned(), format!("[{twice}, {{}}]")] {
            let entries = entries_of_json(&text, "jobs.json").unwrap();
            assert_eq!((&*entries[0].text, entries[0].label(0).as_str()), (twice, "a"), "{text}");
        }
    }
}
