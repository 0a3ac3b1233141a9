//! An executor's stream after its hello: translates incoming messages, in order.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use rondel_core::{NodeId, RunId, Timestamp};
use rondel_failpoint::mutant::{self, Mutant};
use rondel_proto::v1::executor_message::Body;
use rondel_proto::v1::server_message;
use rondel_proto::{encoded_len, v1};
use rondel_store::LeaseToken;
use rondel_store::cluster::{HostProcess, StreamEnd};
use rondel_store::logs::{LogChunk, LogLine};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_stream::{Stream, StreamExt as _};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::hello::AdmittedExecutor;
use super::logs::log_ack;
use super::lost_lines::LostLines;
use super::message_bounds::{self, charge_kib};
use super::open_streams::StreamPlace;
use super::outgoing_stream::OutgoingStream;
use super::registered_stream::RegisteredStream;
use super::scripts::ScriptReader;
use super::session_rows::RowShare;
use super::welcome::{NamedServers, read_nodes, welcome};
use super::{ExecutorAccess, GatewayState, LogItem, log_line, session_end};
use crate::declared::DeclaringExecutor;
use crate::dispatch::{
    Event, FenceAnswer, IncomingResult, Reply, Responder, SessionHandle, Start, StartReports, incoming_result,
    reported_instant,
};
use crate::host_process;
use crate::identity::tokens;
use crate::lifecycle::Until;
use crate::metrics::{add, to_u64};
use crate::node::Shared;
use crate::progress::Progress;
use rondel_core::error_chain::chain;

/// A stream without a message for this many heartbeats is dead.
const SILENT_HEARTBEATS: u32 = 5;
/// How long results wait for the logs sent before them.
const RESULT_WAIT_MAX: Duration = Duration::from_secs(2);
/// How long a stream waits for room for its logs.
const LOG_WAIT_MAX: Duration = Duration::from_secs(2);

pub(super) struct Session {
    shared: Arc<Shared>,
    gateway: Arc<GatewayState>,
    handle: SessionHandle,
    stream: OutgoingStream,
    namespace: rondel_core::NamespaceId,
    app: rondel_core::AppId,
    /// The credential of the stream; `None` if it is not checked again.
    authorization: Option<String>,
    /// The executor's process, if it runs on this host.
    process: Option<HostProcess>,
    /// The stream's share in the row of its executor's session.
    row: RowShare,
    registered: RegisteredStream,
    /// Log batches of this stream that are not durable yet.
    pending_logs: super::logs::PendingLogs,
    /// Limits the requests for scripts that are not answered yet.
    script_places: Arc<Semaphore>,
    /// Whether there was no room for its last log message.
    is_over_share: AtomicBool,
    lost_lines: LostLines,
    named_servers: NamedServers,
}

