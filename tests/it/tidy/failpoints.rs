//! The table of failpoints agrees with the sources, and a release build contains no failpoints.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use rondel_failpoint::points;

use super::{files, read, root};

#[test]
fn each_failpoint_of_the_table_stands_somewhere_and_each_in_the_sources_is_in_the_table() {
    let (mut passed, mut transactions) = (BTreeSet::new(), BTreeSet::new());
    for path in files() {
        let text_of = |folder: &str| path.starts_with(folder).then(|| read(&path));
        let is_source = path.extension().is_some_and(|ending| ending == "rs") && !path.starts_with("crates/failpoint");
        let Some(text) = text_of("crates").filter(|_| is_source) else { continue };
        passed.extend(quoted_after(&text, "failpoint::pass("));
        transactions.extend(quoted_after(&text, "transact!(self, "));
    }
    let all = points::SERVER.iter().chain(points::EXECUTOR).map(|point| point.name.to_owned());
    assert_eq!(passed, all.collect::<BTreeSet<_>>(), "left: the sources; right: the table");
    let known = points::TRANSACTIONS.iter().map(|&name| name.to_owned());
    assert_eq!(transactions, known.collect::<BTreeSet<_>>(), "left: the sources; right: the table");
}

/// Every string literal directly after a mark.
fn quoted_after(text: &str, mark: &str) -> Vec<String> {
    let behind = text.split(mark).skip(1).filter_map(|rest| rest.strip_prefix('"'));
    behind.filter_map(|rest| rest.split_once('"')).map(|(name, _)| name.to_owned()).collect()
}

/// Compiles the crate as a release build does; the whole binary would take minutes.
#[test]
fn a_build_without_debug_assertions_refuses_to_arm_and_passes_by() {
    let folder = tempfile::tempdir().expect("make a folder");
    let main = "fn main() {\n    rondel_failpoint::pass(\"claim.moved\");\n    \
                assert_eq!(rondel_failpoint::try_pass(\"claim\", \"written\"), Ok(()));\n    \
                println!(\"{:?}\", rondel_failpoint::arm(\"claim.moved\"));\n}\n";
    std::fs::write(folder.path().join("main.rs"), main).expect("write the program");
    let library = root().join("crates/failpoint/src/lib.rs");
    let printed = |flags: &[&str]| {
        let compile = |args: &[&str]| {
            let mut rustc = Command::new("rustc");
            rustc.args(["--edition", "2024"]).args(flags).args(args).current_dir(folder.path());
            assert!(rustc.status().expect("run rustc").success(), "{flags:?} {args:?}");
        };
        let name = ["--crate-name", "rondel_failpoint", "--crate-type", "rlib"];
        compile(&[&name[..], &[library.to_str().expect("a path in UTF-8")]].concat());
        compile(&["--extern", "rondel_failpoint=librondel_failpoint.rlib", "main.rs"]);
        let output = Command::new(folder.path().join(Path::new("main"))).output().expect("run it");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    };
    assert_eq!(printed(&["-O"]), "Err(NotCompiledIn)");
    assert_eq!(printed(&[]), "Ok(())");
}
