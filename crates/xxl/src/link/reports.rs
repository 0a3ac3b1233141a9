//! Ends of attempts: answers and reports of the executor, and the results that the engine gets.

use std::collections::BTreeMap;

use rondel_core::RunId;
use rondel_proto::ITEM_COUNT_MAX;
use rondel_proto::v1::executor_message::Body;
use rondel_proto::v1::{self, RefusedWhy};
use rondel_store::LeaseToken;
use rondel_store::xxl::{XxlReport, XxlRun, XxlRunState, XxlSettlement};
use tokio::time::Instant;

use super::offer::{refusal, reply};
use super::{Link, PulledPage, Session, TICK_PERIOD};
use crate::client::CallError;
use crate::ends::{self, CODE_KILLED, CODE_LOST};
use crate::log::{self, ReadEnd};
use crate::table::Kill;
use crate::wire::{Answer, CODE_FAILED};

impl Link {
    /// Handles ends of attempts that the store has. The end of an attempt that another living server sent is left to that server, which
    /// reads the store: the job's next run waits there. That server may also be asking the executor to stop the attempt, and the answer to
    /// this request takes precedence over the callback. If that server does not report the end, this server does so after a later read of
    /// the store.
    pub(super) async fn on_reported(&mut self, session: &Session, rows: Vec<XxlRun>) -> bool {
        let mut ended_ids = Vec::new();
        for row in rows {
            if row.state == XxlRunState::Settled {
                continue;
            }
            if self.shared.is_of_another_server(&row) {
                self.has_ends_left_to_others = true;
                continue;
            }
            // A report may arrive after the server assumed the end and removed the attempt here.
            if self.table.get_mut(row.log_id).is_none_or(|entry| entry.has_assumed_end()) {
                self.table.insert(row.clone(), 0, Instant::now());
                ended_ids.push(row.log_id);
                continue;
            }
            let Some(entry) = self.table.get_mut(row.log_id).filter(|entry| entry.is_open()) else { continue };
            ended_ids.push(row.log_id);
            entry.is_confirmed = true;
            entry.row = XxlRun { log_line: entry.row.log_line, ..row };
        }
        self.deliver(session, &ended_ids).await
    }

    pub(super) async fn on_sent(
        &mut self,
        session: &Session,
        (log_id, lease): (i64, LeaseToken),
        answer: Result<Answer, CallError>,
    ) -> bool {
        // A request that was too late to be sent shows nothing about the executor.
        if !matches!(answer, Err(CallError::TooLate(_))) {
            self.is_unreachable = matches!(answer, Err(CallError::NotSent(_)));
        }
        let Some(entry) = self.table.get_mut(log_id) else { return true };
        entry.end_sending(Instant::now());
        match answer {
            Ok(answer) if !answer.is_success() => {
                self.end(session, log_id, answer.code, &answer.message_or_code()).await
            }
            Err(CallError::Refused(message)) => self.end(session, log_id, CODE_FAILED, &message).await,
            Err(CallError::NotSent(message)) => {
                let executor = &self.identity.name;
                if let Some(count) = self.shared.log_limit.count(&format!("unreachable {executor}")) {
                    tracing::warn!(executor, reason = message, count, "an executor of XXL-JOB cannot be reached");
                }
                self.refuse_unsent(session, (log_id, lease)).await
            }
            Err(CallError::TooLate(_)) => self.refuse_unsent(session, (log_id, lease)).await,
            answer => {
                // The executor has the attempt or, without a clear answer, may have it: in that case, the link asks the executor, and waits
                // for its callback.
                (entry.is_confirmed, entry.idle_since) = (answer.is_ok(), None);
                if let Err(error) = answer {
                    tracing::debug!(
                        executor = self.identity.name,
                        log_id,
                        reason = error.message(),
                        "no clear answer to a run"
                    );
                }
                entry.started_at_ms = self.shared.engine.now().as_millis();
                let started = v1::Reply {
                    started_at_ms: entry.started_at_ms,
                    ..reply(v1::reply::Kind::Started, entry.row.run, entry.row.attempt)
                };
                self.unreported_starts.push(started);
                if entry.begin_kill() {
                    self.calls.kill(log_id, entry.row.number);
                }
                true
            }
        }
    }

    /// Refuses a run whose request could not be sent, so that the engine sends the run elsewhere. If the lease under which the run was
    /// accepted has ended, another server may have the run by now, and may assume that the executor has the attempt: then the attempt ends
    /// as lost.
    async fn refuse_unsent(&mut self, session: &Session, (log_id, lease): (i64, LeaseToken)) -> bool {
        if !self.shared.engine.holds(lease) {
            return self
                .end(session, log_id, CODE_LOST, "the server lost its lease before it could send the run")
                .await;
        }
        if !self.shared.writes.settle(vec![XxlSettlement { log_id, code: None }]).await {
            return false;
        }
        let Some(entry) = self.table.remove(log_id) else { return true };
        let refusal = refusal((entry.row.run, entry.row.attempt), RefusedWhy::Full, entry.fence_n);
        session.send(Body::Replies(v1::Replies { replies: vec![refusal] })).await
    }

