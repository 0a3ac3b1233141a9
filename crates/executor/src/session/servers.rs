//! The known servers, and the credentials for dialling them.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use rondel_core::access::{is_token, token_beginning};
#[cfg(unix)]
use rondel_core::secret_file::exposure;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity, Uri};

use crate::error::ExecutorError;
use crate::lifecycle::lock;
use crate::setup::Timing;
use rondel_core::error_chain::chain;

/// A server's URL in normal form, so that two spellings of one URL do not count as two servers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ServerUrl(String);

impl ServerUrl {
    pub(crate) fn parse(url: &str) -> Result<Self, ExecutorError> {
        let url_error = || ExecutorError::ServerUrl { url: url.to_owned(), source: None };
        let uri: Uri = url.trim().parse().map_err(|_| url_error())?;
        let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else { return Err(url_error()) };
        if !matches!(scheme, "http" | "https") || !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err(url_error());
        }
        Ok(Self(format!("{scheme}://{}", authority.as_str().to_ascii_lowercase())))
    }

    pub(crate) fn is_tls(&self) -> bool {
        self.0.starts_with("https:")
    }
}

impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Where the token comes from. Its Debug does not show the token.
#[derive(Clone, Default)]
pub(crate) enum TokenSource {
    #[default]
    None,
    Text(String),
    /// Read at each dial, so that a changed token takes effect.
    File(PathBuf),
}

impl fmt::Debug for TokenSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("None"),
            Self::Text(_) => f.write_str("Text(***)"),
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
        }
    }
}

impl TokenSource {
    /// The value of the `authorization` header; `None` without a token. The error is a sentence for the user.
    pub(crate) async fn header(&self) -> Result<Option<MetadataValue<Ascii>>, String> {
        let token = match self {
            Self::None => return Ok(None),
            Self::Text(token) => token.clone(),
            Self::File(path) if path.to_str().is_some_and(is_token) => {
                return Err("a token file is named by its path, and this is a token itself".to_owned());
            }
            Self::File(path) => read_token(path).await?,
        };
        let mut value: MetadataValue<Ascii> = format!("Bearer {}", token.trim())
            .parse()
            .map_err(|_| "the token contains characters that are not allowed in a token".to_owned())?;
        value.set_sensitive(true);
        Ok(Some(value))
    }

    /// Describes a refused token by its source and its first characters, by which a user finds it in the list of
    /// tokens.
    pub(crate) async fn describe_refused(&self) -> String {
        match self {
            Self::None => "no token was sent: set one with .token_file(path) or .token(text)".to_owned(),
            Self::Text(token) => {
                format!(
                    "the token sent is that of RONDEL_TOKEN or .token(…) and begins with {}",
                    token_beginning(token.trim())
                )
            }
            Self::File(path) => {
                let text = tokio::fs::read_to_string(path).await.unwrap_or_default();
                format!("the token sent is that of {} and begins with {}", path.display(), token_beginning(text.trim()))
            }
        }
    }
}

/// The text of a token file. On Unix, the file must not be open to other users. The error is a sentence for the user.
async fn read_token(path: &Path) -> Result<String, String> {
    let token_path = path.display();
    let text =
        tokio::fs::read_to_string(path).await.map_err(|error| format!("read the token file {token_path}: {error}"))?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt as _;

        let metadata =
            tokio::fs::metadata(path).await.map_err(|error| format!("read the token file {token_path}: {error}"))?;
        if let Some(fault) = exposure(metadata.mode(), metadata.uid()).filter(|_| metadata.is_file()) {
            return Err(format!("the token file {token_path} {fault}"));
        }
    }
    Ok(text)
}

/// The PEM files for TLS. They are read at each dial, so that renewed certificates take effect.
#[derive(Debug, Default)]
pub(crate) struct TlsFiles {
    /// Certificates to trust in addition to the well-known ones.
    pub(crate) ca: Option<PathBuf>,
    /// A client certificate and its key.
    pub(crate) certificate_and_key: Option<(PathBuf, PathBuf)>,
}

impl TlsFiles {
    fn read(&self) -> Result<ClientTlsConfig, ExecutorError> {
        let read =
            |path: &PathBuf| std::fs::read(path).map_err(|source| ExecutorError::File { path: path.clone(), source });
        let mut tls = ClientTlsConfig::new().with_enabled_roots();
        if let Some(path) = &self.ca {
            tls = tls.ca_certificate(Certificate::from_pem(read(path)?));
        }
        if let Some((certificate, key)) = &self.certificate_and_key {
            tls = tls.identity(Identity::from_pem(read(certificate)?, read(key)?));
        }
        Ok(tls)
    }
}

