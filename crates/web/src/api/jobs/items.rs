//! The items of a pump job, and the groups that own them.

use axum::response::Response;
use http::StatusCode;
use rondel_core::access::Permission::View;
use rondel_core::pump::{Counts, ItemState, Totals};
use rondel_core::{Reason, RunId, RunStatus, Timestamp};
use rondel_store::catalog::JobRecord;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::value::RawValue;

use super::find::find;
use crate::answer::json_response;
use crate::api::page::{LIMIT_DEFAULT, LIMIT_MAX};
use crate::api::page_builder::PageBuilder;
use crate::call::{Call, quoted_input};
use crate::cursor::Listing;
use crate::openapi::Doc;
use crate::parameter::Parameter;
use crate::path::{self, Named};
use crate::problem::{Code, Problem};
use crate::pump_view::{self, GroupView, ItemView, PumpView, RootView};
use crate::query::{FromQuery, Reader};
use crate::routes::Routes;

/// The query parameters for the list of items.
#[derive(Debug)]
pub(super) struct ItemsQuery {
    states: Vec<ItemState>,
    limit: u32,
    cursor: Option<String>,
}

impl FromQuery for ItemsQuery {
    fn from_query(reader: &mut Reader) -> Self {
        Self {
            states: reader.words(Parameter::words("state", ItemState::WORDS).about("Only items in these states.")),
            limit: reader.limit(LIMIT_DEFAULT, LIMIT_MAX),
            cursor: reader.single(Parameter::cursor()),
        }
    }
}

/// The current state of a pump job.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "PumpItems")]
struct ItemsJson<I> {
    /// The root run: the groups are runs below it. Null before the job's first run.
    root: Option<RootJson>,
    /// The groups of the root run.
    groups: Vec<GroupJson>,
    totals: TotalsJson,
    /// A page of the items by name; numbers by their value.
    items: Vec<I>,
    /// For `?cursor=`; null on the last page.
    next_cursor: Option<String>,
}

/// The root run of a pump job. Its groups are runs below it.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "PumpRoot")]
struct RootJson {
    run: RunId,
    status: RunStatus,
    /// Why it ended or ends.
    reason: Option<Reason>,
    fire_at: Timestamp,
    /// When `until` ends the run; null if no instant ends it, or if it has ended.
    ends_at: Option<Timestamp>,
    /// Whether the run was asked to end. Its groups still execute the rows that they have fetched.
    is_ending: bool,
}

/// A group of a pump job: one long run on one executor.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "PumpGroup")]
struct GroupJson {
    /// Counts from 0.
    index: i32,
    run: RunId,
    status: RunStatus,
    attempt: i32,
    executor: Option<String>,
    started_at: Option<Timestamp>,
    item_count: u32,
    /// Rows of its items that were executed in the last minute.
    per_minute: u64,
}

/// What was done with rows.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "PumpCounts")]
struct CountsJson {
    /// How many selects were executed.
    fetches: i64,
    /// Rows that the selects returned.
    rows: i64,
    /// Rows that were executed.
    done: i64,
    /// Executions of rows that failed.
    failed: i64,
}

/// The totals of all items of a pump job.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "PumpTotals")]
struct TotalsJson {
    free: u32,
    dealt: u32,
    releasing: u32,
    /// Items whose last select returned no rows.
    dry: u32,
    #[serde(flatten)]
    counts: CountsJson,
    per_minute: u64,
    /// When the oldest of the rows that are not yet executed was fetched.
    oldest_at: Option<Timestamp>,
    /// How long ago that row was fetched, in milliseconds.
    oldest_age_ms: Option<u64>,
}

/// An item of a pump job. Its counts include all its owners.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "PumpItem")]
struct ItemJson {
    name: String,
    state: ItemState,
    /// Increases with each owner: a fencing token for the code that executes its rows.
    epoch: i64,
    /// The index of the group that has it.
    group: Option<i32>,
    /// The run of that group.
    run: Option<RunId>,
    executor: Option<String>,
    /// When its group was asked to release it.
    asked_at: Option<Timestamp>,
    #[serde(flatten)]
    counts: CountsJson,
    /// Rows that were executed in the minute before the last report.
    per_minute: u32,
    /// When the oldest of its rows that are not yet executed was fetched.
    oldest_at: Option<Timestamp>,
    /// How long ago that row was fetched, in milliseconds.
    oldest_age_ms: Option<u64>,
    /// Whether its last select returned no rows and all fetched rows are executed.
    dry: bool,
    /// The progress that its owners have stored, as the code wrote it. Likely secrets are shown only to callers who may edit the job.
    checkpoint: Option<String>,
    /// When it last changed.
    updated_at: Timestamp,
}