    /// Handles the answer to the request to stop an attempt. If the executor has stopped the attempt, this end replaces even a callback
    /// that was received meanwhile.
    pub(super) async fn on_killed(
        &mut self,
        session: &Session,
        log_id: i64,
        answer: Result<Answer, CallError>,
    ) -> bool {
        let Some(entry) = self.table.get_mut(log_id).filter(|entry| entry.result_sent_at.is_none()) else {
            return true;
        };
        let canceller = match entry.kill.replace(Kill::Failed) {
            Some(Kill::Requested(canceller)) => canceller,
            _ => String::new(),
        };
        let reason = match &answer {
            Ok(answer) if answer.is_success() => {
                // The callback that results from the stop may already be in the store.
                let message = rondel_core::outcome::cancelled_by(&canceller);
                let is_open = entry.is_open();
                (entry.row.code, entry.row.message) = (Some(CODE_KILLED), Some(message.clone()));
                if is_open {
                    return self.end(session, log_id, CODE_KILLED, &message).await;
                }
                return self.deliver(session, &[log_id]).await;
            }
            Ok(answer) => answer.message_or_code(),
            Err(error) => error.message().to_owned(),
        };
        // The engine repeats the request each second until the run has ended.
        if !std::mem::replace(&mut entry.has_logged_failed_kill, true) {
            tracing::info!(executor = self.identity.name, log_id, reason, "an executor did not stop a run");
        }
        let has_ended = !entry.is_open();
        !has_ended || self.deliver(session, &[log_id]).await
    }

    pub(super) async fn on_pulled(&mut self, session: &Session, pulled_page: PulledPage) -> bool {
        let PulledPage { log_id, first_line, page, stored_until, had_ended, end, .. } = pulled_page;
        let now_ms = self.shared.engine.now().as_millis();
        let Some(entry) = self.table.get_mut(log_id) else { return true };
        if let Some(line) = stored_until {
            (entry.row.log_line, entry.is_log_line_known) = (entry.row.log_line.max(line), true);
        }
        if first_line > entry.row.log_line {
            // The lines before these were lost with an earlier session: the log is read again from the first lost line.
            if end.is_some() {
                entry.is_pulling = !entry.is_open();
                if entry.is_pulling {
                    self.calls.pull(&entry.row, entry.is_log_line_known, true);
                }
            }
            return true;
        }
        // Another server may have stored some of these lines meanwhile.
        let first_new_line = entry.row.log_line.max(first_line);
        let known_count = usize::try_from(first_new_line - first_line).unwrap_or(usize::MAX);
        let lines: Vec<String> = page.lines.into_iter().skip(known_count).collect();
        let mut chunks = log::chunks(&entry.row, first_new_line, lines, now_ms);
        let (next_line, is_open) = (page.next_line.max(first_new_line), entry.is_open());
        if let Some(end) = &end {
            entry.is_pulling = false;
            // If the log cannot be read, the lines of the end's message are sent without it.
            let has_failed = !is_open && entry.log_error.is_none() && matches!(end, ReadEnd::Failed(_));
            if has_failed || entry.is_whole_after(end, had_ended) {
                chunks.extend(log::message_chunks(&entry.row, ends::further_lines(&entry.row), now_ms));
            }
        }
        if is_open {
            entry.note_sent(&chunks, next_line);
        }
        for chunk in chunks {
            if !session.send(Body::Logs(v1::Logs { chunks: vec![chunk] })).await {
                return false;
            }
        }
        entry.row.log_line = next_line;
        if end.is_some_and(|end| entry.end_read(end, had_ended)) {
            self.calls.pull(&entry.row, entry.is_log_line_known, true);
        }
        self.table.forget_one(log_id);
        true
    }

    /// Records how far the logs of running attempts are stored: if this server dies, another one continues to read
    /// from there.
    pub(super) async fn on_logs_stored(&mut self, acks: &[v1::LogAck]) {
        let mut stored_lines = BTreeMap::new();
        for ack in acks {
            let Some(entry) = self.table.attempt_mut(RunId::new(ack.run_id), ack.attempt) else { continue };
            if let Some(next_line) = entry.stored_until(ack.sequence) {
                stored_lines.insert(entry.row.log_id, next_line);
            }
        }
        for (log_id, next_line) in stored_lines {
            if let Err(error) = self.shared.engine.store().note_xxl_log(log_id, next_line).await {
                self.shared.log_store_failure("note logs", &error);
            }
        }
    }

