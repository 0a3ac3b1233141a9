//! Streams events, as server-sent events or as lines of JSON. Listeners get only events that they may see; the permission is checked
//! again while the stream is open.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream::{StreamExt as _, unfold};
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue};
use rondel_admin::events::{Cursor, Event, EventKind, ListenResult, Listener};
use rondel_core::access::Permission::View;
use rondel_core::name;
use rondel_store::catalog::Namespace;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::call::Call;
use crate::caller::Caller;
use crate::load::{self, LongLived};
use crate::openapi::Doc;
use crate::parameter::Parameter;
use crate::permits::{LiveShare, StreamKind};
use crate::problem::{Code, Problem};
use crate::query::{FromQuery, Reader};
use crate::recheck::{AccessLoss, RecheckedCaller};
use crate::routes::Routes;
use crate::state::Web;

/// If no event occurs for this long, a keep-alive is sent, so that proxies do not close the connection.
const KEEP_ALIVE_DELAY: Duration = Duration::from_secs(15);
/// A header that keeps proxies from buffering the stream.
pub(super) const NO_BUFFERING_HEADER: (HeaderName, HeaderValue) =
    (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// The header `Last-Event-ID`, as the OpenAPI document describes it.
pub(super) const LAST_EVENT_PARAMETER: Parameter =
    Parameter::cursor_in("Last-Event-ID").about("The last event that was received; the stream continues after it.");

rondel_core::plain_word_enum! {
    /// A kind of event; a listener may ask for some kinds only.
    Kind { Run = "run", Job = "job", Executor = "executor", Node = "node" }
}

/// The events that a listener wants.
#[derive(Clone, Debug)]
pub(crate) struct EventFilter {
    job: Option<String>,
    app: Option<String>,
    /// The wanted kinds; all kinds if empty.
    kinds: Vec<Kind>,
    /// The position after which the stream continues, like `Last-Event-ID`.
    after: Option<Cursor>,
}

impl FromQuery for EventFilter {
    fn from_query(reader: &mut Reader) -> Self {
        let checked_name = |text: &str| name::check(text).map(|()| text.to_owned());
        Self {
            job: reader.parsed(Parameter::name("job").about("Only events of this job and its runs."), checked_name),
            app: reader.parsed(Parameter::name("app").about("Only events of this app."), checked_name),
            kinds: reader.words(Parameter::words("kind", &Kind::WORDS).about("Only events of these kinds.")),
            after: reader.parsed(
                Parameter::cursor_in("after")
                    .about("The `id` of the event after which the stream continues, like `Last-Event-ID`."),
                str::parse,
            ),
        }
    }
}

impl EventFilter {
    /// Whether an event matches the query, and the caller may see it.
    fn matches(&self, event: &Event, namespace: &Namespace, caller: &Caller) -> bool {
        if event.kind == EventKind::Gap {
            return true;
        }
        if !self.kinds.is_empty() && !self.kinds.iter().any(|kind| kind.as_str() == event.kind.name()) {
            return false;
        }
        let job = match &event.kind {
            EventKind::Run { job, .. } => Some(job),
            EventKind::Job(job) => Some(&job.name),
            EventKind::Executor { .. } | EventKind::Node { .. } | EventKind::Gap => None,
        };
        let is_selected = self.job.as_ref().is_none_or(|wanted_job| job == Some(wanted_job))
            && self.app.as_ref().is_none_or(|wanted_app| event.app.as_ref() == Some(wanted_app));
        is_selected
            && event.kind.place().is_none_or(|(event_namespace, app)| {
                event_namespace == namespace.id && caller.rights.allow(View, event_namespace, Some(app))
            })
    }
}

pub(super) fn routes() -> Routes {
    Routes::new()
        .get(
            "/api/v1/events",
            View,
            listen,
            Doc::new(
                "Listen to events",
                "Changes of runs and jobs, and executors and servers that appear or disappear: as server-sent events, or with \
                 `Accept: application/x-ndjson` as lines of JSON. The first event is `ready`, the last one `end`; `gap` means \
                 that events may be missing.",
            )
            .stream("text/event-stream", "A stream of events, until one side ends it.")
            .text("application/x-ndjson")
            .reads(LAST_EVENT_PARAMETER)
            .refuses(&[Code::InvalidHeader]),
        )
}

/// The stream for the console's pages. If the request does not accept server-sent events, the stream ends immediately.
pub(crate) async fn watch(call: Call<EventFilter>, headers: HeaderMap) -> Result<Response, Problem> {
    let accept = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    let wants_stream = accept.starts_with("text/event-stream");
    let timeout = if wants_stream { call.web.config.follow_timeout } else { Duration::ZERO };
    stream(call, &headers, timeout)
}

async fn listen(call: Call<EventFilter>, headers: HeaderMap) -> Result<Response, Problem> {
    let timeout = call.web.config.follow_timeout;
    stream(call, &headers, timeout)
}

fn stream(call: Call<EventFilter>, headers: &HeaderMap, timeout: Duration) -> Result<Response, Problem> {
    let last_event = headers.get(LAST_EVENT_ID).map(|id| id.to_str().unwrap_or_default().parse::<Cursor>());
    let last_event = last_event.transpose().map_err(|message| {
        Problem::new(Code::InvalidHeader, format!("Last-Event-ID: {message}; leave it out to listen from now on"))
    })?;
    let cursor = last_event.or(call.query.after);
    let format = requested_format(headers);
    let share = load::take_live_share(&call.web, StreamKind::Events, call.caller.key())?;
    let now = Instant::now();
    let event_stream = EventStream {
        listener: call.web.events.listen(cursor),
        ends_at: now + timeout,
        web: call.web,
        caller: RecheckedCaller::new(call.caller),
        namespace: call.namespace,
        filter: call.query,
        format,
        cursor,
        last_sent_at: now,
        has_ended: false,
        _share: share,
    };
    let bytes = unfold(event_stream, async |mut event_stream| {
        let bytes = event_stream.next().await?;
        Some((Ok::<_, Infallible>(bytes), event_stream))
    });
    let mut response = Response::new(Body::from_stream(bytes.fuse()));
    let content_type = match format {
        Format::Events => "text/event-stream",
        Format::Lines => "application/x-ndjson",
    };
    let content_type = (CONTENT_TYPE, HeaderValue::from_static(content_type));
    response.headers_mut().extend([content_type, NO_BUFFERING_HEADER]);
    response.extensions_mut().insert(LongLived);
    Ok(response)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Events,
    /// One JSON object per line.
    Lines,
}

fn requested_format(headers: &HeaderMap) -> Format {
    let accept = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    if accept.starts_with("application/x-ndjson") { Format::Lines } else { Format::Events }
}

impl Format {
    /// An event in the format of the stream. JSON text has no line feeds, so it fits in one line.
    fn block(self, cursor: Option<Cursor>, kind: &str, data: &Value) -> String {
        let id = cursor.map(|cursor| cursor.to_string());
        match (self, id) {
            (Self::Events, Some(id)) => format!("id: {id}\nevent: {kind}\ndata: {data}\n\n"),
            (Self::Events, None) => format!("event: {kind}\ndata: {data}\n\n"),
            (Self::Lines, id) => format!("{}\n", json!({ "id": id, "event": kind, "data": data })),
        }
    }

    /// The keep-alive that is sent while there are no events. It is not an event, but with server-sent events it also advances the
    /// client's position.
    fn keep_alive(self, cursor: Option<Cursor>) -> String {
        match (self, cursor) {
            (Self::Events, Some(cursor)) => format!(": still here\nid: {cursor}\n\n"),
            (Self::Events, None) => ": still here\n\n".to_owned(),
            (Self::Lines, _) => "\n".to_owned(),
        }
    }
}

struct EventStream {
    web: Web,
    caller: RecheckedCaller,
    namespace: Namespace,
    filter: EventFilter,
    format: Format,
    listener: Listener,
    /// All events up to this position were sent, or left out because this listener does not want them or may not see them.
    cursor: Option<Cursor>,
    ends_at: Instant,
    last_sent_at: Instant,
    has_ended: bool,
    _share: LiveShare,
}

/// Why a stream ends.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum StreamEnd {
    /// The server stops.
    Stopping,
    /// The stream has reached its maximum length.
    Timeout,
    /// The token has expired or was revoked, or no longer allows access to the namespace.
    TokenOver,
    /// The database did not answer for too long, so the token could not be checked.
    Unavailable,
    /// The listener was too slow: events that it has not read are no longer stored.
    TooSlow,
}

