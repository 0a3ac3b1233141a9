//! Collects the requests with which runs ask servers for scripts, and passes each reply to its run.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rondel_proto::v1::{ScriptReply, ScriptRequest};
use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;

use crate::lifecycle::lock;
use crate::table::RunKey;

/// How long a run waits for a reply before it asks again.
const REPLY_TIMEOUT: Duration = Duration::from_secs(2);
/// How many times a run asks: each time another server, if there are several.
const ASK_COUNT_MAX: u32 = 15;

/// The script requests of an executor.
#[derive(Debug, Default)]
pub(crate) struct ScriptRequests {
    pending_requests: Mutex<HashMap<RunKey, PendingRequest>>,
    unsent_requests: Mutex<Vec<ScriptRequest>>,
    wake: Notify,
    /// Rises with each request, so that the next request goes to the next server.
    next_turn: AtomicUsize,
}

#[derive(Debug)]
struct PendingRequest {
    with_source: bool,
    reply_sender: oneshot::Sender<ScriptReply>,
}

impl ScriptRequests {
    /// Asks servers for the script that the run names, and returns the reply; `None` if no server replies.
    pub(crate) async fn ask(&self, key: RunKey, with_source: bool) -> Option<ScriptReply> {
        let _guard = PendingGuard { requests: self, key };
        for _ in 0..ASK_COUNT_MAX {
            let (reply_sender, receiver) = oneshot::channel();
            lock(&self.pending_requests).insert(key, PendingRequest { with_source, reply_sender });
            let request = ScriptRequest { run_id: key.run.get(), attempt: key.attempt, with_source };
            lock(&self.unsent_requests).push(request);
            self.wake.notify_one();
            if let Ok(Ok(reply)) = timeout(REPLY_TIMEOUT, receiver).await {
                return Some(reply);
            }
        }
        None
    }

    /// Passes a reply to the run that waits for it.
    pub(crate) fn answer(&self, reply: ScriptReply) {
        let key = RunKey::new(reply.run_id, reply.attempt);
        let mut pending_requests = lock(&self.pending_requests);
        if pending_requests.get(&key).is_some_and(|request| request.with_source == reply.with_source)
            && let Some(request) = pending_requests.remove(&key)
        {
            // The run may have ended meanwhile.
            request.reply_sender.send(reply).ok();
        }
    }

    /// Resolves when there are requests to send.
    pub(crate) async fn wait_until_ready(&self) {
        while lock(&self.unsent_requests).is_empty() {
            self.wake.notified().await;
        }
    }

    /// The requests to send, each with the turn that selects its server.
    pub(crate) fn take_unsent(&self) -> Vec<(usize, ScriptRequest)> {
        let unsent_requests = std::mem::take(&mut *lock(&self.unsent_requests));
        unsent_requests.into_iter().map(|request| (self.next_turn.fetch_add(1, Ordering::Relaxed), request)).collect()
    }
}

/// Removes the pending request of a run that stops waiting for it.
struct PendingGuard<'a> {
    requests: &'a ScriptRequests,
    key: RunKey,
}

impl Drop for PendingGuard<'_> {
    fn drop(&mut self) {
        lock(&self.requests.pending_requests).remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(request: &ScriptRequest, version: i64) -> ScriptReply {
        let ScriptRequest { run_id, attempt, with_source } = *request;
        ScriptReply { run_id, attempt, with_source, version, ..ScriptReply::default() }
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_is_repeated_and_replies_to_other_requests_are_ignored() {
        let requests = ScriptRequests::default();
        let server = async {
            requests.wait_until_ready().await;
            assert_eq!(requests.take_unsent().len(), 1, "the first one is lost");
            requests.wait_until_ready().await;
            let (_, request) = requests.take_unsent().pop().unwrap();
            requests.answer(reply(&ScriptRequest { with_source: false, ..request }, 1));
            requests.answer(reply(&ScriptRequest { attempt: 2, ..request }, 2));
            requests.answer(reply(&request, 3));
        };
        let (found, ()) = tokio::join!(requests.ask(RunKey::new(7, 1), true), server);
        assert_eq!(found.map(|reply| reply.version), Some(3));
        assert!(lock(&requests.pending_requests).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn without_an_answer_it_ends() {
        let requests = ScriptRequests::default();
        assert_eq!(requests.ask(RunKey::new(7, 1), false).await, None);
        assert!(lock(&requests.pending_requests).is_empty());
    }
}
