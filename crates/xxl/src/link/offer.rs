//! Triggers: whether they are accepted, their numbers, and the requests that are made from them.

use std::time::Duration;

use rondel_core::{JobId, NodeId, RunId};
use rondel_proto::ITEM_COUNT_MAX;
use rondel_proto::v1::executor_message::Body;
use rondel_proto::v1::{self, RefusedWhy};
use rondel_store::LeaseToken;
use rondel_store::xxl::{NewXxlRun, XxlRun};
use tokio::time::Instant;

use super::{CANCEL_WAIT, Link, SLOTS, Session};
use crate::request;
use crate::table::Kill;
use crate::wire::CODE_FAILED;

impl Link {
    /// Decides which triggers are accepted, has the store assign a number to each, and sends their requests. If the lease no longer holds,
    /// the store assigns no numbers, and these triggers are refused, too.
    pub(super) async fn offer(&mut self, session: &Session, triggers: v1::Triggers) -> bool {
        let (origin, received_at) = ((triggers.node_id, triggers.node_epoch), Instant::now());
        let (mut replies, mut accepted_triggers) = (Vec::new(), Vec::new());
        for trigger in triggers.triggers {
            let (run, attempt) = (RunId::new(trigger.run_id), trigger.attempt);
            if self.table.attempt_mut(run, attempt).is_some() {
                replies.push(reply(v1::reply::Kind::Accepted, run, attempt));
                continue;
            }
            let refusal_reason = match () {
                () if self.table.is_fenced(origin) => Some(RefusedWhy::Fenced),
                () if session.is_draining => Some(RefusedWhy::Draining),
                () if self.is_unreachable => Some(RefusedWhy::Full),
                () if self.table.open_count() + accepted_triggers.len() >= slot_count() => Some(RefusedWhy::Full),
                () => None,
            };
            match refusal_reason {
                Some(refusal_reason) => replies.push(refusal((run, attempt), refusal_reason, trigger.fence_n)),
                None => accepted_triggers.push(trigger),
            }
        }
        let lease = LeaseToken { node: NodeId::new(origin.0), epoch: origin.1 };
        let rows = if accepted_triggers.is_empty() {
            Some(Vec::new())
        } else {
            self.assign_numbers(lease, &accepted_triggers).await
        };
        let Some(rows) = rows else { return false };
        let mut built_requests = Vec::with_capacity(rows.len());
        if rows.is_empty() {
            let refusals = accepted_triggers.iter().map(|trigger| {
                refusal((RunId::new(trigger.run_id), trigger.attempt), RefusedWhy::Fenced, trigger.fence_n)
            });
            replies.extend(refusals);
        } else {
            for (row, trigger) in rows.into_iter().zip(&accepted_triggers) {
                replies.push(reply(v1::reply::Kind::Accepted, row.run, row.attempt));
                let built_request = request::request(trigger, &row);
                built_requests.push((row.log_id, built_request, start_deadline(trigger, received_at)));
                self.table.insert(row, trigger.fence_n, Instant::now());
            }
        }
        if !send_replies(session, replies).await {
            return false;
        }
        for (log_id, built_request, begin_until) in built_requests {
            match built_request {
                Ok(request) => self.send_request((log_id, lease), request.body(), begin_until),
                Err(sentence) if !self.end(session, log_id, CODE_FAILED, &sentence).await => return false,
                Err(_) => {}
            }
        }
        true
    }

    fn send_request(&mut self, (log_id, lease): (i64, LeaseToken), body: Vec<u8>, begin_until: Option<Instant>) {
        if let Some(entry) = self.table.get_mut(log_id) {
            entry.is_sending = true;
        }
        self.calls.run((log_id, lease), body, begin_until);
    }

    /// Has the store assign a number to each trigger. Returns `None` if the store failed, and no rows if the lease does not hold.
    pub(super) async fn assign_numbers(&self, lease: LeaseToken, triggers: &[v1::Trigger]) -> Option<Vec<XxlRun>> {
        let to_new_run = |trigger: &v1::Trigger| NewXxlRun {
            run: RunId::new(trigger.run_id),
            attempt: trigger.attempt,
            job: JobId::new(trigger.job_id),
            executor: self.identity.id,
            app: self.identity.app,
        };
        let new_runs: Vec<NewXxlRun> = triggers.iter().map(to_new_run).collect();
        self.shared.writes.send(lease, new_runs).await
    }

    /// Asks the executor to stop an attempt. Every server gets the engine's request, and `/kill` names a job: a second `/kill` might stop
    /// the job's next run. Therefore, only the server that is responsible for the attempt sends `/kill` at first. The other servers send it
    /// only if the attempt has not ended after [`CANCEL_WAIT`].
    pub(super) fn cancel(&mut self, run: RunId, attempt: i32, by: &str) {
        let Some(entry) = self.table.attempt_mut(run, attempt).filter(|entry| entry.is_open()) else { return };
        if matches!(entry.kill, Some(Kill::Requested(_))) {
            return;
        }
        if !self.shared.is_responsible_for(&entry.row) {
            let now = Instant::now();
            let waiting_since = *self.waiting_cancels.entry(entry.row.log_id).or_insert(now);
            if now.duration_since(waiting_since) < CANCEL_WAIT {
                return;
            }
        }
        entry.kill = Some(Kill::Wanted(by.to_owned()));
        if entry.begin_kill() {
            self.calls.kill(entry.row.log_id, entry.row.number);
        }
    }
}

/// The instant after which the run must not begin.
fn start_deadline(trigger: &v1::Trigger, received_at: Instant) -> Option<Instant> {
    let begin_within_ms = u64::try_from(trigger.begin_within_ms).ok().filter(|ms| *ms > 0)?;
    received_at.checked_add(Duration::from_millis(begin_within_ms))
}

fn slot_count() -> usize {
    usize::try_from(SLOTS).unwrap_or(usize::MAX)
}

pub(super) fn reply(kind: v1::reply::Kind, run: RunId, attempt: i32) -> v1::Reply {
    v1::Reply { kind: kind.into(), run_id: run.get(), attempt, ..v1::Reply::default() }
}

pub(super) fn refusal((run, attempt): (RunId, i32), reason: RefusedWhy, fence_n: i64) -> v1::Reply {
    v1::Reply { refused: reason.into(), fence_n, ..reply(v1::reply::Kind::Refused, run, attempt) }
}

async fn send_replies(session: &Session, replies: Vec<v1::Reply>) -> bool {
    for batch in replies.chunks(ITEM_COUNT_MAX) {
        if !session.send(Body::Replies(v1::Replies { replies: batch.to_vec() })).await {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_run_must_begin_within_the_time_of_its_trigger() {
        let now = Instant::now();
        let until = |begin_within_ms| start_deadline(&v1::Trigger { begin_within_ms, ..v1::Trigger::default() }, now);
        assert_eq!(until(1_500), Some(now + Duration::from_millis(1_500)));
        assert_eq!((until(0), until(-1)), (None, None), "without a limit");
    }
}
