//! The resources that a server measures on its host.

use std::path::PathBuf;

/// The resources that a server measures on its host.
#[derive(Clone, Debug, Default)]
pub struct WatchedHost {
    /// The folders whose disks the server writes to.
    pub folders: Vec<PathBuf>,
    /// The file with its TLS certificate.
    pub certificate: Option<PathBuf>,
}

impl WatchedHost {
    pub(crate) const fn is_empty(&self) -> bool {
        self.folders.is_empty() && self.certificate.is_none()
    }
}
