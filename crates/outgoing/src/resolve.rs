//! Resolves names to allowed addresses.

#[cfg(feature = "smtp")]
use std::net::SocketAddr;
use std::sync::Arc;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use rondel_core::outgoing::AllowedAddresses;

/// The host's resolver: its files and its name servers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SystemResolver;

impl Resolve for SystemResolver {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            // The client sets the port after the name is resolved.
            let addresses: Vec<_> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}

/// A resolver that returns only the allowed addresses. The client connects to one of these.
pub(crate) struct GuardedResolver {
    resolver: Arc<dyn Resolve>,
    allowed_addresses: Arc<AllowedAddresses>,
}

impl GuardedResolver {
    pub(crate) fn new(resolver: Arc<dyn Resolve>, allowed_addresses: AllowedAddresses) -> Self {
        Self { resolver, allowed_addresses: Arc::new(allowed_addresses) }
    }
}

impl Resolve for GuardedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let (resolving, allowed_addresses) = (self.resolver.resolve(name), Arc::clone(&self.allowed_addresses));
        Box::pin(async move {
            let mut last_refusal = None;
            let mut usable_addresses = Vec::new();
            for address in resolving.await? {
                match allowed_addresses.check(address.ip()) {
                    Ok(()) => usable_addresses.push(address),
                    Err(refusal) => last_refusal = Some(refusal),
                }
            }
            match last_refusal {
                Some(refusal) if usable_addresses.is_empty() => Err(refusal.into()),
                _ => Ok(Box::new(usable_addresses.into_iter()) as Addrs),
            }
        })
    }
}

/// Why a host has no allowed address.
#[cfg(feature = "smtp")]
#[derive(Debug)]
pub(crate) struct ResolveError {
    /// Whether further tries are useless.
    pub(crate) is_final: bool,
    pub(crate) reason: String,
}

/// The allowed addresses of a host.
#[cfg(feature = "smtp")]
pub(crate) async fn resolve_usable_addresses(
    host: &str,
    port: u16,
    allowed_addresses: &AllowedAddresses,
) -> Result<Vec<SocketAddr>, ResolveError> {
    let addresses = tokio::net::lookup_host((host, port)).await;
    let addresses = addresses
        .map_err(|error| ResolveError { is_final: false, reason: format!("no address for {host:?}: {error}") })?;
    let mut last_refusal = None;
    let mut usable_addresses = Vec::new();
    for address in addresses {
        match allowed_addresses.check(address.ip()) {
            Ok(()) => usable_addresses.push(address),
            Err(refusal) => last_refusal = Some(refusal),
        }
    }
    match last_refusal {
        Some(refusal) if usable_addresses.is_empty() => {
            Err(ResolveError { is_final: true, reason: refusal.to_string() })
        }
        _ if usable_addresses.is_empty() => {
            Err(ResolveError { is_final: false, reason: format!("no address for {host:?}") })
        }
        _ => Ok(usable_addresses),
    }
}