impl Session {
    /// Stores the session, reads which leases have ended, welcomes the executor, and notifies the dispatcher, in this order. A node that
    /// adopts runs asks the executors whose sessions are stored by then. An executor whose session is stored later receives the fence in
    /// its welcome, even the fence of this node's own lease.
    pub(super) async fn open(
        gateway: &Arc<GatewayState>,
        mut admitted: AdmittedExecutor,
        sender: mpsc::Sender<v1::ServerMessage>,
        (session_number, access): (u64, &ExecutorAccess),
    ) -> Result<Self, Status> {
        let shared = &gateway.shared;
        let token = shared.membership.token();
        let row = gateway.session_rows.share(admitted.online_executor.id);
        let opened_at =
            shared.store.open_session(token, &admitted.record, admitted.process).await.map_err(|error| {
                tracing::warn!(error = %chain(&error), "cannot note an executor's session");
                Status::unavailable("the server cannot reach its database now")
            })?;
        let Some(opened_at) = opened_at else {
            return Err(Status::already_exists("another executor has this incarnation: its app or its secret differs"));
        };
        row.record_opened(opened_at);
        let nodes = read_nodes(shared).await?;
        // The hello may have been read long ago, if the database has been slow since.
        admitted.online_executor.last_seen_at = shared.clock.now();
        let Some(registered) = RegisteredStream::open(shared, admitted.online_executor.clone(), session_number) else {
            return Err(Status::unavailable(
                "the executor has just opened another stream to this server; connect again",
            ));
        };
        // A node that takes its next lease moves the session rows of all executors in the registry to that lease. This executor may have been
        // added too late. Its row then states that the stream ended with the earlier lease, and an adopter would not ask this executor.
        if !shared.membership.is_current_lease(token) && !mutant::on(Mutant::StreamOfEndedLease) {
            return Err(Status::unavailable("the server is taking a new lease; connect again"));
        }
        let stream = OutgoingStream::new(sender);
        let (executor, hello) = (admitted.online_executor.id, admitted.hello_number);
        let handle =
            SessionHandle { executor, number: session_number, hello_number: hello, stream: Arc::new(stream.clone()) };
        let welcome = welcome(shared, &nodes);
        let named_servers = NamedServers::new(welcome.servers.clone());
        handle.send(server_message::Body::Welcome(welcome));
        tracing::info!(
            executor = admitted.online_executor.name,
            app = admitted.online_executor.app_name,
            executor_id = %admitted.online_executor.id,
            slots = admitted.online_executor.slots,
            "an executor came online"
        );
        let (namespace, app) = (admitted.online_executor.namespace, admitted.online_executor.app);
        shared.pumps.join(handle.clone());
        shared.declared.join(DeclaringExecutor {
            session: handle.clone(),
            namespace: admitted.online_executor.namespace,
            app,
            app_name: admitted.online_executor.app_name.clone(),
            declared_set: Arc::new(admitted.declared_set),
        });
        drop(gateway.events.send(Event::Joined(handle.clone(), admitted.online_executor, admitted.report)).await);
        Ok(Self {
            shared: Arc::clone(shared),
            gateway: Arc::clone(gateway),
            handle,
            stream,
            namespace,
            app,
            authorization: access.authorization.clone(),
            process: admitted.process,
            row,
            registered,
            pending_logs: super::logs::PendingLogs::default(),
            script_places: Arc::new(Semaphore::new(super::scripts::WAITING_COUNT_MAX)),
            is_over_share: AtomicBool::new(false),
            lost_lines: LostLines::default(),
            named_servers,
        })
    }

