//! Limits how many requests and streams each client may have at the same time. A request counts for its address first, and after
//! authentication for its caller instead. The server works on it only after its body has arrived, so that slow uploads occupy no permits.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use http::header::{AUTHORIZATION, COOKIE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue};
use rondel_admin::Limit;
use rondel_admin::gateway::OnAuthenticated;
use rondel_core::TokenId;
use tokio::sync::OwnedSemaphorePermit;

use crate::body::{BodyBound, collect_up_to};
use crate::limits::{CallerKey, Share, client_address, network_of};
use crate::peers::{Connection, WaitingForBody};
use crate::permits::{LiveShare, StreamKind};
use crate::problem::{Code, Problem};
use crate::sending_body::ReleasedAtEnd;
use crate::state::Web;

/// Maximum length of the body of an unauthenticated request, in bytes. Such bodies are the forms for signing in and for preferences.
const OPEN_BODY_LEN_MAX: usize = 16 * 1024;
/// The body of an unauthenticated request counts towards `bodies_per_address` only after this time.
const BODY_GRACE: Duration = Duration::from_millis(500);

/// Extension of a response that lasts long, such as a stream. Once the response begins, its request no longer counts
/// towards the limits for requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LongLived;

/// The permits of a request that is being worked on: one for every request, and another one if it has no authenticated caller.
pub(crate) type WorkPermits = (OwnedSemaphorePermit, Option<OwnedSemaphorePermit>);

/// The share that a request has until its answer has ended: first one of its address, later one of its caller.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestShare(Arc<Mutex<ShareOwner>>);

#[derive(Debug, Default)]
enum ShareOwner {
    #[default]
    None,
    Address {
        _share: Share<(IpAddr, bool)>,
    },
    Caller {
        _share: Share<CallerKey>,
    },
}

impl RequestShare {
    fn set_owner(&self, owner: ShareOwner) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = owner;
    }
}

fn client_ip(request: &Request) -> IpAddr {
    client_address(request).unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED))
}

fn has_credentials(headers: &HeaderMap) -> bool {
    headers.contains_key(AUTHORIZATION) || headers.contains_key(COOKIE)
}

/// Layer around every request except gRPC calls: takes a share of the limit for its address, and sets a timeout until the answer begins.
/// Probes take no share.
pub(crate) async fn limit_requests(State(web): State<Web>, mut request: Request, next: Next) -> Response {
    let request_share = RequestShare::default();
    if !is_probe(request.uri().path()) {
        let address = client_ip(&request);
        let key = (network_of(address), has_credentials(request.headers()));
        let Some(share) = web.permits.by_address.take(key, 1, web.config.limits.requests_per_address) else {
            web.engine.note_limit_reached(Limit::RequestsPerAddress, &address);
            return Problem::overloaded("too many requests from this address at the same time; try again", 1)
                .into_response();
        };
        request_share.set_owner(ShareOwner::Address { _share: share });
        request.extensions_mut().insert(request_share.clone());
    }
    let result = tokio::time::timeout(web.config.request_timeout, next.run(request)).await;
    let mut response = result.unwrap_or_else(|_| {
        Problem::new(Code::TimedOut, "no answer was ready in time; the request may still take effect")
            .with_header(RETRY_AFTER, HeaderValue::from_static("5"))
            .into_response()
    });
    if response.extensions().get::<LongLived>().is_none() {
        let inner_shares = response.extensions_mut().remove::<ReleasedAtEnd>();
        response.extensions_mut().insert(ReleasedAtEnd::new((request_share, inner_shares)));
    }
    response
}

/// Probes take no shares and no permits, so that they are answered under any load.
fn is_probe(path: &str) -> bool {
    matches!(path, "/livez" | "/readyz")
}

/// Counts a request for its authenticated caller from now on, and no longer for its address.
pub(crate) fn admit_caller(web: &Web, request: &Request, caller: CallerKey) -> Result<(), Problem> {
    if let Some(connection) = request.extensions().get::<Connection>() {
        connection.count_for_caller(caller);
    }
    let Some(request_share) = request.extensions().get::<RequestShare>() else { return Ok(()) };
    let Some(share) = web.permits.by_caller.take(caller, 1, web.config.limits.requests_per_caller) else {
        web.engine.note_limit_reached(Limit::RequestsPerCaller, &caller);
        let request_count_max = web.config.limits.requests_per_caller;
        return Err(Problem::overloaded(
            &format!("a caller may make {request_count_max} requests at the same time; try again"),
            1,
        ));
    };
    request_share.set_owner(ShareOwner::Caller { _share: share });
    Ok(())
}

/// Waits for the whole body of the request, then for the permits to work on it. The permits are taken last, so that no request waits for
/// a slow client while it has them.
pub(crate) async fn with_body_and_permits(
    web: &Web,
    request: Request,
    (caller, len_max): (Option<CallerKey>, usize),
) -> Result<(Request, WorkPermits), Problem> {
    let request = match axum::body::HttpBody::is_end_stream(request.body()) {
        true => request,
        false => with_body(web, request, (caller, len_max)).await?,
    };
    let overload_problem = || {
        web.engine.note_limit_reached(Limit::Requests, &client_ip(&request));
        Problem::overloaded("too many requests at the same time; try again", 1)
    };
    let unauthenticated_permit = match caller {
        Some(_) => None,
        None => Some(Arc::clone(&web.permits.unauthenticated).try_acquire_owned().map_err(|_| overload_problem())?),
    };
    let permit = Arc::clone(&web.permits.requests).try_acquire_owned().map_err(|_| overload_problem())?;
    Ok((request, (permit, unauthenticated_permit)))
}

