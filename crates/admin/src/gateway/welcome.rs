//! The welcome of an executor's stream. It is sent again when the list of living servers changes: otherwise an executor would connect to a
//! server that joins the cluster only after its next reconnect, and lose all servers with the one that it knows.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rondel_core::Timestamp;
use rondel_core::error_chain::chain;
use rondel_failpoint::mutant::{self, Mutant};
use rondel_proto::v1::server_message;
use rondel_proto::{PROTOCOL, v1};
use rondel_store::cluster::Node;
use tonic::Status;

use crate::cluster::fences;
use crate::dispatch::{SessionHandle, fence};
use crate::node::Shared;

/// The nodes with their leases, read after the session was stored. The list of the last beat would lack leases that another node has fenced since.
pub(super) async fn read_nodes(shared: &Shared) -> Result<Arc<Vec<Node>>, Status> {
    if mutant::on(Mutant::StaleWelcome) {
        return Ok(shared.membership.nodes());
    }
    let nodes = shared.store.nodes().await.map_err(|error| {
        tracing::warn!(error = %chain(&error), "cannot read the ended leases for an executor that connects");
        Status::unavailable("the server cannot reach its database now")
    })?;
    Ok(Arc::new(nodes))
}

pub(super) fn welcome(shared: &Shared, nodes: &[Node]) -> v1::Welcome {
    let token = shared.membership.token();
    let now = shared.clock.now();
    let millis = |length: Duration| u32::try_from(length.as_millis()).unwrap_or(u32::MAX);
    v1::Welcome {
        node_id: token.node.get(),
        node_epoch: token.epoch,
        node_name: shared.config.node_name.clone(),
        server_version: shared.config.server_version.clone(),
        now_at_ms: now.as_millis(),
        servers: living_urls(nodes, now).map(str::to_owned).collect(),
        heartbeat_ms: millis(shared.config.heartbeat),
        silence_ms: millis(shared.config.silence),
        fences: fences(nodes, now).into_iter().map(fence).collect(),
        protocol: PROTOCOL,
    }
}

/// The URLs of the living nodes, without the nodes that have none.
fn living_urls(nodes: &[Node], now: Timestamp) -> impl Iterator<Item = &str> {
    nodes.iter().filter(move |node| node.is_living(now)).filter_map(|node| node.advertise_url.as_deref())
}

/// The URLs in the last welcome on a stream.
#[derive(Debug)]
pub(super) struct NamedServers(Mutex<Vec<String>>);

impl NamedServers {
    pub(super) fn new(urls: Vec<String>) -> Self {
        Self(Mutex::new(urls))
    }

    /// Sends another welcome if other servers live now, by the list of the last beat. An empty list is not sent: it only means that this node
    /// has not renewed its lease in time.
    pub(super) fn update(&self, shared: &Shared, session: &SessionHandle) {
        // Without fresh beats, the leases in the list end one after the other, although their servers may live.
        if shared.membership.remaining_lease() < shared.config.lease / 2 {
            return;
        }
        let (nodes, now) = (shared.membership.nodes(), shared.clock.now());
        let mut named_urls = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_unchanged = living_urls(&nodes, now).eq(named_urls.iter().map(String::as_str));
        if is_unchanged || living_urls(&nodes, now).next().is_none() {
            return;
        }
        let new_welcome = welcome(shared, &nodes);
        let urls = new_welcome.servers.clone();
        // If there is no room on the stream, the next heartbeat tries again.
        if session.send(server_message::Body::Welcome(new_welcome)) {
            *named_urls = urls;
        }
    }
}
