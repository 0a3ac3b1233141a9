//! The environment's settings of a test run. The only place that reads it.

use std::path::PathBuf;

use tempfile::TempDir;

/// An environment variable that is set and not empty.
#[expect(clippy::disallowed_methods, reason = "the harness has no command line: the environment configures it")]
pub fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// The names of variables that would change what a `rondel` process under test does.
pub(crate) fn product_variables() -> Vec<String> {
    std::env::vars_os()
        .filter_map(|(name, _)| name.into_string().ok())
        .filter(|name| name.starts_with("RONDEL_"))
        .collect()
}

/// Whether a test that cannot have `what` must fail instead of being skipped.
pub(crate) fn requires(what: &str) -> bool {
    variable("RONDEL_TEST_REQUIRE").is_some_and(|list| list.split(',').any(|item| item.trim() == what))
}

/// Whether scratch folders and databases are kept for inspection: those of every test, or only of a failing test.
pub fn keeps() -> bool {
    match variable("RONDEL_TEST_KEEP").as_deref() {
        Some("failed") => std::thread::panicking(),
        other => other == Some("1"),
    }
}

/// A `rondel` binary to test instead of the one that belongs to the test program.
pub(crate) fn other_binary() -> Option<PathBuf> {
    variable("RONDEL_TEST_BIN").map(PathBuf::from)
}

/// A new folder, which is deleted when the value is dropped, unless [`keeps`].
pub(crate) fn scratch_folder(prefix: &str) -> TempDir {
    let mut folder = tempfile::Builder::new().prefix(prefix).tempdir().expect("make a scratch folder");
    if keeps() {
        folder.disable_cleanup(true);
        eprintln!("kept: {}", folder.path().display());
    }
    folder
}
