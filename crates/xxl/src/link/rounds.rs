//! Periodic work of a link: asking about attempts, reading logs, and sending results again.

use std::sync::Arc;
use std::time::Duration;

use rondel_store::xxl::{XxlRun, XxlRunState};
use tokio::time::Instant;

use super::{
    ASK_PERIOD, ASK_SHORT_PERIOD, Link, PULL_PERIOD, RECONCILE_IDLE_PERIOD, RECONCILE_PERIOD, RECONCILE_SHORT_PERIOD,
    Session,
};
use crate::client::CallError;
use crate::ends::{self, CODE_LOST, CODE_UNKNOWN};
use crate::table::AttemptEntry;
use crate::wire::Answer;

/// A stopped attempt may end with a callback before the executor answers the request to stop it. The answer is expected within this time
/// after the callback.
const ANSWERED_WITHIN: Duration = Duration::from_secs(2);

impl Link {
    pub(super) async fn tick(&mut self, session: &Session) -> bool {
        let now = Instant::now();
        if now.duration_since(self.reconciled_at) >= self.reconcile_period() {
            self.reconciled_at = now;
            match self.read_unsettled().await {
                Ok(rows) => {
                    self.has_ends_left_to_others = false;
                    let rows = self.without_new_ends(rows);
                    self.merge_stored_attempts(rows);
                }
                Err(error) => self.shared.log_store_failure("read attempts", &error),
            }
        }
        self.read_logs_of_lost_nodes(now);
        self.table.forget();
        self.waiting_cancels.retain(|log_id, _| self.table.get_mut(*log_id).is_some_and(|entry| entry.is_open()));
        if !self.give_up_logs(session, now).await {
            return false;
        }
        let unacknowledged_ends = self.table.unacknowledged_ends(now);
        if !self.deliver(session, &unacknowledged_ends).await {
            return false;
        }
        if self.is_unreachable {
            if !std::mem::replace(&mut self.is_beat_pending, true) {
                self.calls.beat();
            }
            return true;
        }
        self.ask(now);
        self.pull(now);
        self.end_lost_attempts(session, now).await
    }

    /// Records whether the executor answered a beat.
    pub(super) fn note_beat(&mut self, has_answered: bool) {
        (self.is_unreachable, self.is_beat_pending) = (!has_answered, false);
    }

    /// How long after the last read of the store the next read follows.
    fn reconcile_period(&self) -> Duration {
        let own_node = self.shared.engine.token().node;
        let has_own_attempt = || self.table.entries().any(|entry| entry.is_open() && entry.row.node == own_node);
        match self.table.open_count() {
            0 if !self.has_ends_left_to_others => RECONCILE_IDLE_PERIOD,
            _ if self.calls_back_elsewhere && has_own_attempt() => RECONCILE_SHORT_PERIOD,
            _ => RECONCILE_PERIOD,
        }
    }

    /// Leaves out ends that the executor has just reported for attempts of other servers; a later read of the store handles them. The
    /// other server may be asking the executor to stop such an attempt. If the executor answers that request after the callback, the
    /// answer counts.
    fn without_new_ends(&self, rows: Vec<XxlRun>) -> Vec<XxlRun> {
        let new_since = self.shared.engine.now() - ANSWERED_WITHIN;
        let without_new_end = |row| ends::without_new_success(ends::without_new_failure(row, new_since), new_since);
        let is_own = |row: &XxlRun| self.shared.is_responsible_for(row);
        rows.into_iter().map(|row| if is_own(&row) { row } else { without_new_end(row) }).collect()
    }

    /// Notes whether the executor reports the ends of this server's attempts to another server.
    fn note_callbacks_elsewhere(&mut self, rows: &[XxlRun]) {
        let own_node = self.shared.engine.token().node;
        for row in rows.iter().filter(|row| row.node == own_node && row.state == XxlRunState::Reported) {
            self.calls_back_elsewhere |= self.table.get_mut(row.log_id).is_some_and(|entry| entry.is_open());
        }
    }

    /// Merges the stored attempts of the executor into the table.
    pub(super) fn merge_stored_attempts(&mut self, rows: Vec<XxlRun>) {
        let now = Instant::now();
        self.reconciled_at = now;
        self.note_callbacks_elsewhere(&rows);
        let ended_entries = self.table.reconcile(rows, now);
        ended_entries.into_iter().for_each(|entry| self.read_rest_of_log(entry, now));
    }

