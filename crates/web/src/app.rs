//! The whole of it: routes, what is around them, and gRPC beside them.

use std::sync::OnceLock;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::from_fn_with_state;
use rondel_admin::Engine;
use tower::Layer as _;
use tower_http::catch_panic::CatchPanicLayer;

use crate::route_info::RouteInfo;
use crate::routes::Routes;
use crate::state::{Web, WebConfig};
use crate::{api, frame, health, load, pages};

/// The path of the gRPC service; its calls authenticate themselves.
const GATEWAY_PATH: &str = "/rondel.v1.Gateway/{*method}";

/// The router for everything that one port serves: API, health, pages, and gRPC.
pub fn app(engine: Engine, config: WebConfig) -> Router {
    let gateway = engine.gateway();
    let web = Web::new(engine, config, openapi);
    let gateway = from_fn_with_state(web.clone(), load::gateway).layer(gateway);
    routes()
        .into_router(&web)
        .layer(DefaultBodyLimit::max(web.config.body_len_max))
        .layer(from_fn_with_state(web.clone(), load::bound))
        .layer(CatchPanicLayer::custom(frame::panicked))
        .layer(from_fn_with_state(web, frame::frame))
        .route_service(GATEWAY_PATH, gateway)
}

/// Every route with who may use it.
#[must_use]
pub fn route_table() -> Vec<RouteInfo> {
    routes().table()
}

/// The API as an OpenAPI 3.1 document: what `GET /api/v1/openapi.json` answers.
#[must_use]
pub fn openapi() -> &'static str {
    static DOCUMENT: OnceLock<String> = OnceLock::new();
    DOCUMENT.get_or_init(|| routes().document())
}

fn routes() -> Routes {
    health::routes().and(pages::routes()).and(api::routes())
}
