//! The executors: in this process, or each in its own process, so that their usage can be separated from the
//! server's.

use std::io::BufRead as _;
use std::path::Path;
use std::process::Stdio;

use rondel::Executor;
use rondel::agent::{AgentConfig, add_handlers};
use serde::{Deserialize, Serialize};
use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child, ChildStdin, Command};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::BenchError;
use crate::load::APP;
use crate::plan::Plan;
use crate::recorder::{HANDLER, Observations, Recorder, Window, record_start};
use crate::test_server::TestServers;
use crate::usage::{self, Usage};

/// An executor in a separate process. It gets its token and the window on standard input, and ends when the input
/// ends.
#[derive(Clone, Debug)]
pub struct ExecutorPlan {
    /// The servers to dial.
    pub servers: Vec<String>,
    /// Its name.
    pub name: String,
    /// How many runs it takes at the same time.
    pub slots: u32,
    /// Whether it also has the agent's handlers.
    pub has_agent_handlers: bool,
}

/// A message on an executor's standard input.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum InputMessage {
    Token(String),
    Measure(Window),
}

/// Runs an executor until its standard input ends. Returns what it observed, as a line of JSON that [`crate::run`] reads.
///
/// # Errors
/// An error that keeps the executor from starting, or an input that is not from a bench.
pub async fn run_executor(plan: ExecutorPlan) -> Result<String, BenchError> {
    let recorder = Recorder::default();
    let InputMessages { token_receiver, stop } = InputMessages::listen(&recorder)?;
    let token = token_receiver.await.map_err(|_| BenchError::failed("only `rondel bench` can start this command"))?;
    let servers: Vec<&str> = plan.servers.iter().map(String::as_str).collect();
    let executor = build_executor((&servers, &token), plan.name, (plan.slots, plan.has_agent_handlers), &recorder)?;
    executor.run_until(stop.cancelled()).await?;
    serde_json::to_string(&recorder.observations()).map_err(|error| BenchError::failed(error.to_string()))
}

/// The messages from standard input.
#[derive(Debug)]
pub(crate) struct InputMessages {
    /// Receives the token once it has been read.
    pub(crate) token_receiver: tokio::sync::oneshot::Receiver<String>,
    /// Cancelled when the input ends.
    pub(crate) stop: CancellationToken,
}

impl InputMessages {
    /// Starts a thread that reads the messages. It passes the windows to the recorder.
    pub(crate) fn listen(recorder: &Recorder) -> Result<Self, BenchError> {
        let stop = CancellationToken::new();
        let (token_sender, token_receiver) = tokio::sync::oneshot::channel();
        let (thread_recorder, thread_stop) = (recorder.clone(), stop.clone());
        let thread_builder = std::thread::Builder::new().name("stdin".to_owned());
        let thread = thread_builder.spawn(move || read_messages(token_sender, &thread_recorder, &thread_stop));
        drop(thread.map_err(BenchError::system("read standard input"))?);
        Ok(Self { token_receiver, stop })
    }
}

fn read_messages(token_sender: tokio::sync::oneshot::Sender<String>, recorder: &Recorder, stop: &CancellationToken) {
    let mut token_sender = Some(token_sender);
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        match serde_json::from_str(&line) {
            Ok(InputMessage::Token(token)) => drop(token_sender.take().map(|sender| sender.send(token))),
            Ok(InputMessage::Measure(window)) => recorder.set_window(window),
            Err(error) => tracing::warn!(%error, "standard input has an unknown message"),
        }
    }
    stop.cancel();
}

fn build_executor(
    (servers, token): (&[&str], &str),
    name: String,
    (slots, has_agent_handlers): (u32, bool),
    recorder: &Recorder,
) -> Result<Executor, BenchError> {
    let builder = Executor::builder(APP).token(token).name(name).slots(slots);
    let builder = servers.iter().fold(builder, |builder, server| builder.server(*server));
    let builder = builder.state(recorder.clone()).handler(HANDLER, record_start);
    let builder = if has_agent_handlers { add_handlers(builder, &AgentConfig::default())? } else { builder };
    Ok(builder.build()?)
}

/// The executors of a measurement.
#[derive(Debug)]
pub(crate) enum Fleet {
    InProcess { recorder: Recorder, stop: CancellationToken, tasks: JoinSet<Result<(), BenchError>> },
    Separate(Vec<ExecutorProcess>),
}

/// The process of one executor. It ends when its standard input is closed.
#[derive(Debug)]
pub(crate) struct ExecutorProcess {
    child: Child,
    stdin: Option<ChildStdin>,
}