/// The results of reading the files for TLS.
#[derive(Default)]
struct TlsState {
    /// The settings from the last read that succeeded.
    usable_config: Option<ClientTlsConfig>,
    /// Why the last read failed, if it did. A reason is logged only when it is new.
    fault: Option<String>,
}

pub(crate) struct Servers {
    pub(crate) token: TokenSource,
    tls_files: TlsFiles,
    tls: Mutex<TlsState>,
    configured_urls: BTreeSet<ServerUrl>,
    known_servers: Mutex<KnownServers>,
}

#[derive(Default)]
struct KnownServers {
    /// The servers from the latest welcome that named any.
    named_urls: BTreeSet<ServerUrl>,
    /// Servers that have a dialling task.
    dialled_urls: BTreeSet<ServerUrl>,
}

impl Servers {
    pub(crate) fn new(
        configured_urls: BTreeSet<ServerUrl>,
        token: TokenSource,
        tls_files: TlsFiles,
    ) -> Result<Self, ExecutorError> {
        tls_files.read()?;
        let servers =
            Self { token, tls_files, tls: Mutex::default(), configured_urls, known_servers: Mutex::default() };
        // A certificate or URL that cannot be used is reported now, not at each dial.
        servers
            .configured_urls
            .iter()
            .try_for_each(|url| servers.endpoint(url, &Timing::default()).map(drop))
            .map(|()| servers)
    }

    pub(crate) fn configured_urls(&self) -> Vec<ServerUrl> {
        self.configured_urls.iter().cloned().collect()
    }

    /// Stores the servers that a welcome named, and returns them for dialling. If it named none, the stored ones stay.
    pub(crate) fn set_named(&self, urls: &[String]) -> Vec<ServerUrl> {
        let mut named_urls = BTreeSet::new();
        for url in urls {
            match ServerUrl::parse(url) {
                Ok(url) => drop(named_urls.insert(url)),
                Err(error) => tracing::warn!("a server named another server by an invalid URL: {}", chain(&error)),
            }
        }
        if !named_urls.is_empty() {
            lock(&self.known_servers).named_urls.clone_from(&named_urls);
        }
        named_urls.into_iter().collect()
    }

    /// Whether the caller should dial this server, because no other task does.
    pub(crate) fn claim(&self, url: &ServerUrl) -> bool {
        lock(&self.known_servers).dialled_urls.insert(url.clone())
    }

    /// Whether neither the settings nor the latest list of servers name this server. If so, the server no longer counts
    /// as dialled, and the task that dials it must end.
    pub(crate) fn drop_if_unwanted(&self, url: &ServerUrl) -> bool {
        let mut known_servers = lock(&self.known_servers);
        let is_wanted = self.configured_urls.contains(url) || known_servers.named_urls.contains(url);
        if !is_wanted {
            known_servers.dialled_urls.remove(url);
        }
        !is_wanted
    }

