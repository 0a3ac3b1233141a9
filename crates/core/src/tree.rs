//! The tree of a fire: which run follows from which, as readers see it. [`graph`] decides which job runs next.
//!
//! [`graph`]: crate::graph

use std::collections::BTreeMap;

use serde_json::Value;

use crate::graph;
use crate::id::RunId;
use crate::run::Run;
use crate::status::Trigger;
use crate::word_enum::word_enum;

/// How deep a tree can be: each job of a chain may be a broadcast with its shards below it.
pub const DEPTH_MAX: usize = 2 * graph::DEPTH_MAX;

word_enum! {
    /// How a run is related to its parent run. Runs are shown in this order.
    Link {
        /// One shard of a run with shards: its parent is the row that stands for all of them.
        Shard = "shard",
        /// A run of another job, which follows it.
        Child = "child",
        /// A manual retry of the run.
        Retry = "retry",
    }
}

/// A run with its place in the tree.
#[derive(Clone, Debug, PartialEq)]
pub struct RunInTree {
    pub run: Run,
    /// How far below the root it is; 0 for the root.
    pub depth: usize,
    /// Its link to the run above; `None` for the root.
    pub link: Option<Link>,
    /// The names of the parent jobs that it waited for, if there were several.
    pub after: Vec<String>,
}

impl Run {
    /// The first run of its fire. For a shard, this is the row that stands for all shards; for a run of a child job, the
    /// run that began the chain; else the run itself, also for a retry that was requested by hand.
    #[must_use]
    pub fn fire_root(&self) -> RunId {
        match self.parent {
            Some(_) if self.trigger == Trigger::Parent => RunId::new(self.cause),
            // A shard has the cause of the row that stands for all shards; a run that was requested is its own cause.
            Some(broadcast) if !self.is_root() && self.cause != self.id.get() => broadcast,
            _ => self.id,
        }
    }

    /// Its sort key among the runs below `parent`: shards by number, then children, then retries by hand, each in the order of their ids.
    #[must_use]
    pub fn sort_key_below(&self, parent: &Self) -> (Link, i32, RunId) {
        let link = self.link_to(parent);
        (link, if link == Link::Shard { self.shard_index } else { 0 }, self.id)
    }

    /// Its link to `parent`, the run that it follows from.
    #[must_use]
    pub fn link_to(&self, parent: &Self) -> Link {
        let is_same_fire = (self.fire_at, self.cause) == (parent.fire_at, parent.cause);
        if self.job != parent.job {
            Link::Child
        } else if parent.is_root() && is_same_fire {
            Link::Shard
        } else {
            Link::Retry
        }
    }
}

/// The root and `runs_below`, each after the run that it follows from.
#[must_use]
pub fn arrange(root: Run, runs_below: Vec<Run>) -> Vec<RunInTree> {
    let mut runs_by_parent: BTreeMap<RunId, Vec<Run>> = BTreeMap::new();
    for run in runs_below {
        if let Some(parent) = run.parent.filter(|_| run.id != root.id) {
            runs_by_parent.entry(parent).or_default().push(run);
        }
    }
    let mut tree = Vec::new();
    let mut runs_to_place = vec![RunInTree { run: root, depth: 0, link: None, after: Vec::new() }];
    while let Some(branch) = runs_to_place.pop() {
        let mut runs_below = runs_by_parent.remove(&branch.run.id).unwrap_or_default();
        runs_below.sort_by_key(|run| std::cmp::Reverse(run.sort_key_below(&branch.run)));
        let mut branches: Vec<RunInTree> = runs_below.into_iter().map(|run| branch_below(run, &branch)).collect();
        runs_to_place.append(&mut branches);
        tree.push(branch);
    }
    tree
}

fn branch_below(run: Run, parent: &RunInTree) -> RunInTree {
    let link = run.link_to(&parent.run);
    let after = if link == Link::Child { joined_parents(&run) } else { Vec::new() };
    RunInTree { depth: parent.depth + 1, link: Some(link), after, run }
}

