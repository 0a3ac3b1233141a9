//! A stream of events: changes of runs, saved and deleted jobs, executors that connect or disconnect, and changes of nodes' statuses.
//!
//! No writer stores or sends events. While a client listens, the store is read once a second (`watch`), changes are found by comparison
//! (`board`), and all listeners of this node share them. While no client listens, nothing is read. A listener that may have missed events
//! receives `gap`.

mod board;
mod cursor;
mod watch;

use rondel_core::{AppId, ExecutorId, NamespaceId, Timestamp};
use rondel_store::changes::{RunSnapshot, SavedJob};

pub use cursor::Cursor;
pub use watch::{Events, ListenResult, Listener};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The event's number on this node.
    pub number: u64,
    /// When this node saw the change.
    pub at: Timestamp,
    /// The name of the app that the event concerns; `None` if it concerns no app, or if the name is not found.
    pub app: Option<String>,
    /// The kind of event, with its data.
    pub kind: EventKind,
}

/// The kinds of events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// The state of a run changed.
    Run {
        /// The run's new state.
        snapshot: RunSnapshot,
        /// The name of the run's job; empty if it is not found.
        job: String,
    },
    /// A job was saved or deleted.
    Job(SavedJob),
    /// An executor connected or disconnected.
    Executor {
        id: ExecutorId,
        name: String,
        namespace: NamespaceId,
        app: AppId,
        /// Whether the executor is connected now.
        is_online: bool,
    },
    /// The status of a node changed.
    Node {
        name: String,
        /// The node's status, as in the list of nodes; `gone` if the node was removed.
        status: &'static str,
    },
    /// Events may have been missed.
    Gap,
}

impl EventKind {
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Run { .. } => "run",
            Self::Job(_) => "job",
            Self::Executor { .. } => "executor",
            Self::Node { .. } => "node",
            Self::Gap => "gap",
        }
    }

    /// The namespace and app of the event; `None` for events of the cluster.
    #[must_use]
    pub const fn place(&self) -> Option<(NamespaceId, AppId)> {
        match self {
            Self::Run { snapshot, .. } => Some((snapshot.namespace, snapshot.app)),
            Self::Job(job) => Some((job.namespace, job.app)),
            Self::Executor { namespace, app, .. } => Some((*namespace, *app)),
            Self::Node { .. } | Self::Gap => None,
        }
    }
}
