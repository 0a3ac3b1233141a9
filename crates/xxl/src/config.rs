//! Settings.

use std::time::Duration;

use rondel_core::outgoing::AllowedAddresses;

/// How executors are served.
#[derive(Clone, Debug)]
pub struct XxlConfig {
    /// The networks that executors may be in.
    pub networks: AllowedAddresses,
    /// What stands before `/api/registry` and the others, beside nothing and `/xxl-job-admin`.
    pub prefix: Option<String>,
    /// How long an executor may have no run of a job, and no callback have come, before the outcome counts as unknown.
    pub callback_timeout: Duration,
}

/// The prefix under which executors know XXL-JOB's server.
const USUAL_PREFIX: &str = "/xxl-job-admin";

impl XxlConfig {
    /// What stands before `/api`.
    pub(crate) fn prefixes(&self) -> Vec<&str> {
        let own = self.prefix.as_deref().map(|prefix| prefix.trim_end_matches('/'));
        let mut prefixes: Vec<&str> = ["", USUAL_PREFIX].into_iter().chain(own).collect();
        prefixes.sort_unstable();
        prefixes.dedup();
        prefixes
    }
}