    pub(super) async fn run(
        self,
        mut messages: impl Stream<Item = Result<v1::ExecutorMessage, Status>> + Unpin,
        (refusal_sender, place): (oneshot::Sender<Status>, Option<StreamPlace>),
        stop: CancellationToken,
    ) {
        let mut refusal = None;
        // Silence is counted in timeouts, not in elapsed time: a server that was paused has yet to read the messages that came meanwhile.
        let mut silent_heartbeats = 0;
        let mut got_goodbye = false;
        let mut recheck_timer =
            interval_at(Instant::now() + self.shared.config.token_recheck, self.shared.config.token_recheck);
        recheck_timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let message = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                () = self.stream.wait_until_ended() => break,
                _ = recheck_timer.tick() => {
                    if self.is_still_authorized().await {
                        continue;
                    }
                    tracing::warn!(executor_id = %self.handle.executor, "the token of an executor is no longer valid; ending its stream");
                    break;
                }
                next = tokio::time::timeout(self.shared.config.heartbeat, messages.next()) => next,
            };
            match message {
                Ok(Some(Ok(message))) => {
                    silent_heartbeats = 0;
                    let is_idle =
                        matches!(&message.body, Some(Body::Heartbeat(v1::Heartbeat { running: 0, queued: 0, .. })));
                    refusal = message.body.as_ref().and_then(|body| message_bounds::check(body).err());
                    if refusal.is_some() {
                        break;
                    }
                    if let Some(body) = message.body {
                        got_goodbye |= matches!(body, Body::Goodbye(_));
                        self.handle_message(body).await;
                    }
                    if is_idle && self.shared.membership.switch() == rondel_core::homes::Switch::Stopped {
                        tracing::info!(executor_id = %self.handle.executor, "this node is stopped; asking an executor to connect to another node");
                        break;
                    }
                }
                Ok(None) => break,
                Ok(Some(Err(status))) => {
                    tracing::debug!(executor_id = %self.handle.executor, %status, "an executor's stream broke");
                    refusal = message_bounds::undecodable_status(&status);
                    break;
                }
                Err(_) if silent_heartbeats + 1 < SILENT_HEARTBEATS => silent_heartbeats += 1,
                Err(_) => {
                    tracing::warn!(executor_id = %self.handle.executor, "nothing came on an executor's stream; ending it");
                    break;
                }
            }
        }
        if let Some(status) = refusal {
            let (executor_id, reason) = (self.handle.executor, status.message());
            tracing::warn!(%executor_id, reason, "refused a message of an executor; ending its stream");
            // Sending fails if the connection has ended, because the receiver is dropped with it.
            refusal_sender.send(status).ok();
        } else {
            // The stream ends on the executor's side only once this sender is dropped, and the steps below may take long.
            drop(refusal_sender);
        }
        self.queue_marks().await;
        self.close(got_goodbye, (messages, place), &stop).await;
    }

    /// Whether the token of the stream would still be accepted. If the database does not answer, the executor stays.
    async fn is_still_authorized(&self) -> bool {
        let Some(authorization) = self.authorization.as_deref() else { return true };
        let (store, now) = (self.shared.store.as_ref(), self.shared.clock.now());
        match tokens::authenticate(store, Some(authorization), now).await {
            Ok(caller) => caller.is_some_and(|caller| caller.rights.allow_executor(self.namespace, Some(self.app))),
            Err(_) => true,
        }
    }

    /// Ends the session. `stream_resources` are held until the end of the stream is stored, or a first try to store it has failed.
    async fn close<H>(self, got_goodbye: bool, stream_resources: H, stop: &CancellationToken) {
        let Self { shared, gateway, handle, stream, process, row, registered, .. } = self;
        let id = handle.executor;
        tracing::info!(executor_id = %id, "an executor's stream ended");
        shared.declared.leave(id, handle.number);
        shared.pumps.leave(id, handle.number);
        let (closed_sender, closed_receiver) = oneshot::channel();
        // Sending fails only if this task has ended, because the receiver waits below.
        let responder = Responder::new(|()| {
            closed_sender.send(()).ok();
        });
        drop(gateway.events.send(Event::StreamEnded(id, handle.number, responder)).await);
        // An adopter concludes from a session's end that nothing was sent later. Therefore the dispatcher drops the stream before the end is
        // stored.
        let is_dropped = closed_receiver.await.is_ok();
        drop(registered);
        let mut unstored_end = None;
        if let Some(opened_at) = row.end().filter(|_| is_dropped) {
            let stream_end = StreamEnd { opened_at, reached: shared.sent_until() };
            unstored_end = (!session_end::store_end(&shared, id, stream_end).await).then_some(stream_end);
        }
        // Dropping the last sender ends the stream on the executor's side too. The executor may open the next stream while this task waits.
        drop((handle, stream, stream_resources));
        if got_goodbye {
            drop(gateway.events.send(Event::ExecutorShutDown(id)).await);
        } else if let Some(process) = process
            && let Some(true) = stop.run_until_cancelled(host_process::is_gone_soon(process)).await
        {
            tracing::info!(executor_id = %id, "the process of an executor on this host has died");
            drop(gateway.events.send(Event::Died(id)).await);
        }
        if let Some(stream_end) = unstored_end {
            session_end::retry_store_end(&shared, id, stream_end, stop).await;
        }
    }

    async fn handle_message(&self, body: Body) {
        let now = self.shared.clock.now();
        let id = self.handle.executor;
        match body {
            Body::Heartbeat(beat) => {
                self.shared.registry.record_heard(id, now, Some(beat.running));
                let reply = v1::HeartbeatReply { sequence: beat.sequence, now_at_ms: now.as_millis() };
                self.handle.send(server_message::Body::HeartbeatReply(reply));
                self.named_servers.update(&self.shared, &self.handle);
                let active = beat.running.saturating_add(beat.queued);
                self.notify(Event::Beat(id, usize::try_from(active).unwrap_or(usize::MAX))).await;
                self.queue_marks().await;
            }
            Body::Replies(replies) => {
                self.shared.registry.record_heard(id, now, None);
                replies.replies.iter().for_each(|reply| self.note_progress(reply));
                let replies: Vec<_> = replies.replies.iter().filter_map(|reply| parse_reply(reply, now)).collect();
                if !replies.is_empty() {
                    self.notify(Event::Replies(id, replies)).await;
                }
            }
            Body::Results(results) => {
                self.shared.registry.record_heard(id, now, None);
                self.take_results(results, now).await;
            }
            Body::Logs(logs) => self.take_logs(logs).await,
            Body::Draining(_) => self.notify(Event::Draining(id)).await,
            Body::ProbeReplies(replies) => {
                self.shared.registry.record_heard(id, now, None);
                let free_jobs = replies.free_job_ids.into_iter().map(rondel_core::JobId::new).collect();
                self.notify(Event::Probed(id, replies.probe_id, free_jobs)).await;
            }
            Body::FenceReply(reply) => {
                self.shared.registry.record_heard(id, now, None);
                let answer = fence_answer(reply, (now, self.shared.clock.boot_micros()));
                self.notify(Event::FenceAnswered(id, self.handle.number, answer)).await;
            }
            Body::PumpReports(reports) => {
                self.shared.registry.record_heard(id, now, None);
                self.shared.pumps.receive((self.app, id), reports.reports);
            }
            Body::ScriptRequest(request) => self.send_script(request),
            // A second hello changes nothing. A goodbye counts when the stream ends.
            Body::Hello(_) | Body::Goodbye(_) => {}
        }
    }

    /// Passes results to the dispatcher. Results beyond the memory limit are not acknowledged, so that the executor sends them again.
    async fn take_results(&self, results: v1::Results, now: Timestamp) {
        let charge = charge_kib(encoded_len(&results), results.results.len());
        let Ok(memory) = Arc::clone(&self.gateway.report_memory).try_acquire_many_owned(charge) else {
            tracing::debug!(executor_id = %self.handle.executor, charge, "no room for results; they will come again");
            return;
        };
        let memory = Arc::new(memory);
        for result in &results.results {
            self.shared.progress.forget(self.handle.executor, RunId::new(result.run_id));
        }
        self.queue_marks().await;
        self.pending_logs.wait(RESULT_WAIT_MAX).await;
        let incoming =
            |result| IncomingResult { memory: Some(Arc::clone(&memory) as _), ..incoming_result(result, now) };
        let results = results.results.into_iter().map(incoming);
        self.notify(Event::Results(self.handle.clone(), results.collect())).await;
    }

    async fn take_logs(&self, logs: v1::Logs) {
        let dropped_count = logs.chunks.iter().map(|chunk| chunk.dropped).fold(0, u64::saturating_add);
        add(&self.shared.metrics.log_lines_dropped, dropped_count);
        let part_count: usize = logs.chunks.iter().map(|chunk| chunk.lines.len() + 1).sum();
        let kib = charge_kib(encoded_len(&logs), part_count);
        let now = self.shared.clock.now();
        let chunks: Vec<LogChunk> = logs.chunks.into_iter().map(|chunk| bounded_chunk(chunk, now)).collect();
        // A chunk without lines needs only its acknowledgement, so that the executor drops it.
        let (chunks, empty): (Vec<LogChunk>, Vec<LogChunk>) =
            chunks.into_iter().partition(|chunk| !chunk.lines.is_empty());
        if !empty.is_empty() {
            let acks = empty.iter().map(log_ack).collect();
            self.handle.send(server_message::Body::LogAcks(v1::LogAcks { acks }));
        }
        if chunks.is_empty() {
            return;
        }
        // In a flood of logs, the heartbeats and results behind them wait for room once only, not once per log message.
        let wait_max = if self.is_over_share.load(Relaxed) { Duration::ZERO } else { LOG_WAIT_MAX };
        let has_room = self.queue_logs(chunks, kib, wait_max).await;
        self.is_over_share.store(!has_room, Relaxed);
    }

    /// Queues marks for the lines that were dropped before, if there is room now.
    async fn queue_marks(&self) {
        if !self.lost_lines.is_empty() {
            self.queue_logs(Vec::new(), 1, Duration::ZERO).await;
        }
    }

    /// Queues chunks for the store, behind marks for the lines that were dropped before. If there is no room, drops the chunks and returns false.
    async fn queue_logs(&self, chunks: Vec<LogChunk>, kib: u32, wait_max: Duration) -> bool {
        let mut chunks_with_marks = self.lost_lines.marks(self.shared.clock.now());
        let mark_count = chunks_with_marks.len();
        chunks_with_marks.extend(chunks);
        let (session, pending) = (self.handle.clone(), self.pending_logs.begin());
        let item = LogItem { chunks: chunks_with_marks, kib, app: self.app, session, pending_guard: pending };
        match item.enqueue(&self.gateway.logs, wait_max).await {
            Ok(()) => {
                self.lost_lines.clear();
                true
            }
            Err(mut chunks) => {
                self.drop_logs(&chunks.split_off(mark_count));
                false
            }
        }
    }

    /// Counts the lines of chunks that are dropped. The chunks are acknowledged with their marks, or immediately if there is no room for a
    /// mark.
    fn drop_logs(&self, chunks: &[LogChunk]) {
        if chunks.is_empty() {
            return;
        }
        let executor = self.handle.executor;
        let lines: usize = chunks.iter().map(|chunk| chunk.lines.len()).sum();
        add(&self.shared.metrics.log_lines_dropped, to_u64(lines));
        if let Some(count) = self.shared.log_limit.count("logs", executor.get()) {
            tracing::warn!(executor_id = %executor, lines, count, "an executor logs more than its share while the store is behind; lines are dropped");
        }
        let acks: Vec<v1::LogAck> = chunks.iter().filter(|chunk| !self.lost_lines.add(chunk)).map(log_ack).collect();
        if !acks.is_empty() {
            self.handle.send(server_message::Body::LogAcks(v1::LogAcks { acks }));
        }
    }

    /// Answers a request for a script in a separate task. If too many requests wait already, this request is not answered, and the executor asks
    /// again.
    fn send_script(&self, request: v1::ScriptRequest) {
        let Ok(place) = Arc::clone(&self.script_places).try_acquire_owned() else { return };
        let reader = ScriptReader {
            shared: Arc::clone(&self.shared),
            app: self.app,
            session: self.handle.clone(),
            permits: Arc::clone(&self.gateway.script_reads),
        };
        let answer = async move {
            reader.answer(request).await;
            drop(place);
        };
        self.gateway.lifecycle.spawn("script", Until::Done, answer);
    }

    fn note_progress(&self, reply: &v1::Reply) {
        // If this node sent the attempt, only the executor to which it was sent may report progress.
        let sent_attempt =
            self.shared.sent_runs.get(RunId::new(reply.run_id)).filter(|(attempt, _)| *attempt == reply.attempt);
        let is_own_attempt = sent_attempt.is_none_or(|(_, executor)| executor == self.handle.executor);
        if reply.kind() == v1::reply::Kind::Progress && is_own_attempt {
            let progress = Progress::bounded(reply.done, reply.total);
            self.shared.progress.report(self.handle.executor, RunId::new(reply.run_id), reply.attempt, progress);
        }
    }

    async fn notify(&self, event: Event) {
        drop(self.gateway.events.send(event).await);
    }
}

