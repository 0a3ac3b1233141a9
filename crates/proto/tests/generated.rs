//! The committed code is what `proto/` generates.

use std::path::Path;

const COMMITTED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/generated/rondel.v1.rs");

#[test]
fn the_committed_code_is_up_to_date() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../proto");
    let descriptors = protox::compile(["rondel/v1/gateway.proto"], [&root]).unwrap();
    let out = tempfile::tempdir().unwrap();
    tonic_prost_build::configure().bytes(".none").out_dir(out.path()).compile_fds(descriptors).unwrap();
    let fresh = std::fs::read_to_string(out.path().join("rondel.v1.rs")).unwrap();
    if std::env::vars().any(|(name, _)| name == "RONDEL_REGENERATE") {
        std::fs::write(COMMITTED, &fresh).unwrap();
    }
    let committed = std::fs::read_to_string(COMMITTED).unwrap();
    assert!(fresh == committed, "stale: run RONDEL_REGENERATE=1 cargo test -p rondel-proto and commit the file");
}
