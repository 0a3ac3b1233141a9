//! Limits how many codes are exchanged with the provider concurrently, in total and per address, so that one address cannot use up the
//! total.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::identity::sign_in::network;

/// Maximum number of concurrent exchanges in total.
const CONCURRENT_MAX: usize = 16;
/// Maximum number of concurrent exchanges per address.
const COUNT_PER_ADDRESS_MAX: usize = 4;

/// Counts of exchanges in progress, by network of origin.
#[derive(Debug, Default)]
pub(super) struct Exchanges(Mutex<BTreeMap<String, usize>>);

/// An exchange in progress; it counts until this guard is dropped.
#[derive(Debug)]
pub(super) struct Exchange<'a> {
    exchanges: &'a Exchanges,
    network: String,
}

impl Exchanges {
    /// Begins an exchange; `None` if there are already too many.
    pub(super) fn begin(&self, address: Option<IpAddr>) -> Option<Exchange<'_>> {
        let network = address.map(network).unwrap_or_default();
        let mut counts = self.counts();
        let open_count = counts.get(&network).copied().unwrap_or_default();
        if open_count >= COUNT_PER_ADDRESS_MAX || counts.values().sum::<usize>() >= CONCURRENT_MAX {
            return None;
        }
        counts.insert(network.clone(), open_count + 1);
        drop(counts);
        Some(Exchange { exchanges: self, network })
    }

    fn counts(&self) -> MutexGuard<'_, BTreeMap<String, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Exchange<'_> {
    fn drop(&mut self) {
        let mut counts = self.exchanges.counts();
        match counts.get_mut(&self.network) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(counts.remove(&self.network)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_does_not_take_them_all() {
        let exchanges = Exchanges::default();
        let from = |address: &str| exchanges.begin(Some(address.parse().unwrap()));
        let mut held: Vec<_> = (0..COUNT_PER_ADDRESS_MAX).map(|_| from("192.0.2.1").unwrap()).collect();
        assert!(from("192.0.2.1").is_none() && from("::ffff:192.0.2.1").is_none());
        held.extend((0..CONCURRENT_MAX - COUNT_PER_ADDRESS_MAX).map(|n| from(&format!("198.51.100.{n}")).unwrap()));
        assert!(from("203.0.113.1").is_none(), "there are so many in all");
        held.remove(0);
        assert!(from("192.0.2.1").is_some());
        held.clear();
        assert!(exchanges.counts().is_empty(), "nothing is kept of those that ended");
    }
}