fn parse_reply(reply: &v1::Reply, now: Timestamp) -> Option<(RunId, i32, Reply)> {
    use v1::reply::Kind;
    let parsed_reply = match reply.kind() {
        Kind::Accepted => Reply::Accepted,
        Kind::Started => {
            let start_delay = Duration::from_millis(u64::try_from(reply.started_after_ms).unwrap_or(0));
            Reply::Started(Start { started_at: reported_instant(reply.started_at_ms, now), start_delay })
        }
        Kind::Refused => Reply::Refused(reply.refused(), Some(reply.fence_n).filter(|number| *number != 0)),
        Kind::Progress | Kind::Unspecified => return None,
    };
    Some((RunId::new(reply.run_id), reply.attempt, parsed_reply))
}

fn fence_answer(reply: v1::FenceReply, clocks: (Timestamp, i64)) -> FenceAnswer {
    let attempt_keys = |refs: Vec<v1::RunRef>| refs.into_iter().map(|r| (RunId::new(r.run_id), r.attempt)).collect();
    let lease = LeaseToken { node: NodeId::new(reply.node_id), epoch: reply.node_epoch };
    let starts = StartReports::of(&reply.held, clocks);
    FenceAnswer { lease, held_runs: attempt_keys(reply.held), finished_runs: attempt_keys(reply.finished), starts }
}

fn bounded_chunk(chunk: v1::LogChunk, now: Timestamp) -> LogChunk {
    let mut lines: Vec<LogLine> = Vec::with_capacity(chunk.lines.len() + 1);
    if chunk.dropped > 0 {
        let at = log_line::line_instant(chunk.lines.first().map_or(0, |line| line.at_ms), now);
        let text =
            format!("… {} lines were dropped here: the run logged faster than they could be sent", chunk.dropped);
        lines.push(LogLine { at, level: "warn".to_owned(), text });
    }
    lines.extend(chunk.lines.into_iter().map(|line| log_line::bounded_line(line, now)));
    LogChunk { run: RunId::new(chunk.run_id), attempt: chunk.attempt, sequence: chunk.sequence, lines }
}
