//! The `rondel` binary that belongs to the running test program.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use crate::settings;

/// The path of the binary, built from the same sources as the test program.
///
/// The first call runs cargo to make sure of this. It uses the features with which the tests were built, so cargo
/// rarely has to build anything. `RONDEL_TEST_BIN` names another binary instead.
///
/// # Panics
/// When the binary cannot be built.
pub fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| settings::other_binary().unwrap_or_else(build))
}

/// The path of one of the SDK's examples, built from the same sources as the test program.
///
/// If `RONDEL_TEST_BIN` names a binary, the examples next to it are used.
///
/// # Panics
/// When the examples cannot be built.
pub fn example(name: &str) -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    let beside = settings::other_binary().and_then(|binary| Some(binary.parent()?.join("examples").join(name)));
    beside
        .filter(|path| path.exists())
        .unwrap_or_else(|| FOLDER.get_or_init(|| cargo_build(&["--examples"]).join("examples")).join(name))
}

fn build() -> PathBuf {
    cargo_build(&["--bins", "--tests"]).join("rondel")
}

/// Lets cargo build these targets of the workspace, if needed. Returns the profile's folder.
fn cargo_build(targets: &[&str]) -> PathBuf {
    // target/<profile>/deps/<test program>
    let program = std::env::current_exe().expect("the test program has a path");
    let profile_folder = program.ancestors().nth(2).expect("the test program lies in target/<profile>/deps");
    let profile = profile_folder.file_name().and_then(|name| name.to_str()).expect("the profile's folder has a name");
    let status = cargo()
        .args(["build", "--workspace", "--locked", "--quiet"])
        .args(targets)
        .args(["--profile", if profile == "debug" { "dev" } else { profile }])
        .arg("--target-dir")
        .arg(profile_folder.parent().expect("target/<profile> has a parent"))
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .stdin(Stdio::null())
        .status()
        .expect("run cargo build");
    assert!(status.success(), "cargo build {}: {status}", targets.join(" "));
    profile_folder.to_owned()
}

/// The cargo that built this program, without the variables of the package that `cargo test` sets for its tests.
///
/// For build scripts of dependencies, such as ring's, these variables are a change: cargo would compile ring and
/// everything above it again.
#[must_use]
pub fn cargo() -> Command {
    let mut command = Command::new(env!("CARGO"));
    // Set by the test command for the harness, to measure how long tests take.
    command.env_remove("RUSTC_BOOTSTRAP");
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")) {
            command.env_remove(name);
        }
    }
    command
}

/// The output of a `rondel` command that ran to its end.
#[derive(Debug, Clone)]
pub struct Finished {
    /// The exit code; none if a signal ended it.
    pub code: Option<i32>,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

/// Runs a `rondel` command to its end, with no `RONDEL_…` variable but the given ones.
///
/// # Panics
/// When it takes longer than two minutes.
pub async fn rondel(args: &[&str], variables: &[(&str, &str)]) -> Finished {
    let mut command = tokio::process::Command::new(binary());
    for name in settings::product_variables() {
        command.env_remove(name);
    }
    command.args(args).envs(variables.iter().copied()).stdin(Stdio::null()).kill_on_drop(true);
    let limit = Duration::from_secs(120);
    let Ok(output) = tokio::time::timeout(limit, command.output()).await else {
        panic!("rondel {} did not end within {limit:?}", args.join(" "));
    };
    let output = output.expect("run the binary under test");
    Finished {
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}
