//! Not a test: the last program of the test run lists what the tests did not cover here.
//!
//! A test whose database is missing returns early and prints one line about this, which is easily overlooked in a long
//! run. Languages without an interpreter are skipped too. This program has no test harness, so that nothing captures
//! its output, and cargo runs it after the other test programs of this package. It never fails: `RONDEL_TEST_REQUIRE`
//! turns a skip into a failure.

use std::io::Write;

use rondel_tests::uncovered;

fn main() -> std::io::Result<()> {
    if std::env::args().any(|arg| arg == "--list") {
        return Ok(());
    }
    let mut out = std::io::stdout().lock();
    let missing = uncovered();
    if missing.is_empty() {
        return writeln!(out, "\nevery database and language was covered\n");
    }
    writeln!(out, "\nNOT COVERED by this run, and skipped by the tests that need it:")?;
    for what in missing {
        writeln!(out, "  - {what}")?;
    }
    writeln!(out, "./tests/run starts the databases, and installs what Debian has.\n")
}
