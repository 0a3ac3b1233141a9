//! The attempts of one executor, as this server's link knows them. Durable state is in the store.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use rondel_core::{JobId, RunId};
use rondel_proto::v1::{Fence, LogChunk, RunRef};
use rondel_store::logs::NUMBERED_BY_LINE;
use rondel_store::xxl::{XxlRun, XxlRunState};
use tokio::time::Instant;

use crate::log::ReadEnd;

/// Maximum number of ended attempts that are remembered because another node reads their logs. For a busy executor, these are the attempts
/// of the last seconds.
const UNREAD_MAX: usize = 5_000;
/// Maximum number of logs of other nodes' attempts that this node starts to read at the same time.
const READ_AT_ONCE_MAX: usize = 200;
/// Time limit for reading the rest of a log after the end of its attempt.
const LOG_TIMEOUT: Duration = Duration::from_secs(30);
/// How long to wait for an acknowledgement before a result is sent again.
const RESEND_AFTER: Duration = Duration::from_secs(2);

/// A request to stop an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kill {
    /// This caller wants the attempt stopped, and the executor has not been asked yet.
    Wanted(String),
    /// The executor has been asked to stop the attempt, for this caller, and has not answered.
    Requested(String),
    /// The executor has not stopped the attempt.
    Failed,
}

/// An attempt that was sent to the executor, with the link's knowledge of it.
#[derive(Clone, Debug)]
pub(crate) struct AttemptEntry {
    pub(crate) row: XxlRun,
    /// The `fence_n` of the attempt's trigger; 0 if another server sent the attempt, or this server did so before a restart.
    pub(crate) fence_n: i64,
    /// Whether the executor has confirmed that it has or had the attempt.
    pub(crate) is_confirmed: bool,
    pub(crate) started_at_ms: i64,
    /// When the request to run the attempt ended, or when the entry was made. Answers to questions asked after that cover the attempt.
    pub(crate) answerable_since: Instant,
    /// Whether the request to run the attempt is on its way.
    pub(crate) is_sending: bool,
    pub(crate) kill: Option<Kill>,
    /// Whether this server has logged that the executor did not stop the attempt.
    pub(crate) has_logged_failed_kill: bool,
    /// Since when the executor has had no run of the attempt's job; `None` if it has one, or was not asked.
    pub(crate) idle_since: Option<Instant>,
    /// When the executor was last asked whether it is idle for the job.
    pub(crate) asked_at: Option<Instant>,
    pub(crate) pulled_at: Option<Instant>,
    pub(crate) is_pulling: bool,
    pub(crate) has_whole_log: bool,
    pub(crate) is_log_cut: bool,
    /// Why the last read of the log failed; only if the attempt had ended by then.
    pub(crate) log_error: Option<String>,
    /// Whether the row states how much of the log is stored: no other server has stored lines, or the store was asked.
    pub(crate) is_log_line_known: bool,
    /// The chunks of the log that are not known to be stored: each chunk's number, and the number of the line that follows the chunk.
    unstored_chunks: VecDeque<(i64, i64)>,
    pub(crate) result_sent_at: Option<Instant>,
    pub(crate) acked_at: Option<Instant>,
}

impl AttemptEntry {
    pub(crate) fn is_open(&self) -> bool {
        self.row.state == XxlRunState::Open
    }

    /// Whether a server only assumed the end of the attempt. The executor's own report replaces such an end.
    pub(crate) fn has_assumed_end(&self) -> bool {
        self.row.code.is_some_and(|code| code < -1)
    }

    /// Records that the executor is asked to stop the attempt, and returns true. Returns false if no stop is wanted, or if the executor
    /// must not be asked now: the request to stop an attempt must not arrive before the request to run it.
    pub(crate) fn begin_kill(&mut self) -> bool {
        let Some(Kill::Wanted(canceller)) = &self.kill else { return false };
        if self.is_sending || !self.is_open() {
            return false;
        }
        self.kill = Some(Kill::Requested(canceller.clone()));
        true
    }