/// The parent jobs whose results a run received, if there are several.
fn joined_parents(run: &Run) -> Vec<String> {
    let params = run.params.as_deref().filter(|_| run.trigger == Trigger::Parent);
    let params: Option<Value> = params.and_then(|text| serde_json::from_str(text).ok());
    let names: Vec<String> = match params.as_ref().map(|params| &params["parents"]) {
        Some(Value::Object(parents)) => parents.keys().cloned().collect(),
        _ => Vec::new(),
    };
    if names.len() > 1 { names } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{AppId, JobId, NamespaceId, NodeId};
    use crate::run::RunJob;
    use crate::time::Timestamp;

    fn run(id: i64, job: i64, trigger: Trigger) -> Run {
        let run_job =
            RunJob { namespace: NamespaceId::new(1), job: JobId::new(job), job_version: 1, app: AppId::new(1) };
        Run::new(RunId::new(id), run_job, Timestamp::from_secs(60), trigger, (NodeId::new(1), 1))
    }

    fn child(id: i64, job: i64, parent: i64) -> Run {
        Run { cause: 1, parent: Some(RunId::new(parent)), ..run(id, job, Trigger::Parent) }
    }

    fn shard(id: i64, index: i32, of: &Run) -> Run {
        Run { id: RunId::new(id), shard_index: index, shard_total: Some(2), parent: Some(of.id), ..of.clone() }
    }

    fn retry_of(id: i64, of: &Run) -> Run {
        let fire_at = Timestamp::from_secs(600);
        Run { id: RunId::new(id), cause: id, trigger: Trigger::Manual, fire_at, parent: Some(of.id), ..of.clone() }
    }

    fn tree_lines(root: &Run, found: &[&Run]) -> Vec<String> {
        let tree = arrange(root.clone(), found.iter().map(|run| (*run).clone()).collect());
        let line =
            |one: &RunInTree| format!("{}{}{}", ".".repeat(one.depth), one.run.id, one.link.map_or("", Link::as_str));
        tree.iter().map(line).collect()
    }

    #[test]
    fn each_run_stands_behind_the_one_that_it_follows_from() {
        let root = run(1, 1, Trigger::Cron);
        let (b, c) = (child(2, 2, 1), child(3, 3, 1).for_all_shards());
        let params = Some(r#"{"parents": {"b": {}, "c": {}}}"#.to_owned());
        let d = Run { params, ..child(4, 4, 2) };
        let (whole, retried) = (child(5, 5, 3).for_all_shards(), retry_of(8, &b));
        let shards = [shard(6, 0, &whole), shard(7, 1, &whole)];
        let stranger = child(9, 9, 99);
        let found = [&retried, &shards[1], &stranger, &whole, &d, &c, &shards[0], &b, &root];
        let expected = ["1", ".2child", "..4child", "..8retry", ".3child", "..5child", "...6shard", "...7shard"];
        assert_eq!(tree_lines(&root, &found), expected);
        let tree = arrange(root.clone(), vec![b.clone(), d.clone()]);
        assert_eq!((&tree[1].after, &tree[2].after), (&Vec::new(), &vec!["b".to_owned(), "c".to_owned()]));
        for (run, root_id) in [(&root, 1), (&d, 1), (&whole, 1), (&shards[1], 1), (&retried, 8)] {
            assert_eq!(run.fire_root().get(), root_id, "{run:?}");
        }
    }

    #[test]
    fn a_broadcast_is_the_root_of_its_shards() {
        let planned = run(1, 1, Trigger::Cron).for_all_shards();
        let asked = retry_of(10, &planned);
        for whole in [planned, asked] {
            let shards = [shard(20, 0, &whole), shard(21, 1, &whole)];
            assert_eq!(shards.each_ref().map(Run::fire_root), [whole.id; 2]);
            assert_eq!(whole.fire_root(), whole.id);
            assert_eq!(tree_lines(&whole, &[&shards[1], &shards[0]])[1..], [".20shard", ".21shard"]);
        }
    }

    #[test]
    fn a_run_that_names_itself_is_shown_once() {
        let root = Run { parent: Some(RunId::new(1)), ..run(1, 1, Trigger::Manual) };
        assert_eq!(tree_lines(&root, &[&root]), ["1"]);
    }
}
