//! Checks that no compiler makes: the dependencies between the crates, the external crates that each may name, equal
//! migrations for the three databases, paths in documents, licences, `docker-compose.yml`, and words that must not be in
//! the code.

mod arrows;
mod circles;
mod compose;
mod documents;
mod failpoints;
mod licences;
mod methods;
mod reasons;
mod security;
mod sources;
mod statements;
mod words;

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use cargo_metadata::{Metadata, MetadataCommand};

/// The workspace as cargo sees it, with everything that it builds on this platform.
static WORKSPACE: LazyLock<Metadata> = LazyLock::new(|| {
    MetadataCommand::new()
        .manifest_path(root().join("Cargo.toml"))
        .other_options(["--locked".to_owned(), "--filter-platform".to_owned(), platform()])
        .exec()
        .expect("cargo metadata")
});

/// The top of the repository.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the root")
}

/// The platform that this compiler builds for.
fn platform() -> String {
    let output = std::process::Command::new("rustc").arg("-vV").output().expect("run rustc");
    let text = String::from_utf8(output.stdout).expect("rustc speaks UTF-8");
    text.lines().find_map(|line| line.strip_prefix("host: ")).expect("rustc names its host").to_owned()
}

/// Every file of the repository, as a path from its root, except the files of builds and of git.
fn files() -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        for entry in root().join(&folder).read_dir().expect("list a folder") {
            let entry = entry.expect("list a folder");
            let path = folder.join(entry.file_name());
            if entry.file_type().expect("the type of a file").is_dir() {
                if path != Path::new("target") && path != Path::new(".git") {
                    folders.push(path);
                }
            } else {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

fn read(path: &Path) -> String {
    let text = std::fs::read_to_string(root().join(path));
    assert!(text.is_ok(), "{}: {text:?}", path.display());
    text.unwrap_or_default()
}
