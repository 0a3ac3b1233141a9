//! The tree of a fire on the page of one of its runs.

use rondel_core::Run;
use rondel_core::tree::{Branch, Link};

use super::shell::Page;
use super::view::RunRow;
use crate::api::run_json::names;
use crate::api::run_tree;
use crate::problem::Problem;

/// What is deeper is not set in further.
const INDENT_MAX: usize = 8;

/// The tree.
pub(super) struct RunTree {
    pub(super) lines: Vec<TreeLine>,
    pub(super) has_more: bool,
    /// The run that the fire began with, where it is not the one of the page.
    pub(super) root: Option<String>,
}

/// A run in it.
pub(super) struct TreeLine {
    pub(super) row: RunRow,
    /// How far it is set in.
    pub(super) indent: usize,
    pub(super) kind: Option<&'static str>,
    /// The jobs that released it, where they are several.
    pub(super) after: Option<String>,
    pub(super) is_shown: bool,
}

impl RunTree {
    /// The tree that a run belongs to; nothing where it stands alone.
    pub(super) async fn read<Q>(page: &Page<Q>, shown: &Run) -> Result<Option<Self>, Problem> {
        let (now, t) = (page.engine().now(), page.t);
        let mut found = run_tree::read(&page.call, shown.clone()).await?;
        // They are drawn as a grid already.
        found.branches.retain(|one| one.link != Some(Link::Shard) || one.run.parent != Some(shown.id));
        if found.branches.len() < 2 {
            return Ok(None);
        }
        let runs: Vec<Run> = found.branches.iter().map(|branch| branch.run.clone()).collect();
        let names = names(&page.call, &runs).await?;
        let line = |branch: Branch| {
            let job = names.get(&branch.run.job).cloned().unwrap_or_else(|| branch.run.job.to_string());
            TreeLine {
                indent: branch.depth.min(INDENT_MAX),
                kind: branch.link.map(|link| t.link(link)),
                after: (!branch.after.is_empty()).then(|| branch.after.join(", ")),
                is_shown: branch.run.id == shown.id,
                row: RunRow::new(&branch.run, job, now, t),
            }
        };
        let root = runs.first().map(|root| root.id).filter(|root| *root != shown.id).map(|root| root.to_string());
        Ok(Some(Self { lines: found.branches.into_iter().map(line).collect(), has_more: found.has_more, root }))
    }
}
