//! The router of one port: its routes, the layers around them, and the gRPC service.

use std::sync::OnceLock;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::from_fn_with_state;
use http::{Extensions, HeaderMap, StatusCode, Version};
use rondel_admin::Engine;
use tower::Layer as _;
use tower::util::MapRequestLayer;
use tower_http::CompressionLevel;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::compression::CompressionLayer;
use tower_http::compression::predicate::{DefaultPredicate, NotForContentType, Predicate};

use crate::pages::own_namespace;
use crate::route_info::RouteInfo;
use crate::routes::Routes;
use crate::state::{Web, WebConfig};
use crate::{api, frame, health, load, mounted_routes, pages, problem};

/// The compression level for brotli (of eleven) and gzip (of nine). A page of 100 KB takes about a millisecond. Brotli's level 5 makes
/// pages an eighth smaller than level 4 in the same time; level 7 takes three times as long.
const COMPRESSION_LEVEL: i32 = 5;
/// The path of the gRPC service, which authenticates its calls itself.
const GATEWAY_PATH: &str = "/rondel.v1.Gateway/{*method}";

/// The router for everything that one port serves: API, health, pages, and gRPC.
pub fn app(engine: Engine, config: WebConfig) -> Router {
    let gateway = engine.gateway();
    let web = Web::new(engine, config, openapi);
    let gateway = from_fn_with_state(web.clone(), load::limit_gateway).layer(gateway);
    let web_routes = routes().into_router(&web);
    let web_routes = match &web.config.mounted {
        Some(mounted) => web_routes.merge(mounted_routes::routes(mounted)),
        None => web_routes,
    };
    let app_router = web_routes
        .layer(DefaultBodyLimit::max(web.config.body_len_max))
        .layer(from_fn_with_state(web.clone(), load::limit_requests))
        .layer(CatchPanicLayer::custom(problem::panic_response))
        .layer(from_fn_with_state(web, frame::outermost_layer))
        .layer(compression())
        .route_service(GATEWAY_PATH, gateway);
    Router::new().fallback_service(MapRequestLayer::new(own_namespace::namespace_into_query).layer(app_router))
}

/// Compresses answers, except small ones, images and streams: each piece of a stream must arrive when it is sent.
fn compression() -> CompressionLayer<impl Predicate> {
    let is_short_lived = |_: StatusCode, _: Version, _: &HeaderMap, extensions: &Extensions| {
        extensions.get::<load::LongLived>().is_none()
    };
    let is_not_json_lines = NotForContentType::const_new("application/x-ndjson");
    let level = CompressionLevel::Precise(COMPRESSION_LEVEL);
    CompressionLayer::new()
        .quality(level)
        .compress_when(DefaultPredicate::new().and(is_not_json_lines).and(is_short_lived))
}

/// Every route with its access rule.
#[must_use]
pub fn route_table() -> Vec<RouteInfo> {
    routes().infos()
}

/// The API as an OpenAPI 3.1 document, as `GET /api/v1/openapi.json` returns it.
#[must_use]
pub fn openapi() -> &'static str {
    static DOCUMENT: OnceLock<String> = OnceLock::new();
    DOCUMENT.get_or_init(|| routes().document())
}

fn routes() -> Routes {
    health::routes().and(pages::routes()).and(api::routes())
}
