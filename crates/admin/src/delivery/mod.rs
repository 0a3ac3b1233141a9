//! Code that failure webhooks and alert channels share: the HTTP client, the senders of a loop, signatures, and the decision whether and
//! when a message is tried again.

mod retry;
mod senders;
mod sign;
mod status;

use rondel_core::error_chain::chain;
use rondel_core::outgoing::AllowedAddresses;
use rondel_outgoing::{Options, Outgoing};

pub(crate) use retry::{GIVE_UP_AFTER, next_try};
pub(crate) use senders::Senders;
pub(crate) use sign::{generate_secret, signature};
pub(crate) use status::is_temporary;

/// Builds the client, which follows no redirects. Callers build it when they send the first message, since reading the host's certificates takes
/// time and memory.
pub(crate) fn build_client(allowed_addresses: &AllowedAddresses) -> Result<Outgoing, String> {
    let user_agent = concat!("rondel/", env!("CARGO_PKG_VERSION"));
    let options = Options { allowed_addresses: allowed_addresses.clone(), redirect_count_max: 0, user_agent };
    Outgoing::new(options).map_err(|error| chain(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_can_be_made() {
        build_client(&AllowedAddresses::default()).unwrap();
    }
}