    /// Reads the logs of ended attempts if the node that was to read them is gone. The read continues where the stored log
    /// ends.
    fn read_logs_of_lost_nodes(&mut self, now: Instant) {
        let shared = Arc::clone(&self.shared);
        for row in self.table.take_unread(now, |row| shared.is_responsible_for(row)) {
            self.calls.pull(&row, false, true);
            self.table.begin_log_read(row, now);
        }
    }

    /// Reads the rest of the log of an attempt whose end another server received.
    fn read_rest_of_log(&mut self, entry: AttemptEntry, now: Instant) {
        if entry.has_whole_log || entry.is_log_cut {
            return;
        }
        if !self.shared.is_responsible_for(&entry.row) {
            self.table.remember_unread(&entry.row, now);
            return;
        }
        let row = XxlRun { state: XxlRunState::Settled, ..entry.row };
        self.calls.pull(&row, entry.is_log_line_known, true);
        self.table.begin_log_read(row, now);
    }

    /// Asks the executor about attempts that have run for a while.
    pub(super) fn ask(&mut self, now: Instant) {
        let mut numbers = Vec::new();
        let is_due = |entry: &&mut AttemptEntry| entry.is_open() && self.shared.is_responsible_for(&entry.row);
        for entry in self.table.entries_mut().filter(is_due) {
            let ask_period = if entry.is_confirmed { ASK_PERIOD } else { ASK_SHORT_PERIOD };
            let last_asked_at = entry.asked_at.unwrap_or(entry.answerable_since);
            if now.duration_since(last_asked_at) >= ask_period {
                entry.asked_at = Some(now);
                numbers.push(entry.row.number);
            }
        }
        numbers.sort_unstable();
        numbers.dedup();
        for number in numbers {
            self.calls.ask_idle(number);
        }
    }

    /// Reads the logs of running attempts, and again those whose last read failed.
    pub(super) fn pull(&mut self, now: Instant) {
        let needs_read =
            |entry: &&mut AttemptEntry| entry.is_log_awaited() && self.shared.is_responsible_for(&entry.row);
        for entry in self.table.entries_mut().filter(needs_read) {
            let last_pulled_at = entry.pulled_at.unwrap_or(entry.answerable_since);
            if now.duration_since(last_pulled_at) >= PULL_PERIOD {
                (entry.pulled_at, entry.is_pulling) = (Some(now), true);
                self.calls.pull(&entry.row, entry.is_log_line_known, !entry.is_open());
            }
        }
    }

    /// Ends attempts that the executor no longer has, and for which no callback arrived in time.
    pub(super) async fn end_lost_attempts(&mut self, session: &Session, now: Instant) -> bool {
        let timeout = self.shared.config.callback_timeout;
        let has_expired = |lost_since: Instant| now.duration_since(lost_since) >= timeout;
        let lost_attempts =
            self.table.entries().filter(|entry| entry.is_open() && entry.idle_since.is_some_and(has_expired));
        let lost_attempts: Vec<(i64, bool)> =
            lost_attempts.map(|entry| (entry.row.log_id, entry.is_confirmed)).collect();
        for (log_id, is_confirmed) in lost_attempts {
            let seconds = timeout.as_secs();
            let name = &self.identity.name;
            let (code, message) = match is_confirmed {
                true => (
                    CODE_UNKNOWN,
                    format!("executor {name} no longer has the run, and sent no callback for {seconds} s"),
                ),
                false => {
                    (CODE_LOST, format!("executor {name} does not have the run, and sent no callback for {seconds} s"))
                }
            };
            if !self.end(session, log_id, code, &message).await {
                return false;
            }
        }
        true
    }
    /// Records whether the executor has a run of the job. An executor that has none, and sends no callback, has lost the run.
    pub(super) fn on_idle(&mut self, number: i32, asked_at: Instant, answer: Result<Answer, CallError>) -> bool {
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => {
                self.is_unreachable |= matches!(error, CallError::NotSent(_));
                return true;
            }
        };
        for entry in
            self.table.entries_mut().filter(|entry| entry.row.number == number && entry.is_answerable_at(asked_at))
        {
            if answer.is_success() {
                entry.idle_since.get_or_insert(asked_at);
            } else {
                (entry.idle_since, entry.is_confirmed) = (None, true);
            }
        }
        true
    }
}
