//! Every reason of the vocabulary is set somewhere, a test produces it, and the documentation has the next step for it.

use std::path::Path;

use super::read;

/// Each reason: its name, the file that sets it, and the test that produces it (file and function).
const TESTS: &[(&str, &str, &str, &str)] = &[
    ("Misfire", "crates/admin/src/dispatch/waits.rs", "tests/it/why.rs", "twelve_reasons_are_explained"),
    (
        "Overlap",
        "crates/admin/src/dispatch/queue/turns.rs",
        "tests/it/why.rs",
        "runs_skipped_by_policies_and_handlers_are_explained",
    ),
    ("Paused", "crates/core/src/edit.rs", "crates/store/src/conformance/edits.rs", "an_edit_keeps_settles_and_reopens"),
    (
        "Changed",
        "crates/core/src/edit.rs",
        "crates/store/src/conformance/edits.rs",
        "an_edit_keeps_settles_and_reopens",
    ),
    ("Deleted", "crates/core/src/edit.rs", "crates/store/src/conformance/edits.rs", "a_deleted_job_settles_its_rows"),
    ("NoExecutor", "crates/admin/src/dispatch/waits.rs", "tests/it/why.rs", "twelve_reasons_are_explained"),
    (
        "Expired",
        "crates/admin/src/dispatch/waits.rs",
        "tests/it/why.rs",
        "runs_skipped_by_policies_and_handlers_are_explained",
    ),
    ("Retry", "crates/core/src/outcome.rs", "tests/it/why.rs", "twelve_reasons_are_explained"),
    ("ExecutorLost", "crates/admin/src/dispatch/streams.rs", "tests/it/why.rs", "twelve_reasons_are_explained"),
    (
        "NotReceived",
        "crates/admin/src/dispatch/recovery/rollcall.rs",
        "crates/admin/src/dispatch/recovery/rollcall/tests.rs",
        "not_yet_reported_is_never_not_held",
    ),
    ("Requested", "crates/core/src/outcome.rs", "crates/store/src/conformance/results.rs", "a_result_is_stored_once"),
    (
        "Parent",
        "crates/store/src/follow.rs",
        "crates/store/src/conformance/followers.rs",
        "children_that_were_not_meant_are_skipped",
    ),
    (
        "Covered",
        "crates/admin/src/dispatch/queue/turns.rs",
        "tests/it/why.rs",
        "runs_skipped_by_policies_and_handlers_are_explained",
    ),
    (
        "Handler",
        "crates/admin/src/dispatch/messages.rs",
        "tests/it/why.rs",
        "runs_skipped_by_policies_and_handlers_are_explained",
    ),
    (
        "Stopped",
        "crates/admin/src/dispatch/switches.rs",
        "tests/it/cluster.rs",
        "an_app_is_drained_and_stopped_by_its_switch",
    ),
    (
        "Maintenance",
        "crates/admin/src/scheduler/claim_rows.rs",
        "tests/it/maintenance.rs",
        "no_fire_inside_of_a_window_begins_before_its_end",
    ),
    (
        "Shadow",
        "crates/admin/src/dispatch/shadow.rs",
        "crates/admin/src/dispatch/transition/shadow_tests.rs",
        "a_shadow_is_routed_and_not_sent",
    ),
    ("WindowOver", "crates/core/src/pump/root.rs", "crates/core/src/pump/root.rs", "a_root_run_ends_with_its_window"),
    (
        "Dry",
        "crates/core/src/pump/root.rs",
        "crates/core/src/pump/root.rs",
        "a_pump_until_empty_ends_when_every_item_is_dry",
    ),
    (
        "Moved",
        "crates/core/src/outcome.rs",
        "crates/core/src/outcome/tests.rs",
        "a_group_of_a_pump_goes_on_until_it_is_asked_to_end",
    ),
];

/// The names of the reasons, as the vocabulary lists them.
fn names() -> Vec<String> {
    let text = read(Path::new("crates/core/src/reason/mod.rs"));
    let (_, rest) = text.split_once("    Reason {\n").expect("the vocabulary");
    let (list, _) = rest.split_once("\n    }\n").expect("its end");
    let name = |line: &str| Some(line.trim().split_once(" = \"")?.0.to_owned());
    list.lines().filter_map(name).collect()
}

#[test]
fn every_reason_is_set_and_has_its_test() {
    let listed: Vec<String> = TESTS.iter().map(|(name, ..)| (*name).to_owned()).collect();
    assert_eq!(names(), listed, "one test for each reason, in the order of the vocabulary");
    for (name, setter, file, test) in TESTS {
        let source = read(Path::new(setter));
        let (product, _) = source.split_once("#[cfg(test)]").unwrap_or((&source, ""));
        assert!(product.contains(&format!("Reason::{name}")), "{setter} does not set {name}");
        let tests = read(Path::new(file));
        assert!(tests.contains(&format!("fn {test}(")), "{file} has no {test}, the test of {name}");
    }
}

/// The words of reasons, of waits and of obstacles, and the checks of `/readyz`.
#[test]
fn every_reason_and_check_has_its_next_step() {
    let vocabulary = read(Path::new("crates/core/src/reason/mod.rs"));
    let (vocabulary, _) = vocabulary.split_once("    LimitKind {\n").expect("the enums before the kinds of limits");
    let words = vocabulary.lines().filter_map(|line| line.trim().split_once(" = \"")?.1.strip_suffix("\","));
    let health = read(Path::new("crates/web/src/health.rs"));
    let checks = health.split("detail(").skip(1);
    let checks = checks.filter_map(|rest| rest.trim_start().strip_prefix('"')?.split('"').next());
    let document = read(Path::new("docs/TROUBLESHOOTING.md"));
    let first_cells: Vec<&str> =
        document.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next()).collect();
    let names: Vec<&str> = words.chain(checks).collect();
    assert!(names.len() > 40 && names.contains(&"misfire") && names.contains(&"open_runs"), "{names:?}");
    for name in names {
        let is_listed = first_cells.iter().any(|cell| cell.contains(&format!("`{name}`")));
        assert!(is_listed, "docs/TROUBLESHOOTING.md has no row for {name}");
    }
}
