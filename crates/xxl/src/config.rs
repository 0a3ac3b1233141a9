//! The settings for serving XXL-JOB executors.

use std::time::Duration;

use rondel_core::outgoing::AllowedAddresses;

#[derive(Clone, Debug)]
pub struct XxlConfig {
    /// The networks in which executors may be.
    pub networks: AllowedAddresses,
    /// A prefix before `/api/registry` and the other paths. These paths are also served without a prefix and under `/xxl-job-admin`.
    pub prefix: Option<String>,
    /// If an executor has had no run of the job for this long and sent no callback, the outcome of the attempt counts as unknown.
    pub callback_timeout: Duration,
}

/// The usual prefix of XXL-JOB's server.
const USUAL_PREFIX: &str = "/xxl-job-admin";

impl XxlConfig {
    /// All prefixes before `/api`.
    pub(crate) fn prefixes(&self) -> Vec<&str> {
        let own_prefix = self.prefix.as_deref().map(|prefix| prefix.trim_end_matches('/'));
        let mut prefixes: Vec<&str> = ["", USUAL_PREFIX].into_iter().chain(own_prefix).collect();
        prefixes.sort_unstable();
        prefixes.dedup();
        prefixes
    }
}
