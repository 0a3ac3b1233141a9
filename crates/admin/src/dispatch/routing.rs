//! Which executor gets a run: what the routers of `core` are told, and what is done with their choice.

use rand::RngExt as _;
use rondel_core::route::{Answer, Ask, Candidate, Choice};
use rondel_core::{Run, RunId, Timestamp};

use super::Ready;
use super::executors::Online;
use super::run_loop::DispatchLoop;

impl DispatchLoop {
    /// Routes a run and assigns it; gives it back where nobody takes it.
    pub(super) fn route(&mut self, ready: Ready, now: Timestamp) -> Option<Ready> {
        let (run, job) = (&ready.run, &ready.definition.job);
        let online: Vec<&Online> = self.executors.fit(run.app, job);
        let candidates: Vec<Candidate<'_>> = online.iter().map(|online| online.candidate(Answer::None, now)).collect();
        let ask = Ask {
            job: run.job,
            shard: usize::try_from(run.shard_index).unwrap_or(0),
            shards: run.shard_total.and_then(|total| usize::try_from(total).ok()).unwrap_or(1),
            attempt: run.attempt,
            executor: run.executor.as_deref(),
            candidates: &candidates,
            now,
            draw: draw(run),
            is_over: true,
        };
        match self.memories.pick(job.route, &ask) {
            Choice::Take(index) => {
                let (id, name) = (online[index].session.executor, online[index].name.clone());
                self.assign(ready, id, name, now);
                None
            }
            Choice::Wait | Choice::Nobody => Some(ready),
        }
    }
}

/// A random number: the same for all shards of a fire.
fn draw(run: &Run) -> u32 {
    match run.parent.filter(|_| run.shard_total.is_some_and(|total| total > 1)) {
        Some(fire) => spread(fire),
        None => rand::rng().random(),
    }
}

fn spread(run: RunId) -> u32 {
    let mixed = run.get().unsigned_abs().wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    u32::try_from(mixed).unwrap_or(0)
}
