//! TLS settings for outgoing requests, without a process-wide crypto provider.

use std::sync::Arc;

use rustls::{ClientConfig, RootCertStore};

/// Trusts the host's root certificates; if the host has none (a bare container), the built-in root certificates.
pub(crate) fn client_config() -> Result<ClientConfig, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(builder.with_root_certificates(root_certificates()).with_no_client_auth())
}

fn root_certificates() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    let loaded_certificates = rustls_native_certs::load_native_certs();
    let (added_count, _) = roots.add_parsable_certificates(loaded_certificates.certs);
    if added_count == 0 {
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    roots
}

#[cfg(test)]
mod tests {
    #[test]
    fn there_is_always_a_trusted_root() {
        assert!(!super::root_certificates().is_empty());
        super::client_config().unwrap();
    }
}