    /// Records that the request to run the attempt is no longer on its way: it was answered, or has failed.
    pub(crate) fn end_sending(&mut self, now: Instant) {
        (self.is_sending, self.answerable_since) = (false, now);
    }

    /// Whether an answer about the executor's runs covers this attempt. It does if the question, at `asked_at`, followed the
    /// request to run it.
    pub(crate) fn is_answerable_at(&self, asked_at: Instant) -> bool {
        self.is_open() && !self.is_sending && self.answerable_since <= asked_at
    }

    /// Whether the log is whole after a read with this end. `had_ended` states whether the attempt had ended before the read began: only
    /// then was no line added later.
    pub(crate) fn is_whole_after(&self, end: &ReadEnd, had_ended: bool) -> bool {
        !self.is_open() && (*end == ReadEnd::Cut || *end == ReadEnd::Whole && had_ended)
    }

    /// Records how a read of the log ended; true if the next read must follow immediately. After a failure, the log is read
    /// again later.
    pub(crate) fn end_read(&mut self, end: ReadEnd, had_ended: bool) -> bool {
        let has_ended = !self.is_open();
        self.has_whole_log |= self.is_whole_after(&end, had_ended);
        self.is_log_cut |= end == ReadEnd::Cut;
        self.log_error = match end {
            ReadEnd::Failed(reason) if has_ended => Some(reason),
            _ => None,
        };
        self.is_pulling = has_ended && !self.has_whole_log && self.log_error.is_none();
        self.is_pulling
    }

    /// Records that these chunks, which end before the line `next_line`, are on their way into the store.
    pub(crate) fn note_sent(&mut self, chunks: &[LogChunk], next_line: i64) {
        let following_lines = chunks.iter().skip(1).map(|chunk| chunk.sequence - NUMBERED_BY_LINE).chain([next_line]);
        self.unstored_chunks.extend(chunks.iter().map(|chunk| chunk.sequence).zip(following_lines));
    }

    /// Records that all chunks up to this one are stored. Returns the number of the first line that is not stored, or
    /// `None` if nothing changed.
    pub(crate) fn stored_until(&mut self, sequence: i64) -> Option<i64> {
        let mut next_line = None;
        while let Some((_, line)) = self.unstored_chunks.pop_front_if(|(number, _)| *number <= sequence) {
            next_line = Some(line);
        }
        next_line
    }

    /// Whether the log is to be read periodically: the attempt is open or the last read failed, and the log is not whole, cut or being read.
    pub(crate) fn is_log_awaited(&self) -> bool {
        let is_awaited = self.is_open() || self.log_error.is_some();
        is_awaited && !self.is_pulling && !self.is_log_cut && !self.has_whole_log
    }

    /// Whether the attempt has its verdict, and this server has no more of its log to read.
    fn is_done(&self) -> bool {
        self.acked_at.is_some() && self.has_whole_log
    }

    /// Whether the attempt has its verdict, but this server has not read its whole log in time.
    fn is_log_late(&self, now: Instant) -> bool {
        self.acked_at.is_some_and(|at| !self.has_whole_log && now.duration_since(at) >= LOG_TIMEOUT)
    }

    fn run_ref(&self) -> RunRef {
        let (run_id, attempt) = (self.row.run.get(), self.row.attempt);
        RunRef { run_id, attempt, started_at_ms: self.started_at_ms, ..RunRef::default() }
    }
}

/// The attempts of an executor.
#[derive(Debug, Default)]
pub(crate) struct Table {
    entries: BTreeMap<i64, AttemptEntry>,
    log_ids: HashMap<(RunId, i32), i64>,
    /// The highest epoch of each node whose triggers are refused.
    fences: BTreeMap<i64, i64>,
    job_numbers: HashMap<JobId, i32>,
    /// Ended attempts whose logs another node reads, kept in case that node is gone.
    unread_attempts: VecDeque<(Instant, XxlRun)>,
}

