//! The calls of a link: each runs in a separate task and returns its result as an event. The number of concurrent calls per executor is
//! limited.

use std::sync::Arc;

use rondel_store::LeaseToken;
use rondel_store::xxl::XxlRun;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::Instant;

use super::{Event, PulledPage};
use crate::bridge::Shared;
use crate::client::{ANSWER_KIB_MAX, CallError, Peer};
use crate::log::{self, ReadEnd};
use crate::wire::{self, LogPage};

/// Maximum number of concurrent calls to one executor.
const CALL_COUNT_MAX: usize = 16;
/// Maximum number of concurrent reads of logs, counted apart from the other calls, so that runs do not wait for them.
const PULL_COUNT_MAX: usize = 4;
/// Maximum number of pages per read of a log.
const PAGE_COUNT_MAX: usize = 100;
/// Maximum size of the pages of logs that are read from one executor or wait for its link, in KiB. A slow database must not let them pile up.
const PAGES_KIB_MAX: usize = PULL_COUNT_MAX * ANSWER_KIB_MAX as usize;
/// Maximum number of jobs per probe.
const PROBE_COUNT_MAX: usize = 50;

#[derive(Clone, Debug)]
pub(super) struct Calls {
    shared: Arc<Shared>,
    event_sender: mpsc::Sender<Event>,
    peer: watch::Receiver<Arc<Peer>>,
    call_permits: Arc<Semaphore>,
    pull_permits: Arc<Semaphore>,
    /// The room for pages of logs, in KiB.
    pages_room: Arc<Semaphore>,
}

impl Calls {
    pub(super) fn new(
        shared: &Arc<Shared>,
        event_sender: mpsc::Sender<Event>,
        peer: watch::Receiver<Arc<Peer>>,
    ) -> Self {
        let (call_permits, pull_permits) = (Semaphore::new(CALL_COUNT_MAX), Semaphore::new(PULL_COUNT_MAX));
        Self {
            shared: Arc::clone(shared),
            event_sender,
            peer,
            call_permits: Arc::new(call_permits),
            pull_permits: Arc::new(pull_permits),
            pages_room: Arc::new(Semaphore::new(PAGES_KIB_MAX)),
        }
    }

    pub(super) fn address(&self) -> String {
        self.peer.borrow().address.clone()
    }

    fn peer(&self) -> Arc<Peer> {
        Arc::clone(&self.peer.borrow())
    }

    /// Runs a call; if the link is gone, its event is dropped.
    fn spawn(&self, call: impl Future<Output = Event> + Send + 'static) {
        let (event_sender, call_permits) = (self.event_sender.clone(), Arc::clone(&self.call_permits));
        self.shared.spawn(async move {
            let event = {
                let Ok(_permit) = call_permits.acquire().await else { return };
                call.await
            };
            drop(event_sender.send(event).await);
        });
    }

    /// Sends the request to run an attempt that was accepted under this lease.
    pub(super) fn run(&self, (log_id, lease): (i64, LeaseToken), body: Vec<u8>, begin_until: Option<Instant>) {
        let (shared, peer) = (Arc::clone(&self.shared), self.peer());
        self.spawn(async move {
            let answer = if shared.wait_for_lease(lease).await {
                shared.client.run(&peer, body, begin_until).await
            } else {
                Err(CallError::TooLate("the lease of this server has ended".to_owned()))
            };
            if matches!(answer, Err(CallError::NotSent(_) | CallError::TooLate(_))) {
                // Waits until it is known whether this server holds the lease: if so, the attempt goes back to the engine, and otherwise it
                // ends as lost.
                shared.wait_for_lease(lease).await;
            }
            Event::Sent(log_id, lease, answer)
        });
    }

    pub(super) fn kill(&self, log_id: i64, number: i32) {
        let (client, peer) = (self.shared.client.clone(), self.peer());
        self.spawn(async move { Event::Killed(log_id, client.ask(&peer, "kill", wire::job_body(number)).await) });
    }

    pub(super) fn ask_idle(&self, number: i32) {
        let (client, peer) = (self.shared.client.clone(), self.peer());
        self.spawn(async move {
            let asked_at = Instant::now();
            Event::Idle(number, asked_at, client.ask(&peer, "idleBeat", wire::job_body(number)).await)
        });
    }

    pub(super) fn beat(&self) {
        let (client, peer) = (self.shared.client.clone(), self.peer());
        self.spawn(async move { Event::Beat(client.ask(&peer, "beat", wire::empty_body()).await.is_ok()) });
    }

