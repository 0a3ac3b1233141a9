//! Authenticates callers and checks their permissions before path, query and body are read, so that a caller without the permission
//! cannot learn what exists. Changes and refused requests are written to the audit log here, so no handler has to do it.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, Uri};
use rondel_admin::auth::has_secret;
use rondel_admin::{Limit, LookupError};
use rondel_core::access::Permission;
use rondel_store::access::AuthMethod;

use crate::audit::{self, AuditContext, AuditNote};
use crate::call::{AdmittedCaller, named_namespace, role_for, shown_namespace};
use crate::caller::Caller;
use crate::limits::{APPLY_LEN_MAX, APPLY_PATH, client_address};
use crate::pages::own_namespace::namespace_into_path;
use crate::problem::{Code, Problem};
use crate::rate::{self, RateStatus};
use crate::redirect::{query_pair, redirect_to};
use crate::route_info::{METRICS_PATH, is_read_only_post};
use crate::state::Web;
use crate::{cookies, load, shares, trace};

/// Extension of a request: its id in the log.
#[derive(Clone, Debug)]
pub(crate) struct RequestId(pub(crate) String);

/// The gate of a route: checks the permission before the handler runs.
#[derive(Clone, Debug)]
pub(crate) struct RouteGate {
    pub(crate) web: Web,
    pub(crate) permission: Permission,
    /// The path of the route, with its parameters in braces.
    pub(crate) path: &'static str,
}

impl RouteGate {
    /// Maximum length of a body on this route, in bytes.
    fn body_len_max(&self) -> usize {
        if self.path == APPLY_PATH { APPLY_LEN_MAX } else { self.web.config.body_len_max }
    }
}

/// Whether a request makes a change. A `POST` on a route that only reads makes no change.
fn is_change(gate: &RouteGate, request: &Request) -> bool {
    !request.method().is_safe() && !is_read_only_post(gate.path)
}

/// The fields of an audit entry that are known before the request is handled.
fn audit_context(gate: &RouteGate, request: &Request) -> AuditContext {
    AuditContext {
        action: audit::action_of_request(request.method(), gate.path),
        object: audit::object_of_request(gate.path, request.uri().path()),
        address: client_address(request),
        request_id: request.extensions().get::<RequestId>().map(|RequestId(id)| id.clone()),
    }
}

/// Admits a request if its caller has the permission.
pub(crate) async fn guard(State(gate): State<RouteGate>, request: Request, next: Next) -> Response {
    let authorization = match authorization(request.headers()) {
        Ok(authorization) => authorization,
        Err(problem) => return problem.into_response(),
    };
    let metrics_token = gate.web.config.metrics_token.as_ref().filter(|_| gate.path == METRICS_PATH);
    if metrics_token.is_some_and(|metrics_token| has_secret(authorization.as_deref(), metrics_token)) {
        return authorize_and_handle(&gate, Caller::metrics_reader(), request, next).await;
    }
    match authenticate(&gate.web, authorization, client_address(&request)).await {
        Ok(caller) => authorize_and_handle(&gate, caller, request, next).await,
        Err(problem) => problem.into_response(),
    }
}

/// Admits a request for a page if its session is valid and has the permission. Without a valid session, the load of a full page is
/// redirected to the sign-in page; every other request is refused.
pub(crate) async fn guard_page(State(gate): State<RouteGate>, request: Request, next: Next) -> Response {
    let is_safe = request.method().is_safe();
    let endpoint = gate.web.config.endpoint();
    if !is_safe && !endpoint.is_from_own_pages(request.headers(), request.uri(), request.extensions()) {
        return cross_origin_problem(&gate.web).into_response();
    }
    let cookie = cookies::session(request.headers(), gate.web.config.tls).map(str::to_owned);
    let uri = request.uri().clone();
    let caller = match caller_of_session(&gate.web, cookie.as_deref(), client_address(&request)).await {
        Ok(caller) => caller,
        Err(problem) => return problem.into_response(),
    };
    let Some(caller) = caller else {
        let is_full_page = is_safe && !request.headers().contains_key("hx-request");
        return if is_full_page {
            redirect_to_sign_in(request.uri())
        } else {
            missing_session_problem().into_response()
        };
    };
    let mut response = authorize_and_handle(&gate, caller.clone(), request, next).await;
    // The problem page shows a namespace. If the handler has set none, the problem page shows the namespace that a page at this URL would
    // show.
    if response.extensions().get::<Problem>().is_some()
        && let Some(called_by) = response.extensions_mut().get_mut::<CalledBy>()
        && called_by.namespace.is_none()
    {
        called_by.namespace = shown_namespace(&gate.web.engine, &caller, named_namespace(&uri).as_deref()).await;
    }
    response
}

