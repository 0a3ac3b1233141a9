//! A process as a host sees it: all its tasks run together, stop together (SIGSTOP), and die together.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use rondel_admin::lifecycle::Task;
use tokio::time::Instant;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Running,
    Stopped,
    Dead,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    /// When it last resumed after a stop.
    resumed_at: Option<Instant>,
    next_task: u64,
    /// How to wake each of its tasks, by the task's number.
    wakers: BTreeMap<u64, Waker>,
}

/// One process.
#[derive(Debug)]
pub(crate) struct Process(Mutex<State>);

impl Process {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(State {
            phase: Phase::Running,
            resumed_at: None,
            next_task: 0,
            wakers: BTreeMap::new(),
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a task part of this process.
    pub(crate) fn confine(self: &Arc<Self>, task: Task) -> Task {
        let mut state = self.state();
        state.next_task += 1;
        let number = state.next_task;
        drop(state);
        Box::pin(ConfinedTask { process: Arc::clone(self), number, has_waker: false, task: Some(task) })
    }

    pub(crate) fn is_running(&self) -> bool {
        self.state().phase == Phase::Running
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.state().phase == Phase::Dead
    }

    /// Stops the process: none of its tasks is polled from now on. `false` if it was not running.
    pub(crate) fn stop(&self) -> bool {
        let mut state = self.state();
        let was_running = state.phase == Phase::Running;
        if was_running {
            state.phase = Phase::Stopped;
        }
        was_running
    }

    pub(crate) fn resume(&self) {
        let mut state = self.state();
        if state.phase == Phase::Stopped {
            state.resumed_at = Some(Instant::now());
        }
        drop(state);
        self.enter(Phase::Running);
    }

    /// When it last resumed after a stop.
    pub(crate) fn resumed_at(&self) -> Option<Instant> {
        self.state().resumed_at
    }

    /// Kills the process: its tasks are dropped at their current `await`.
    pub(crate) fn kill(&self) {
        self.enter(Phase::Dead);
    }

    fn enter(&self, phase: Phase) {
        let mut state = self.state();
        if state.phase == Phase::Dead {
            return;
        }
        state.phase = phase;
        let wakers: Vec<Waker> = state.wakers.values().cloned().collect();
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }
}

struct ConfinedTask {
    process: Arc<Process>,
    number: u64,
    has_waker: bool,
    task: Option<Task>,
}

impl Future for ConfinedTask {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let mut state = this.process.state();
        if !this.has_waker {
            // A task's waker stays the same for as long as it lives.
            state.wakers.insert(this.number, context.waker().clone());
            this.has_waker = true;
        }
        let phase = state.phase;
        drop(state);
        match (phase, &mut this.task) {
            (Phase::Stopped, _) => Poll::Pending,
            (Phase::Running, Some(task)) => {
                let poll = task.as_mut().poll(context);
                if poll.is_ready() {
                    this.task = None;
                }
                poll
            }
            (Phase::Dead, _) | (_, None) => {
                this.task = None;
                Poll::Ready(())
            }
        }
    }
}

impl Drop for ConfinedTask {
    fn drop(&mut self) {
        self.process.state().wakers.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_stopped_process_pauses_and_a_dead_one_is_gone() {
        let process = Process::new();
        let beats = Arc::new(AtomicU64::new(0));
        let task_beats = Arc::clone(&beats);
        let task = process.confine(Box::pin(async move {
            loop {
                tokio::time::sleep(Duration::from_secs(1)).await;
                task_beats.fetch_add(1, Ordering::Relaxed);
            }
        }));
        let tracker = tokio_util::task::TaskTracker::new();
        let handle = tracker.spawn(task);
        let beats_after = async |seconds: u64| {
            tokio::time::sleep(Duration::from_millis(seconds * 1000 + 500)).await;
            beats.load(Ordering::Relaxed)
        };
        assert_eq!(beats_after(3).await, 3);
        assert!(process.stop() && !process.is_running());
        assert_eq!(beats_after(10).await, 3);
        process.resume();
        assert_eq!(beats_after(2).await, 6, "what was due while it stood still comes once");
        process.kill();
        handle.await.unwrap();
        assert!(process.is_dead() && beats.load(Ordering::Relaxed) == 6);
    }
}
