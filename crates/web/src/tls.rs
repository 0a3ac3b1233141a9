//! TLS on the port. Certificates are read from files, and again when the files change.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};
use std::{fs, io};

use rondel_admin::ServedCertificate;
use rondel_core::error_chain::chain;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

/// How often the files are checked for changes.
const CHECK_PERIOD: Duration = Duration::from_secs(5);

/// The paths of the certificates.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The server's certificate with its chain, in PEM.
    pub cert: PathBuf,
    /// Its key, in PEM.
    pub key: PathBuf,
    /// The CA certificates that must have signed the certificates of clients. Without this file, clients are not asked for a certificate.
    /// With it, connections without a certificate are still accepted, for browsers and the API; the gateway decides which clients need
    /// one.
    pub client_ca: Option<PathBuf>,
}

/// Why certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file could not be read.
    #[error("cannot read {path}")]
    Read {
        path: PathBuf,
        #[source]
        source: pem::Error,
    },
    /// A file contains no certificate.
    #[error("{path} contains no certificate in PEM")]
    Empty { path: PathBuf },
    /// A file contains no private key, or an encrypted one.
    #[error("{path} contains no private key in PEM; an encrypted one cannot be used")]
    NoKey { path: PathBuf },
    /// The key is that of another certificate.
    #[error("the key in {key} does not belong to the certificate in {cert}")]
    KeyMismatch {
        /// The file with the certificate.
        cert: PathBuf,
        /// The file with the key.
        key: PathBuf,
    },
    /// The certificates cannot be used.
    #[error("the certificate in {path} cannot be used")]
    Unusable {
        path: PathBuf,
        #[source]
        source: rustls::Error,
    },
    /// The file has nothing with which the certificates of clients could be checked.
    #[error("{path} contains no certificates to verify clients with: {message}")]
    ClientCa { path: PathBuf, message: String },
}

/// The certificates in use.
#[derive(Debug)]
pub struct Tls {
    files: TlsFiles,
    config: RwLock<Arc<ServerConfig>>,
    served: ServedCertificate,
    /// The modification times and lengths of the files, taken before the files were read at the start.
    loaded_stamps: FileStamps,
}

/// The modification time and the length of each file.
type FileStamps = Vec<Option<(SystemTime, u64)>>;

/// The state of checking the files for changes.
#[derive(Debug)]
struct FileWatcher {
    /// The stamps of the files from which the certificates in use were read.
    used_stamps: FileStamps,
    /// Why newer files cannot be used, as last logged.
    logged_error: Option<String>,
}

/// The result of a check of the files.
#[derive(Debug, PartialEq, Eq)]
enum CheckResult<T> {
    /// New certificates.
    Changed(T),
    /// The files cannot be used, for this reason that was not logged yet.
    Failed(String),
    /// The files are those in use, or cannot be used for the reason that was last logged.
    Unchanged,
}

impl FileWatcher {
    const fn new(used_stamps: FileStamps) -> Self {
        Self { used_stamps, logged_error: None }
    }

    /// Reads the files, unless they are the ones in use. Files that cannot be used are read again at each check, since the cause may
    /// disappear without a change of the files.
    fn check<T>(&mut self, stamps: FileStamps, read_files: impl FnOnce() -> Result<T, TlsError>) -> CheckResult<T> {
        if stamps == self.used_stamps {
            self.logged_error = None;
            return CheckResult::Unchanged;
        }
        match read_files() {
            Ok(new) => {
                *self = Self::new(stamps);
                CheckResult::Changed(new)
            }
            Err(error) => {
                let error = chain(&error);
                let is_new_error = self.logged_error.replace(error.clone()).is_none_or(|logged| logged != error);
                if is_new_error { CheckResult::Failed(error) } else { CheckResult::Unchanged }
            }
        }
    }
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// If a file cannot be used, the file and the reason.
    pub fn load(files: TlsFiles) -> Result<Self, TlsError> {
        // Taken before the files are read: if they change during the read, the first check detects it.
        let loaded_stamps = file_stamps(&files);
        let (config, certs) = read_files(&files)?;
        let served_certificate = ServedCertificate::new(certs.iter().map(|certificate| &**certificate));
        Ok(Self { files, config: RwLock::new(config), served: served_certificate, loaded_stamps })
    }

