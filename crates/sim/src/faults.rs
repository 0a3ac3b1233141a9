//! The faults of a seed and their times, drawn beforehand so that they do not depend on other events.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::executor::ExecutorHost;
use crate::net::Direction;
use crate::node::NodeHost;
use crate::profile::Profile;
use crate::rng::{SeededRng, mix};
use crate::world::World;

#[derive(Clone, Debug)]
enum Fault {
    KillNode {
        node: usize,
        back_after: Duration,
    },
    DrainNode {
        node: usize,
        back_after: Duration,
    },
    StopNode {
        node: usize,
        length: Duration,
    },
    /// Every node dies, and all come back together: an upgrade that goes wrong.
    Blackout {
        length: Duration,
    },
    KillExecutor {
        executor: usize,
        back_after: Duration,
    },
    StopExecutor {
        executor: usize,
        length: Duration,
    },
    DrainExecutor {
        executor: usize,
        back_after: Duration,
    },
    Cut {
        executor: usize,
        node: usize,
        directions: Vec<Direction>,
        length: Duration,
    },
    /// Cuts the executor off from every node.
    CutAll {
        executor: usize,
        directions: Vec<Direction>,
        length: Duration,
    },
    DatabaseDown {
        length: Duration,
    },
    DatabaseCut {
        node: usize,
        length: Duration,
    },
    DatabaseSlow {
        by: Duration,
        length: Duration,
    },
    ClockStep {
        millis: i64,
    },
}

/// Salt that keeps the draw of outages of all servers independent of other draws of the same seed.
const BLACKOUT_SALT: u64 = 0xb1ac_0000;

/// How long an executor that drains may take.
const DRAIN_GRACE: Duration = Duration::from_secs(6);
/// Salt that keeps the draw of executors that drain independent of other draws of the same seed.
const DRAIN_SALT: u64 = 0xd4a1_0000;
/// Salt that keeps the draw of the deaths of a single server independent of other draws of the same seed.
const RESTART_SALT: u64 = 0x4e57_0000;

/// Faults with their instants, in milliseconds since the world began.
#[derive(Debug)]
pub(crate) struct Plan(Vec<(u64, Fault)>);

impl Plan {
    pub(crate) fn draw(rng: &mut SeededRng, profile: &Profile) -> Self {
        let mut plan = Vec::new();
        for _ in 0..profile.fault_count {
            let at_ms = rng.between(1_500, profile.faulty_ms);
            if let Some(fault) = draw_fault(rng, profile) {
                plan.push((at_ms, fault));
            }
        }
        plan.sort_by_key(|(at_ms, _)| *at_ms);
        Self(plan)
    }

    /// Adds executors that drain.
    pub(crate) fn with_drains(mut self, seed: u64, profile: &Profile) -> Self {
        let mut rng = SeededRng::new(mix(seed ^ DRAIN_SALT));
        let count = if profile.has_executor_faults && profile.fault_count > 0 { rng.below(4) } else { 0 };
        for _ in 0..count {
            let at_ms = rng.between(1_500, profile.faulty_ms);
            let executor = rng.index(profile.executor_count);
            self.0.push((at_ms, Fault::DrainExecutor { executor, back_after: draw_length(&mut rng) }));
        }
        self.0.sort_by_key(|(at_ms, _)| *at_ms);
        self
    }

    /// Adds deaths of the only server, which starts again within half a second each time.
    pub(crate) fn with_restarts(mut self, seed: u64, profile: &Profile) -> Self {
        let mut rng = SeededRng::new(mix(seed ^ RESTART_SALT));
        let count = if profile.is_single_server && profile.has_node_faults { rng.between(1, 6) } else { 0 };
        for _ in 0..count {
            let at_ms = rng.between(1_500, profile.faulty_ms);
            self.0.push((at_ms, Fault::KillNode { node: 0, back_after: rng.millis(5, 400) }));
        }
        self.0.sort_by_key(|(at_ms, _)| *at_ms);
        self
    }

    /// In some seeds, adds an outage of all servers. It is longer than the silence after which executors stop runs with
    /// `on_silence: stop`. In some of these seeds it is also longer than the silence after which they stop any run.
    pub(crate) fn with_blackout(mut self, profile: &Profile) -> Self {
        let Some(mut rng) = profile.silence_seed.map(|seed| SeededRng::new(mix(seed ^ BLACKOUT_SALT))) else {
            return self;
        };
        if profile.has_node_faults && rng.happens(200_000) {
            let at_ms = rng.between(1_500, profile.faulty_ms);
            self.0.push((at_ms, Fault::Blackout { length: rng.millis(3_000, 12_000) }));
            self.0.sort_by_key(|(at_ms, _)| *at_ms);
        }
        self
    }
}

fn draw_length(rng: &mut SeededRng) -> Duration {
    match rng.below(4) {
        0 => rng.millis(100, 1_500),
        1 | 2 => rng.millis(1_500, 6_000),
        _ => rng.millis(6_000, 12_000),
    }
}

fn draw_directions(rng: &mut SeededRng) -> Vec<Direction> {
    match rng.below(4) {
        0 => vec![Direction::Up],
        1 => vec![Direction::Down],
        _ => vec![Direction::Up, Direction::Down],
    }
}

