//! Measurements of a node's host: free disk space, and the end of TLS certificates.

use rondel_core::Timestamp;
use serde::{Deserialize, Serialize};

/// Measurements of a node's host. They are part of the report of the loop that takes them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostReport {
    /// The disks with the server's data folder and its SQLite file.
    pub disks: Vec<DiskReport>,
    /// When the first of its TLS certificates expires; `None` without TLS.
    pub certificate_ends_at: Option<Timestamp>,
}

/// Free and total space of one disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DiskReport {
    /// A folder on this disk that the server writes to.
    pub folder: String,
    /// Bytes that the server may still write.
    pub free_bytes: u64,
    /// Total size in bytes.
    pub size_bytes: u64,
}