impl EventStream {
    /// The next piece of the stream.
    async fn next(&mut self) -> Option<Bytes> {
        while !self.has_ended {
            if let Some(end) = self.reason_to_end().await {
                return Some(self.end(end));
            }
            let engine = self.web.engine.clone();
            let result = tokio::select! {
                result = self.listener.next(engine.store(), || engine.now()) => result,
                () = self.web.config.shutdown.cancelled() => continue,
            };
            let text = match result {
                ListenResult::Begun { cursor, is_gap } => {
                    self.cursor = Some(cursor);
                    let at = self.web.engine.now();
                    let ready_block = self.format.block(Some(cursor), "ready", &json!({ "at": at }));
                    let gap_block = if is_gap {
                        self.format.block(Some(cursor), "gap", &json!({ "at": at }))
                    } else {
                        String::new()
                    };
                    ready_block + &gap_block
                }
                ListenResult::Events(events, cursor) => {
                    self.cursor = Some(cursor);
                    let matching_events =
                        events.iter().filter(|event| self.filter.matches(event, &self.namespace, self.caller.caller()));
                    let block = |event: &Arc<Event>| {
                        self.format.block(Some(cursor.at_event(event)), event.kind.name(), &self.event_json(event))
                    };
                    matching_events.map(block).collect()
                }
                ListenResult::Nothing => String::new(),
                ListenResult::TooSlow => return Some(self.end(StreamEnd::TooSlow)),
            };
            if !text.is_empty() {
                self.last_sent_at = Instant::now();
                return Some(Bytes::from(text));
            }
            if self.last_sent_at.elapsed() >= KEEP_ALIVE_DELAY {
                self.last_sent_at = Instant::now();
                return Some(Bytes::from(self.format.keep_alive(self.cursor)));
            }
        }
        None
    }