fn draw_fault(rng: &mut SeededRng, profile: &Profile) -> Option<Fault> {
    let (node, executor) = (rng.index(profile.node_count), rng.index(profile.executor_count));
    let length = draw_length(rng);
    let has_kind = [
        profile.has_node_faults,
        profile.has_executor_faults,
        profile.has_net_faults,
        profile.has_database_faults,
        profile.has_clock_faults,
    ];
    let allowed_kinds: Vec<usize> = (0..has_kind.len()).filter(|kind| has_kind[*kind]).collect();
    if allowed_kinds.is_empty() {
        return None;
    }
    Some(match *rng.pick(&allowed_kinds) {
        0 => match rng.below(5) {
            0 | 1 => Fault::KillNode { node, back_after: length },
            2 => Fault::DrainNode { node, back_after: length },
            _ => Fault::StopNode { node, length },
        },
        1 => match rng.below(2) {
            0 => Fault::KillExecutor { executor, back_after: length },
            _ => Fault::StopExecutor { executor, length },
        },
        2 => match rng.below(3) {
            0 => Fault::CutAll { executor, directions: draw_directions(rng), length },
            _ => Fault::Cut { executor, node, directions: draw_directions(rng), length },
        },
        3 => match rng.below(3) {
            0 => Fault::DatabaseDown { length },
            1 => Fault::DatabaseCut { node, length },
            _ => Fault::DatabaseSlow { by: rng.millis(20, 700), length },
        },
        _ => {
            let millis = i64::try_from(rng.between(200, 20_000)).unwrap_or(0);
            let is_back = profile.steps_back && rng.happens(500_000);
            Fault::ClockStep { millis: if is_back { -millis / 4 } else { millis } }
        }
    })
}

/// The hosts that faults affect.
#[derive(Clone)]
pub(crate) struct Hosts {
    pub(crate) world: Arc<World>,
    pub(crate) nodes: Vec<Arc<NodeHost>>,
    pub(crate) executors: Vec<Arc<ExecutorHost>>,
}

impl Hosts {
    /// Injects the planned faults at their times.
    pub(crate) async fn inject(self, plan: Plan) {
        for (at_ms, fault) in plan.0 {
            sleep_until(self.world.began_at + Duration::from_millis(at_ms)).await;
            self.world.record("fault", 0, || format!("{fault:?}"));
            self.apply(fault);
        }
    }

    fn apply(&self, fault: Fault) {
        let now = Instant::now();
        match fault {
            Fault::KillNode { node, back_after } => {
                self.nodes[node].kill();
                self.nodes[node].start_later(back_after);
            }
            Fault::DrainNode { node, back_after } => {
                self.nodes[node].drain(Duration::from_secs(1));
                self.nodes[node].start_later(back_after + Duration::from_secs(2));
            }
            Fault::StopNode { node, length } => self.nodes[node].pause_for(length),
            Fault::Blackout { length } => {
                self.nodes.iter().for_each(|node| node.kill());
                self.nodes.iter().for_each(|node| node.start_later(length));
            }
            Fault::KillExecutor { executor, back_after } => {
                self.executors[executor].kill();
                self.executors[executor].start_later(back_after);
            }
            Fault::StopExecutor { executor, length } => self.executors[executor].pause_for(length),
            Fault::DrainExecutor { executor, back_after } => self.executors[executor].drain(DRAIN_GRACE, back_after),
            Fault::Cut { executor, node, directions, length } => self.cut(executor, node, &directions, now + length),
            Fault::CutAll { executor, directions, length } => {
                (0..self.nodes.len()).for_each(|node| self.cut(executor, node, &directions, now + length));
            }
            Fault::DatabaseDown { length } => {
                let mut database = self.world.database();
                database.down_until = database.down_until.max(now + length);
            }
            Fault::DatabaseCut { node, length } => {
                self.world.database().cut_until.insert(node, now + length);
            }
            Fault::DatabaseSlow { by, length } => {
                self.world.database().slowness = by;
                let world = Arc::clone(&self.world);
                self.world.tracker.spawn(async move {
                    sleep_until(now + length).await;
                    world.database().slowness = Duration::ZERO;
                });
            }
            Fault::ClockStep { millis } => self.world.step_clock(millis),
        }
    }

    fn cut(&self, executor: usize, node: usize, directions: &[Direction], until: Instant) {
        directions.iter().for_each(|direction| self.world.net.cut(executor, node, *direction, until));
    }

    /// Restarts servers that died at a seam ([`World::pass_seam`]), as a supervisor would.
    pub(crate) async fn supervise(self) {
        let mut dead_since: Vec<Option<Instant>> = vec![None; self.nodes.len()];
        loop {
            tokio::time::sleep(Duration::from_millis(250)).await;
            for (node, since) in self.nodes.iter().zip(&mut dead_since) {
                if !node.is_dead() {
                    *since = None;
                } else if since.get_or_insert_with(Instant::now).elapsed() > Duration::from_secs(4) {
                    node.start();
                }
            }
        }
    }

    /// Ends all faults: what was cut, stopped or dead works again.
    pub(crate) fn heal(&self) {
        self.world.record("heal", 0, String::new);
        self.world.set_faulty(false);
        self.world.net.heal();
        let mut database = self.world.database();
        database.down_until = Instant::now();
        database.cut_until.clear();
        database.slowness = Duration::ZERO;
        drop(database);
        for node in &self.nodes {
            node.resume();
            node.start();
        }
        for executor in &self.executors {
            executor.resume();
            executor.start();
        }
    }
}
