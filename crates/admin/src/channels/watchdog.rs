//! Calls a monitoring service as long as this server schedules. When the calls stop, the service raises an alarm. A cluster that is down could
//! not raise an alarm itself.

use std::sync::Arc;
use std::time::Duration;

use rondel_core::Timestamp;
use rondel_core::error_chain::chain;
use rondel_outgoing::{Method, Outgoing};
use rondel_store::cluster::LoopReport;
use tokio_util::sync::CancellationToken;

use super::url::read_url;
use crate::background::{Background, TickError};
use crate::delivery::build_client;
use crate::node::Shared;

/// Timeout for the service's answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The loops without which no job fires.
const WATCHED_LOOPS: [&str; 2] = ["beat", "scan"];
/// Maximum age of the last tick of each watched loop.
const TICK_AGE_MAX: Duration = Duration::from_secs(15);

pub(crate) struct WatchdogLoop {
    shared: Arc<Shared>,
    client: Option<Outgoing>,
}

impl Background for WatchdogLoop {
    const NAME: &'static str = "watchdog";
    const ACTION: &'static str = "call the watchdog";

    fn period(&self) -> Option<Duration> {
        Some(self.shared.config.watchdog_period)
    }

    async fn tick(&mut self, _stop: &CancellationToken) -> Result<u64, TickError> {
        let shared = &self.shared;
        let is_leaving = shared.draining.load(std::sync::atomic::Ordering::Relaxed);
        let state = (shared.membership.holds_lease(), is_leaving);
        check_scheduling(state, &shared.loops.reports(), shared.clock.now()).map_err(TickError::new)?;
        self.call().await.map_err(TickError::new)?;
        Ok(1)
    }
}

impl WatchdogLoop {
    pub(crate) const fn new(shared: Arc<Shared>) -> Self {
        Self { shared, client: None }
    }

    async fn call(&mut self) -> Result<(), String> {
        let Some(url) = &self.shared.config.watchdog_url else { return Ok(()) };
        let client = match &self.client {
            Some(client) => client.clone(),
            None => self.client.insert(build_client(&self.shared.config.outgoing_allow)?).clone(),
        };
        let request = client.request(Method::GET, read_url(url)?).map_err(|refused| refused.to_string())?;
        // The URL is not logged, since it identifies the check at the service.
        let response = request.timeout(TIMEOUT).send().await.map_err(|error| chain(&error.without_url()))?;
        match response.status() {
            status if status.is_success() => Ok(()),
            status => Err(format!("it answered with status {}", status.as_u16())),
        }
    }
}

/// Checks that this server fires jobs: it holds its lease, is not leaving, and the loops that fire have succeeded recently.
fn check_scheduling(
    (holds_lease, is_leaving): (bool, bool),
    reports: &[LoopReport],
    now: Timestamp,
) -> Result<(), String> {
    if !holds_lease {
        return Err("this server does not hold its lease".to_owned());
    }
    if is_leaving {
        return Err("this server is leaving the cluster".to_owned());
    }
    for name in WATCHED_LOOPS {
        let report = reports.iter().find(|report| report.name == name);
        let is_fresh = |at: Timestamp| at + TICK_AGE_MAX >= now;
        match report {
            Some(report) if report.failing_since.is_some() => return Err(format!("the loop {name} fails")),
            Some(report) if report.ticked_at.is_some_and(is_fresh) => {}
            _ => return Err(format!("the loop {name} has not succeeded within {} s", TICK_AGE_MAX.as_secs())),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);

    fn report(name: &str, age: u64, is_failing: bool) -> LoopReport {
        LoopReport {
            name: name.to_owned(),
            ticked_at: Some(NOW - Duration::from_secs(age)),
            failing_since: is_failing.then_some(NOW),
            ..LoopReport::default()
        }
    }

    #[track_caller]
    fn check(state: (bool, bool), reports: &[LoopReport], expected: Option<&str>) {
        let found = check_scheduling(state, reports, NOW).err();
        assert_eq!(found.is_some(), expected.is_some(), "{found:?}");
        assert!(found.unwrap_or_default().contains(expected.unwrap_or_default()));
    }

    #[test]
    fn it_is_called_only_while_the_server_schedules() {
        let good = [report("beat", 1, false), report("purge", 900, true), report("scan", 2, false)];
        check((true, false), &good, None);
        check((false, false), &good, Some("lease"));
        check((true, true), &good, Some("leaving"));
        check((true, false), &good[..2], Some("loop scan"));
        check((true, false), &[report("beat", 1, false), report("scan", 1, true)], Some("scan fails"));
        check((true, false), &[report("beat", 16, false), report("scan", 1, false)], Some("loop beat"));
    }
}
