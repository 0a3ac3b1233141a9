//! The beat: renews the lease, reads the database's clock, says which executors this node hears, and sees the others.

use std::sync::Arc;
use std::time::Duration;

use rondel_core::Timestamp;
use rondel_store::cluster::{Join, JoinRequest};
use rondel_store::{Store, StoreError};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::cluster::Membership;
use crate::config::EngineConfig;
use crate::counters::Count;
use crate::dispatch::Event;
use crate::engine::{Shared, StartError, chain};
use crate::scheduler::tick::Command;

pub(crate) struct BeatLoop {
    shared: Arc<Shared>,
}

impl BeatLoop {
    pub(crate) const fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut period = interval(self.shared.config.beat);
        period.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut complained = false;
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                _ = period.tick() => {}
            }
            match self.tick().await {
                Ok(()) => {
                    if std::mem::take(&mut complained) {
                        tracing::info!("the database answers again");
                    }
                    self.shared.database_answers(true);
                }
                Err(error) => {
                    self.shared.database_answers(false);
                    if !std::mem::replace(&mut complained, true) {
                        tracing::warn!(error = %chain(&error), "cannot renew the lease; trying on");
                    }
                }
            }
        }
    }

    async fn tick(&mut self) -> Result<(), StoreError> {
        let shared = &self.shared;
        let sent = shared.clock.boot_micros();
        match shared.store.renew(shared.membership.token(), shared.config.lease).await? {
            Some(now) => {
                self.observe(now, sent);
                shared.membership.renewed(sent, shared.config.lease);
            }
            None => {
                shared.counters.add(Count::StatementsRefused, 1);
                self.rejoin().await?;
            }
        }
        let nodes = shared.store.nodes().await?;
        shared.membership.saw_nodes(nodes, shared.clock.now());
        let heard = shared.registry.heard_since(shared.clock.now() - shared.config.beat.saturating_mul(3));
        shared.store.beat_sessions(shared.membership.token(), &heard).await
    }

    fn observe(&self, database_now: Timestamp, sent: i64) {
        if let Some(back_ms) = self.shared.clock.observe(database_now, sent, self.shared.clock.boot_micros()) {
            tracing::warn!(back_ms, "the database's clock stepped back; jobs are quiet until it is where it was");
        }
    }

    /// The epoch is gone: this node slept through its lease. What it had not handed over is somebody else's now.
    async fn rejoin(&self) -> Result<(), StoreError> {
        let shared = &self.shared;
        shared.membership.end();
        tracing::warn!(epoch = shared.membership.token().epoch, "the lease ran out; joining under a new epoch");
        drop(shared.tick.send(Command::Clear).await);
        drop(shared.events.send(Event::LeaseLost).await);
        let sent = shared.clock.boot_micros();
        if let Join::Joined { token, ordinal } =
            shared.store.join(&request(&shared.config, shared.store.as_ref())).await?
        {
            shared.membership.rejoined(token, ordinal, sent, shared.config.lease);
            tracing::info!(epoch = token.epoch, "joined");
            self.observe(shared.store.now().await?, sent);
        }
        Ok(())
    }
}

fn request(config: &EngineConfig, store: &dyn Store) -> JoinRequest {
    JoinRequest {
        name: config.node_name.clone(),
        lease: config.lease,
        advertise_url: config.advertise_url.clone(),
        server_version: config.server_version.clone(),
        take_over: store.is_single_server(),
    }
}

/// Takes the node's lease at start. Under a living name it waits for that lease to end; if it is renewed meanwhile,
/// somebody else really has the name.
pub(crate) async fn join(store: &dyn Store, config: &EngineConfig) -> Result<Membership, StartError> {
    let request = request(config, store);
    let mut seen: Option<(i64, Timestamp)> = None;
    loop {
        let sent = config.boot.micros();
        match store.join(&request).await? {
            Join::Joined { token, ordinal } => {
                return Ok(Membership::new(token, ordinal, sent, config.lease, config.boot.clone()));
            }
            Join::Living { lease_until, epoch } => {
                if seen.is_some_and(|before| before != (epoch, lease_until)) {
                    return Err(StartError::NameTaken { name: config.node_name.clone() });
                }
                if seen.is_none() {
                    tracing::info!(name = config.node_name, %lease_until, "waiting for the lease of this name to end");
                }
                seen = Some((epoch, lease_until));
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
    }
}
