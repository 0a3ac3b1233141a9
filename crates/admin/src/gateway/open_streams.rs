//! Limits the open streams of executors per token and per address, because each stream can hold an incomplete message in memory.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use rondel_core::TokenId;
use tonic::Status;

use crate::config::EngineConfig;
use crate::metrics::Limit;

/// The key by which streams are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum StreamOwner {
    Token(TokenId),
    Address(IpAddr),
}

#[derive(Debug, Default)]
pub(super) struct OpenStreams(Mutex<HashMap<StreamOwner, usize>>);

/// A counted stream; it counts until it is dropped.
#[derive(Debug)]
pub(crate) struct StreamPlace {
    open_streams: Arc<OpenStreams>,
    owners: Vec<StreamOwner>,
}

/// A limit that one more stream would exceed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooManyStreams {
    pub(super) limit: Limit,
    max: usize,
}

impl TooManyStreams {
    pub(super) fn status(&self) -> Status {
        let (max, setting) = (self.max, self.limit.as_str());
        let owner_text = match self.limit {
            Limit::ExecutorStreamsPerToken => "with this token",
            _ => "at this address",
        };
        Status::resource_exhausted(format!("executors {owner_text} have {max} streams open; {setting} allows no more"))
    }
}

impl OpenStreams {
    /// Counts a stream of an executor, unless that would exceed a limit.
    pub(super) fn admit(
        self: &Arc<Self>,
        token: TokenId,
        address: Option<IpAddr>,
        config: &EngineConfig,
    ) -> Result<StreamPlace, TooManyStreams> {
        let token_bound =
            (StreamOwner::Token(token), config.executor_streams_per_token, Limit::ExecutorStreamsPerToken);
        let address_bound = address.map(|address| {
            (StreamOwner::Address(address), config.executor_streams_per_address, Limit::ExecutorStreamsPerAddress)
        });
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut owners = Vec::new();
        for (owner, max, limit) in [Some(token_bound), address_bound].into_iter().flatten() {
            if counts.get(&owner).copied().unwrap_or_default() >= max {
                return Err(TooManyStreams { limit, max });
            }
            owners.push(owner);
        }
        for owner in &owners {
            *counts.entry(*owner).or_default() += 1;
        }
        drop(counts);
        Ok(StreamPlace { open_streams: Arc::clone(self), owners })
    }
}

impl Drop for StreamPlace {
    fn drop(&mut self) {
        let mut counts = self.open_streams.0.lock().unwrap_or_else(PoisonError::into_inner);
        for owner in &self.owners {
            if let Some(count) = counts.get_mut(owner) {
                *count -= 1;
                if *count == 0 {
                    counts.remove(owner);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_open_streams_of_a_token_and_of_an_address_are_bounded() {
        let open = Arc::new(OpenStreams::default());
        let config =
            EngineConfig { executor_streams_per_token: 2, executor_streams_per_address: 3, ..EngineConfig::default() };
        let admit = |token, address: u8| open.admit(TokenId::new(token), Some([192, 0, 2, address].into()), &config);
        let refused = |token, address| admit(token, address).err().map(|refused| refused.limit);
        let mut places = vec![admit(1, 1).unwrap(), admit(1, 1).unwrap()];
        assert_eq!(refused(1, 1), Some(Limit::ExecutorStreamsPerToken));
        assert_eq!(refused(1, 2), Some(Limit::ExecutorStreamsPerToken), "from any address");
        places.push(admit(2, 1).unwrap());
        assert_eq!(refused(2, 1), Some(Limit::ExecutorStreamsPerAddress));
        places.push(admit(2, 2).unwrap());
        places.remove(0);
        places.push(admit(1, 1).unwrap());
        drop(places);
        assert!(open.0.lock().unwrap().is_empty(), "ended streams leave no entry");
    }
}
