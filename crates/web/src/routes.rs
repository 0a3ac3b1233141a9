//! A builder for routes. Each route declares its access, and each route of the API also its description.
//!
//! A route either needs a [`Permission`] or is one of the few [`OpenPath`]s. There is no other way to declare a route.

use std::collections::BTreeSet;

use axum::Router;
use axum::extract::{Request, State};
use axum::handler::Handler;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::{MethodFilter, MethodRouter, on};
use http::{Method, Uri};
use rondel_admin::oidc::CALLBACK_PATH;
use rondel_core::access::Permission;

use crate::access::{RouteGate, admit, authorization, guard, guard_page};
use crate::keyed::{apply_key, refuse_key};
use crate::limits::client_address;
use crate::load::limit_open_route;
use crate::openapi::{self, Doc, Inputs, RouteDoc};
use crate::pages::own_namespace::redirect_to_own_namespace;
use crate::problem::{Code, Problem};
use crate::route_info::{Access, KeyUse, RouteInfo};
use crate::state::Web;
use crate::unread::{ReadInputs, refuse_unread};

/// The paths that need no authentication. A new path needs an edit of this list, and is therefore a deliberate decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenPath {
    /// Whether the process is alive.
    Livez,
    /// Whether the node is ready for work.
    Readyz,
    /// Signing in.
    SignIn,
    /// The redirect to the OIDC provider.
    Oidc,
    /// The return from the OIDC provider.
    OidcBack,
    /// Creating the first account.
    SetUp,
    /// Signing out.
    SignOut,
    /// Language and theme.
    Preferences,
    /// Static files of pages: styles, scripts, images.
    Static,
}

impl OpenPath {
    const fn path(self) -> &'static str {
        match self {
            Self::Livez => "/livez",
            Self::Readyz => "/readyz",
            Self::SignIn => "/sign-in",
            Self::Oidc => "/sign-in/oidc",
            Self::OidcBack => CALLBACK_PATH,
            Self::SetUp => "/set-up",
            Self::SignOut => "/sign-out",
            Self::Preferences => "/preferences",
            Self::Static => "/static/{file}",
        }
    }
}

struct Route {
    info: RouteInfo,
    handler: MethodRouter<Web>,
    /// Its description in the OpenAPI document; `None` for routes outside of the API.
    doc: Option<RouteDoc>,
}

#[derive(Default)]
pub(crate) struct Routes {
    routes: Vec<Route>,
}