impl Table {
    /// Merges the stored attempts, at the start and periodically: other servers also send attempts to the executor and receive their ends.
    /// Returns the attempts that got their verdicts from another server.
    pub(crate) fn reconcile(&mut self, rows: Vec<XxlRun>, now: Instant) -> Vec<AttemptEntry> {
        let stored_ids: BTreeMap<i64, ()> = rows.iter().map(|row| (row.log_id, ())).collect();
        let is_settled = |entry: &AttemptEntry| entry.acked_at.is_none() && !stored_ids.contains_key(&entry.row.log_id);
        let ended_ids: Vec<i64> =
            self.entries.values().filter(|entry| is_settled(entry)).map(|entry| entry.row.log_id).collect();
        let ended_entries: Vec<AttemptEntry> = ended_ids.into_iter().filter_map(|log_id| self.remove(log_id)).collect();
        for row in rows {
            match self.entries.get_mut(&row.log_id) {
                Some(entry) => {
                    // Another server may have read its log meanwhile.
                    let log_line = entry.row.log_line.max(row.log_line);
                    entry.row.log_line = log_line;
                    if entry.is_open() && row.state != XxlRunState::Open {
                        entry.row = XxlRun { log_line, ..row };
                    }
                }
                None => self.insert(row, 0, now),
            }
        }
        ended_entries
    }

    /// Takes back the lines that an ended session may have lost: they are read again, from where the stored log ends.
    pub(crate) fn take_back_unstored(&mut self) {
        for entry in self.entries.values_mut() {
            let Some((first_sequence, _)) = entry.unstored_chunks.front().copied() else { continue };
            entry.unstored_chunks.clear();
            entry.row.log_line = entry.row.log_line.min(first_sequence - NUMBERED_BY_LINE);
            (entry.is_log_line_known, entry.has_whole_log, entry.is_log_cut) = (false, false, false);
        }
    }

    pub(crate) fn insert(&mut self, row: XxlRun, fence_n: i64, now: Instant) {
        self.job_numbers.insert(row.job, row.number);
        self.log_ids.insert((row.run, row.attempt), row.log_id);
        let started_at_ms = row.sent_at.as_millis();
        let entry = AttemptEntry {
            row,
            fence_n,
            is_confirmed: false,
            started_at_ms,
            answerable_since: now,
            is_sending: false,
            kill: None,
            has_logged_failed_kill: false,
            idle_since: None,
            asked_at: None,
            pulled_at: None,
            is_pulling: false,
            has_whole_log: false,
            is_log_cut: false,
            log_error: None,
            is_log_line_known: fence_n != 0,
            unstored_chunks: VecDeque::new(),
            result_sent_at: None,
            acked_at: None,
        };
        self.entries.insert(entry.row.log_id, entry);
    }

    /// Marks an attempt's log as being read. An attempt that is not here is added; it already has its verdict.
    pub(crate) fn begin_log_read(&mut self, row: XxlRun, now: Instant) {
        let log_id = row.log_id;
        if !self.entries.contains_key(&log_id) {
            self.insert(row, 0, now);
            self.entries.entry(log_id).and_modify(|entry| entry.acked_at = Some(now));
        }
        self.entries.entry(log_id).and_modify(|entry| (entry.is_pulling, entry.has_whole_log) = (true, false));
    }

    pub(crate) fn remove(&mut self, log_id: i64) -> Option<AttemptEntry> {
        let entry = self.entries.remove(&log_id)?;
        let attempt_key = (entry.row.run, entry.row.attempt);
        if self.log_ids.get(&attempt_key) == Some(&log_id) {
            self.log_ids.remove(&attempt_key);
        }
        Some(entry)
    }

    pub(crate) fn get_mut(&mut self, log_id: i64) -> Option<&mut AttemptEntry> {
        self.entries.get_mut(&log_id)
    }

