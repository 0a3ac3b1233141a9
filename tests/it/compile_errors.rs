//! Compiler errors for functions under `#[rondel::job]` that cannot be jobs: at the right place, in helpful words.
//!
//! Each program is checked by one `rustc` against the SDK as it is built for the other tests, which takes a second. The
//! errors that the attribute itself reports are tested in `crates/macros/src/tests.rs`.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The SDK's library as it is built for the examples, which other tests need anyway, and the folder with its
/// dependencies.
fn sdk() -> (PathBuf, PathBuf) {
    let deps = std::env::current_exe().expect("the test program has a path").parent().expect("its folder").to_owned();
    let profile = deps.parent().expect("the profile's folder");
    let built = rondel_tests::cargo()
        .args(["build", "--workspace", "--locked", "--examples", "--message-format", "json", "--target-dir"])
        .arg(profile.parent().expect("the target folder"))
        .args(["--profile", if profile.ends_with("debug") { "dev" } else { "release" }])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .output()
        .expect("run cargo build");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let library = String::from_utf8_lossy(&built.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|message| message["target"]["name"] == "rondel" && message["target"]["kind"][0] == "lib")
        .find_map(|message| {
            let files = message["filenames"].as_array()?.iter().filter_map(|file| file.as_str());
            files.map(PathBuf::from).find(|file| file.extension().is_some_and(|extension| extension == "rlib"))
        });
    (library.expect("cargo names the SDK's library"), deps)
}

/// The compiler errors of a program with this code; `None` if it compiles.
fn compile_errors((library, deps): &(PathBuf, PathBuf), folder: &Path, code: &str) -> Option<String> {
    let file = folder.join("program.rs");
    std::fs::write(&file, format!("{code}\nfn main() {{}}\n")).expect("write the program");
    // The rustc next to the cargo that built this program: the one on the PATH may be another version.
    let checked = Command::new(Path::new(env!("CARGO")).with_file_name("rustc"))
        .args(["--edition", "2024", "--emit", "metadata", "--cap-lints", "allow"])
        .arg("--extern")
        .arg(format!("rondel={}", library.display()))
        .arg("-L")
        .arg(format!("dependency={}", deps.display()))
        .args(["--out-dir", folder.to_str().expect("a path in UTF-8"), "program.rs"])
        .current_dir(folder)
        .output()
        .expect("run rustc");
    (!checked.status.success()).then(|| String::from_utf8_lossy(&checked.stderr).into_owned())
}

#[test]
fn compile_errors_name_their_position_and_the_remedy() {
    let (sdk, folder) = (sdk(), tempfile::tempdir().expect("make a folder"));
    let good = "use rondel::{JobError, RunContext, Shard};\n\
        #[rondel::job(cron = \"0 30 2 * * ?\", tz = \"Europe/Berlin\", retry = 3)]\n\
        async fn close(run: RunContext, shard: Shard) -> Result<(), JobError> { Ok(()) }";
    assert_eq!(compile_errors(&sdk, folder.path(), good), None, "a job that is one");
    for (code, place, words) in [
        ("#[rondel::job(cron = \"0 30 25 * * ?\")]\nasync fn close() {}", "program.rs:1:22", "25"),
        (
            "#[rondel::job(\n    every = \"1h\",\n    timeout = \"soon\",\n)]\nasync fn close() {}",
            "program.rs:3:15",
            "soon",
        ),
        ("#[rondel::job(crn = \"@daily\")]\nasync fn close() {}", "program.rs:1:15", "`cron`"),
        ("#[rondel::job]\nasync fn close<T>(t: T) {}", "program.rs:2:15", "no type parameters"),
        (
            "#[rondel::job]\nasync fn close(rows: u32) {}",
            "program.rs:2:10",
            "up to eight arguments that implement `FromRun`",
        ),
        (
            "#[rondel::job]\nasync fn close() -> std::sync::MutexGuard<'static, u8> { loop {} }",
            "program.rs:2:10",
            "not an async function of a run",
        ),
    ] {
        let errors = compile_errors(&sdk, folder.path(), code).unwrap_or_else(|| panic!("the compiler accepts {code}"));
        assert!(errors.contains(place) && errors.contains(words), "{code}\ngives\n{errors}");
    }
}
