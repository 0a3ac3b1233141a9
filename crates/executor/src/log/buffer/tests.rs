use super::*;

fn log() -> (Arc<RunLog>, Arc<LogShipping>) {
    let shipping = Arc::new(LogShipping::default());
    (RunLog::new(RunKey::new(7, 1), 1, Some(Arc::clone(&shipping)), LogLimit::default()), shipping)
}

fn push(log: &Arc<RunLog>, text: &str) {
    log.push("info", Timestamp::EPOCH, text);
}

#[test]
fn a_chunk_is_sent_once_to_each_session() {
    let (log, _) = log();
    push(&log, "a\nb\n");
    let chunks = log.collect(1, false);
    assert_eq!((chunks.len(), chunks[0].sequence, chunks[0].lines.len()), (1, 0, 2));
    assert!(log.collect(1, false).is_empty());
    push(&log, "c");
    assert_eq!(log.collect(1, false)[0].sequence, 1);
    log.record_ack(0);
    let again: Vec<i64> = log.collect(2, false).iter().map(|chunk| chunk.sequence).collect();
    assert_eq!(again, [1]);
    log.record_ack(1);
    assert!(!log.has_chunks() && !log.has_unsent());
}

/// Pushes more lines than a log takes: 200 lines of 10,000 bytes.
fn flood(log: &Arc<RunLog>) {
    let line = "x".repeat(10_000);
    for _ in 0..200 {
        push(log, &line);
    }
}

fn counted(chunks: &[LogChunk]) -> Vec<(usize, u64)> {
    chunks.iter().map(|chunk| (chunk.lines.len(), chunk.dropped)).collect()
}

#[test]
fn lines_that_do_not_fit_are_dropped_and_counted_but_the_last_ones_are_kept() {
    let (log, shipping) = log();
    flood(&log);
    push(&log, "last");
    log.close();
    let chunks = log.collect(1, true);
    let (kept, dropped) = counted(&chunks).iter().fold((0, 0), |sum, (kept, dropped)| (sum.0 + kept, sum.1 + dropped));
    assert_eq!(kept as u64 + dropped, 201);
    assert!(dropped > 0 && kept > 90, "{kept} kept, {dropped} dropped");
    let end = chunks.last().unwrap();
    assert_eq!((end.dropped, end.lines.len(), end.lines[3].text.as_str()), (dropped, 4, "last"));
    log.record_ack(i64::MAX);
    assert_eq!(shipping.buffered_bytes(), 0);
}

#[test]
fn dropped_lines_are_counted_where_they_are_missing() {
    let (log, shipping) = log();
    flood(&log);
    assert!(!shipping.take_marked_logs().is_empty());
    let chunks = log.collect(1, true);
    let (end, first) = chunks.split_last().unwrap();
    let kept: usize = first.iter().map(|chunk| chunk.lines.len()).sum();
    assert!(kept > 90 && first.iter().all(|chunk| chunk.dropped == 0), "no line is missing before these: {kept}");
    assert_eq!((end.lines.len(), end.dropped), (3, 197 - kept as u64), "sent as soon as there is room");
    push(&log, "after");
    assert_eq!(counted(&log.collect(1, true)), [(1, 0)]);
}

#[test]
fn the_first_lines_of_a_log_wait_for_the_room_of_all_logs() {
    let (log, shipping) = log();
    shipping.add_bytes(usize::MAX / 2);
    push(&log, "a");
    let marked_logs = shipping.take_marked_logs();
    assert!(marked_logs.len() == 1 && log.collect(1, false).is_empty() && log.has_unsent());
    shipping.subtract_bytes(usize::MAX / 2);
    assert_eq!(counted(&log.collect(1, false)), [(1, 0)]);
    assert!(!log.has_unsent());
}

#[test]
fn dropped_lines_are_counted_with_the_next_line_or_at_the_end() {
    let (log, _) = log();
    lock(&log.state).dropped_line_count = 5;
    assert!(log.collect(1, false).is_empty() && !log.has_unsent(), "there is no chunk without a line");
    push(&log, "a");
    assert_eq!(counted(&log.collect(1, false)), [(1, 5)]);
    lock(&log.state).dropped_line_count = 7;
    assert!(log.collect(1, false).is_empty());
    log.close();
    assert_eq!(counted(&log.collect(1, false)), [(0, 7)]);
}

/// All lines that a log with this limit sends.
fn logged(limit: LogLimit, lines: impl IntoIterator<Item = String>) -> Vec<String> {
    let shipping = Arc::new(LogShipping::default());
    let log = RunLog::new(RunKey::new(7, 1), 1, Some(Arc::clone(&shipping)), limit);
    let mut texts = Vec::new();
    let mut collect = || {
        for chunk in log.collect(1, true) {
            assert_eq!(chunk.dropped, 0);
            log.record_ack(chunk.sequence);
            texts.extend(chunk.lines.into_iter().map(|line| line.text));
        }
    };
    for line in lines {
        push(&log, &line);
        collect();
    }
    log.close();
    collect();
    shipping.take_marked_logs();
    drop(log);
    assert_eq!(shipping.buffered_bytes(), 0);
    texts
}

#[test]
fn of_a_log_that_is_too_long_both_ends_stay() {
    let limit = LogLimit { lines: 40, ..LogLimit::default() };
    let texts = logged(limit, (0..1_000).map(|number| format!("line {number}")));
    assert_eq!((texts.len(), texts[29].as_str(), texts[32].as_str()), (42, "line 29", "line 990"));
    assert!(texts[30].contains("only the end is kept"), "{}", texts[30]);
    assert!(texts[31].contains("960 lines") && texts[31].contains("10 MiB or 40 lines"), "{}", texts[31]);
    assert_eq!(texts[41], "line 999");
}

#[test]
fn bytes_are_limited_too_and_a_complete_log_has_no_count() {
    let limit = LogLimit { bytes: 10_000, lines: 1_000 };
    let texts = logged(limit, (0..500).map(|number| format!("{number:0100}")));
    let bytes: usize = texts.iter().map(|text| line_cost(text)).sum();
    assert!(bytes < 10_500 && texts.last().unwrap().ends_with("499"), "{bytes}");
    assert_eq!(logged(limit, (0..56).map(|number| format!("{number:0100}"))).len(), 56);
    let few = logged(limit, (0..60).map(|number| format!("{number:0100}")));
    assert_eq!(few.len(), 61, "the word that the end follows, and every line");
}

#[test]
fn a_closed_log_takes_nothing() {
    let (log, _) = log();
    push(&log, "a");
    log.close();
    push(&log, "b");
    assert_eq!(log.collect(1, true).iter().map(|chunk| chunk.lines.len()).sum::<usize>(), 1);
}

#[test]
fn memory_is_given_back_when_a_log_is_forgotten() {
    let (log, shipping) = log();
    push(&log, "a line");
    assert!(shipping.buffered_bytes() > 0);
    shipping.take_marked_logs();
    drop(log);
    assert_eq!(shipping.buffered_bytes(), 0);
}
