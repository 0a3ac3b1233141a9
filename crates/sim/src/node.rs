//! One server: the real engine in a process of the simulation, started under the same name repeatedly.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use rondel_admin::clock::BootClock;
use rondel_admin::{Engine, Lifecycle, StartError};
use rondel_proto::v1;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::Status;

use crate::net::{Direction, Pipe};
use crate::process::Process;
use crate::profile::engine_config;
use crate::store::SimStore;
use crate::watch;
use crate::world::{World, lock};

/// The host of a server, which outlives the server's processes.
pub(crate) struct NodeHost {
    pub(crate) index: usize,
    world: Arc<World>,
    /// The host's clock, with its drift.
    boot_clock: BootClock,
    running_server: Mutex<Option<RunningServer>>,
}

/// The newest process of the server.
#[derive(Clone)]
struct RunningServer {
    process: Arc<Process>,
    lifecycle: Lifecycle,
    engine: Option<Engine>,
}

/// An executor's side of a stream: its sender and its receiver.
pub(crate) type Stream = (mpsc::UnboundedSender<v1::ExecutorMessage>, mpsc::UnboundedReceiver<v1::ServerMessage>);

impl NodeHost {
    pub(crate) fn new(world: &Arc<World>, index: usize) -> Arc<Self> {
        let (drift, offset) = {
            let mut rng = world.rng();
            let drift = rng.below(2 * world.profile.drift_ppm + 1);
            let drift = i64::try_from(drift).unwrap_or(0) - i64::try_from(world.profile.drift_ppm).unwrap_or(0);
            (drift, i64::try_from(rng.between(1_000_000, 1_000_000_000)).unwrap_or(0))
        };
        let began_at = world.began_at;
        let clock = move || {
            let micros = i64::try_from(began_at.elapsed().as_micros()).unwrap_or(i64::MAX);
            offset + micros + micros * drift / 1_000_000
        };
        let boot_clock = BootClock::Given(Arc::new(clock));
        Arc::new(Self { index, world: Arc::clone(world), boot_clock, running_server: Mutex::new(None) })
    }

    /// Starts the server, unless it is running.
    pub(crate) fn start(self: &Arc<Self>) {
        let mut running_server = lock(&self.running_server);
        if running_server.as_ref().is_some_and(|running_server| !running_server.process.is_dead()) {
            return;
        }
        let process = Process::new();
        let task_process = Arc::clone(&process);
        let lifecycle = Lifecycle::with_tasks_in(Arc::new(move |task| task_process.confine(task)));
        *running_server =
            Some(RunningServer { process: Arc::clone(&process), lifecycle: lifecycle.clone(), engine: None });
        drop(running_server);
        let host = Arc::clone(self);
        let main_process = Arc::clone(&process);
        self.world.record("node starts", self.number(), String::new);
        self.world.tracker.spawn(process.confine(Box::pin(async move { host.main(main_process, lifecycle).await })));
    }

    async fn main(self: Arc<Self>, process: Arc<Process>, lifecycle: Lifecycle) {
        let store = SimStore { world: Arc::clone(&self.world), node: self.index, process: Arc::clone(&process) };
        let mut config = engine_config(format!("n{}", self.index), &self.world.profile);
        config.boot = self.boot_clock.clone();
        match Engine::start(Arc::new(store), config, &lifecycle).await {
            Ok(engine) => {
                self.world.record("node runs", self.number(), || format!("{:?}", engine.token()));
                if let Some(running_server) = lock(&self.running_server).as_mut() {
                    running_server.engine = Some(engine);
                }
            }
            Err(error) => {
                if matches!(error, StartError::NameTaken { .. }) {
                    self.world.truth().violate("nodes", &format!("n{} was refused its own name", self.index));
                }
                self.world.record("node cannot start", self.number(), || error.to_string());
                process.kill();
                self.start_later(Duration::from_millis(500));
            }
        }
    }

    pub(crate) fn start_later(self: &Arc<Self>, delay: Duration) {
        let host = Arc::clone(self);
        self.world.tracker.spawn(async move {
            tokio::time::sleep(delay).await;
            host.start();
        });
    }

