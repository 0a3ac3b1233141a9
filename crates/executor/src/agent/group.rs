//! A child process and whatever it started, ended together.

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::Child;

/// The process group of a child that leads it. Dropped while armed it kills the whole group at once.
#[derive(Debug)]
pub(super) struct ProcessGroup {
    leader: Option<Pid>,
}

impl ProcessGroup {
    /// `child` was started as the leader of a group of its own.
    pub(super) fn led_by(child: &Child) -> Self {
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        Self { leader: id.and_then(Pid::from_raw) }
    }

    /// Asks all of them to end.
    pub(super) fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// The child has ended by itself: what it left in the background may go on.
    pub(super) fn disarm(mut self) {
        self.leader = None;
    }

    fn signal(&self, signal: Signal) {
        let Some(leader) = self.leader else { return };
        match kill_process_group(leader, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(error) => tracing::warn!(%error, group = %leader, "cannot signal a process group"),
        }
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}
