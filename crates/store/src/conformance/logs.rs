//! Checks of logs.

use rondel_core::outcome::Outcome;
use rondel_core::{Run, RunId};

use super::{finish, finish_one, join, next_id, pending_run};
use crate::Store;
use crate::logs::{ChunkSize, LogChunk, LogLine, LogRange, RemovedLogs};

/// Chunks are stored in order. The first chunk with a number stays, and chunks of unknown runs are dropped.
pub async fn logs_are_kept_once(store: &dyn Store) {
    let token = join(store).await;
    let run = pending_run(store, token).await;
    let line = |text: String| LogLine { at: run.due_at, level: "info".to_owned(), text };
    let chunk = |attempt, sequence, lines| LogChunk { run: run.id, attempt, sequence, lines };
    let chunks = [
        chunk(1, 0, vec![line("eins\n\0\u{1f980}".to_owned()), line(String::new())]),
        chunk(1, 2, vec![line("long ".repeat(300_000))]),
        chunk(1, 1, vec![line("zwei".to_owned())]),
        chunk(2, 0, vec![line("again".to_owned())]),
    ];
    let unknown = LogChunk { run: RunId::new(next_id()), ..chunks[0].clone() };
    store.append_logs(&[&chunks[..], std::slice::from_ref(&unknown)].concat()).await.unwrap();
    let other = chunk(1, 1, vec![line("other".to_owned())]);
    store.append_logs(&[other, chunks[0].clone()]).await.unwrap();
    store.append_logs(std::slice::from_ref(&unknown)).await.unwrap();
    store.append_logs(&[]).await.unwrap();

    let first = store.log_chunks(run.id, 1, -1, 10).await.unwrap();
    assert_eq!(first, [chunks[0].clone(), chunks[2].clone(), chunks[1].clone()]);
    assert_eq!(store.log_chunks(run.id, 1, 0, 1).await.unwrap(), [chunks[2].clone()]);
    assert_eq!(store.log_chunks(run.id, 2, -1, 10).await.unwrap(), [chunks[3].clone()]);
    assert_eq!(store.log_chunks(run.id, 3, -1, 10).await.unwrap(), []);
    assert_eq!(store.log_chunks(unknown.run, 1, -1, 10).await.unwrap(), []);

    let size = |sequence, line_count| ChunkSize { sequence, line_count };
    assert_eq!(store.log_sizes(run.id, 1, -1, 10).await.unwrap(), [size(0, 2), size(1, 1), size(2, 1)]);
    assert_eq!(store.log_sizes(run.id, 1, 0, 1).await.unwrap(), [size(1, 1)]);
    assert_eq!(store.log_sizes(run.id, 3, -1, 10).await.unwrap(), []);
}

/// The newest logs that fit into the size are kept, and so are the logs of open runs. Each removed log is replaced by one line.
pub async fn old_logs_are_removed_by_size_and_leave_a_line(store: &dyn Store) {
    let token = join(store).await;
    let mut runs: Vec<Run> = Vec::new();
    for _ in 0..4 {
        runs.push(pending_run(store, token).await);
    }
    runs.sort_by_key(|run| run.id);
    let (namespace, now) = (runs[0].namespace, store.now().await.unwrap());
    let line = |text: &str| LogLine { at: now, level: "info".to_owned(), text: text.to_owned() };
    // Short texts are not compressed, so the stored size is about their number of bytes.
    let text = "0123456789".repeat(40);
    for run in &runs {
        let chunk = |sequence| LogChunk { run: run.id, attempt: 1, sequence, lines: vec![line(&text)] };
        store.append_logs(&[chunk(0), chunk(1)]).await.unwrap();
        if run.id != runs[1].id {
            finish_one(store, finish(run, Outcome::Succeeded)).await;
        }
    }
    // The two newest runs have about 860 bytes each. The log of the run before them would exceed the size.
    assert_eq!(store.log_cut(namespace, 2_000).await.unwrap(), Some(runs[1].id));
    assert_eq!(store.log_cut(namespace, 1 << 40).await.unwrap(), None);

    let range = LogRange { after: RunId::new(0), up_to: runs[1].id, now };
    let mut removed = 0;
    let mut after = RunId::new(runs[0].id.get() - 1);
    loop {
        let done: RemovedLogs = store.remove_logs(namespace, LogRange { after, ..range }, 1).await.unwrap();
        removed += done.runs;
        let Some(last) = done.last else { break };
        after = last;
    }
    assert_eq!((removed, after), (1, runs[1].id), "the open one is skipped");
    let remaining = store.log_chunks(runs[0].id, 1, -1, 10).await.unwrap();
    assert_eq!(remaining.len(), 1);
    assert_eq!(
        (remaining[0].sequence, remaining[0].lines[0].text.as_str()),
        (0, "… 2 lines were removed by the log retention")
    );
    for run in &runs[1..] {
        assert_eq!(store.log_chunks(run.id, 1, -1, 10).await.unwrap().len(), 2);
    }
    // The line that replaced the log is neither removed nor counted in a second removal.
    let again = store.remove_logs(namespace, LogRange { up_to: runs[0].id, ..range }, 500).await.unwrap();
    assert!(again.last.is_none_or(|last| last < runs[0].id), "{again:?}");
}