    /// Asks the executor for which of the jobs it is idle. A job without a number has never been sent to this executor, so a beat
    /// suffices for it.
    pub(super) fn probe(&self, probe_id: i64, jobs: Vec<(i64, Option<i32>)>) {
        let (client, peer) = (self.shared.client.clone(), self.peer());
        self.spawn(async move {
            let mut free_job_ids = Vec::new();
            for (job_id, number) in jobs.into_iter().take(PROBE_COUNT_MAX) {
                let answer = match number {
                    Some(number) => client.ask(&peer, "idleBeat", wire::job_body(number)).await,
                    None => client.ask(&peer, "beat", wire::empty_body()).await,
                };
                match answer {
                    Ok(answer) if answer.is_success() => free_job_ids.push(job_id),
                    Ok(_) => {}
                    Err(_) => return Event::Beat(false),
                }
            }
            Event::Probed(probe_id, free_job_ids)
        });
    }

    /// Reads the new lines of a log: up to [`PAGE_COUNT_MAX`] pages if the attempt had ended, else one page. Unless the row states how much
    /// of the log is stored, the store is asked first.
    pub(super) fn pull(&self, row: &XxlRun, is_log_line_known: bool, had_ended: bool) {
        let (client, peer, event_sender) = (self.shared.client.clone(), self.peer(), self.event_sender.clone());
        let (log_id, sent_at_ms, mut first_line) = (row.log_id, row.sent_at.as_millis(), row.log_line);
        let (shared, run, attempt) = (Arc::clone(&self.shared), row.run, row.attempt);
        let (pull_permits, pages_room) = (Arc::clone(&self.pull_permits), Arc::clone(&self.pages_room));
        let page_count = if had_ended { PAGE_COUNT_MAX } else { 1 };
        self.shared.spawn(async move {
            let Ok(_permit) = pull_permits.acquire().await else { return };
            let mut read_end = ReadEnd::Paused;
            let stored_until = match is_log_line_known {
                true => None,
                false => match log::stored_until(shared.engine.store(), run, attempt).await {
                    Ok(line) => Some(line.max(first_line)),
                    Err(error) => {
                        shared.log_store_failure("read logs", &error);
                        read_end = ReadEnd::Failed("the database does not answer".to_owned());
                        None
                    }
                },
            };
            first_line = stored_until.unwrap_or(first_line);
            for _ in 0..page_count {
                if read_end != ReadEnd::Paused {
                    break;
                }
                let Ok(mut room) = Arc::clone(&pages_room).acquire_many_owned(ANSWER_KIB_MAX).await else { return };
                let answer = client.ask(&peer, "log", wire::log_request(log_id, sent_at_ms, first_line)).await;
                let (page, page_end) = log::parse_page(answer, first_line);
                let page_room = room.split(size_kib(&page));
                drop(room);
                if page.next_line > first_line {
                    let pulled_page =
                        PulledPage { log_id, first_line, page, stored_until, had_ended, end: None, _room: page_room };
                    first_line = pulled_page.page.next_line;
                    if event_sender.send(Event::Pulled(pulled_page)).await.is_err() {
                        return;
                    }
                }
                read_end = page_end.unwrap_or(ReadEnd::Paused);
            }
            let page = LogPage { lines: Vec::new(), next_line: first_line };
            drop(
                event_sender
                    .send(Event::Pulled(PulledPage {
                        log_id,
                        first_line,
                        page,
                        stored_until,
                        had_ended,
                        end: Some(read_end),
                        _room: None,
                    }))
                    .await,
            );
        });
    }
}

/// The memory that the lines of a page take, in KiB; at most that of the longest answer.
fn size_kib(page: &LogPage) -> usize {
    let bytes: usize = page.lines.iter().map(|line| line.len() + size_of::<String>()).sum();
    (bytes / 1024 + 1).min(ANSWER_KIB_MAX as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_takes_room_for_its_lines_and_never_more_than_its_answer() {
        let page = |lines: Vec<String>| LogPage { lines, next_line: 1 };
        assert_eq!(size_kib(&page(Vec::new())), 1);
        assert_eq!(size_kib(&page(vec!["x".repeat(4_096); 10])), 41);
        assert_eq!(size_kib(&page(vec![String::new(); 1_000_000])), ANSWER_KIB_MAX as usize);
    }
}
