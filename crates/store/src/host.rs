//! What a node's server finds on its host.

use rondel_core::Timestamp;
use serde::{Deserialize, Serialize};

/// What a node's server finds on its host. It travels with the report of the loop that measures it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostReport {
    /// The disks with its data folder and its SQLite file.
    pub disks: Vec<DiskReport>,
    /// When the first of its TLS certificates ends; none without TLS.
    pub certificate_ends_at: Option<Timestamp>,
}

/// How much of a disk is free.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DiskReport {
    /// A folder on it that the server writes to.
    pub folder: String,
    /// Bytes that the server may still write.
    pub free_bytes: u64,
    /// All of its bytes.
    pub size_bytes: u64,
}