    pub(crate) fn attempt_mut(&mut self, run: RunId, attempt: i32) -> Option<&mut AttemptEntry> {
        self.log_ids.get(&(run, attempt)).and_then(|log_id| self.entries.get_mut(log_id))
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = &AttemptEntry> {
        self.entries.values()
    }

    pub(crate) fn entries_mut(&mut self) -> impl Iterator<Item = &mut AttemptEntry> {
        self.entries.values_mut()
    }

    pub(crate) fn open_count(&self) -> usize {
        self.entries.values().filter(|entry| entry.is_open()).count()
    }

    /// The attempts that a hello, or the answer to a fence, lists: those without an end, and those with an end but no verdict.
    pub(crate) fn inventory(&self) -> (Vec<RunRef>, Vec<RunRef>) {
        let entries = self.entries.values().filter(|entry| entry.acked_at.is_none());
        let (held, finished): (Vec<&AttemptEntry>, Vec<&AttemptEntry>) = entries.partition(|entry| entry.is_open());
        let to_refs = |entries: Vec<&AttemptEntry>| entries.into_iter().map(AttemptEntry::run_ref).collect();
        (to_refs(held), to_refs(finished))
    }

    pub(crate) fn fence(&mut self, fence: &Fence) {
        let fenced_epoch = self.fences.entry(fence.node_id).or_insert(fence.node_epoch);
        *fenced_epoch = (*fenced_epoch).max(fence.node_epoch);
    }

    pub(crate) fn is_fenced(&self, (node, epoch): (i64, i64)) -> bool {
        self.fences.get(&node).is_some_and(|fenced_epoch| epoch <= *fenced_epoch)
    }

    /// The number of a job, if this table ever had an attempt of it.
    pub(crate) fn number_of(&self, job: JobId) -> Option<i32> {
        self.job_numbers.get(&job).copied()
    }

    /// The ends that no server has acknowledged in time.
    pub(crate) fn unacknowledged_ends(&self, now: Instant) -> Vec<i64> {
        let is_late = |entry: &&AttemptEntry| {
            let is_resend_due = entry.result_sent_at.is_none_or(|at| now.duration_since(at) >= RESEND_AFTER);
            !entry.is_open() && entry.acked_at.is_none() && is_resend_due
        };
        self.entries.values().filter(is_late).map(|entry| entry.row.log_id).collect()
    }

    /// Remembers an ended attempt whose log another node is to read. If that node is gone, this node may have to read the
    /// log; it can only find that out once the lease of the other node has ended.
    pub(crate) fn remember_unread(&mut self, row: &XxlRun, now: Instant) {
        if self.unread_attempts.len() >= UNREAD_MAX {
            self.unread_attempts.pop_front();
        }
        self.unread_attempts.push_back((now, XxlRun { state: XxlRunState::Settled, message: None, ..*row }));
    }

    /// Takes some of the remembered attempts whose logs this node must read now.
    pub(crate) fn take_unread(&mut self, now: Instant, is_own: impl Fn(&XxlRun) -> bool) -> Vec<XxlRun> {
        while self.unread_attempts.front().is_some_and(|(since, _)| now.duration_since(*since) >= LOG_TIMEOUT) {
            self.unread_attempts.pop_front();
        }
        let (mut own_rows, mut other_rows) = (Vec::new(), VecDeque::new());
        for (since, row) in self.unread_attempts.drain(..) {
            if own_rows.len() < READ_AT_ONCE_MAX && is_own(&row) {
                own_rows.push(row);
            } else {
                other_rows.push_back((since, row));
            }
        }
        self.unread_attempts = other_rows;
        own_rows
    }

    /// Removes the attempts that have their verdicts and their logs.
    pub(crate) fn forget(&mut self) {
        let done_ids: Vec<i64> =
            self.entries.values().filter(|entry| entry.is_done()).map(|entry| entry.row.log_id).collect();
        for log_id in done_ids {
            self.remove(log_id);
        }
    }

    /// Removes this attempt if it has its verdict and its log.
    pub(crate) fn forget_one(&mut self, log_id: i64) {
        if self.entries.get(&log_id).is_some_and(AttemptEntry::is_done) {
            self.remove(log_id);
        }
    }

    /// Removes and returns the attempts that waited too long for their logs.
    pub(crate) fn give_up_logs(&mut self, now: Instant) -> Vec<AttemptEntry> {
        let late_ids: Vec<i64> =
            self.entries.values().filter(|entry| entry.is_log_late(now)).map(|entry| entry.row.log_id).collect();
        late_ids.into_iter().filter_map(|log_id| self.remove(log_id)).collect()
    }
}

#[cfg(test)]
mod tests {
    use rondel_core::{AppId, ExecutorId, NodeId, Timestamp};

