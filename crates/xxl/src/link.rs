//! An executor's side of a session with the engine: it accepts triggers, calls the executor, and reports the results.

mod calls;
mod offer;
mod reports;
mod rounds;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rondel_admin::gateway::LABEL_VALUE_LEN_MAX;
use rondel_core::labels::XXL_ADDRESS;
use rondel_core::{AppId, ExecutorId, JobId, RunId};
use rondel_proto::v1::executor_message::Body;
use rondel_proto::v1::server_message::Body as Down;
use rondel_proto::{ITEM_COUNT_MAX, PROTOCOL, v1};
use rondel_store::xxl::XxlRun;
use rondel_store::{LeaseToken, StoreError};
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use self::calls::Calls;
use crate::bridge::Shared;
use crate::client::{CallError, Peer};
use crate::log::ReadEnd;
use crate::table::Table;
use crate::wire::{Answer, LogPage};

/// Maximum number of concurrent runs of an executor: XXL-JOB executors do not report how many they accept.
const SLOTS: u32 = 200;
/// Maximum number of attempts without a verdict that are read per executor.
const UNSETTLED_MAX: u32 = 50_000;
const WELCOME_TIMEOUT: Duration = Duration::from_secs(10);
const TICK_PERIOD: Duration = Duration::from_secs(1);
/// How long a link waits before it opens its session again.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// How often the store is read for attempts that other servers sent to the executor, and for ends that those servers received.
const RECONCILE_PERIOD: Duration = Duration::from_secs(5);
/// Replaces [`RECONCILE_PERIOD`] while the executor calls back another server, because the next run of a job waits for the end of the job's
/// last run. Shorter than [`TICK_PERIOD`], so that each tick reads.
const RECONCILE_SHORT_PERIOD: Duration = Duration::from_millis(500);
/// Replaces [`RECONCILE_PERIOD`] while the executor has no run.
const RECONCILE_IDLE_PERIOD: Duration = Duration::from_secs(15);
/// How long an attempt runs before the executor is asked whether it still has the attempt, and the period of these questions.
const ASK_PERIOD: Duration = Duration::from_secs(10);
/// Replaces [`ASK_PERIOD`] while the executor has not accepted the attempt.
const ASK_SHORT_PERIOD: Duration = Duration::from_secs(2);
/// How long the request to stop an attempt is left to the server that is responsible for it.
const CANCEL_WAIT: Duration = Duration::from_secs(5);
/// How long an attempt runs before its log is read, and the period of these reads.
const PULL_PERIOD: Duration = Duration::from_secs(3);
const EVENT_CAPACITY: usize = 1_024;
const MESSAGE_CAPACITY: usize = 1_024;

/// Whether the executor accepts runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    /// The executor is registered.
    Here,
    /// The executor has signed off or was removed, and finishes its runs. Or its registration has expired, but ends of its attempts are
    /// still to be reported.
    Leaving,
    /// The executor has not registered for too long.
    Gone,
}

/// A label with the address as Java executors register it: XXL-JOB hashes this form. An address too long for a label is omitted.
fn address_labels(address: &str) -> HashMap<String, String> {
    let address = format!("{address}/");
    if address.len() > LABEL_VALUE_LEN_MAX { HashMap::new() } else { [(XXL_ADDRESS.to_owned(), address)].into() }
}

#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) id: ExecutorId,
    pub(crate) app: AppId,
    pub(crate) namespace_name: String,
    pub(crate) app_name: String,
    pub(crate) name: String,
}

/// An event from outside the session.
#[derive(Debug)]
pub(crate) enum Event {
    /// Runs whose callbacks a server has stored.
    Reported(Vec<XxlRun>),
    /// The answer to the request to run an attempt, and the lease under which the attempt was accepted.
    Sent(i64, LeaseToken, Result<Answer, CallError>),
    /// The answer to the request to stop an attempt.
    Killed(i64, Result<Answer, CallError>),
    /// The answer to the question whether the executor is idle for the job with this number, and the instant of the question.
    Idle(i32, Instant, Result<Answer, CallError>),
    /// Lines of a log that were read.
    Pulled(PulledPage),
    /// The jobs of a probe for which the executor is idle.
    Probed(i64, Vec<i64>),
    /// Whether the executor answered a beat.
    Beat(bool),
}

/// Lines of a log that were read, or only the end of the read.
#[derive(Debug)]
pub(crate) struct PulledPage {
    pub(crate) log_id: i64,
    /// The number of the first line.
    pub(crate) first_line: i64,
    pub(crate) page: LogPage,
    /// The number of the first line that was not stored when the read began, if the store was asked.
    pub(crate) stored_until: Option<i64>,
    /// Whether the attempt had ended before the read began.
    pub(crate) had_ended: bool,
    /// How the read has ended; `None` while it continues.
    pub(crate) end: Option<ReadEnd>,
    /// The page's share of the room for pages that wait for the link; `None` without lines.
    _room: Option<OwnedSemaphorePermit>,
}