    async fn reason_to_end(&mut self) -> Option<StreamEnd> {
        if self.web.config.shutdown.is_cancelled() {
            return Some(StreamEnd::Stopping);
        }
        if Instant::now() >= self.ends_at {
            return Some(StreamEnd::Timeout);
        }
        match self.caller.access_loss(&self.web, self.namespace.id, None).await? {
            AccessLoss::Ended => Some(StreamEnd::TokenOver),
            AccessLoss::Unverified => Some(StreamEnd::Unavailable),
        }
    }

    fn end(&mut self, end: StreamEnd) -> Bytes {
        self.has_ended = true;
        Bytes::from(self.format.block(self.cursor, "end", &json!({ "reason": end })))
    }

    /// The event as the API shows it.
    fn event_json(&self, event: &Event) -> Value {
        let (at, namespace, app) = (event.at, &self.namespace.name, &event.app);
        match &event.kind {
            EventKind::Run { snapshot, job } => json!({
                "at": at, "namespace": namespace, "app": app, "job": job, "id": snapshot.id, "fire_at": snapshot.fire_at,
                "shard_index": snapshot.shard_index, "status": snapshot.status, "reason": snapshot.reason,
                "attempt": snapshot.attempt, "executor": snapshot.executor,
            }),
            EventKind::Job(job) => json!({
                "at": at, "namespace": namespace, "app": app, "name": job.name, "version": job.version,
                "change": change_word(job.is_deleted, job.version), "changed_at": job.at,
            }),
            EventKind::Executor { id, name, is_online, .. } => json!({
                "at": at, "namespace": namespace, "app": app, "id": id, "name": name,
                "status": if *is_online { "online" } else { "offline" },
            }),
            EventKind::Node { name, status } => json!({ "at": at, "name": name, "status": status }),
            EventKind::Gap => json!({ "at": at }),
        }
    }
}

const fn change_word(is_deleted: bool, version: i64) -> &'static str {
    match (is_deleted, version) {
        (true, _) => "deleted",
        (false, 1) => "created",
        (false, _) => "changed",
    }
}

#[cfg(test)]
mod tests {
    use rondel_core::access::{Grant, Rights, Role};
    use rondel_core::{AppId, ExecutorId, NamespaceId, Timestamp};

    use super::*;

    fn caller(app: Option<AppId>) -> Caller {
        let grant = Grant { role: Role::Viewer, namespace: Some(NamespaceId::new(1)), app };
        Caller::for_tests(Rights::new(vec![grant]))
    }

    fn event(namespace: i64, app: i64) -> Event {
        let kind = EventKind::Executor {
            id: ExecutorId::new(1),
            name: "x".to_owned(),
            namespace: NamespaceId::new(namespace),
            app: AppId::new(app),
            is_online: true,
        };
        Event { number: 1, at: Timestamp::EPOCH, app: Some(format!("app-{app}")), kind }
    }

    #[test]
    fn callers_get_no_events_that_they_may_not_see() {
        let here = Namespace { id: NamespaceId::new(1), name: "here".to_owned() };
        let all = EventFilter { job: None, app: None, kinds: Vec::new(), after: None };
        for (caller, namespace, app, expected) in [
            (caller(None), 1, 7, true),
            (caller(None), 2, 7, false),
            (caller(Some(AppId::new(7))), 1, 7, true),
            (caller(Some(AppId::new(7))), 1, 8, false),
        ] {
            assert_eq!(all.matches(&event(namespace, app), &here, &caller), expected, "{namespace} {app}");
        }
        let node = Event { kind: EventKind::Node { name: "n".to_owned(), status: "dead" }, app: None, ..event(1, 7) };
        assert!(all.matches(&node, &here, &caller(None)));
        let of_app = EventFilter { app: Some("app-7".to_owned()), ..all.clone() };
        assert!(
            of_app.matches(&event(1, 7), &here, &caller(None)) && !of_app.matches(&event(1, 8), &here, &caller(None))
        );
        let of_job = EventFilter { job: Some("j".to_owned()), ..all.clone() };
        assert!(!of_job.matches(&event(1, 7), &here, &caller(None)) && !of_job.matches(&node, &here, &caller(None)));
        let of_kind = EventFilter { kinds: vec!["node".parse().unwrap()], ..all };
        assert!(of_kind.matches(&node, &here, &caller(None)) && !of_kind.matches(&event(1, 7), &here, &caller(None)));
        let gap = Event { kind: EventKind::Gap, ..node };
        assert!(of_job.matches(&gap, &here, &caller(None)), "whatever is asked for may have been missed");
        assert!("gap".parse::<Kind>().is_err());
    }
}
