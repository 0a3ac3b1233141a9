//! Counters of attempts. Names and addresses are hashed into buckets, so that unknown clients occupy only a bounded number of rows. The hash has
//! a key that the servers of a database share. Without this key, no client can choose names or addresses that fall into the bucket of another
//! client and block it.

use std::net::IpAddr;

use hmac::{Hmac, KeyInit as _, Mac as _};
use rondel_core::{AccountId, Timestamp};
use rondel_store::{Store, StoreError};
use sha2::Sha256;

use crate::identity::tokens::Token;

/// The name of the key in the store.
const KEY_NAME: &str = "sign_in_buckets";
/// Number of buckets for unknown names: a bound on the rows that unknown clients occupy.
const UNKNOWN_BUCKETS: u64 = 4_096;
/// Number of buckets for addresses: a bound on the rows of their counters.
const ADDRESS_BUCKETS: u64 = 65_536;
/// Distance between the buckets of addresses and the buckets of arrivals (browsers that return from the provider). The buckets of accounts at
/// known addresses lie in between.
const ADDRESS_BUCKETS_SPAN: i64 = 2_000_000;
/// Number of buckets for one-time values. Two values that share a bucket by chance count as the same: the user of the second value must begin
/// again.
const ONE_TIME_BUCKETS: u64 = 1 << 20;

/// Maps names, addresses and accounts to the buckets in which their attempts are counted. Contains the key of the hash.
pub(crate) struct Buckets(String);

impl Buckets {
    /// Reads the key that all servers of the database share.
    pub(crate) async fn of(store: &dyn Store, now: Timestamp) -> Result<Self, StoreError> {
        let new_key = Token::generate();
        store.server_key(KEY_NAME, new_key.reveal(), now).await.map(Self)
    }

    /// The bucket of a name that no account has.
    pub(super) fn of_unknown_name(&self, name: &str) -> i64 {
        -1 - self.bucket(&name.to_lowercase(), UNKNOWN_BUCKETS)
    }

    /// The bucket of attempts from an address.
    pub(super) fn of_address(&self, address: Option<IpAddr>) -> i64 {
        -1_000_000 - self.bucket(&address.map(network).unwrap_or_default(), ADDRESS_BUCKETS)
    }

    /// The bucket of an account at an address from which it has signed in.
    pub(super) fn of_known_address(&self, account: AccountId, address: Option<IpAddr>) -> i64 {
        let network = address.map(network).unwrap_or_default();
        -2_000_000 - self.bucket(&format!("{account} {network}"), ADDRESS_BUCKETS)
    }

    /// The bucket of browsers that return from the provider, by address.
    pub(super) fn of_arrival(&self, address: Option<IpAddr>) -> i64 {
        self.of_address(address) - ADDRESS_BUCKETS_SPAN
    }

    pub(super) fn of_one_time_value(&self, text: &str) -> i64 {
        -10_000_000 - self.bucket(text, ONE_TIME_BUCKETS)
    }

    /// Hashes a text into one of `count` buckets.
    pub(crate) fn bucket(&self, text: &str, count: u64) -> i64 {
        // Never fails: HMAC takes keys of any length.
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(self.0.as_bytes()) else { return 0 };
        mac.update(text.as_bytes());
        let mut bytes = [0; 8];
        for (byte, of_mac) in bytes.iter_mut().zip(mac.finalize().into_bytes()) {
            *byte = of_mac;
        }
        i64::try_from(u64::from_be_bytes(bytes) % count).unwrap_or_default()
    }
}

impl std::fmt::Debug for Buckets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Buckets(…)")
    }
}

/// The /64 network of an IPv6 address, since a client with one of its addresses has them all; an IPv4 address unchanged.
pub(crate) fn network(address: IpAddr) -> String {
    match address.to_canonical() {
        IpAddr::V6(address) => address.segments()[..4].iter().map(|part| format!("{part:x}:")).collect(),
        IpAddr::V4(address) => address.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_take_a_bounded_number_of_rows() {
        let buckets = Buckets("key".to_owned());
        let names: std::collections::BTreeSet<i64> =
            (0..100_000).map(|n| buckets.of_unknown_name(&n.to_string())).collect();
        assert!(names.len() <= 4_096 && names.iter().all(|bucket| (-4_096..0).contains(bucket)));
        let of = |text: &str| buckets.of_address(Some(text.parse().unwrap()));
        assert_eq!(of("2001:db8:1:2::1"), of("2001:db8:1:2:ffff::9"), "one network");
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_eq!(of("192.0.2.1"), of("::ffff:192.0.2.1"));
    }

    /// Names that collide under one key do not collide under another, so an attacker without the key cannot prepare a collision.
    #[test]
    fn collisions_depend_on_the_key() {
        let (ours, theirs) = (Buckets("a".to_owned()), Buckets("b".to_owned()));
        let bucket = theirs.of_unknown_name("victim");
        let prepared: Vec<String> = (0..100_000)
            .map(|n| format!("name{n}"))
            .filter(|name| theirs.of_unknown_name(name) == bucket)
            .take(10)
            .collect();
        assert_eq!(prepared.len(), 10);
        let hits = prepared.iter().filter(|name| ours.of_unknown_name(name) == ours.of_unknown_name("victim")).count();
        assert!(hits < 5, "{hits}");
        assert_eq!(format!("{ours:?}"), "Buckets(…)");
    }
}
