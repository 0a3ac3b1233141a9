//! Statements that read runs by their ids check further conditions on these rows only, and do not find rows by the
//! conditions.

use super::{files, root};

/// The conditions on a run's state that directly follow a list of ids.
fn unchecked(source: &str) -> Vec<String> {
    let joined = source.split("\\\n").map(str::trim_start).collect::<Vec<_>>().join("");
    let by_id = [" id {in_list} AND ", " run.id {in_list} AND ", "{of_rows:run.id} AND "];
    let after = by_id.iter().flat_map(|list| joined.match_indices(list).map(|(at, _)| &joined[at + list.len()..]));
    let is_state = |condition: &&str| {
        let column = condition.strip_prefix("run.").unwrap_or(condition);
        ["status ", "reason ", "marked_at_ms ", "node_id "].iter().any(|state| column.starts_with(state))
    };
    after.filter(is_state).map(|condition| condition.chars().take(60).collect()).collect()
}

/// The planner's statistics may be from a time when few runs were open or had failed. It then prefers the index of open or failed
/// runs to the ids, and after an outage each statement scans the whole index.
#[test]
fn the_state_of_runs_is_checked_on_the_rows_that_a_list_names() {
    let sources = files().into_iter().filter(|file| file.starts_with("crates/store/src/sql"));
    let (mut complaints, mut count) = (Vec::new(), 0);
    for file in sources.filter(|file| file.extension().is_some_and(|extension| extension == "rs")) {
        let source = std::fs::read_to_string(root().join(&file)).expect("a source");
        count += source.matches("{check}").count();
        complaints.extend(unchecked(&source).into_iter().map(|condition| format!("{}: {condition}", file.display())));
    }
    assert!(count > 10, "{count} checks were found");
    assert!(complaints.is_empty(), "write {{check}}…{{end}} around the condition: {complaints:#?}");
}

#[test]
fn a_condition_beside_a_list_is_found() {
    assert_eq!(unchecked("WHERE run.id {in_list} \\\n  AND run.status = 'failed'"), ["run.status = 'failed'"]);
    assert_eq!(unchecked("WHERE id {in_list} AND {check}status = 'failed'{end}"), Vec::<String>::new());
    assert_eq!(unchecked("WHERE job_id {in_list} AND status = 'failed'"), Vec::<String>::new());
}
