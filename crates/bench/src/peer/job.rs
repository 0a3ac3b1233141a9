//! Changes of jobs at a peer.

/// A change of a job that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JobChange {
    Start,
    Stop,
    Remove,
}
