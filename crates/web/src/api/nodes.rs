//! Nodes: lists the servers of the cluster, and sets their switches.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::response::Response;
use http::StatusCode;
use rondel_core::access::Permission::{Cluster, View};
use rondel_core::homes::{ClaimStrategy, Switch};
use rondel_core::{NodeId, Timestamp, name};
use rondel_store::cluster::{LoopReport, Node};
use rondel_store::host::DiskReport;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::page::Page;
use crate::answer::json_response;
use crate::body::JsonBody;
use crate::call::{Call, quoted_input};
use crate::openapi::Doc;
use crate::path::{self, Named};
use crate::problem::{Code, Problem};
use crate::routes::Routes;

/// A server of the cluster.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Node")]
pub(super) struct NodeJson {
    id: NodeId,
    name: String,
    /// `dead`, `leaving`, or its switch.
    #[schemars(extend("enum" = ["dead", "leaving", "active", "draining", "stopped"]))]
    status: &'static str,
    /// Its switch, which stays set while the server is dead.
    #[schemars(with = "Switch")]
    state: &'static str,
    /// Whether it is the server that answers this request.
    #[serde(rename = "is_this")]
    is_answering: bool,
    /// Whether it is dead because of an orderly shutdown.
    has_left: bool,
    epoch: i64,
    lease_until: Timestamp,
    advertise_url: Option<String>,
    server_version: String,
    started_at: Timestamp,
    /// Counters of the answering server since its start.
    #[serde(skip_serializing_if = "Option::is_none")]
    counters: Option<BTreeMap<&'static str, u64>>,
    #[schemars(with = "ClaimStrategy")]
    claim_strategy: &'static str,
    weight: u32,
    /// How many jobs it is the home of, by its last count; only if the claim strategy counts jobs.
    job_count: u64,
    /// The recent fires of those jobs; the weight of a fire halves every ten minutes. Only if the claim strategy counts jobs.
    recent_fires: f64,
    /// How far its host's wall clock is ahead of the database's.
    skew_ms: i64,
    /// How many claims of jobs it has tried since its process started.
    claims_tried: u64,
    claims_lost: u64,
    refused_count: u64,
    /// The 99th percentile of the lateness with which scheduled fires of the last five minutes were released, in milliseconds, by the
    /// buckets of `rondel_fire_lateness_seconds`; null without fires.
    lateness_p99_ms: Option<u64>,
    /// The disks that it writes to: that of its data folder, and that of its SQLite file if that is in another folder.
    disks: Vec<DiskJson>,
    /// When the first of its TLS certificates expires; null without TLS.
    certificate_ends_at: Option<Timestamp>,
    /// The results of its loops' last ticks, as its last beat reported them.
    loops: Vec<LoopJson>,
}

/// The free space of a disk.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Disk")]
struct DiskJson {
    /// A folder on it that the server writes to.
    folder: String,
    free_bytes: u64,
    size_bytes: u64,
}

impl From<DiskReport> for DiskJson {
    fn from(disk: DiskReport) -> Self {
        Self { folder: disk.folder, free_bytes: disk.free_bytes, size_bytes: disk.size_bytes }
    }
}

/// One of a server's loops. The counts are since its process started.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Loop")]
struct LoopJson {
    /// `scan`, `tick`, `adopt`, `beat`, `moves`, `heal`, `host`, `pumps`, `alert`, `alert_rules`, `alert_send`, `weekly_reports`, `watchdog`, `declare`, or a duty of housekeeping: `roll_up`, `forget_stats`,
    /// `purge`, `forget_traces`, `remove_logs`, `forget_calls`, `forget_messages`, `forget_tokens`, `forget_executors` or `forget_nodes`.
    name: String,
    /// `failing` while its ticks fail.
    #[schemars(extend("enum" = ["ok", "failing"]))]
    status: &'static str,
    /// When its last tick ended.
    ticked_at: Option<Timestamp>,
    /// How long its last tick took, in milliseconds.
    took_ms: u64,
    /// When a tick last found work.
    did_at: Option<Timestamp>,
    tick_count: u64,
    /// How many objects its ticks acted on: jobs claimed, runs taken over, rows removed, messages sent.
    done_count: u64,
    failed_count: u64,
    /// Since when every tick has failed.
    failing_since: Option<Timestamp>,
    /// The error of the last tick that failed. It is kept after later ticks succeed.
    last_error: Option<String>,
}

