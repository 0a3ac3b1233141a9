//! A server in this process, put together as `rondel server` does, with the metered store under it.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use rondel_admin::auth::{Token, add_admin_token};
use rondel_admin::{Engine, EngineConfig, Lifecycle, Until};
use rondel_web::WebConfig;
use tokio::net::TcpListener;

use crate::BenchError;
use crate::clock;
use crate::metered::Metered;

const NODE: &str = "bench";
const DRAIN_GRACE: Duration = Duration::from_secs(10);
const ONLINE_TIMEOUT: Duration = Duration::from_secs(30);
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// A running server.
#[derive(Debug)]
pub(crate) struct Stand {
    pub(crate) engine: Engine,
    pub(crate) url: String,
    pub(crate) token: Token,
    lifecycle: Lifecycle,
}

impl Stand {
    pub(crate) async fn start(store: Arc<Metered>) -> Result<Self, BenchError> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.map_err(BenchError::system("listen"))?;
        let address = listener.local_addr().map_err(BenchError::system("listen"))?;
        let lifecycle = Lifecycle::new();
        let config = EngineConfig { node_name: NODE.to_owned(), ..EngineConfig::default() };
        let engine = Engine::start(store, config, &lifecycle).await?;
        let token = Token::generate();
        add_admin_token(engine.store(), engine.new_id(), &token, engine.now()).await?;
        let web = WebConfig { shutdown: lifecycle.soft.clone(), ..WebConfig::default() };
        let serve = rondel_web::serve(listener, rondel_web::app(engine.clone(), web), lifecycle.hard.clone());
        lifecycle.spawn("web", Until::Hard, serve);
        Ok(Self { engine, url: format!("http://{address}"), token, lifecycle })
    }

    /// Waits until so many executors have a stream.
    pub(crate) async fn online(&self, count: usize) -> Result<(), BenchError> {
        let give_up_at = clock::now() + ONLINE_TIMEOUT;
        while self.engine.online_executors().len() < count {
            if clock::now() > give_up_at {
                let online = self.engine.online_executors().len();
                return Err(BenchError::void(format!("only {online} of {count} executors connected")));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// Stops taking new fires; what is in executors' hands becomes durable.
    pub(crate) async fn drain(&self) {
        self.engine.drain(DRAIN_GRACE).await;
    }

    /// Stops the rest.
    pub(crate) async fn close(self) -> Result<(), BenchError> {
        if tokio::time::timeout(CLOSE_TIMEOUT, self.lifecycle.wait()).await.is_err() {
            tracing::warn!("connections were cut that did not end");
        }
        if self.lifecycle.has_failed() {
            return Err(BenchError::void("a part of the server failed; the log says which"));
        }
        Ok(())
    }
}
