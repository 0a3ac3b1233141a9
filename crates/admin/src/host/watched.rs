use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use rondel_core::Timestamp;

use super::certificate::earliest_expiry;

/// The resources that a server measures on its host.
#[derive(Clone, Debug, Default)]
pub struct WatchedHost {
    /// The folders to whose disks the server writes.
    pub folders: Vec<PathBuf>,
    /// The TLS certificate that the server presents; `None` if it serves without TLS.
    pub certificate: Option<ServedCertificate>,
}

impl WatchedHost {
    pub(crate) const fn is_empty(&self) -> bool {
        self.folders.is_empty() && self.certificate.is_none()
    }
}

/// The expiry of the TLS certificate that a port serves. It is not read from the certificate's file: while that file is unusable, the
/// port still serves an earlier certificate.
#[derive(Clone, Debug)]
pub struct ServedCertificate(Arc<Mutex<Result<Timestamp, String>>>);

impl ServedCertificate {
    /// The expiry of a chain of certificates in DER.
    #[must_use]
    pub fn new<'c>(chain: impl IntoIterator<Item = &'c [u8]>) -> Self {
        Self(Arc::new(Mutex::new(earliest_expiry(chain))))
    }

    /// Records that the port serves another chain from now on.
    pub fn replace<'c>(&self, chain: impl IntoIterator<Item = &'c [u8]>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = earliest_expiry(chain);
    }

    /// The earliest expiry in the chain, or why it cannot be read.
    pub(super) fn ends_at(&self) -> Result<Timestamp, String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
