//! TLS on the port: certificates read from files, and read again when they change.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};
use std::{fs, io};

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

/// How often the files are checked for changes.
const LOOK_PERIOD: Duration = Duration::from_secs(5);

/// The paths of the certificates.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The server's certificate with its chain, in PEM.
    pub cert: PathBuf,
    /// Its key, in PEM.
    pub key: PathBuf,
    /// The CA certificates that must have signed those of clients; without this file, clients are not asked for a certificate. Connections
    /// without one are accepted all the same, for browsers and the API: the gateway decides which clients need one.
    pub client_ca: Option<PathBuf>,
}

/// Why certificates could not be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file could not be read.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: rustls::pki_types::pem::Error,
    },
    /// A file has no certificate in it.
    #[error("{path} holds no certificate in PEM")]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// The certificates do not match the key, or cannot be used.
    #[error("the certificate in {path} cannot be used")]
    Unusable {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: rustls::Error,
    },
    /// Certificates of clients cannot be checked with this file.
    #[error("{path} holds nothing by which clients can be checked: {message}")]
    ClientCa {
        /// The file.
        path: PathBuf,
        /// The reason.
        message: String,
    },
}

/// The certificates in use.
#[derive(Debug)]
pub struct Tls {
    files: TlsFiles,
    config: RwLock<Arc<ServerConfig>>,
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// The file that cannot be used, with the reason.
    pub fn load(files: TlsFiles) -> Result<Self, TlsError> {
        let config = RwLock::new(read(&files)?);
        Ok(Self { files, config })
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.config.read().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Checks the files for changes until `stop`. New certificates apply to later connections. If they cannot be used, this is logged once,
    /// and the old ones stay in use.
    pub async fn watch(self: Arc<Self>, stop: CancellationToken) {
        let mut seen = stamps(&self.files);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(LOOK_PERIOD) => {}
            }
            let found = stamps(&self.files);
            if found == seen {
                continue;
            }
            seen = found;
            match read(&self.files) {
                Ok(config) => {
                    *self.config.write().unwrap_or_else(PoisonError::into_inner) = config;
                    tracing::info!(path = %self.files.cert.display(), "new certificates are in use");
                }
                Err(error) => {
                    let error = rondel_core::error_chain::chain(&error);
                    tracing::error!(error, "new certificates cannot be used; the old ones stay");
                }
            }
        }
    }
}

/// When each file was last written, and how long it is.
fn stamps(files: &TlsFiles) -> Vec<Option<(SystemTime, u64)>> {
    let stamp = |path: &Path| -> io::Result<(SystemTime, u64)> {
        let found = fs::metadata(path)?;
        Ok((found.modified()?, found.len()))
    };
    [Some(&files.cert), Some(&files.key), files.client_ca.as_ref()]
        .into_iter()
        .map(|path| path.and_then(|path| stamp(path).ok()))
        .collect()
}

fn read(files: &TlsFiles) -> Result<Arc<ServerConfig>, TlsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let certs = certificates(&files.cert)?;
    let failed = |source| TlsError::Read { path: files.key.clone(), source };
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(failed)?;
    let unusable = |source| TlsError::Unusable { path: files.cert.clone(), source };
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder.with_safe_default_protocol_versions().map_err(unusable)?;
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let wrong = |message: String| TlsError::ClientCa { path: path.clone(), message };
            let mut roots = RootCertStore::empty();
            for certificate in certificates(path)? {
                roots.add(certificate).map_err(|error| wrong(error.to_string()))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            let verifier = verifier.allow_unauthenticated().build().map_err(|error| wrong(error.to_string()))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder.with_single_cert(certs, key).map_err(unusable)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let failed = |source| TlsError::Read { path: path.to_owned(), source };
    let found = CertificateDer::pem_file_iter(path).map_err(failed)?;
    let found = found.collect::<Result<Vec<_>, _>>().map_err(failed)?;
    if found.is_empty() { Err(TlsError::Empty { path: path.to_owned() }) } else { Ok(found) }
}