    fn number(&self) -> i64 {
        i64::try_from(self.index).unwrap_or(0)
    }

    /// Kills the process, as `kill -9` does.
    pub(crate) fn kill(&self) {
        self.world.record("node is killed", self.number(), String::new);
        if let Some(running_server) = lock(&self.running_server).take() {
            running_server.process.kill();
        }
    }

    /// SIGTERM: the server drains, and then ends.
    pub(crate) fn drain(self: &Arc<Self>, grace: Duration) {
        let Some(running_server) = lock(&self.running_server).clone() else { return };
        let Some(engine) = running_server.engine else { return };
        self.world.record("node drains", self.number(), String::new);
        let process = Arc::clone(&running_server.process);
        let task_process = Arc::clone(&process);
        let task = async move {
            engine.drain(grace).await;
            process.kill();
        };
        self.world.tracker.spawn(task_process.confine(Box::pin(task)));
    }

    /// SIGSTOP, and SIGCONT later.
    pub(crate) fn pause_for(&self, length: Duration) {
        self.world.record("node stops", self.number(), || format!("for {length:?}"));
        if let Some(running_server) = lock(&self.running_server).as_ref() {
            self.world.pause_for(&running_server.process, length);
        }
    }

    pub(crate) fn resume(&self) {
        if let Some(running_server) = lock(&self.running_server).as_ref() {
            running_server.process.resume();
        }
    }

    pub(crate) fn is_dead(&self) -> bool {
        lock(&self.running_server).as_ref().is_none_or(|running_server| running_server.process.is_dead())
    }

    /// Whether a loop of the engine ended without a stop.
    pub(crate) fn has_failed(&self) -> bool {
        let running_server = lock(&self.running_server);
        running_server
            .as_ref()
            .is_some_and(|running_server| !running_server.process.is_dead() && running_server.lifecycle.has_failed())
    }

    /// The engine, if it has started and its process is running.
    pub(crate) fn engine(&self) -> Option<(Engine, Arc<Process>)> {
        let running_server = lock(&self.running_server).clone()?;
        let engine = running_server.engine.filter(|_| running_server.process.is_running())?;
        Some((engine, running_server.process))
    }

    /// Opens a session for an executor; `None` if no server listens.
    pub(crate) fn accept(self: &Arc<Self>, executor: usize) -> Option<Stream> {
        let running_server =
            lock(&self.running_server).clone().filter(|running_server| !running_server.process.is_dead())?;
        let engine = running_server.engine?;
        let (up_sender, up_pipe) = mpsc::unbounded_channel();
        let (into_node, messages) = mpsc::unbounded_channel();
        let (from_node, down_pipe) = mpsc::unbounded_channel();
        let (into_executor, down_receiver) = mpsc::unbounded_channel();
        let pipe = |direction| Pipe { world: Arc::clone(&self.world), executor, node: self.index, direction };
        self.world.tracker.spawn(pipe(Direction::Up).carry(up_pipe, into_node));
        self.world.tracker.spawn(pipe(Direction::Down).carry(down_pipe, into_executor));
        let (world, process) = (Arc::clone(&self.world), Arc::clone(&running_server.process));
        let task_process = Arc::clone(&process);
        let task = async move {
            let messages =
                tokio_stream::StreamExt::map(UnboundedReceiverStream::new(messages), Ok::<v1::ExecutorMessage, Status>);
            let Ok(mut outgoing) = engine.open_session(messages, "sim").await else { return };
            drop(engine);
            loop {
                let message = tokio::select! {
                    biased;
                    () = from_node.closed() => return,
                    message = outgoing.recv() => message,
                };
                let Some(message) = message else { return };
                watch::check_sent(&world, &process, &message).await;
                // The last place at which a node can be stopped before it sends something.
                world.pass_seam(&process, "before a message is written").await;
                if from_node.send(message).is_err() {
                    return;
                }
            }
        };
        self.world.tracker.spawn(task_process.confine(Box::pin(task)));
        Some((up_sender, down_receiver))
    }
}
