//! Checks of the trace contexts of requested runs.

use std::time::Duration;

use rondel_core::{IdGen, RunId, Timestamp, TraceParent};

use super::next_id;
use crate::Store;

/// The first span that was stored for a run is found, until it is removed by age.
pub async fn a_trace_is_found_by_its_run_and_forgotten_with_age(store: &dyn Store) {
    let parent: TraceParent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".parse().unwrap();
    let other: TraceParent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b8-00".parse().unwrap();
    // Later than any run of another check.
    let late = IdGen::first_at(Timestamp::from_secs(4_000_000_000));
    let fresh = || RunId::new(late + next_id() % 1_000_000);
    let (run, another, without) = (fresh(), fresh(), fresh());
    store.note_trace(run, parent).await.unwrap();
    store.note_trace(run, other).await.unwrap();
    store.note_trace(another, other).await.unwrap();
    let mut found = store.traces(&[without, another, run]).await.unwrap();
    found.sort_by_key(|(run, _)| *run);
    assert_eq!(found, [(run, parent), (another, other)]);

    // Older than the spans of other checks: three days after the first instant that ids can have.
    let old = Timestamp::from_secs(1_704_326_400);
    let first = IdGen::first_at(old);
    let runs: Vec<RunId> = (0..3).map(|index| RunId::new(first + index)).collect();
    for run in &runs {
        store.note_trace(*run, parent).await.unwrap();
    }
    let before = old + Duration::from_secs(100);
    assert_eq!(store.forget_traces(before, 2).await.unwrap(), 2);
    assert_eq!(store.traces(&runs).await.unwrap(), [(runs[2], parent)]);
    assert_eq!(store.forget_traces(before, 2).await.unwrap(), 1);
    assert_eq!(store.forget_traces(before, 2).await.unwrap(), 0);
    assert_eq!(store.traces(&[run]).await.unwrap(), [(run, parent)]);
}