    /// Stops reading logs that took too long, and stores for each a line that stands for the rest.
    pub(super) async fn give_up_logs(&mut self, session: &Session, now: Instant) -> bool {
        let now_ms = self.shared.engine.now().as_millis();
        for entry in self.table.give_up_logs(now) {
            let row = &entry.row;
            let mut chunks =
                log::chunks(row, row.log_line, vec![log::unread_rest_line(entry.log_error.as_deref())], now_ms);
            chunks.extend(log::message_chunks(row, ends::further_lines(row), now_ms));
            for chunk in chunks {
                if !session.send(Body::Logs(v1::Logs { chunks: vec![chunk] })).await {
                    return false;
                }
            }
        }
        true
    }

    /// Stores an end that the executor does not report itself, and reports it. A callback that arrived before takes precedence.
    pub(super) async fn end(&mut self, session: &Session, log_id: i64, code: i32, message: &str) -> bool {
        let report = XxlReport { log_id, code, message: Some(message.to_owned()) };
        match self.shared.writes.report(self.identity.app, vec![report]).await {
            Some(results) => self.on_reported(session, results.runs).await,
            None => false,
        }
    }

    /// Reports ends to the engine, and starts to read the rest of their logs. An attempt that is being stopped is reported only after the
    /// executor has answered the request to stop it.
    pub(super) async fn deliver(&mut self, session: &Session, log_ids: &[i64]) -> bool {
        let now = Instant::now();
        let (mut results, mut message_chunks) = (Vec::new(), Vec::new());
        for log_id in log_ids {
            let Some(entry) = self.table.get_mut(*log_id) else { continue };
            if matches!(entry.kill, Some(Kill::Requested(_))) {
                continue;
            }
            entry.result_sent_at = Some(now);
            results.push(ends::result(&entry.row, entry.started_at_ms));
            if entry.is_pulling || entry.has_whole_log {
                continue;
            }
            if self.shared.is_responsible_for(&entry.row) && !entry.is_log_cut {
                entry.is_pulling = true;
                self.calls.pull(&entry.row, entry.is_log_line_known, true);
            } else {
                entry.has_whole_log = true;
                let now_ms = self.shared.engine.now().as_millis();
                message_chunks.extend(log::message_chunks(&entry.row, ends::further_lines(&entry.row), now_ms));
                let (row, is_cut) = (entry.row.clone(), entry.is_log_cut);
                if !is_cut {
                    self.table.remember_unread(&row, now);
                }
            }
        }
        for chunk in message_chunks {
            if !session.send(Body::Logs(v1::Logs { chunks: vec![chunk] })).await {
                return false;
            }
        }
        if !results.is_empty() && !self.send_started(session).await {
            return false;
        }
        for batch in results.chunks(ITEM_COUNT_MAX) {
            if !session.send(Body::Results(v1::Results { results: batch.to_vec() })).await {
                return false;
            }
        }
        true
    }

    pub(super) async fn on_acked(&mut self, acks: &[v1::ResultAck]) -> bool {
        let now = Instant::now();
        let mut settlements = Vec::with_capacity(acks.len());
        for ack in acks {
            if let Some(entry) = self.table.attempt_mut(RunId::new(ack.run_id), ack.attempt)
                && !entry.is_open()
            {
                entry.acked_at.get_or_insert(now);
                settlements.push(XxlSettlement { log_id: entry.row.log_id, code: entry.row.code });
            }
        }
        if !self.shared.writes.settle(settlements).await {
            // These attempts are found again in the store, and their results are sent once more.
            return false;
        }
        self.table.forget();
        true
    }

    /// Answers a fence with the attempts that the store has now. The executor can have no others: attempts of the fenced lease get no
    /// numbers any more.
    pub(super) async fn answer_fence(&mut self, session: &Session, fence: &v1::Fence) -> bool {
        self.table.fence(fence);
        let rows = match self.read_unsettled().await {
            Ok(rows) => rows,
            Err(error) => {
                self.shared.log_store_failure("read attempts", &error);
                return false;
            }
        };
        self.merge_stored_attempts(rows);
        let (held, finished) = self.table.inventory();
        let reply = v1::FenceReply { node_id: fence.node_id, node_epoch: fence.node_epoch, held, finished };
        if !session.send(Body::FenceReply(reply)).await {
            return false;
        }
        let ended_ids: Vec<i64> = self.table.unacknowledged_ends(Instant::now() + TICK_PERIOD * 10);
        self.deliver(session, &ended_ids).await
    }
}