    /// The certificate in use. The returned handle follows each change.
    #[must_use]
    pub fn served(&self) -> ServedCertificate {
        self.served.clone()
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.config.read().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Checks the files for changes until `stop`. New certificates apply to new connections. If they cannot be used, the old ones remain
    /// in use, the files are read again at each check, and each new reason is logged once.
    pub async fn watch(self: Arc<Self>, stop: CancellationToken) {
        let mut watcher = FileWatcher::new(self.loaded_stamps.clone());
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(CHECK_PERIOD) => {}
            }
            match watcher.check(file_stamps(&self.files), || read_files(&self.files)) {
                CheckResult::Changed((config, certs)) => {
                    *self.config.write().unwrap_or_else(PoisonError::into_inner) = config;
                    self.served.replace(certs.iter().map(|certificate| &**certificate));
                    tracing::info!(path = %self.files.cert.display(), "new certificates are in use");
                }
                CheckResult::Failed(error) => {
                    tracing::error!(error, "cannot use the new certificates; the old ones remain in use")
                }
                CheckResult::Unchanged => {}
            }
        }
    }
}

fn file_stamps(files: &TlsFiles) -> FileStamps {
    let stamp = |path: &Path| -> io::Result<(SystemTime, u64)> {
        let metadata = fs::metadata(path)?;
        Ok((metadata.modified()?, metadata.len()))
    };
    [Some(&files.cert), Some(&files.key), files.client_ca.as_ref()]
        .into_iter()
        .map(|path| path.and_then(|path| stamp(path).ok()))
        .collect()
}

/// Reads the files. Returns the configuration and its chain of certificates.
fn read_files(files: &TlsFiles) -> Result<(Arc<ServerConfig>, Vec<CertificateDer<'static>>), TlsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let certs = read_certificates(&files.cert)?;
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|source| match source {
        pem::Error::NoItemsFound => TlsError::NoKey { path: files.key.clone() },
        source => TlsError::Read { path: files.key.clone(), source },
    })?;
    let unusable_pair = |source| match source {
        rustls::Error::InconsistentKeys(_) => {
            TlsError::KeyMismatch { cert: files.cert.clone(), key: files.key.clone() }
        }
        source => TlsError::Unusable { path: files.cert.clone(), source },
    };
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder.with_safe_default_protocol_versions().map_err(unusable_pair)?;
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let invalid_ca = |message: String| TlsError::ClientCa { path: path.clone(), message };
            let mut roots = RootCertStore::empty();
            for certificate in read_certificates(path)? {
                roots.add(certificate).map_err(|error| invalid_ca(error.to_string()))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            let verifier = verifier.allow_unauthenticated().build().map_err(|error| invalid_ca(error.to_string()))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder.with_single_cert(certs.clone(), key).map_err(unusable_pair)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok((Arc::new(config), certs))
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read_error = |source| TlsError::Read { path: path.to_owned(), source };
    let certificates = CertificateDer::pem_file_iter(path).map_err(read_error)?;
    let certificates = certificates.collect::<Result<Vec<_>, _>>().map_err(read_error)?;
    if certificates.is_empty() { Err(TlsError::Empty { path: path.to_owned() }) } else { Ok(certificates) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamps_of(length: u64) -> FileStamps {
        vec![Some((SystemTime::UNIX_EPOCH, length)), None]
    }

    fn refused(path: &str) -> Result<u8, TlsError> {
        Err(TlsError::Empty { path: path.into() })
    }

    #[test]
    fn files_are_read_again_until_they_can_be_used() {
        let mut watcher = FileWatcher::new(stamps_of(1));
        assert_eq!(watcher.check(stamps_of(1), || Ok(1)), CheckResult::Unchanged, "they are in use");
        let failed = |path: &str| CheckResult::Failed(TlsError::Empty { path: path.into() }.to_string());
        assert_eq!(watcher.check(stamps_of(2), || refused("a")), failed("a"));
        assert_eq!(watcher.check(stamps_of(2), || refused("a")), CheckResult::Unchanged, "it is logged once");
        assert_eq!(watcher.check(stamps_of(2), || refused("b")), failed("b"));
        assert_eq!(watcher.check(stamps_of(2), || Ok(2)), CheckResult::Changed(2));
        assert_eq!(watcher.check(stamps_of(2), || Ok(3)), CheckResult::Unchanged);
        // The old files return while the new ones cannot be used. Later the same error occurs again and must be reported again.
        assert_eq!(watcher.check(stamps_of(3), || refused("a")), failed("a"));
        assert_eq!(watcher.check(stamps_of(2), || Ok(4)), CheckResult::Unchanged);
        assert_eq!(watcher.check(stamps_of(3), || refused("a")), failed("a"));
    }
}
