//! What a server looks at on its host.

use std::path::PathBuf;

/// What a server looks at on its host.
#[derive(Clone, Debug, Default)]
pub struct WatchedHost {
    /// Folders that it writes to.
    pub folders: Vec<PathBuf>,
    /// The file with its TLS certificate.
    pub certificate: Option<PathBuf>,
}

impl WatchedHost {
    pub(crate) const fn is_empty(&self) -> bool {
        self.folders.is_empty() && self.certificate.is_none()
    }
}