    use super::*;

    fn row(log_id: i64, state: XxlRunState) -> XxlRun {
        XxlRun {
            log_id,
            run: RunId::new(log_id * 10),
            attempt: 1,
            job: JobId::new(2),
            number: 1_000_000_000,
            executor: ExecutorId::new(3),
            app: AppId::new(4),
            node: NodeId::new(5),
            sent_at: Timestamp::from_secs(1),
            state,
            code: None,
            message: None,
            reported_at: None,
            log_line: 1,
        }
    }

    fn ids(refs: &[RunRef]) -> Vec<i64> {
        refs.iter().map(|one| one.run_id).collect()
    }

    #[tokio::test]
    async fn stored_attempts_are_merged() {
        let now = Instant::now();
        let mut table = Table::default();
        let over = |entries: Vec<AttemptEntry>| entries.iter().map(|entry| entry.row.log_id).collect::<Vec<_>>();
        assert_eq!(over(table.reconcile(vec![row(1, XxlRunState::Open), row(2, XxlRunState::Reported)], now)), [0; 0]);
        let (held, finished) = table.inventory();
        assert_eq!((ids(&held), ids(&finished)), (vec![10], vec![20]));
        // Another server received the end of attempt 1, and sent attempt 3; attempt 2 has its verdict.
        let read_there = XxlRun { log_line: 27, ..row(1, XxlRunState::Reported) };
        assert_eq!(over(table.reconcile(vec![read_there, row(3, XxlRunState::Open)], now)), [2]);
        assert_eq!(table.get_mut(1).map(|entry| entry.row.log_line), Some(27), "another server has read so far");
        let (held, finished) = table.inventory();
        assert_eq!((ids(&held), ids(&finished)), (vec![30], vec![10]));
        assert!(table.attempt_mut(RunId::new(20), 1).is_none());
        assert_eq!((table.open_count(), table.unacknowledged_ends(now)), (1, vec![1]));
        table.get_mut(1).unwrap().acked_at = Some(now);
        table.forget();
        assert_eq!(over(table.give_up_logs(now)), [0; 0], "its log is not whole");
        assert!(table.get_mut(1).is_some());
        assert_eq!(over(table.give_up_logs(now + LOG_TIMEOUT)), [1]);
        assert!(table.get_mut(1).is_none());
        assert_eq!(table.number_of(JobId::new(2)), Some(1_000_000_000));
    }

    #[tokio::test]
    async fn a_log_is_read_until_a_read_that_began_after_the_end_finds_no_more() {
        let failed = || ReadEnd::Failed("no answer".to_owned());
        // For each read: how it ended, whether it began after the end of the attempt, and whether the next read follows immediately.
        for (reads, is_whole, error) in [
            (vec![(ReadEnd::Whole, false, true), (ReadEnd::Whole, true, false)], true, None),
            (vec![(ReadEnd::Paused, false, true), (ReadEnd::Paused, true, true)], false, None),
            (vec![(failed(), true, false)], false, Some("no answer")),
            (vec![(failed(), true, false), (ReadEnd::Whole, true, false)], true, None),
            (vec![(ReadEnd::Cut, false, false)], true, None),
        ] {
            let mut table = Table::default();
            table.insert(row(1, XxlRunState::Reported), 0, Instant::now());
            let entry = table.get_mut(1).expect("an attempt");
            for (end, was_over, reads_on) in reads {
                assert_eq!(entry.end_read(end.clone(), was_over), reads_on, "{end:?}");
            }
            assert_eq!((entry.has_whole_log, entry.log_error.as_deref()), (is_whole, error));
            assert_eq!(entry.is_log_awaited(), error.is_some());
        }
        let mut table = Table::default();
        table.insert(row(1, XxlRunState::Open), 0, Instant::now());
        let entry = table.get_mut(1).expect("an attempt");
        for end in [ReadEnd::Whole, failed(), ReadEnd::Paused] {
            assert!(!entry.end_read(end, false) && !entry.has_whole_log && entry.is_log_awaited());
        }
    }