    pub(crate) fn endpoint(&self, url: &ServerUrl, timing: &Timing) -> Result<Endpoint, ExecutorError> {
        let tls_error = |source| ExecutorError::ServerUrl { url: url.0.clone(), source: Some(source) };
        let endpoint = Endpoint::from_shared(url.0.clone()).map_err(tls_error)?;
        let endpoint = endpoint
            .connect_timeout(timing.connect_timeout)
            .http2_keep_alive_interval(std::time::Duration::from_secs(10))
            .keep_alive_timeout(std::time::Duration::from_secs(5))
            .initial_stream_window_size(1 << 20)
            .initial_connection_window_size(4 << 20);
        if !url.is_tls() {
            return Ok(endpoint);
        }
        let new_tls = self.tls_files.read();
        let new_tls = new_tls.and_then(|tls| Ok((endpoint.clone().tls_config(tls.clone()).map_err(tls_error)?, tls)));
        let mut tls_state = lock(&self.tls);
        match (new_tls, tls_state.usable_config.clone()) {
            (Ok((endpoint, tls)), _) => {
                *tls_state = TlsState { usable_config: Some(tls), fault: None };
                Ok(endpoint)
            }
            // A renewal may be under way, which replaces the certificate and the key one after the other.
            (Err(error), Some(usable_config)) => {
                let fault = chain(&error);
                if tls_state.fault.as_ref() != Some(&fault) {
                    tracing::warn!("cannot use the TLS files; the last usable ones stay in use: {fault}");
                    tls_state.fault = Some(fault);
                }
                endpoint.tls_config(usable_config).map_err(tls_error)
            }
            (Err(error), None) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_have_one_spelling() {
        for (url, expected) in [
            ("http://Localhost:8080/", "http://localhost:8080"),
            (" https://a.example ", "https://a.example"),
            ("http://[::1]:80", "http://[::1]:80"),
        ] {
            assert_eq!(ServerUrl::parse(url).unwrap().to_string(), expected);
        }
        for url in ["", "localhost:8080", "ftp://a", "http://", "http://a/path", "http://a?b=c", "/x"] {
            assert!(ServerUrl::parse(url).is_err(), "{url:?}");
        }
    }

    #[test]
    fn named_servers_are_dialled_once_and_while_they_are_named() {
        let configured = BTreeSet::from([ServerUrl::parse("http://a").unwrap()]);
        let servers = Servers::new(configured, TokenSource::None, TlsFiles::default()).unwrap();
        let named = servers.set_named(&["http://a/".to_owned(), "http://b".to_owned(), "nonsense".to_owned()]);
        assert_eq!(named.len(), 2);
        let b = ServerUrl::parse("http://b").unwrap();
        assert!(servers.claim(&b) && !servers.claim(&b));
        assert!(!servers.drop_if_unwanted(&b));
        servers.set_named(&["http://a".to_owned()]);
        assert!(servers.drop_if_unwanted(&b), "no longer named");
        assert!(servers.claim(&b), "may be dialled again");
        assert!(!servers.drop_if_unwanted(&servers.configured_urls()[0]));
    }

    #[test]
    fn tls_files_are_read_at_each_dial_and_unusable_ones_are_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let ca = folder.path().join("ca.pem");
        let servers = || {
            let configured = BTreeSet::from([ServerUrl::parse("https://a").unwrap()]);
            Servers::new(configured, TokenSource::None, TlsFiles { ca: Some(ca.clone()), certificate_and_key: None })
        };
        assert!(matches!(servers().map(drop), Err(ExecutorError::File { .. })));
        let broken = "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n";
        std::fs::write(&ca, broken).unwrap();
        assert!(matches!(servers().map(drop), Err(ExecutorError::ServerUrl { .. })));
        std::fs::write(&ca, "").unwrap();
        let servers = servers().unwrap();
        let dial = || {
            servers.endpoint(&servers.configured_urls()[0], &Timing::default()).unwrap();
            lock(&servers.tls).fault.clone()
        };
        assert_eq!(dial(), None);
        std::fs::write(&ca, broken).unwrap();
        assert!(dial().is_some());
        std::fs::remove_file(&ca).unwrap();
        assert!(dial().is_some_and(|fault| fault.contains("cannot read")));
        std::fs::write(&ca, "").unwrap();
        assert_eq!(dial(), None);
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn a_token_file_is_its_owners_alone() {
        use std::os::unix::fs::PermissionsExt as _;

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        std::fs::write(&path, "hidden").unwrap();
        let header_with = async |mode: u32| {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            TokenSource::File(path.clone()).header().await
        };
        let refusal = header_with(0o644).await.unwrap_err();
        assert!(refusal.contains("chmod 600") && !refusal.contains("hidden"), "{refusal}");
        assert_eq!(header_with(0o600).await.unwrap().unwrap().to_str().unwrap(), "Bearer hidden");
    }

    #[tokio::test]
    async fn tokens_are_silent() {
        assert_eq!(format!("{:?}", TokenSource::Text("hidden".to_owned())), "Text(***)");
        let header = TokenSource::Text("hidden\n".to_owned()).header().await.unwrap().unwrap();
        assert_eq!(header.to_str().unwrap(), "Bearer hidden");
        assert!(!format!("{header:?}").contains("hidden"));
        let missing = TokenSource::File("/nonexistent/token".into()).header().await.unwrap_err();
        assert!(missing.contains("/nonexistent/token"), "{missing}");
        let secret = format!("rondel_exec_{}", "0123456789abcdef".repeat(4));
        let swapped = TokenSource::File(secret.clone().into()).header().await.unwrap_err();
        assert!(swapped.contains("is named by its path") && !swapped.contains(&secret), "{swapped}");
        let shown = TokenSource::Text(secret).describe_refused().await;
        assert!(shown.ends_with("begins with rondel_exec_01234"), "{shown}");
    }
}
