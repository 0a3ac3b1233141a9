//! The outermost layer around every request except gRPC calls: adds an id, one log line, headers, and the body of a problem.

use std::time::Duration;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, REFERRER_POLICY, STRICT_TRANSPORT_SECURITY, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use tokio::time::Instant;
use tracing::{Instrument as _, Span};

use crate::access::{CalledBy, RequestId};
use crate::limits::client_address;
use crate::pages;
use crate::pages::zones::Zones;
use crate::problem::{Problem, render};
use crate::refused_lines::{UnloggedRequests, has_line_limit};
use crate::state::Web;
use crate::trace::{self, Trace};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const REQUEST_ID_LEN_MAX: usize = 64;
/// Paths are cut to this length in problems and logs.
const PATH_LEN_MAX: usize = 256;
/// The content security policy of API answers: they must not load anything, and no page may embed them.
const ANSWER_POLICY: &str = "default-src 'none'; frame-ancestors 'none'";

/// Makes browsers use only HTTPS for a year.
const TRANSPORT_SECURITY: &str = "max-age=31536000";

pub(crate) async fn outermost_layer(State(web): State<Web>, mut request: Request, next: Next) -> Response {
    let started_at = Instant::now();
    let request_id = request_id(request.headers()).unwrap_or_else(|| format!("{:x}", web.engine.new_id()));
    let method = request.method().clone();
    let path = request.uri().path().chars().take(PATH_LEN_MAX).collect::<String>();
    let client = client_address(&request);
    let page_context = pages::problem::page_context(&request);
    let namespace = pages::own_namespace::own_namespace_of(&request);
    let zones = Zones::new(request.headers());
    request.extensions_mut().insert(RequestId(request_id.clone()));
    // Probes and reads of the metrics are frequent and of no interest in a trace, so they have no span.
    let (span, trace) = match is_monitoring_path(&path) {
        true => (Span::none(), Trace(None)),
        false => trace::begin(&request_id, &method, request.headers()),
    };
    request.extensions_mut().insert(trace);
    let handle = async {
        let mut response = next.run(request).instrument(span.clone()).await;
        // A page that cannot get its namespace becomes a problem.
        if let Some(namespace) = &namespace {
            response = namespace.add_to(response).await;
        }
        let problem = response.extensions_mut().remove::<Problem>();
        match (&problem, &page_context) {
            (Some(problem), Some(page_context)) => page_context.render(&mut response, problem, &request_id),
            (Some(problem), None) => render(&mut response, problem, &request_id, &path),
            (None, _) => {}
        }
        // The links of a problem page need the namespace too.
        if let (Some(_), Some(namespace)) = (&problem, &namespace) {
            response = namespace.add_to(response).await;
        }
        (response, problem)
    };
    let (mut response, problem) = zones.scope(handle).await;
    add_security_headers(response.headers_mut(), &request_id);
    if web.config.hsts {
        response.headers_mut().insert(STRICT_TRANSPORT_SECURITY, HeaderValue::from_static(TRANSPORT_SECURITY));
    }
    let status = response.status().as_u16();
    let caller_name = response.extensions_mut().remove::<CalledBy>().map(|caller| caller.name).unwrap_or_default();
    let is_routine = response.extensions_mut().remove::<Routine>().is_some() || is_monitoring_path(&path);
    let code = problem.as_ref().map_or("", |problem| problem.code().as_str());
    let elapsed = started_at.elapsed();
    if !is_monitoring_path(&path) {
        web.engine.note_request(status, elapsed);
    }
    trace::record_status(&span, status);
    let response = trace::within_span(&span, response);
    report_unlogged(&web);
    let _span_guard = span.enter();
    let cause = problem.as_ref().and_then(Problem::cause);
    let is_counted = (cause.is_some() || !is_monitoring_path(&path)) && has_line_limit(response.status(), &caller_name);
    if !is_counted || web.refused_lines.take(client, response.status()) {
        let line = RequestLine {
            method: method_for_log(&method),
            path: &path,
            status,
            elapsed,
            caller_name: &caller_name,
            code,
            is_routine,
        };
        line.write(&request_id, cause);
    }
    response
}

/// Extension of a response to a frequent routine request. Its log line has level debug.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Routine;

/// The fields of a request's log line.
struct RequestLine<'a> {
    method: &'a str,
    path: &'a str,
    status: u16,
    elapsed: Duration,
    caller_name: &'a str,
    code: &'static str,
    is_routine: bool,
}

impl RequestLine<'_> {
    fn write(self, request_id: &str, cause: Option<&str>) {
        let Self { method, path, status, elapsed, caller_name: by, code, is_routine } = self;
        let elapsed_ms = elapsed.as_secs_f64() * 1000.0;
        match cause {
            Some(cause) => {
                tracing::error!(target: "http", method, path, status, elapsed_ms, by, code, cause, "request");
            }
            None if is_routine => {
                tracing::debug!(target: "http", request_id, method, path, status, elapsed_ms, "request");
            }
            None => tracing::info!(target: "http", method, path, status, elapsed_ms, by, code, "request"),
        }
    }
}

/// Logs how many refused requests of the last minute got no log line of their own, by client and status. Does nothing until the minute has
/// ended.
fn report_unlogged(web: &Web) {
    for UnloggedRequests { client, status, count } in web.refused_lines.take_unlogged() {
        let client = client.map_or_else(|| "several".to_owned(), |address| address.to_string());
        tracing::info!(target: "http", client, status, count, "refused requests of the last minute that were not logged one by one");
    }
}

/// The method of a request for the log. An unknown method is not logged as it is: a client can send any text as the method, of any
/// length.
fn method_for_log(method: &Method) -> &str {
    const KNOWN_METHODS: [Method; 9] = [
        Method::GET,
        Method::HEAD,
        Method::POST,
        Method::PUT,
        Method::PATCH,
        Method::DELETE,
        Method::OPTIONS,
        Method::TRACE,
        Method::CONNECT,
    ];
    if KNOWN_METHODS.contains(method) { method.as_str() } else { "other" }
}

/// The id that the client sent, if it is short and has only plain characters.
fn request_id(headers: &HeaderMap) -> Option<String> {
    let id = headers.get(REQUEST_ID)?.to_str().ok()?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    ((1..=REQUEST_ID_LEN_MAX).contains(&id.len()) && id.chars().all(is_plain)).then(|| id.to_owned())
}

fn add_security_headers(headers: &mut HeaderMap, request_id: &str) {
    if let Ok(id) = HeaderValue::from_str(request_id) {
        headers.insert(REQUEST_ID, id);
    }
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    for (name, value) in
        [(REFERRER_POLICY, "no-referrer"), (CACHE_CONTROL, "no-store"), (CONTENT_SECURITY_POLICY, ANSWER_POLICY)]
    {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
}

fn is_monitoring_path(path: &str) -> bool {
    matches!(path, "/livez" | "/readyz" | "/metrics")
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::body::Body;
    use axum::routing::get;
    use http::StatusCode;
    use tower::ServiceExt as _;
    use tower_http::catch_panic::CatchPanicLayer;

    use super::*;
    use crate::problem::panic_response;

    async fn panics() -> &'static str {
        panic!("with a secret")
    }

    #[tokio::test]
    async fn a_panic_is_an_answer() {
        let app = Router::new().route("/", get(panics)).layer(CatchPanicLayer::custom(panic_response));
        let response = app.oneshot(Request::new(Body::empty())).await.unwrap();
        assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
        let problem = response.extensions().get::<Problem>().unwrap();
        assert_eq!(problem.cause(), Some("panic: with a secret"));
    }
}