/// The bridge's handle of a link.
#[derive(Debug)]
pub(crate) struct LinkHandle {
    pub(crate) event_sender: mpsc::Sender<Event>,
    pub(crate) presence_sender: watch::Sender<Presence>,
    pub(crate) peer_sender: watch::Sender<Arc<Peer>>,
    attempt_count: Arc<AtomicU32>,
}

impl LinkHandle {
    /// Whether the link has attempts that lack a verdict or the rest of their logs.
    pub(crate) fn has_attempts(&self) -> bool {
        self.attempt_count.load(Ordering::Relaxed) > 0
    }
}

/// Connects one executor to the engine: see [`Self::run`].
pub(crate) struct Link {
    shared: Arc<Shared>,
    identity: Identity,
    events: mpsc::Receiver<Event>,
    presence: watch::Receiver<Presence>,
    calls: Calls,
    table: Table,
    /// The number of attempts in the table, for the handle.
    attempt_count: Arc<AtomicU32>,
    /// The replies that report started attempts to the engine, not sent yet.
    unreported_starts: Vec<v1::Reply>,
    /// Whether the last call could not be sent to the executor.
    is_unreachable: bool,
    is_beat_pending: bool,
    /// When the attempts were last compared with those in the store.
    reconciled_at: Instant,
    /// Whether the executor reports the ends of this server's attempts to another server, or has not reported any yet.
    calls_back_elsewhere: bool,
    /// Whether, since the last read of the store, ends were left to the servers that sent the attempts.
    has_ends_left_to_others: bool,
    /// The attempts whose stop is left to another server, and since when.
    waiting_cancels: HashMap<i64, Instant>,
    was_refused: bool,
}

/// Why a session ends.
#[derive(Debug)]
enum SessionEnd {
    /// The stream ended, or the store failed: the session is opened again.
    Reopen,
    /// The executor has signed off and has no run.
    Left,
    /// The executor is gone.
    Gone,
}

/// A session in progress.
struct Session {
    message_sender: mpsc::Sender<Result<v1::ExecutorMessage, Status>>,
    /// Stops the heartbeats when the session ends.
    _heartbeats: tokio_util::sync::DropGuard,
    run_count: Arc<AtomicU32>,
    is_draining: bool,
}

impl Session {
    /// Sends a message; false if the stream has ended.
    async fn send(&self, body: Body) -> bool {
        self.message_sender.send(Ok(v1::ExecutorMessage { body: Some(body) })).await.is_ok()
    }
}

impl Link {
    pub(crate) fn new(shared: &Arc<Shared>, identity: Identity, peer: Arc<Peer>) -> (Self, LinkHandle) {
        let (event_sender, events) = mpsc::channel(EVENT_CAPACITY);
        let (presence_sender, presence) = watch::channel(Presence::Here);
        let (peer_sender, peer) = watch::channel(peer);
        let calls = Calls::new(shared, event_sender.clone(), peer);
        let attempt_count = Arc::new(AtomicU32::new(0));
        let link = Self {
            shared: Arc::clone(shared),
            identity,
            events,
            presence,
            calls,
            table: Table::default(),
            attempt_count: Arc::clone(&attempt_count),
            unreported_starts: Vec::new(),
            is_unreachable: false,
            is_beat_pending: false,
            reconciled_at: Instant::now(),
            calls_back_elsewhere: true,
            has_ends_left_to_others: false,
            waiting_cancels: HashMap::new(),
            was_refused: false,
        };
        (link, LinkHandle { event_sender, presence_sender, peer_sender, attempt_count })
    }

