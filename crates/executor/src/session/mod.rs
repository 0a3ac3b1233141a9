//! One session per server. A server without a session is dialled again for as long as the executor lives.

mod servers;
mod stream;

use rondel_core::backoff::{backoff, with_jitter};
use std::sync::Arc;
use std::time::Duration;

use rondel_core::time::format_duration;
use tokio::time::Instant;

use crate::engine::Engine;
pub(crate) use servers::{ServerUrl, Servers, TlsFiles, TokenSource};
use stream::SessionEnd;

/// After a session that lasted this long, the wait before dialling again is short.
const STABLE_SESSION_MIN: Duration = Duration::from_secs(5);

/// How often an unchanged problem with a server is reported again.
const REMIND_PERIOD: Duration = Duration::from_secs(300);

/// How often the task of an unused URL checks whether the servers are still connected by their other URLs.
const ALIAS_PERIOD: Duration = Duration::from_secs(2);

/// If the server behind a URL answers this many times in a row that this executor is connected already, the URL counts as
/// another URL of a connected server. From the first to the last of these answers, at least 4.5 s pass, and a server
/// gives up a broken stream after two heartbeats (4 s).
const ALREADY_CONNECTED_COUNT_MAX: u32 = 9;

/// The longest wait before a URL that counts as another URL of a connected server is dialled again: behind a load
/// balancer, the URL may lead to another server by then.
const ALREADY_CONNECTED_PERIOD: Duration = Duration::from_secs(30);

/// Dials every configured server.
pub(crate) fn dial_configured(engine: &Arc<Engine>) {
    for url in engine.servers.configured_urls() {
        dial(engine, url);
    }
}

/// Dials the servers that a welcome named. Drops servers that only an earlier welcome named, unless they are
/// configured.
fn dial_named(engine: &Arc<Engine>, servers: &[String]) {
    for url in engine.servers.set_named(servers) {
        dial(engine, url);
    }
}

fn dial(engine: &Arc<Engine>, url: ServerUrl) {
    if engine.servers.claim(&url) {
        let dialler = Dialler { engine: Arc::clone(engine), url, problems: ProblemLog::default() };
        engine.setup.lifecycle.tracker.spawn(dialler.run());
    }
}

struct Dialler {
    engine: Arc<Engine>,
    url: ServerUrl,
    problems: ProblemLog,
}

impl Dialler {
    async fn run(mut self) {
        let engine = Arc::clone(&self.engine);
        let timing = &engine.setup.timing;
        let (mut failed_count, mut already_connected_count) = (0_u32, 0_u32);
        let mut connected_nodes = ConnectedNodes::default();
        while !engine.servers.drop_if_unwanted(&self.url) {
            let started_at = Instant::now();
            let session_end = stream::session(&engine, &self.url).await;
            let is_already_connected = matches!(session_end, SessionEnd::AlreadyConnected(_)) && engine.is_connected();
            already_connected_count = if is_already_connected { already_connected_count.saturating_add(1) } else { 0 };
            match session_end {
                SessionEnd::Stopped => return,
                SessionEnd::Alias(node_id) => self.wait_while_connected(node_id).await,
                SessionEnd::AlreadyConnected(reason) if is_already_connected => {
                    tracing::debug!(server = %self.url, reason, "already connected by another URL");
                    let has_lost_node = connected_nodes.update(engine.connected_nodes());
                    let is_other_url = already_connected_count >= ALREADY_CONNECTED_COUNT_MAX;
                    if has_lost_node || is_other_url && self.wait_before_redial().await {
                        already_connected_count = 0;
                    }
                }
                SessionEnd::Refused(reason) | SessionEnd::AlreadyConnected(reason) => self.report_refused(reason),
                SessionEnd::Unreachable(reason) => self.report_unreachable(reason),
                SessionEnd::Lost(reason) => {
                    self.problems.clear();
                    self.report_unreachable(reason);
                    if started_at.elapsed() >= STABLE_SESSION_MIN {
                        failed_count = 0;
                    }
                }
            }
            failed_count = failed_count.saturating_add(1);
            let wait = backoff(timing.reconnect_min, timing.reconnect_max, failed_count);
            tokio::select! {
                () = engine.setup.lifecycle.soft.cancelled() => return,
                () = tokio::time::sleep(with_jitter(wait, rand::random())) => {}
            }
        }
    }

    /// Waits while the server behind this URL is connected by another URL.
    async fn wait_while_connected(&self, node_id: i64) {
        while self.engine.has_node(node_id) && self.pause().await {}
    }

