//! Nodes: the servers of the cluster.

use std::collections::BTreeMap;

use axum::response::Response;
use http::StatusCode;
use rondel_core::{NodeId, Timestamp};
use serde::Serialize;

use super::Page;
use crate::call::Call;
use crate::frame::json;
use crate::problem::Problem;

#[derive(Serialize)]
struct NodeJson {
    id: NodeId,
    name: String,
    status: &'static str,
    /// Whether it is the one that answers.
    is_this: bool,
    epoch: i64,
    lease_until: Timestamp,
    advertise_url: Option<String>,
    server_version: String,
    started_at: Timestamp,
    /// What the one that answers has counted since its start.
    #[serde(skip_serializing_if = "Option::is_none")]
    counters: Option<BTreeMap<&'static str, u64>>,
}

pub(super) async fn list(call: Call) -> Result<Response, Problem> {
    let now = call.engine().now();
    let this = call.engine().node_name();
    let nodes = call.engine().store().nodes().await?;
    let show = |node: rondel_store::cluster::Node| NodeJson {
        id: node.id,
        status: if node.is_living(now) { "active" } else { "dead" },
        is_this: node.name == this,
        counters: (node.name == this).then(|| call.engine().counters().all().collect()),
        name: node.name,
        epoch: node.epoch,
        lease_until: node.lease_until,
        advertise_url: node.advertise_url,
        server_version: node.server_version,
        started_at: node.started_at,
    };
    let items = nodes.into_iter().map(show).collect();
    json(StatusCode::OK, &Page { items, next_cursor: None })
}
