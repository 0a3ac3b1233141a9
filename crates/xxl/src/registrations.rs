//! Bounds how many executors of one app register themselves.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use rondel_core::AppId;
use tokio::time::Instant;

use crate::refresh_state::REGISTERED_FOR;

/// Maximum number of registered executors of one app. A server keeps a bounded number of links, to the executors that registered
/// last; one app must not take up all of them.
pub(crate) const APP_COUNT_MAX: usize = 2_000;

/// The addresses that registered here, by app, each with the instant of its last registration. An address that signs off counts
/// until its registration would have expired, because its link stays until then.
#[derive(Debug, Default)]
pub(crate) struct Registrations(Mutex<HashMap<AppId, HashMap<String, Instant>>>);

impl Registrations {
    /// Counts a registration; `false` if the app already has its maximum of other addresses.
    pub(crate) fn admit(&self, app: AppId, address: &str, now: Instant) -> bool {
        let mut addresses_by_app = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let registered_addresses = addresses_by_app.entry(app).or_default();
        if !registered_addresses.contains_key(address) && registered_addresses.len() >= APP_COUNT_MAX {
            registered_addresses.retain(|_, at| now.duration_since(*at) < REGISTERED_FOR);
            if registered_addresses.len() >= APP_COUNT_MAX {
                return false;
            }
        }
        registered_addresses.insert(address.to_owned(), now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_app_has_a_bounded_number_of_registered_executors() {
        let (registrations, now) = (Registrations::default(), Instant::now());
        let (own, other) = (AppId::new(1), AppId::new(2));
        let admitted = |app, from: usize, at| {
            let addresses = (from..from + APP_COUNT_MAX + 3).map(|number| format!("http://10.0.0.5/{number}"));
            addresses.filter(|address| registrations.admit(app, address, at)).count()
        };
        assert_eq!(admitted(own, 0, now), APP_COUNT_MAX);
        assert!(registrations.admit(own, "http://10.0.0.5/0", now), "it registers again");
        assert_eq!(admitted(other, 0, now), APP_COUNT_MAX, "other apps have room");
        assert_eq!(admitted(own, 10_000, now + REGISTERED_FOR / 2), 0);
        assert_eq!(admitted(own, 10_000, now + REGISTERED_FOR), APP_COUNT_MAX, "the earlier ones have expired");
    }
}
