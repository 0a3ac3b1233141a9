//! The tree of a fire: its root run, and all runs to which it led.

use axum::response::Response;
use http::StatusCode;
use rondel_core::access::Permission::View;
use rondel_core::tree::{DEPTH_MAX, Link, RunInTree, arrange};
use rondel_core::{Run, RunId};
use schemars::JsonSchema;
use serde::Serialize;

use super::run_json::{RunItem, run_items};
use super::runs::find;
use crate::answer::json_response;
use crate::call::Call;
use crate::openapi::Doc;
use crate::path::{self, Named};
use crate::problem::Problem;
use crate::routes::Routes;

/// Maximum number of runs of a tree that are shown.
const BRANCH_COUNT_MAX: usize = 300;
/// Maximum number of a run's children that are shown with it.
const CHILD_COUNT_MAX: usize = 200;

#[derive(Debug)]
pub(crate) struct FireTree {
    /// The runs, each after its parent. The first one is the root.
    pub(crate) branches: Vec<RunInTree>,
    /// Whether the tree has more runs.
    pub(crate) has_more: bool,
}

/// A run below another one: a shard, a run of a job that follows, or a manual retry.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "RunChild")]
pub(super) struct ChildJson {
    kind: Link,
    #[serde(flatten)]
    item: RunItem,
}

/// A run in its tree.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "RunBranch")]
struct BranchJson {
    /// How many steps it is below the root.
    depth: usize,
    /// Null for the root.
    kind: Option<Link>,
    parent: Option<RunId>,
    /// The jobs that released it, if there are several.
    after: Vec<String>,
    #[serde(flatten)]
    item: RunItem,
}

/// The tree of a fire.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "RunTree")]
pub(super) struct TreeJson {
    items: Vec<BranchJson>,
    has_more: bool,
}

pub(super) fn routes() -> Routes {
    Routes::new().get(
        "/api/v1/runs/{id}/tree",
        View,
        get,
        Doc::new(
            "Get the tree of a run's fire",
            "The runs of the fire from its root on, each one behind the run that it follows; at most 300.",
        )
        .json::<TreeJson>(200, "The tree."),
    )
}

async fn get(call: Call, path: Named<path::Run>) -> Result<Response, Problem> {
    let run = find(&call, &path).await?;
    let FireTree { branches, has_more } = read(&call, run).await?;
    let runs = branches.iter().map(|branch| branch.run.clone().for_reader()).collect();
    let to_branch = |(branch, item): (RunInTree, RunItem)| BranchJson {
        depth: branch.depth,
        kind: branch.link,
        parent: branch.run.parent,
        after: branch.after,
        item,
    };
    let items = branches.into_iter().zip(run_items(&call, runs).await?).map(to_branch).collect();
    json_response(StatusCode::OK, &TreeJson { items, has_more })
}

/// The tree of a run's fire, limited to runs that the caller may see. If the root run was deleted, or the caller may not see it, the tree
/// begins with `run`. Runs below a hidden run are hidden too.
pub(crate) async fn read<Q>(call: &Call<Q>, run: Run) -> Result<FireTree, Problem> {
    let mut root = match run.fire_root() {
        id if id == run.id => run,
        id => {
            let root = call.engine().store().runs(&[id]).await?.pop();
            root.filter(|root| root.namespace == run.namespace && call.may_view(root.app)).unwrap_or(run)
        }
    };
    call.conceal(std::slice::from_mut(&mut root)).await?;
    let (mut descendants, mut level, mut has_more) = (Vec::new(), vec![root.id], false);
    for _ in 0..DEPTH_MAX {
        let remaining_count = BRANCH_COUNT_MAX - 1 - descendants.len();
        let (mut next_level, is_cut) = children_of_runs(call, &level, remaining_count).await?;
        level = next_level.iter().map(|run| run.id).collect();
        descendants.append(&mut next_level);
        has_more = is_cut;
        if level.is_empty() || has_more {
            break;
        }
    }
    Ok(FireTree { branches: arrange(root, descendants), has_more })
}

/// The direct children of a run, at most `CHILD_COUNT_MAX`, and whether there are more.
pub(super) async fn children<Q>(call: &Call<Q>, run: &Run) -> Result<(Vec<ChildJson>, bool), Problem> {
    let (mut runs, has_more) = children_of_runs(call, &[run.id], CHILD_COUNT_MAX).await?;
    runs.sort_by_key(|child| child.sort_key_below(run));
    let kinds: Vec<Link> = runs.iter().map(|child| child.link_to(run)).collect();
    let runs = runs.into_iter().map(Run::for_reader).collect();
    let children = kinds.into_iter().zip(run_items(call, runs).await?).map(|(kind, item)| ChildJson { kind, item });
    Ok((children.collect(), has_more))
}

/// At most `count_max` children of these runs, and whether there are more.
async fn children_of_runs<Q>(call: &Call<Q>, parents: &[RunId], count_max: usize) -> Result<(Vec<Run>, bool), Problem> {
    let limit = u32::try_from(count_max + 1).unwrap_or(u32::MAX);
    let mut runs = call.engine().store().runs_below(parents, limit).await?;
    let is_cut = runs.len() > count_max;
    runs.truncate(count_max);
    runs.retain(|run| call.may_view(run.app));
    call.conceal(&mut runs).await?;
    Ok((runs, is_cut))
}