    /// Waits while all servers that are connected now stay connected, up to [`ALREADY_CONNECTED_PERIOD`]. Returns
    /// whether one of them was lost: this URL may be the only one that leads to it, so the URL must be dialled often
    /// again until that server has given up the broken stream.
    async fn wait_before_redial(&self) -> bool {
        let redial_at = Instant::now() + with_jitter(ALREADY_CONNECTED_PERIOD, rand::random());
        let nodes = self.engine.connected_nodes();
        let are_connected = || !nodes.is_empty() && nodes.iter().all(|node_id| self.engine.has_node(*node_id));
        while Instant::now() < redial_at && are_connected() && self.pause().await {}
        !are_connected()
    }

    /// Waits for [`ALIAS_PERIOD`]. Returns false if the executor shuts down.
    async fn pause(&self) -> bool {
        tokio::select! {
            () = self.engine.setup.lifecycle.soft.cancelled() => false,
            () = tokio::time::sleep(ALIAS_PERIOD) => true,
        }
    }

    fn report_refused(&mut self, reason: String) {
        let period = format_duration(self.engine.setup.timing.reconnect_max);
        if let Some(reason) = self.problems.report_if_due(reason, Instant::now()) {
            tracing::error!(
                server = %self.url,
                "refused by the server at {}: {reason}. This executor keeps trying, every {period}", self.url
            );
        }
    }

    fn report_unreachable(&mut self, reason: String) {
        let period = format_duration(self.engine.setup.timing.reconnect_max);
        if let Some(reason) = self.problems.report_if_due(reason, Instant::now()) {
            tracing::warn!(
                server = %self.url,
                "no session with the server at {}: {reason}. This executor keeps trying, every {period}", self.url
            );
        }
    }
}

/// The nodes that were connected when a server last answered that this executor is connected already.
#[derive(Debug, Default)]
struct ConnectedNodes(Vec<i64>);

impl ConnectedNodes {
    /// Replaces the list. Returns whether a node of the previous list is missing: that node may have been lost just
    /// before this URL was dialled again.
    fn update(&mut self, connected_nodes: Vec<i64>) -> bool {
        let previous_nodes = std::mem::replace(&mut self.0, connected_nodes);
        previous_nodes.iter().any(|node_id| !self.0.contains(node_id))
    }
}

/// A problem with one server: logged immediately when it is new, and rarely after that.
#[derive(Debug, Default)]
struct ProblemLog {
    last_report: Option<(String, Instant)>,
}

impl ProblemLog {
    /// Records the problem. Returns the reason if the problem must be reported now.
    fn report_if_due(&mut self, reason: String, now: Instant) -> Option<String> {
        let is_known = |(last_reason, at): &(String, Instant)| *last_reason == reason && now < *at + REMIND_PERIOD;
        if self.last_report.as_ref().is_some_and(is_known) {
            return None;
        }
        self.last_report = Some((reason.clone(), now));
        Some(reason)
    }

    /// Forgets the problem after a session, so that the next one counts as new.
    fn clear(&mut self) {
        self.last_report = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_reported_immediately_and_then_rarely() {
        let (mut problems, start) = (ProblemLog::default(), Instant::now());
        let mut reported =
            |reason: &str, after: Duration| problems.report_if_due(reason.to_owned(), start + after).is_some();
        assert!(reported("connection refused", Duration::ZERO));
        assert!(!reported("connection refused", Duration::from_secs(1)));
        assert!(reported("no welcome in time", Duration::from_secs(2)), "another reason");
        assert!(!reported("no welcome in time", REMIND_PERIOD));
        assert!(reported("no welcome in time", REMIND_PERIOD + Duration::from_secs(2)), "a reminder");
        problems.clear();
        assert!(problems.report_if_due("no welcome in time".to_owned(), start + REMIND_PERIOD).is_some());
    }

    #[test]
    fn a_server_that_was_lost_between_two_answers_is_noticed_once() {
        let mut others = ConnectedNodes::default();
        assert!(!others.update(vec![1, 2]) && !others.update(vec![2, 1, 3]));
        assert!(others.update(vec![2, 3, 4]), "1 is missing");
        assert!(!others.update(vec![2, 3, 4]));
    }

    #[test]
    fn a_broken_stream_is_given_up_before_its_url_counts_as_another_one() {
        let timing = crate::setup::Timing::default();
        let wait = |failed| with_jitter(backoff(timing.reconnect_min, timing.reconnect_max, failed), 0.0);
        // Nine answers have eight waits between them.
        let waited: Duration = (1..ALREADY_CONNECTED_COUNT_MAX).map(wait).sum();
        assert!(waited >= Duration::from_secs(4), "a server refuses another stream for two heartbeats: {waited:?}");
    }
}