/// Checks the permission of an authenticated request and handles it; the audit entry of a change is written before the handler runs.
/// Requests above the rate limit are refused first, so that they cost neither an audit entry nor a permit.
async fn authorize_and_handle(gate: &RouteGate, caller: Caller, request: Request, next: Next) -> Response {
    trace::name_span(request.method(), gate.path);
    let note = AuditNote::default();
    let (mut response, rate_status) = match count_request(&gate.web, &caller) {
        Ok(rate_status) => (admit_and_handle(gate, &caller, &note, request, next).await, rate_status),
        Err((problem, rate_status)) => (problem.into_response(), Some(rate_status)),
    };
    // Only callers with the permission get rate-limit headers: to others, a refusal looks the same whether the path exists or not.
    if let Some(rate_status) = rate_status.filter(|_| caller.may_anywhere(gate.permission)) {
        rate_status.add_headers(response.headers_mut());
    }
    response.extensions_mut().insert(CalledBy {
        name: caller.name().to_owned(),
        namespace: note.shown_namespace(),
        is_admin: caller.may_anywhere(Permission::Cluster),
    });
    response
}

/// Counts a request against the rate limit of its caller.
fn count_request(web: &Web, caller: &Caller) -> Result<Option<RateStatus>, (Problem, RateStatus)> {
    rate::count_request(&web.engine, &web.buckets, web.config.rate, caller.key())
}

async fn admit_and_handle(
    gate: &RouteGate,
    caller: &Caller,
    note: &AuditNote,
    request: Request,
    next: Next,
) -> Response {
    let web = &gate.web;
    let context = audit_context(gate, &request);
    if let Err(problem) = load::admit_caller(web, &request, caller.key()) {
        return problem.into_response();
    }
    if !caller.may_anywhere(gate.permission) {
        context.store_refusal(web, caller, note).await;
        return missing_permission_problem(caller, gate.permission).into_response();
    }
    let is_change = is_change(gate, &request);
    let turn = match is_change {
        true => None,
        false => match shares::wait_for_turn(web, caller.key()).await {
            Ok(turn) => Some(turn),
            Err(problem) => return problem.into_response(),
        },
    };
    let (mut request, work_permits) =
        match load::with_body_and_permits(web, request, (Some(caller.key()), gate.body_len_max())).await {
            Ok(request_and_permits) => request_and_permits,
            Err(problem) => return problem.into_response(),
        };
    // The permits are shared with the handler, which may continue after the client has disconnected.
    let work_permits = Arc::new(work_permits);
    request.extensions_mut().insert(Arc::clone(&work_permits));
    request.extensions_mut().insert(AdmittedCaller {
        caller: caller.clone(),
        needed_permission: gate.permission,
        note: note.clone(),
    });
    let response = if is_change {
        match context.begin(web, caller).await {
            Err(problem) => problem.into_response(),
            Ok(begun_entry) => {
                let response = next.run(request).await;
                begun_entry.end(web, response.status(), note).await;
                response
            }
        }
    } else {
        let response = next.run(request).await;
        if audit::is_refusal(response.status(), note) {
            context.store_refusal(web, caller, note).await;
        }
        response
    };
    drop((work_permits, turn));
    shares::count_answer(web, caller.key(), is_change, response)
}

fn missing_permission_problem(caller: &Caller, permission: Permission) -> Problem {
    let role = role_for(permission);
    let detail = match caller.auth_method() {
        AuthMethod::Executor => "this token does not allow it: an executor's token opens sessions only".to_owned(),
        AuthMethod::Session => format!("your roles do not allow it anywhere: it needs the role {role}"),
        AuthMethod::Token | AuthMethod::System | AuthMethod::Anonymous => {
            format!("this token's roles do not allow it: it needs the role {role}")
        }
    };
    Problem::new(Code::Forbidden, detail).without_instance()
}

