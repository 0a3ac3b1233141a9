//! `rondel audit`: prints the audit log.

use clap::Args;
use rondel_core::Timestamp;
use serde_json::Value;

use crate::client::{ClientArgs, text_of, time_text};
use crate::exit::Failure;
use crate::format::FormatArgs;
use crate::list;
use crate::view::View;

/// The newest entries of the audit log.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  rondel audit --actor ann --from 2026-11-01T00:00:00Z\n  rondel audit --action job.delete --in default"
)]
pub(crate) struct AuditArgs {
    #[command(flatten)]
    client: ClientArgs,
    #[command(flatten)]
    format: FormatArgs,
    /// Only calls of this user or token
    #[arg(long, value_name = "NAME")]
    actor: Option<String>,
    /// Only this action, such as job.change
    #[arg(long, value_name = "ACTION")]
    action: Option<String>,
    /// Only calls about this object
    #[arg(long, value_name = "NAME")]
    object: Option<String>,
    /// Only calls about this namespace; --namespace does not restrict the list
    #[arg(long = "in", value_name = "NAMESPACE")]
    in_namespace: Option<String>,
    /// Only calls with this verdict: allowed, denied or failed
    #[arg(long, value_name = "WORD")]
    verdict: Option<String>,
    /// Only from this RFC 3339 instant on
    #[arg(long, value_name = "INSTANT")]
    from: Option<String>,
    /// Only before this RFC 3339 instant
    #[arg(long, value_name = "INSTANT")]
    to: Option<String>,
    #[command(flatten)]
    bounds: list::BoundArgs,
}

const VIEW: View =
    View { name: "id", headers: &["AT", "ACTOR", "BY", "FROM", "ACTION", "OBJECT", "NAMESPACE", "VERDICT"], row };

impl AuditArgs {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let filters = [
            ("actor", &self.actor),
            ("action", &self.action),
            ("object", &self.object),
            ("in", &self.in_namespace),
            ("verdict", &self.verdict),
            ("from", &self.from),
            ("to", &self.to),
        ];
        let query: Vec<(&str, &str)> =
            filters.iter().filter_map(|(key, value)| Some((*key, value.as_deref()?))).collect();
        VIEW.print_list(&list::read(&self.client.client()?, "audit", &query, &self.bounds).await?, self.format)
    }
}

fn row(entry: &Value, now: Timestamp) -> Vec<String> {
    vec![
        time_text(&entry["at"], now),
        text_of(&entry["actor"]),
        text_of(&entry["means"]),
        text_of(&entry["address"]),
        text_of(&entry["action"]),
        text_of(&entry["object"]),
        text_of(&entry["namespace"]),
        text_of(&entry["verdict"]),
    ]
}
