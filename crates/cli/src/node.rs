//! `rondel node`: the servers of the cluster.

use clap::{Args, Subcommand};
use rondel_core::Timestamp;
use serde_json::{Value, json};

use crate::client::{ClientArgs, text_of, time_text};
use crate::exit::Failure;
use crate::format::FormatArgs;
use crate::view::View;

#[derive(Debug, Args)]
pub(crate) struct NodeArgs {
    #[command(flatten)]
    client: ClientArgs,
    #[command(flatten)]
    format: FormatArgs,
    #[command(subcommand)]
    command: NodeCommand,
}

#[derive(Debug, Subcommand)]
enum NodeCommand {
    /// List the servers
    List,
    /// Move a server's jobs to the other servers, and give it no new jobs; runs on executors continue
    Drain(NodeNameArgs),
    /// Let a server take jobs again
    Activate(NodeNameArgs),
    /// Drain a server, and send its executors to the other servers; its process keeps running
    Stop(NodeNameArgs),
}

#[derive(Debug, Args)]
struct NodeNameArgs {
    /// The server's name
    #[arg(value_name = "NAME")]
    name: String,
}

const VIEW: View = View {
    name: "name",
    headers: &[
        "NAME",
        "STATUS",
        "EPOCH",
        "VERSION",
        "STARTED",
        "LEASE UNTIL",
        "SKEW",
        "LOOPS",
        "CLAIM STRATEGY",
        "URL",
    ],
    row,
};

impl NodeArgs {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let client = self.client.client()?;
        let (NodeNameArgs { name }, state) = match self.command {
            NodeCommand::List => return VIEW.print_list(&client.get(&["nodes"], &[]).await?, self.format),
            NodeCommand::Drain(node) => (node, "draining"),
            NodeCommand::Activate(node) => (node, "active"),
            NodeCommand::Stop(node) => (node, "stopped"),
        };
        let body = json!({ "state": state }).to_string();
        VIEW.print_row(&client.put(&["nodes", &name, "state"], &body).await?, self.format)
    }
}

/// A signed length in milliseconds, such as `+12ms`.
fn signed_ms(value: &Value) -> String {
    value.as_i64().map_or_else(String::new, |ms| format!("{ms:+}ms"))
}

/// The failing loops of a server: "scan, heal fail"; "ok" if there are none.
fn loops_text(loops: &Value) -> String {
    let failing_loops = loops.as_array().into_iter().flatten().filter(|loop_status| loop_status["status"] == "failing");
    let names: Vec<String> = failing_loops.map(|loop_status| text_of(&loop_status["name"])).collect();
    match names.as_slice() {
        [] => "ok".to_owned(),
        [name] => format!("{name} fails"),
        names => format!("{} fail", names.join(", ")),
    }
}

/// The status of a server. A server that stopped in order is dead too, but needs no attention.
pub(crate) fn status_text(node: &Value) -> String {
    let status = text_of(&node["status"]);
    if node["has_left"] == true { format!("{status} (stopped in order)") } else { status }
}

fn row(node: &Value, now: Timestamp) -> Vec<String> {
    vec![
        if node["is_this"] == true { format!("{} (answers)", text_of(&node["name"])) } else { text_of(&node["name"]) },
        status_text(node),
        text_of(&node["epoch"]),
        text_of(&node["server_version"]),
        time_text(&node["started_at"], now),
        time_text(&node["lease_until"], now),
        signed_ms(&node["skew_ms"]),
        loops_text(&node["loops"]),
        text_of(&node["claim_strategy"]),
        text_of(&node["advertise_url"]),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_stopped_in_order_differs_from_one_that_died() {
        for (node, expected) in [
            (json!({"status": "dead", "has_left": true}), "dead (stopped in order)"),
            (json!({"status": "dead", "has_left": false}), "dead"),
            (json!({"status": "active"}), "active"),
        ] {
            assert_eq!(status_text(&node), expected);
        }
    }
}