    #[tokio::test]
    async fn lines_count_as_read_once_they_are_stored() {
        let mut table = Table::default();
        table.insert(row(1, XxlRunState::Open), 0, Instant::now());
        let entry = table.get_mut(1).expect("an attempt");
        let chunk = |line| LogChunk { sequence: NUMBERED_BY_LINE + line, ..LogChunk::default() };
        entry.note_sent(&[chunk(1), chunk(501)], 700);
        entry.note_sent(&[chunk(700)], 710);
        entry.note_sent(&[], 720);
        let mut stored = |line| entry.stored_until(NUMBERED_BY_LINE + line);
        assert_eq!((stored(0), stored(1), stored(1)), (None, Some(501), None));
        assert_eq!((stored(700), stored(700)), (Some(710), None), "an acknowledgement covers the earlier chunks");
        entry.note_sent(&[chunk(720)], 730);
        (entry.row.log_line, entry.is_log_line_known) = (730, true);
        table.take_back_unstored();
        let next = table.get_mut(1).map(|entry| (entry.row.log_line, entry.is_log_line_known));
        assert_eq!(next, Some((720, false)), "a session that ended may have lost these lines");
    }

    #[tokio::test]
    async fn an_attempt_that_is_on_its_way_is_not_lost() {
        let (mut table, now) = (Table::default(), Instant::now());
        table.insert(row(1, XxlRunState::Open), 0, now);
        let entry = table.get_mut(1).expect("an attempt");
        entry.is_sending = true;
        assert!(!entry.is_answerable_at(now + LOG_TIMEOUT));
        entry.end_sending(now + LOG_TIMEOUT);
        assert!(!entry.is_answerable_at(now) && entry.is_answerable_at(now + LOG_TIMEOUT));
    }

    #[tokio::test]
    async fn a_stop_waits_for_the_answer_to_the_request_to_run() {
        let mut table = Table::default();
        table.insert(row(1, XxlRunState::Open), 0, Instant::now());
        let entry = table.get_mut(1).expect("an attempt");
        assert!(!entry.begin_kill(), "none is wanted");
        (entry.kill, entry.is_sending) = (Some(Kill::Wanted("ann".to_owned())), true);
        assert!(!entry.begin_kill(), "it is on its way");
        entry.is_sending = false;
        assert!(entry.begin_kill() && !entry.begin_kill(), "once");
        assert_eq!(entry.kill, Some(Kill::Requested("ann".to_owned())));
    }

    #[tokio::test]
    async fn logs_of_nodes_that_turn_out_to_be_gone_are_found() {
        let (now, mut table) = (Instant::now(), Table::default());
        let ids = |rows: Vec<XxlRun>| rows.iter().map(|row| row.log_id).collect::<Vec<_>>();
        let of_node = |log_id, node| XxlRun { node: NodeId::new(node), ..row(log_id, XxlRunState::Reported) };
        (1..=4).for_each(|number| table.remember_unread(&of_node(number, number % 2), now));
        assert_eq!(ids(table.take_unread(now, |_| false)), [0; 0]);
        assert_eq!(ids(table.take_unread(now, |row| row.node == NodeId::new(1))), [1, 3]);
        assert_eq!(ids(table.take_unread(now + LOG_TIMEOUT, |_| true)), [0; 0], "its node has read them");
        let too_many = i64::try_from(UNREAD_MAX).unwrap() + 2;
        (0..too_many).for_each(|number| table.remember_unread(&of_node(number, 1), now));
        assert_eq!(ids(table.take_unread(now, |_| true))[..2], [2, 3], "the oldest go first");
    }

    #[test]
    fn fences_stay() {
        let mut table = Table::default();
        table.fence(&Fence { node_id: 1, node_epoch: 5 });
        table.fence(&Fence { node_id: 1, node_epoch: 4 });
        assert!(table.is_fenced((1, 5)) && !table.is_fenced((1, 6)) && !table.is_fenced((2, 1)));
    }
}