/// The caller who signed in with this cookie; `None` without a valid session.
pub(crate) async fn caller_of_session(
    web: &Web,
    cookie: Option<&str>,
    client: Option<IpAddr>,
) -> Result<Option<Caller>, Problem> {
    let Some(cookie) = cookie else { return Ok(None) };
    let session = web.engine.signed_in(cookie, client).await.map_err(|error| lookup_problem(web, error, client))?;
    Ok(session.map(Caller::from))
}

/// The refusal of a change that was requested from a page of another site.
pub(crate) fn cross_origin_problem(web: &Web) -> Problem {
    let detail = match &web.config.advertised {
        Some(url) => {
            format!("the request does not come from {url}, which the server advertises; open that site")
        }
        None => {
            "the request comes from another site; if a proxy is in between, it must keep Host, or be trusted and send \
                 X-Forwarded-Host"
                .to_owned()
        }
    };
    Problem::new(Code::CrossOrigin, detail)
}

/// The refusal of a request for a page without a valid session.
pub(crate) fn missing_session_problem() -> Problem {
    Problem::new(Code::Unauthenticated, "there is no session; sign in, or create a link with rondel sign-in-link")
}

fn redirect_to_sign_in(uri: &Uri) -> Response {
    let page_url = namespace_into_path(uri.path_and_query().map_or("/", |path| path.as_str()));
    redirect_to(&format!("/sign-in?{}", query_pair("next", &page_url)))
}

/// Extension of a response: the caller, for the log line and the problem page.
#[derive(Clone, Debug)]
pub(crate) struct CalledBy {
    pub(crate) name: String,
    /// The namespace of the request, if it has one.
    pub(crate) namespace: Option<String>,
    /// Whether the caller is an admin of the whole cluster.
    pub(crate) is_admin: bool,
}

async fn authenticate(web: &Web, authorization: Option<String>, client: Option<IpAddr>) -> Result<Caller, Problem> {
    let lookup = web.engine.bearer(authorization.as_deref(), client).await;
    let token = lookup.map_err(|error| lookup_problem(web, error, client))?;
    token.map(Caller::from).ok_or_else(unauthenticated_problem)
}

fn lookup_problem(web: &Web, error: LookupError, client: Option<IpAddr>) -> Problem {
    match error {
        LookupError::Store(error) => error.into(),
        LookupError::Busy => {
            let client = client.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
            web.engine.note_limit_reached(Limit::RequestsPerAddress, &client);
            Problem::overloaded("too many tokens or sign-ins are being checked at the same time; try again", 1)
        }
    }
}

/// Authenticates the sender of this `Authorization` header, counts the request against the sender's rate limit, and checks the permission.
pub(crate) async fn admit(
    web: &Web,
    permission: Permission,
    (authorization, client): (Option<String>, Option<IpAddr>),
) -> Result<Caller, Problem> {
    let caller = authenticate(web, authorization, client).await?;
    count_request(web, &caller).map_err(|(problem, _)| problem)?;
    if caller.may_anywhere(permission) { Ok(caller) } else { Err(missing_permission_problem(&caller, permission)) }
}

pub(crate) fn unauthenticated_problem() -> Problem {
    Problem::new(Code::Unauthenticated, "send a valid token as \"Authorization: Bearer …\"")
        .without_instance()
        .with_header(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"rondel\""))
}

/// The value of the `Authorization` header; `None` if it is missing or not text. A request with several such headers is refused: which of
/// them counts would depend on the proxies in between.
pub(crate) fn authorization(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let mut header_values = headers.get_all(AUTHORIZATION).iter();
    let first_value = header_values.next();
    let further_count = header_values.count();
    if further_count > 0 {
        let detail = format!("Authorization was sent {} times; send it once", further_count + 1);
        return Err(Problem::new(Code::InvalidHeader, detail).without_instance());
    }
    Ok(first_value.and_then(|value| value.to_str().ok()).map(str::to_owned))
}
