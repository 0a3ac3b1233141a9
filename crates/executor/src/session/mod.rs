//! One session per server, dialled again and again for as long as the executor lives.

mod backoff;
mod servers;
mod stream;

use std::sync::Arc;
use std::time::Duration;

use rondel_core::time::format_duration;
use tokio::time::Instant;

use crate::engine::Engine;
use backoff::Backoff;
pub(crate) use servers::{ServerUrl, Servers, TokenSource};
use stream::End;

/// A session that lasted this long was a good one: the next wait is short again.
const GOOD_SESSION: Duration = Duration::from_secs(5);

/// How often a second name of a connected server is looked at again.
const ALIAS_PERIOD: Duration = Duration::from_secs(2);

/// Dials every configured server.
pub(crate) fn dial_configured(engine: &Arc<Engine>) {
    for url in engine.servers.configured() {
        dial(engine, url);
    }
}

/// Dials the servers that a welcome named, and from now on no other ones beside the configured.
fn dial_named(engine: &Arc<Engine>, servers: &[String]) {
    for url in engine.servers.name(servers) {
        dial(engine, url);
    }
}

fn dial(engine: &Arc<Engine>, url: ServerUrl) {
    if engine.servers.claim(&url) {
        let dialler = Dialler { engine: Arc::clone(engine), url, said: None };
        engine.setup.lifecycle.tracker.spawn(dialler.run());
    }
}

struct Dialler {
    engine: Arc<Engine>,
    url: ServerUrl,
    /// The last trouble that was logged: each is said once, not at every attempt.
    said: Option<String>,
}

impl Dialler {
    async fn run(mut self) {
        let engine = Arc::clone(&self.engine);
        let timing = &engine.setup.timing;
        let mut backoff = Backoff::new(timing.reconnect_min, timing.reconnect_max);
        while !engine.servers.gives_up(&self.url) {
            let began = Instant::now();
            match stream::session(&engine, &self.url).await {
                End::Stopped => return,
                End::Alias(node_id) => self.wait_while_connected(node_id).await,
                End::AlreadyThere(reason) if engine.is_connected() => {
                    tracing::debug!(server = %self.url, reason, "connected by another URL already");
                }
                End::Refused(reason) | End::AlreadyThere(reason) => self.say_refused(reason),
                End::Unreachable(reason) => self.say_unreachable(reason),
                End::Lost(reason) => {
                    self.said = None;
                    self.say_unreachable(reason);
                    if began.elapsed() >= GOOD_SESSION {
                        backoff.reset();
                    }
                }
            }
            tokio::select! {
                () = engine.setup.lifecycle.soft.cancelled() => return,
                () = tokio::time::sleep(backoff.next()) => {}
            }
        }
    }

    /// This URL leads to a server that is connected by another one.
    async fn wait_while_connected(&self, node_id: i64) {
        while self.engine.has_node(node_id) && !self.engine.setup.lifecycle.soft.is_cancelled() {
            tokio::time::sleep(ALIAS_PERIOD).await;
        }
    }

    fn say_refused(&mut self, reason: String) {
        if self.said.as_ref() != Some(&reason) {
            let period = format_duration(self.engine.setup.timing.reconnect_max);
            tracing::error!(
                server = %self.url,
                "refused by the server at {}: {reason}. This executor goes on trying, every {period}, and says so once",
                self.url
            );
            self.said = Some(reason);
        }
    }

    fn say_unreachable(&mut self, reason: String) {
        if self.said.as_ref() != Some(&reason) {
            tracing::warn!(server = %self.url, "no session with the server at {}: {reason}", self.url);
            self.said = Some(reason);
        }
    }
}