macro_rules! methods {
    ($($name:ident = $method:ident),+) => { $(
        pub(crate) fn $name<H, T>(self, path: &'static str, permission: Permission, handler: H, doc: Doc) -> Self
        where
            H: Handler<T, Web>,
            T: Inputs + 'static,
        {
            let info = RouteInfo { method: Method::$method, path, access: Access::Needs(permission) };
            self.push(info, on(MethodFilter::$method, handler), Some(RouteDoc { doc, describe_inputs: T::describe_inputs }))
        }
    )+ };
}

impl Routes {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    methods! { get = GET, post = POST, put = PUT, patch = PATCH, delete = DELETE }

    /// Adds a `GET` route that is not part of the API or its document, for tokens with this permission.
    pub(crate) fn get_outside_api<H, T>(self, path: &'static str, permission: Permission, handler: H) -> Self
    where
        H: Handler<T, Web>,
        T: 'static,
    {
        let info = RouteInfo { method: Method::GET, path, access: Access::Needs(permission) };
        self.push(info, on(MethodFilter::GET, handler), None)
    }

    /// Adds a `GET` route that needs no authentication.
    pub(crate) fn open<H, T>(self, path: OpenPath, handler: H) -> Self
    where
        H: Handler<T, Web>,
        T: 'static,
    {
        let info = RouteInfo { method: Method::GET, path: path.path(), access: Access::Open };
        self.push(info, on(MethodFilter::GET, handler), None)
    }

    /// Adds a `POST` route that needs no authentication. Its handler must check the origin of the request.
    pub(crate) fn open_post<H, T>(self, path: OpenPath, handler: H) -> Self
    where
        H: Handler<T, Web>,
        T: 'static,
    {
        let info = RouteInfo { method: Method::POST, path: path.path(), access: Access::Open };
        self.push(info, on(MethodFilter::POST, handler), None)
    }

    /// Adds a page.
    pub(crate) fn page<H, T>(self, path: &'static str, permission: Permission, handler: H) -> Self
    where
        H: Handler<T, Web>,
        T: 'static,
    {
        let info = RouteInfo { method: Method::GET, path, access: Access::SignedIn(permission) };
        self.push(info, on(MethodFilter::GET, handler), None)
    }

    /// Adds the route to which a page's form is sent.
    pub(crate) fn form<H, T>(self, path: &'static str, permission: Permission, handler: H) -> Self
    where
        H: Handler<T, Web>,
        T: 'static,
    {
        let info = RouteInfo { method: Method::POST, path, access: Access::SignedIn(permission) };
        self.push(info, on(MethodFilter::POST, handler), None)
    }

    fn push(mut self, info: RouteInfo, handler: MethodRouter<Web>, doc: Option<RouteDoc>) -> Self {
        self.routes.push(Route { info, handler, doc });
        self
    }

    /// The OpenAPI document of these routes.
    pub(crate) fn document(&self) -> String {
        openapi::document(self.routes.iter().filter_map(|route| Some((&route.info, route.doc.as_ref()?))))
    }

    /// Adds the routes of `others`.
    pub(crate) fn and(mut self, others: Self) -> Self {
        self.routes.extend(others.routes);
        self
    }

    pub(crate) fn infos(&self) -> Vec<RouteInfo> {
        self.routes.iter().map(|route| route.info.clone()).collect()
    }

    /// The router. For an unknown path below `/api`, only a caller who may view something gets a 404; other callers get a 401 or 403.
    pub(crate) fn into_router(self, web: &Web) -> Router {
        let mut router = Router::new();
        for (path, methods) in self.method_routers(web) {
            router = router.route(path, methods);
        }
        router.fallback(no_such_route).with_state(web.clone())
    }

    /// One method router per path, behind its gates. Other methods get a 405.
    fn method_routers(self, web: &Web) -> Vec<(&'static str, MethodRouter<Web>)> {
        let needs_token = |route: &&Route| matches!(route.info.access, Access::Needs(_));
        let token_paths: BTreeSet<&str> = self.routes.iter().filter(needs_token).map(|route| route.info.path).collect();
        let mut paths: Vec<(&'static str, MethodRouter<Web>)> = Vec::new();
        for Route { info, handler, doc } in self.routes {
            let keyed_doc = doc.filter(|_| info.key_use() != KeyUse::Ignored);
            let handler = match keyed_doc.map(|keyed_doc| ReadInputs::new(&(keyed_doc.describe_inputs)())) {
                Some(read_inputs) => handler.layer(from_fn_with_state(read_inputs, refuse_unread)),
                None => handler,
            };
            let handler = match info.key_use() {
                KeyUse::Stored => handler.layer(from_fn_with_state(web.clone(), apply_key)),
                KeyUse::Refused => handler.layer(from_fn(refuse_key)),
                KeyUse::Ignored => handler,
            };
            let handler = match info.access {
                Access::Open => handler.layer(from_fn_with_state(web.clone(), limit_open_route)),
                Access::Needs(permission) => handler
                    .layer(from_fn_with_state(RouteGate { web: web.clone(), permission, path: info.path }, guard)),
                Access::SignedIn(permission) => handler
                    .layer(from_fn_with_state(web.clone(), redirect_to_own_namespace))
                    .layer(from_fn_with_state(RouteGate { web: web.clone(), permission, path: info.path }, guard_page)),
            };
            match paths.iter_mut().find(|(path, _)| *path == info.path) {
                Some((_, methods)) => *methods = std::mem::take(methods).merge(handler),
                None => paths.push((info.path, handler)),
            }
        }
        for (path, methods) in &mut paths {
            let path_methods = std::mem::take(methods);
            *methods = if token_paths.contains(*path) {
                let gate = RouteGate { web: web.clone(), permission: Permission::View, path };
                path_methods.fallback(wrong_method_problem.layer(from_fn_with_state(gate, guard)))
            } else {
                path_methods.fallback(wrong_method_problem)
            };
        }
        paths
    }
}

fn is_api(uri: &Uri) -> bool {
    uri.path() == "/api" || uri.path().starts_with("/api/")
}

async fn no_such_route(State(web): State<Web>, request: Request) -> Problem {
    if !is_api(request.uri()) {
        return Problem::new(Code::NotFound, "the console begins at /, the API at /api/v1");
    }
    let authorization = match authorization(request.headers()) {
        Ok(authorization) => authorization,
        Err(problem) => return problem,
    };
    match admit(&web, Permission::View, (authorization, client_address(&request))).await {
        Ok(_) => Problem::new(Code::NotFound, "no endpoint has this path; docs/API.md lists them"),
        Err(problem) => problem,
    }
}

async fn wrong_method_problem(method: Method) -> Problem {
    Problem::new(Code::MethodNotAllowed, format!("{method} is not a method of this path; the Allow header lists them"))
}
