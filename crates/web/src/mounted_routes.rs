//! The routes of mounted endpoints.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse as _, Response};
use axum::routing::any;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderValue, StatusCode};

use crate::frame::Routine;
use crate::limits::client_address;
use crate::load;
use crate::mounted::{Mounted, MountedAnswer, MountedCall};

/// The routes of the mounted endpoints. Directly below `/api` only the names of the endpoints have routes, because all other paths there
/// belong to Rondel's own API. Below any other mounted path, every name has a route.
pub(crate) fn routes(mounted: &Arc<dyn Mounted>) -> Router {
    let mut router = Router::new();
    for path in mounted.paths() {
        if path == "/api" {
            for name in mounted.names() {
                let mounted = Arc::clone(mounted);
                let handler =
                    any(
                        move |request: Request| async move { answer_call(&mounted, (*name).to_owned(), request).await },
                    );
                router = router.route(&format!("{path}/{name}"), handler);
            }
        } else {
            let handler = any(call).with_state(Arc::clone(mounted));
            router = router.route(&format!("{path}/{{name}}"), handler);
            let parent_path = path.trim_end_matches("/api");
            let handler = any(not_served).with_state(Arc::clone(mounted));
            router = router.route(&format!("{parent_path}/{{*rest}}"), handler);
        }
    }
    router
}

async fn call(State(mounted): State<Arc<dyn Mounted>>, Path(name): Path<String>, request: Request) -> Response {
    answer_call(&mounted, name, request).await
}

async fn not_served(
    State(mounted): State<Arc<dyn Mounted>>,
    Path(sub_path): Path<String>,
    request: Request,
) -> Response {
    match name_among_slashes(&sub_path) {
        Some(name) => answer_call(&mounted, name.to_owned(), request).await,
        None => json_response(mounted.not_served(&sub_path)),
    }
}

/// The name of the endpoint in a path with empty parts: callers whose base address ends with a slash send `//api/NAME`.
fn name_among_slashes(path: &str) -> Option<&str> {
    let mut parts = path.split('/').filter(|part| !part.is_empty());
    match (parts.next(), parts.next(), parts.next()) {
        (Some("api"), Some(name), None) => Some(name),
        _ => None,
    }
}

async fn answer_call(mounted: &Arc<dyn Mounted>, name: String, request: Request) -> Response {
    let (client, on_authenticated) = (client_address(&request), load::on_authenticated(&request));
    let (parts, body) = request.into_parts();
    let len = parts.headers.get(CONTENT_LENGTH).and_then(|len| len.to_str().ok()?.parse().ok());
    let call = MountedCall { name, method: parts.method, headers: parts.headers, client, len, on_authenticated, body };
    let mut response = json_response(mounted.call(call).await);
    if response.status() == StatusCode::OK {
        response.extensions_mut().insert(Routine);
    }
    response
}

fn json_response((status, body): MountedAnswer) -> Response {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let content_type = [(CONTENT_TYPE, HeaderValue::from_static("application/json"))];
    (status, content_type, body).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slashes_too_many_do_not_hide_the_name() {
        for (rest, name) in [
            ("/api/registry", Some("registry")),
            ("api/registry/", Some("registry")),
            ("//api//callback//", Some("callback")),
            ("/api", None),
            ("/api/registry/more", None),
            ("jobinfo/add", None),
            ("", None),
        ] {
            assert_eq!(name_among_slashes(rest), name, "{rest}");
        }
    }
}