    /// Keeps a session open until the executor is gone.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let session = async {
            loop {
                match self.session().await {
                    SessionEnd::Reopen => tokio::time::sleep(RETRY_AFTER).await,
                    SessionEnd::Left => {
                        self.note_attempts();
                        self.wait_for_return().await;
                    }
                    SessionEnd::Gone => break,
                }
                if *self.presence.borrow() == Presence::Gone {
                    break;
                }
            }
        };
        stop.run_until_cancelled(session).await;
    }

    /// Waits until an executor that signed off registers again, reports a late end, or is gone.
    async fn wait_for_return(&mut self) {
        while *self.presence.borrow() == Presence::Leaving {
            tokio::select! {
                change_result = self.presence.changed() => if change_result.is_err() { return },
                event = self.events.recv() => match event {
                    // The store has the rows, and the next session starts with them.
                    Some(Event::Reported(_)) | None => return,
                    // Otherwise the beat would stay pending, and the next session would send no other one.
                    Some(Event::Beat(has_answered)) => self.note_beat(has_answered),
                    Some(_) => {}
                },
            }
        }
    }

    async fn read_unsettled(&self) -> Result<Vec<XxlRun>, StoreError> {
        self.shared.engine.store().unsettled_xxl(self.identity.id, UNSETTLED_MAX).await
    }

    async fn session(&mut self) -> SessionEnd {
        let Ok(rows) =
            self.read_unsettled().await.inspect_err(|error| self.shared.log_store_failure("read attempts", error))
        else {
            return SessionEnd::Reopen;
        };
        self.table.take_back_unstored();
        self.merge_stored_attempts(rows);
        let (message_sender, messages) = mpsc::channel(MESSAGE_CAPACITY);
        let hello = v1::ExecutorMessage { body: Some(Body::Hello(self.hello())) };
        if message_sender.send(Ok(hello)).await.is_err() {
            return SessionEnd::Reopen;
        }
        let peer = self.calls.address();
        let session_result = self.shared.engine.open_session_of_any_handler(ReceiverStream::new(messages), &peer).await;
        let mut from_engine = match session_result {
            Ok(from_engine) => from_engine,
            Err(status) => {
                if !std::mem::replace(&mut self.was_refused, true) {
                    tracing::warn!(
                        executor = peer,
                        reason = status.message(),
                        "the session of an executor was refused"
                    );
                }
                return SessionEnd::Reopen;
            }
        };
        self.was_refused = false;
        let welcome = timeout(WELCOME_TIMEOUT, from_engine.recv()).await;
        let Ok(Some(v1::ServerMessage { body: Some(Down::Welcome(welcome)) })) = welcome else {
            return SessionEnd::Reopen;
        };
        welcome.fences.iter().for_each(|fence| self.table.fence(fence));
        let run_count = Arc::new(AtomicU32::new(0));
        let heartbeats = self.spawn_heartbeats(
            &message_sender,
            &run_count,
            Duration::from_millis(welcome.heartbeat_ms.max(100).into()),
        );
        let mut session = Session { message_sender, _heartbeats: heartbeats, run_count, is_draining: false };
        let ended_ids: Vec<i64> =
            self.table.entries().filter(|entry| !entry.is_open()).map(|entry| entry.row.log_id).collect();
        if !self.deliver(&session, &ended_ids).await {
            return SessionEnd::Reopen;
        }
        self.serve(&mut session, &mut from_engine).await
    }

    async fn serve(
        &mut self,
        session: &mut Session,
        from_engine: &mut mpsc::Receiver<v1::ServerMessage>,
    ) -> SessionEnd {
        let mut tick = interval(TICK_PERIOD);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let is_connected = tokio::select! {
                message = from_engine.recv() => match message.and_then(|message| message.body) {
                    Some(body) => {
                        let is_connected = self.handle_message(session, body).await;
                        self.note_load(session);
                        is_connected
                    }
                    None => false,
                },
                event = self.events.recv() => match event {
                    Some(event) => self.handle_events(session, event).await,
                    None => return SessionEnd::Gone,
                },
                _ = tick.tick() => {
                    self.note_load(session);
                    self.tick(session).await
                }
            };
            if !is_connected {
                return SessionEnd::Reopen;
            }
            let presence = *self.presence.borrow();
            match presence {
                // A stream that drains cannot be made to accept runs again: another one is opened.
                Presence::Here if session.is_draining => return SessionEnd::Reopen,
                Presence::Here => {}
                Presence::Leaving if !session.is_draining => {
                    session.is_draining = true;
                    if !session.send(Body::Draining(v1::Draining {})).await {
                        return SessionEnd::Reopen;
                    }
                }
                Presence::Leaving if self.table.entries().next().is_none() => {
                    session.send(Body::Goodbye(v1::Goodbye {})).await;
                    return SessionEnd::Left;
                }
                Presence::Leaving => {}
                Presence::Gone => {
                    tracing::info!(
                        executor = self.identity.name,
                        app = self.identity.app_name,
                        "an executor of XXL-JOB is gone"
                    );
                    return SessionEnd::Gone;
                }
            }
        }
    }

    /// Sets the number of attempts that the handle shows.
    fn note_attempts(&self) {
        self.attempt_count.store(u32::try_from(self.table.entries().count()).unwrap_or(u32::MAX), Ordering::Relaxed);
    }

    /// Sets the number of runs that the next heartbeat reports.
    fn note_load(&self, session: &Session) {
        self.note_attempts();
        session.run_count.store(u32::try_from(self.table.open_count()).unwrap_or(u32::MAX), Ordering::Relaxed);
    }

    fn hello(&self) -> v1::Hello {
        let (held, finished) = self.table.inventory();
        v1::Hello {
            namespace: self.identity.namespace_name.clone(),
            app: self.identity.app_name.clone(),
            name: self.identity.name.clone(),
            incarnation: self.identity.id.get(),
            sdk_version: "xxl-job".to_owned(),
            labels: address_labels(&self.calls.address()),
            weight: 1,
            slots: SLOTS,
            protocol: PROTOCOL,
            held,
            finished,
            ..v1::Hello::default()
        }
    }

    /// Sends heartbeats from a separate task, so that a slow database does not end the stream.
    fn spawn_heartbeats(
        &self,
        message_sender: &mpsc::Sender<Result<v1::ExecutorMessage, Status>>,
        run_count: &Arc<AtomicU32>,
        period: Duration,
    ) -> tokio_util::sync::DropGuard {
        let stop = CancellationToken::new();
        let (heartbeat_stop, message_sender, run_count) =
            (stop.clone(), message_sender.downgrade(), Arc::clone(run_count));
        self.shared.spawn(async move {
            let mut ticker = interval(period);
            ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let mut sequence = 0;
            while heartbeat_stop.run_until_cancelled(ticker.tick()).await.is_some() {
                sequence += 1;
                let running_count = run_count.load(Ordering::Relaxed);
                let message = v1::Heartbeat { running: running_count, sequence, ..v1::Heartbeat::default() };
                let Some(message_sender) = message_sender.upgrade() else { break };
                if message_sender.send(Ok(v1::ExecutorMessage { body: Some(Body::Heartbeat(message)) })).await.is_err()
                {
                    break;
                }
            }
        });
        stop.drop_guard()
    }

    async fn handle_message(&mut self, session: &Session, body: Down) -> bool {
        match body {
            Down::Triggers(triggers) => self.offer(session, triggers).await,
            Down::Cancels(cancels) => {
                for cancel in cancels.cancels {
                    self.cancel(RunId::new(cancel.run_id), cancel.attempt, &cancel.by);
                }
                true
            }
            Down::ResultAcks(acks) => self.on_acked(&acks.acks).await,
            Down::LogAcks(acks) => {
                self.on_logs_stored(&acks.acks).await;
                true
            }
            Down::Fence(fence) => self.answer_fence(session, &fence).await,
            Down::Probes(probes) => {
                let numbers =
                    probes.job_ids.iter().map(|job_id| (*job_id, self.table.number_of(JobId::new(*job_id)))).collect();
                if !self.is_unreachable {
                    self.calls.probe(probes.probe_id, numbers);
                }
                true
            }
            Down::Welcome(_) | Down::HeartbeatReply(_) => true,
            // A server that drains merely sends no more triggers. The other messages are for executors that declare jobs, run pumps or
            // request scripts.
            Down::Drain(_) | Down::DeclarationProblems(_) | Down::PumpOrders(_) | Down::ScriptReply(_) => true,
        }
    }

    /// Handles an event and those that are already waiting, so that attempts that began at the same time are reported in one message.
    async fn handle_events(&mut self, session: &Session, first_event: Event) -> bool {
        let mut next_event = Some(first_event);
        for _ in 0..EVENT_CAPACITY {
            let Some(event) = next_event else { break };
            if !self.handle_event(session, event).await {
                return false;
            }
            next_event = self.events.try_recv().ok();
        }
        self.send_started(session).await
    }

    /// Reports started attempts. This precedes the results, because an attempt must begin before it ends.
    async fn send_started(&mut self, session: &Session) -> bool {
        let starts = std::mem::take(&mut self.unreported_starts);
        for batch in starts.chunks(ITEM_COUNT_MAX) {
            if !session.send(Body::Replies(v1::Replies { replies: batch.to_vec() })).await {
                return false;
            }
        }
        true
    }

    async fn handle_event(&mut self, session: &Session, event: Event) -> bool {
        match event {
            Event::Reported(rows) => {
                let own_node = self.shared.engine.token().node;
                self.calls_back_elsewhere &= !rows.iter().any(|row| row.node == own_node);
                self.on_reported(session, rows).await
            }
            Event::Sent(log_id, lease, answer) => self.on_sent(session, (log_id, lease), answer).await,
            Event::Killed(log_id, answer) => self.on_killed(session, log_id, answer).await,
            Event::Idle(number, asked_at, answer) => self.on_idle(number, asked_at, answer),
            Event::Pulled(pulled_page) => self.on_pulled(session, pulled_page).await,
            Event::Probed(probe_id, free_job_ids) => {
                session.send(Body::ProbeReplies(v1::ProbeReplies { probe_id, free_job_ids })).await
            }
            Event::Beat(has_answered) => {
                self.note_beat(has_answered);
                true
            }
        }
    }
}