pub(super) fn routes() -> Routes {
    Routes::new().get(
        "/api/v1/jobs/{name}/items",
        View,
        list,
        Doc::new(
            "List a pump job's items and groups",
            "The owner of each item, the counts of its rows, and the groups of the open root run, or of the last one if none is \
             open. The totals cover all items, not only this page.",
        )
        .json::<ItemsJson<ItemJson>>(200, "The groups, and a page of items.")
        .refuses(&[Code::NotAPump]),
    )
}

async fn list(call: Call<ItemsQuery>, Named(name, ..): Named<path::Job>) -> Result<Response, Problem> {
    let record = find(&call, &name).await?;
    let view = pump_view::read_pump(&call, &record).await?.ok_or_else(|| no_pump_problem(&name))?;
    let ItemsQuery { states, limit, cursor } = &call.query;
    let listing = Listing::new("items", (record.id, states));
    let after_name = cursor.as_deref().map(|cursor| listing.position::<String>(cursor)).transpose()?;
    let matching_items = view.page(after_name.as_deref(), states, limit + 1);
    let (items, next) = fill_page(&call, &record, &matching_items)?;
    let now = call.engine().now();
    let PumpView { root, groups, totals, .. } = &view;
    json_response(
        StatusCode::OK,
        &ItemsJson {
            root: root.as_ref().map(RootJson::from),
            groups: groups.iter().map(GroupJson::from).collect(),
            totals: TotalsJson::new(totals, now),
            items,
            next_cursor: next.map(|last| listing.cursor(last)),
        },
    )
}

/// The items that fit into the page. Also returns the name of the last of them if there are more.
fn fill_page(
    call: &Call<ItemsQuery>,
    record: &JobRecord,
    items: &[&ItemView],
) -> Result<(Vec<Box<RawValue>>, Option<String>), Problem> {
    let (mut page, mut last) = (PageBuilder::new(call.query.limit), None);
    for view in items {
        if !page.add(&ItemJson::new(view, view.checkpoint(call, record), call.engine().now()))? {
            return Ok((page.into_items(), last));
        }
        last = Some(view.item.name.clone());
    }
    Ok((page.into_items(), None))
}

/// The refusal of a request for items if the job is not a pump job.
pub(crate) fn no_pump_problem(name: &str) -> Problem {
    Problem::new(
        Code::NotAPump,
        format!("job {} has no `pump` in its definition, so it has no items", quoted_input(name)),
    )
}

impl From<&RootView> for RootJson {
    fn from(RootView { run, ends_at }: &RootView) -> Self {
        let is_ending = run.cancel_by.is_some() && !run.status.is_terminal();
        Self {
            run: run.id,
            status: run.status,
            reason: run.reason.or(run.cancel_reason),
            fire_at: run.fire_at,
            ends_at: *ends_at,
            is_ending,
        }
    }
}

impl From<&GroupView> for GroupJson {
    fn from(GroupView { run, item_count, per_minute }: &GroupView) -> Self {
        Self {
            index: run.shard_index,
            run: run.id,
            status: run.status,
            attempt: run.attempt,
            executor: run.executor.clone(),
            started_at: run.started_at,
            item_count: *item_count,
            per_minute: *per_minute,
        }
    }
}

impl From<Counts> for CountsJson {
    fn from(Counts { fetches, rows, done, failed }: Counts) -> Self {
        Self { fetches, rows, done, failed }
    }
}

impl TotalsJson {
    fn new(totals: &Totals, now: Timestamp) -> Self {
        Self {
            free: totals.free,
            dealt: totals.dealt,
            releasing: totals.releasing,
            dry: totals.dry,
            counts: totals.counts.into(),
            per_minute: totals.per_minute,
            oldest_at: totals.oldest_at,
            oldest_age_ms: age_ms(totals.oldest_at, now),
        }
    }
}

impl ItemJson {
    fn new(ItemView { item, group, executor }: &ItemView, checkpoint: Option<String>, now: Timestamp) -> Self {
        Self {
            name: item.name.clone(),
            state: item.state(),
            epoch: item.epoch,
            group: *group,
            run: item.owner.map(|owner| owner.run),
            executor: executor.clone(),
            asked_at: item.asked_at,
            counts: item.total().into(),
            per_minute: item.per_minute,
            oldest_at: item.oldest_at,
            oldest_age_ms: age_ms(item.oldest_at, now),
            dry: item.is_dry,
            checkpoint,
            updated_at: item.updated_at,
        }
    }
}

fn age_ms(at: Option<Timestamp>, now: Timestamp) -> Option<u64> {
    at.map(|at| u64::try_from(now.since(at).as_millis()).unwrap_or(u64::MAX))
}
