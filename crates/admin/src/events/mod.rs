//! What happens, as a stream: runs that come to stand elsewhere, jobs that are saved, executors and nodes that come and go.
//!
//! Nothing is written for it, and no writer notifies it: while a client listens, the store is read once a second (`watch`), what is
//! new is found by comparison (`board`), and all listeners of this node share it. While no client does, nothing is read.
//! A listener that may have missed events receives `gap`.

mod board;
mod cursor;
mod watch;

use rondel_core::{AppId, ExecutorId, NamespaceId, Timestamp};
use rondel_store::changes::{RunStand, SavedJob};

pub use cursor::Cursor;
pub use watch::{Events, Listener, Next};

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its number on this node.
    pub number: u64,
    /// When this node saw it.
    pub at: Timestamp,
    /// The name of the app that it belongs to.
    pub app: Option<String>,
    /// What it is.
    pub what: What,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// The state of a run changed.
    Run {
        /// Its new state.
        stand: RunStand,
        /// The name of its job.
        job: String,
    },
    /// A job was saved or deleted.
    Job(SavedJob),
    /// An executor came or went.
    Executor {
        /// Which.
        id: ExecutorId,
        /// Its name.
        name: String,
        /// Its tenant.
        namespace: NamespaceId,
        /// Its app.
        app: AppId,
        /// Whether it is there now.
        is_online: bool,
    },
    /// A node of the cluster has another status.
    Node {
        /// Its name.
        name: String,
        /// As in the list of nodes; `gone` where it is not there any more.
        status: &'static str,
    },
    /// Something may have been missed.
    Gap,
}

impl What {
    /// The word for it.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Run { .. } => "run",
            Self::Job(_) => "job",
            Self::Executor { .. } => "executor",
            Self::Node { .. } => "node",
            Self::Gap => "gap",
        }
    }

    /// Where it belongs; what belongs to the cluster belongs nowhere.
    #[must_use]
    pub const fn place(&self) -> Option<(NamespaceId, AppId)> {
        match self {
            Self::Run { stand, .. } => Some((stand.namespace, stand.app)),
            Self::Job(job) => Some((job.namespace, job.app)),
            Self::Executor { namespace, app, .. } => Some((*namespace, *app)),
            Self::Node { .. } | Self::Gap => None,
        }
    }
}