async fn with_body(
    web: &Web,
    request: Request,
    (caller, len_max): (Option<CallerKey>, usize),
) -> Result<Request, Problem> {
    let address = client_ip(&request);
    let connection = request.extensions().get::<Connection>().cloned();
    let _waiting = WaitingForBody::new(connection.as_ref());
    let (parts, body) = request.into_parts();
    let request = Request::from_parts(parts.clone(), body);
    let mut body_future = std::pin::pin!(collect_up_to(request, web, BodyBound { len_max, caller, address }));
    let body = match tokio::time::timeout(BODY_GRACE, body_future.as_mut()).await {
        Ok(body) => body?,
        Err(_) if caller.is_some() => body_future.await?,
        Err(_) => {
            let share = web.permits.bodies.take(network_of(address), 1, web.config.limits.bodies_per_address);
            let Some(_share) = share else {
                web.engine.note_limit_reached(Limit::BodiesPerAddress, &address);
                return Err(Problem::overloaded("too many bodies from this address are being received; try again", 1));
            };
            body_future.await?
        }
    };
    let (bytes, share) = body;
    let mut request = Request::from_parts(parts, Body::from(bytes));
    request.extensions_mut().insert(ReleasedAtEnd::new(share));
    Ok(request)
}

/// Layer around a route that needs no authentication. Probes need no permit.
pub(crate) async fn limit_open_route(State(web): State<Web>, request: Request, next: Next) -> Response {
    if is_probe(request.uri().path()) {
        return next.run(request).await;
    }
    match with_body_and_permits(&web, request, (None, OPEN_BODY_LEN_MAX)).await {
        Ok((request, work_permits)) => {
            let response = next.run(request).await;
            drop(work_permits);
            response
        }
        Err(problem) => problem.into_response(),
    }
}

/// Returns a callback for an endpoint that authenticates its callers itself. The endpoint calls it after finding a token valid; the request
/// then no longer counts for its address.
pub(crate) fn on_authenticated(request: &Request) -> OnAuthenticated {
    let (request_share, connection) =
        (request.extensions().get::<RequestShare>().cloned(), request.extensions().get::<Connection>().cloned());
    OnAuthenticated(Arc::new(move |token: TokenId| {
        if let Some(request_share) = &request_share {
            request_share.set_owner(ShareOwner::None);
        }
        if let Some(connection) = &connection {
            connection.count_for_caller(CallerKey::Executor(token));
        }
    }))
}

/// Layer around the executors' gateway. A call counts for its address until its token is found valid.
pub(crate) async fn limit_gateway(State(web): State<Web>, mut request: Request, next: Next) -> Response {
    let address = client_ip(&request);
    let connection_count_max = web.config.limits.connections_per_address;
    let Some(share) = web.permits.gateway.take(network_of(address), 1, connection_count_max) else {
        web.engine.note_limit_reached(Limit::RequestsPerAddress, &address);
        return grpc_unavailable();
    };
    let share = Arc::new(Mutex::new(Some(share)));
    let connection = request.extensions().get::<Connection>().cloned();
    let share_slot = Arc::clone(&share);
    let on_authenticated = move |token: TokenId| {
        share_slot.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(connection) = &connection {
            connection.count_for_caller(CallerKey::Executor(token));
        }
    };
    request.extensions_mut().insert(OnAuthenticated(Arc::new(on_authenticated)));
    let response = next.run(request).await;
    share.lock().unwrap_or_else(PoisonError::into_inner).take();
    response
}

/// The refusal in gRPC's format. Clients retry status 14 (unavailable).
fn grpc_unavailable() -> Response {
    let headers = [
        ("content-type", "application/grpc"),
        ("grpc-status", "14"),
        ("grpc-message", "too many calls from this address wait for their token to be checked"),
    ];
    (headers, Body::empty()).into_response()
}

/// Counts a new stream for its caller and for the server. Dropping the returned shares undoes this.
pub(crate) fn take_live_share(web: &Web, kind: StreamKind, caller: CallerKey) -> Result<LiveShare, Problem> {
    let limits = &web.config.limits;
    let (tally, noun) =
        (&web.permits.live_streams, if kind == StreamKind::Events { "event streams" } else { "followed logs" });
    let stream_count_max = limits.live_streams_per_caller;
    let caller_share = tally.take((kind, Some(caller)), 1, stream_count_max).ok_or_else(|| {
        web.engine.note_limit_reached(Limit::LiveStreamsPerCaller, &caller);
        Problem::overloaded(
            &format!("a caller may have {stream_count_max} {noun} on one server at the same time; end another one"),
            10,
        )
    })?;
    let server_share = tally.take((kind, None), 1, limits.live_streams).ok_or_else(|| {
        web.engine.note_limit_reached(Limit::LiveStreams, &caller);
        Problem::overloaded(
            &format!("this server has {} {noun}, its maximum; try another server, or try later", limits.live_streams),
            10,
        )
    })?;
    Ok((caller_share, server_share))
}