impl From<LoopReport> for LoopJson {
    fn from(report: LoopReport) -> Self {
        Self {
            name: report.name,
            status: if report.failing_since.is_some() { "failing" } else { "ok" },
            ticked_at: report.ticked_at,
            took_ms: report.took_ms,
            did_at: report.did_at,
            tick_count: report.tick_count,
            done_count: report.done_count,
            failed_count: report.failed_count,
            failing_since: report.failing_since,
            last_error: report.error,
        }
    }
}

/// The body of a request that sets a switch.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewState {
    /// The new state of the switch.
    pub(super) state: Switch,
}

pub(super) fn routes() -> Routes {
    Routes::new()
        .get(
            "/api/v1/nodes",
            View,
            list,
            Doc::new(
                "List servers",
                "All servers of the cluster. Only the server that answers has `counters`; each is 0 in a quiet cluster.",
            )
            .json::<Page<NodeJson>>(200, "The servers."),
        )
        .put(
            "/api/v1/nodes/{name}/state",
            Cluster,
            set_state,
            Doc::new(
                "Set the state of a server",
                "`draining`: the server hands its jobs over to other servers; runs on executors continue. `stopped`: it also \
                 sends its executors to other servers. Every server applies it within a second.",
            )
            .json::<NodeJson>(200, "The server.")
            .example(json!({"state": "active"})),
        )
}

async fn list(call: Call) -> Result<Response, Problem> {
    let nodes = call.engine().store().nodes().await?;
    let items = nodes.into_iter().map(|node| node_json(&call, node)).collect();
    json_response(StatusCode::OK, &Page { items, next_cursor: None })
}

/// Sets the switch of a node; every node reads it at its next beat.
async fn set_state(
    call: Call,
    Named(name, ..): Named<path::Node>,
    body: JsonBody<NewState>,
) -> Result<Response, Problem> {
    let switch = body.read()?.state;
    let not_found = || Problem::new(Code::NodeNotFound, format!("no node is called {}", quoted_input(&name)));
    // An invalid name is not looked up: unchecked text from a caller is never sent to the database.
    name::check(&name).map_err(|_| not_found())?;
    let store = call.engine().store();
    let switch_before = store.nodes().await?.into_iter().find(|node| node.name == name).map(|node| node.switch);
    call.note.before(&serde_json::json!({"state": switch_before.map(Switch::as_str)}));
    call.note.changed_to(&serde_json::json!({"state": switch.as_str()}));
    let is_known = store.set_node_switch(&name, switch).await?;
    let node = store.nodes().await?.into_iter().find(|node| is_known && node.name == name);
    let node = node.ok_or_else(not_found)?;
    call.engine().poke_beat();
    json_response(StatusCode::OK, &node_json(&call, node))
}

fn node_json(call: &Call, node: Node) -> NodeJson {
    let status = node.status(call.engine().now());
    let is_answering = node.name == call.engine().node_name();
    let report = node.report;
    // The loops of the answering node come from memory: the node's row is out of date if its beat fails, for example because the database
    // is unreachable.
    let loops = if is_answering { call.engine().loops() } else { report.loops };
    let host = loops.iter().find_map(|report| report.host.clone()).unwrap_or_default();
    NodeJson {
        id: node.id,
        status,
        state: node.switch.as_str(),
        is_answering,
        has_left: report.is_leaving && status == "dead",
        counters: is_answering.then(|| call.engine().counters().all().collect()),
        name: node.name,
        epoch: node.epoch,
        lease_until: node.lease_until,
        advertise_url: node.advertise_url,
        server_version: node.server_version,
        started_at: node.started_at,
        claim_strategy: report.claim_strategy.as_str(),
        weight: report.weight,
        job_count: report.job_count,
        recent_fires: Duration::from_millis(report.recent_fires).as_secs_f64(),
        skew_ms: report.skew_ms,
        claims_tried: report.claims_tried,
        claims_lost: report.claims_lost,
        refused_count: report.refused_count,
        lateness_p99_ms: report.lateness_p99_ms,
        disks: host.disks.into_iter().map(DiskJson::from).collect(),
        certificate_ends_at: host.certificate_ends_at,
        loops: loops.into_iter().map(LoopJson::from).collect(),
    }
}
