//! The servers in this process, assembled as by `rondel server`, on the metered store.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use rondel_admin::auth::{Token, add_admin_token};
use rondel_admin::{Engine, EngineConfig, Lifecycle, Until};
use rondel_core::homes::ClaimStrategy;
use rondel_store::cluster::NodeReport;
use rondel_web::{HttpLimits, Port, WebConfig};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::BenchError;
use crate::clock;
use crate::metered::MeteredStore;

const NODE_NAME_PREFIX: &str = "bench";
const DRAIN_GRACE: Duration = Duration::from_secs(10);
const ONLINE_TIMEOUT: Duration = Duration::from_secs(30);
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// A bit more than the time between two beats of a server.
const BEAT: Duration = Duration::from_millis(1_200);

/// The servers of a measurement: one, or several on one database.
#[derive(Debug)]
pub(crate) struct TestServers {
    nodes: Vec<Node>,
}

/// A running server.
#[derive(Debug)]
struct Node {
    engine: Engine,
    url: String,
    token: Token,
    lifecycle: Lifecycle,
}

/// How often nodes tried to claim a job, and how often another node already had it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ClaimCounts {
    pub(crate) tried_count: u64,
    pub(crate) lost_count: u64,
}

impl TestServers {
    pub(crate) async fn start(store: &Arc<MeteredStore>, count: u32) -> Result<Self, BenchError> {
        let mut nodes = Vec::new();
        for number in 1..=count.max(1) {
            let config = EngineConfig {
                node_name: format!("{NODE_NAME_PREFIX}-{number}"),
                // Without this, several nodes would try to claim the same jobs.
                claim_strategy: if count > 1 { ClaimStrategy::IdHash } else { ClaimStrategy::Default },
                ..EngineConfig::default()
            };
            nodes.push(Node::start(Arc::clone(store), config).await?);
        }
        let test_servers = Self { nodes };
        test_servers.wait_for_peers().await?;
        Ok(test_servers)
    }

    /// Waits until every node has seen the others: jobs due before that would be shared among fewer nodes.
    async fn wait_for_peers(&self) -> Result<(), BenchError> {
        let give_up_at = clock::now() + ONLINE_TIMEOUT;
        let engine = &self.nodes[0].engine;
        while engine.store().nodes().await?.iter().filter(|node| node.takes_jobs(engine.now())).count()
            < self.nodes.len()
        {
            if clock::now() > give_up_at {
                return Err(BenchError::failed("the servers do not see each other"));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // One beat later each node knows the others.
        tokio::time::sleep(BEAT).await;
        Ok(())
    }

    /// The URLs of the servers.
    pub(crate) fn urls(&self) -> Vec<&str> {
        self.nodes.iter().map(|node| node.url.as_str()).collect()
    }

    /// The token for all servers: they share a database.
    pub(crate) fn token(&self) -> &Token {
        &self.nodes[0].token
    }

    /// The sums of what the nodes reported with their last beats.
    pub(crate) async fn claims(&self) -> Result<ClaimCounts, BenchError> {
        let nodes = self.nodes[0].engine.store().nodes().await?;
        let node_sum = |count: fn(&NodeReport) -> u64| nodes.iter().map(|node| count(&node.report)).sum();
        Ok(ClaimCounts {
            tried_count: node_sum(|report| report.claims_tried),
            lost_count: node_sum(|report| report.claims_lost),
        })
    }

    /// Waits until this many executors have a stream to each server.
    pub(crate) async fn wait_for_executors(&self, count: usize) -> Result<(), BenchError> {
        for node in &self.nodes {
            node.wait_for_executors(count).await?;
        }
        Ok(())
    }

    /// Stops taking new fires; the results of runs that executors hold become durable.
    pub(crate) async fn drain(&self) {
        let mut drains = JoinSet::new();
        for engine in self.nodes.iter().map(|node| node.engine.clone()) {
            drains.spawn(async move { engine.drain(DRAIN_GRACE).await });
        }
        drains.join_all().await;
    }

    /// Waits until the remaining parts of the servers have stopped; call it after [`Self::drain`].
    pub(crate) async fn close(self) -> Result<(), BenchError> {
        for node in self.nodes {
            node.close().await?;
        }
        Ok(())
    }
}

impl Node {
    async fn start(store: Arc<MeteredStore>, config: EngineConfig) -> Result<Self, BenchError> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.map_err(BenchError::system("listen"))?;
        let address = listener.local_addr().map_err(BenchError::system("listen"))?;
        let lifecycle = Lifecycle::new();
        let engine = Engine::start(store, config, &lifecycle).await?;
        let token = Token::generate();
        add_admin_token(engine.store(), engine.new_id(), &token, engine.now()).await?;
        // All executors connect from this machine, so one address needs as many connections as the whole server allows.
        let limits = HttpLimits::default();
        let limits = HttpLimits { connections_per_address: limits.connections, ..limits };
        let web = WebConfig { shutdown: lifecycle.soft.clone(), limits: limits.clone(), ..WebConfig::default() };
        let port = Port { limits, engine: Some(engine.clone()), ..Port::default() };
        let app = rondel_web::app(engine.clone(), web);
        let serve = rondel_web::serve_on(listener, port, app, lifecycle.hard.clone());
        lifecycle.spawn("web", Until::Hard, serve);
        Ok(Self { engine, url: format!("http://{address}"), token, lifecycle })
    }

    async fn wait_for_executors(&self, count: usize) -> Result<(), BenchError> {
        let give_up_at = clock::now() + ONLINE_TIMEOUT;
        while self.engine.online_executors().len() < count {
            if clock::now() > give_up_at {
                let online = self.engine.online_executors().len();
                return Err(BenchError::failed(format!("only {online} of {count} executors connected")));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    async fn close(self) -> Result<(), BenchError> {
        if tokio::time::timeout(CLOSE_TIMEOUT, self.lifecycle.wait()).await.is_err() {
            tracing::warn!("connections were cut that did not end");
        }
        if self.lifecycle.has_failed() {
            return Err(BenchError::failed("a part of the server failed; the log names it"));
        }
        Ok(())
    }
}
