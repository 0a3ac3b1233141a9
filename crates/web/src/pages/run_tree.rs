//! The tree of a fire on the page of one of its runs.

use rondel_core::Run;
use rondel_core::tree::{Link, RunInTree};

use super::shell::Page;
use super::view::RunRow;
use crate::api::run_tree;
use crate::problem::Problem;
use crate::shown_runs::with_job_names;

/// Runs deeper in the tree than this are not indented further.
const INDENT_MAX: usize = 8;

pub(super) struct RunTree {
    pub(super) lines: Vec<TreeLine>,
    pub(super) has_more: bool,
    /// The root run of the fire, if the page shows another run.
    pub(super) root: Option<String>,
}

pub(super) struct TreeLine {
    pub(super) row: RunRow,
    /// The depth to which it is indented.
    pub(super) indent: usize,
    pub(super) kind: Option<&'static str>,
    /// The jobs whose runs released it, if there are several.
    pub(super) releasing_jobs: Option<String>,
    pub(super) is_shown: bool,
}

impl RunTree {
    /// The tree of a run's fire, without the shards of this run; `None` if no other run remains.
    pub(super) async fn read<Q>(page: &Page<Q>, shown_run: &Run) -> Result<Option<Self>, Problem> {
        let (now, t) = (page.engine().now(), page.t);
        let mut tree = run_tree::read(&page.call, shown_run.clone()).await?;
        // The page already shows the shards of this run as a grid.
        tree.branches.retain(|branch| branch.link != Some(Link::Shard) || branch.run.parent != Some(shown_run.id));
        if tree.branches.len() < 2 {
            return Ok(None);
        }
        let root = tree.branches.first().map(|branch| branch.run.id).filter(|root| *root != shown_run.id);
        let named_runs =
            with_job_names(&page.call, tree.branches.iter().map(|branch| branch.run.clone()).collect()).await?;
        let line = |(branch, (job, run)): (RunInTree, (String, Run))| TreeLine {
            indent: branch.depth.min(INDENT_MAX),
            kind: branch.link.map(|link| t.link(link)),
            releasing_jobs: (!branch.after.is_empty()).then(|| branch.after.join(", ")),
            is_shown: run.id == shown_run.id,
            row: RunRow::new(&run, job, now, t),
        };
        let lines = tree.branches.into_iter().zip(named_runs).map(line).collect();
        Ok(Some(Self { lines, has_more: tree.has_more, root: root.map(|root| root.to_string()) }))
    }
}
