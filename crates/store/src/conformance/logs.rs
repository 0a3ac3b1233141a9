//! Checks of logs.

use rondel_core::RunId;

use super::{join, next_id, pending};
use crate::Store;
use crate::logs::{LogChunk, LogLine};

/// Chunks are kept as they came first, in order; those of unknown runs are dropped.
pub async fn logs_are_kept_once(store: &dyn Store) {
    let token = join(store).await;
    let run = pending(store, token).await;
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
}
