//! The network between executors and nodes: a stream has two directions, each with its own delays, cuts and
//! duplicates. In one direction, messages keep their order, as in a TCP connection, but the copy of a duplicated message
//! may come late.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};

use crate::world::{World, lock};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From the executor to the node.
    Up,
    /// From the node to the executor.
    Down,
}

/// Which directions are cut, and until when.
#[derive(Debug)]
pub(crate) struct Net {
    node_count: usize,
    /// For each pair of an executor and a node, until when each direction is cut.
    cuts: Mutex<Vec<[Option<Instant>; 2]>>,
}

impl Net {
    pub(crate) fn new(node_count: usize, executor_count: usize) -> Self {
        Self { node_count, cuts: Mutex::new(vec![[None; 2]; node_count * executor_count]) }
    }

    pub(crate) fn cut(&self, executor: usize, node: usize, direction: Direction, until: Instant) {
        let slot = &mut lock(&self.cuts)[executor * self.node_count + node][direction as usize];
        *slot = Some(slot.map_or(until, |known_until| known_until.max(until)));
    }

    pub(crate) fn cut_until(&self, executor: usize, node: usize, direction: Direction) -> Option<Instant> {
        lock(&self.cuts)[executor * self.node_count + node][direction as usize].filter(|until| *until > Instant::now())
    }

    pub(crate) fn heal(&self) {
        lock(&self.cuts).iter_mut().for_each(|cuts| *cuts = [None; 2]);
    }
}

/// One direction of one stream.
pub(crate) struct Pipe {
    pub(crate) world: Arc<World>,
    pub(crate) executor: usize,
    pub(crate) node: usize,
    pub(crate) direction: Direction,
}

impl Pipe {
    /// Carries messages until either end is gone. Messages that are in flight when the sender ends still arrive.
    pub(crate) async fn carry<T: Clone>(
        self,
        mut receiver: mpsc::UnboundedReceiver<T>,
        sender: mpsc::UnboundedSender<T>,
    ) {
        let mut duplicates: VecDeque<T> = VecDeque::new();
        let mut is_first = true;
        while let Some(message) = receiver.recv().await {
            self.delay().await;
            while let Some(until) = self.world.net.cut_until(self.executor, self.node, self.direction) {
                let next_check = sleep_until(until.min(Instant::now() + Duration::from_secs(1)));
                tokio::select! {
                    biased;
                    // The receiver is gone.
                    () = sender.closed() => return,
                    () = next_check => {}
                }
            }
            let (is_duplicated, sends_duplicate) = self.draw_duplicate();
            // The first message, a hello or a welcome, is never duplicated.
            if is_duplicated && !is_first {
                duplicates.push_back(message.clone());
            }
            is_first = false;
            if sender.send(message).is_err() {
                return;
            }
            if sends_duplicate
                && let Some(message) = duplicates.pop_front()
                && sender.send(message).is_err()
            {
                return;
            }
        }
    }

    /// Draws whether the message is duplicated, and whether a duplicate that waits is sent behind it.
    fn draw_duplicate(&self) -> (bool, bool) {
        let mut rng = self.world.rng();
        (self.world.is_faulty() && rng.happens(self.world.profile.duplicate_ppm), rng.happens(500_000))
    }

    async fn delay(&self) {
        let length = {
            let mut rng = self.world.rng();
            let is_long = self.world.is_faulty() && rng.happens(self.world.profile.delay_ppm);
            if is_long { rng.millis(5, 800) } else { rng.millis(0, 1) }
        };
        if !length.is_zero() {
            sleep(length).await;
        }
    }
}