impl Fleet {
    pub(crate) async fn start(plan: &Plan, test_servers: &TestServers) -> Result<Self, BenchError> {
        let names = (0..plan.executors).map(|number| format!("bench-{number}"));
        let fleet = match &plan.executor_program {
            None => {
                let (recorder, stop, mut tasks) = (Recorder::default(), CancellationToken::new(), JoinSet::new());
                for name in names {
                    let executor = build_executor(
                        (&test_servers.urls(), test_servers.token().reveal()),
                        name,
                        (plan.slots, plan.flood.is_some()),
                        &recorder,
                    )?;
                    let stop = stop.clone().cancelled_owned();
                    tasks.spawn(async move { Ok(executor.run_until(stop).await?) });
                }
                Self::InProcess { recorder, stop, tasks }
            }
            Some(program) => {
                let mut processes = Vec::new();
                for name in names {
                    processes.push(ExecutorProcess::start(program, plan, test_servers, &name).await?);
                }
                Self::Separate(processes)
            }
        };
        test_servers.wait_for_executors(usize::try_from(plan.executors).unwrap_or(usize::MAX)).await?;
        Ok(fleet)
    }

    /// Sets the window whose starts count.
    pub(crate) async fn set_window(&mut self, window: Window) -> Result<(), BenchError> {
        match self {
            Self::InProcess { recorder, .. } => recorder.set_window(window),
            Self::Separate(processes) => {
                for process in processes {
                    process.send(&InputMessage::Measure(window)).await?;
                }
            }
        }
        Ok(())
    }

    /// The usage of executors with their own processes; `None` for executors in this process.
    pub(crate) fn usage(&self) -> Option<Usage> {
        let add = |total: Usage, process_usage: Usage| Usage {
            cpu: total.cpu + process_usage.cpu,
            written_bytes: total.written_bytes + process_usage.written_bytes,
        };
        self.pids().map(|pids| pids.map(usage::of).fold(Usage::default(), add))
    }

    /// The memory of the largest executor process in bytes, now and at its peak.
    pub(crate) fn memory(&self) -> Option<(u64, u64)> {
        self.pids().map(|pids| pids.map(usage::memory).max_by_key(|(_, peak)| *peak).unwrap_or_default())
    }

    fn pids(&self) -> Option<impl Iterator<Item = u32>> {
        match self {
            Self::InProcess { .. } => None,
            Self::Separate(processes) => Some(processes.iter().filter_map(|process| process.child.id())),
        }
    }

    /// Ends the executors. Returns the sum of what they observed.
    pub(crate) async fn end(self) -> Result<Observations, BenchError> {
        match self {
            Self::InProcess { recorder, stop, mut tasks } => {
                stop.cancel();
                while let Some(result) = tasks.join_next().await {
                    result.map_err(|error| BenchError::failed(format!("an executor failed: {error}")))??;
                }
                Ok(recorder.observations())
            }
            Self::Separate(processes) => {
                let mut observations = Observations::default();
                for process in processes {
                    observations.add(&process.end().await?);
                }
                Ok(observations)
            }
        }
    }
}

impl ExecutorProcess {
    async fn start(program: &Path, plan: &Plan, test_servers: &TestServers, name: &str) -> Result<Self, BenchError> {
        let mut command = Command::new(program);
        command.args(["bench", "executor", "--name", name]);
        for url in test_servers.urls() {
            command.args(["--server", url]);
        }
        command
            .arg("--slots")
            .arg(plan.slots.to_string())
            .args(plan.flood.map(|_| "--agent"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        let mut child = command.spawn().map_err(BenchError::system("start an executor"))?;
        let stdin = child.stdin.take();
        let mut process = Self { child, stdin };
        process.send(&InputMessage::Token(test_servers.token().reveal().to_owned())).await?;
        Ok(process)
    }

    async fn send(&mut self, message: &InputMessage) -> Result<(), BenchError> {
        let Some(stdin) = &mut self.stdin else { return Ok(()) };
        let line = serde_json::to_string(message).map_err(|error| BenchError::failed(error.to_string()))?;
        stdin.write_all(format!("{line}\n").as_bytes()).await.map_err(BenchError::system("speak to an executor"))
    }

    async fn end(mut self) -> Result<Observations, BenchError> {
        drop(self.stdin.take());
        let output = self.child.wait_with_output().await.map_err(BenchError::system("wait for an executor"))?;
        serde_json::from_slice(&output.stdout).map_err(|error| {
            BenchError::failed(format!("an executor printed no usable result ({}): {error}", output.status))
        })
    }
}
