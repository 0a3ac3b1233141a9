//! The items of a pump job and the groups that own them, as a page and as a part of the job's page.

use askama::Template;
use axum::response::Response;
use http::StatusCode;
use rondel_core::pump::{Counts, ItemState, Totals};
use rondel_core::reason::words::{RunStatusFacts, sentence};
use rondel_core::{RunId, Timestamp};
use rondel_store::catalog::JobRecord;

use super::moment::Moment;
use super::shell::{Nav, Page, Shell, html};
use super::texts::Texts;
use super::view::Status;
use super::zones;
use crate::api::jobs::{find, no_pump_problem};
use crate::cursor::{Listing, cut_to_page};
use crate::path::{self, Named};
use crate::problem::Problem;
use crate::pump_view::{self, GroupView, ItemView, PumpView, RootView};
use crate::query::{FromQuery, Reader};
use crate::redirect::query_pair;

/// How many items the page shows.
const ITEM_COUNT: u32 = 100;
/// How many groups the page shows.
const GROUP_COUNT: usize = 200;

/// The query parameters for the list of items.
#[derive(Debug)]
pub(super) struct ItemsQuery {
    state: Option<ItemState>,
    cursor: Option<String>,
}

impl FromQuery for ItemsQuery {
    fn from_query(reader: &mut Reader) -> Self {
        Self { state: reader.parsed("state", str::parse), cursor: reader.single("cursor") }
    }
}

struct RootRow {
    id: RunId,
    status: Status,
    /// The reason why the root run ended, or the note that it is ending.
    words: Option<String>,
    ends_at: Option<Moment>,
}

struct GroupRow {
    id: RunId,
    /// Counted from 1, as in lists of runs.
    number: i32,
    status: Status,
    attempt: i32,
    executor: String,
    item_count: u32,
    /// Rows that its items executed in the last minute.
    per_minute: u64,
    started_at: Option<Moment>,
}

struct ItemRow {
    name: String,
    /// The CSS class, which decides shape and colour.
    class: &'static str,
    word: &'static str,
    /// When its group was asked to release it.
    asked_at: Option<Moment>,
    /// Whether its last select returned no rows, and all rows that it had fetched are executed.
    is_dry: bool,
    /// The number and the run of the group that has it.
    group: Option<(i32, RunId)>,
    executor: String,
    /// Increases with each owner of the item.
    epoch: i64,
    counts: Counts,
    /// Rows that were executed in the minute before the last report.
    per_minute: u32,
    /// When the oldest of its rows that are not yet executed was fetched.
    oldest_at: Option<Moment>,
    checkpoint: String,
}

/// A link that selects items by their state.
struct StateChoice {
    word: &'static str,
    href: String,
    is_current: bool,
}

#[derive(Template)]
#[template(path = "pump.html")]
struct PumpPage {
    shell: Shell,
    t: &'static Texts,
    /// The URL of this page, from which the script reloads its live part.
    page_url: String,
    name: String,
    root: Option<RootRow>,
    item_count: usize,
    totals: Totals,
    /// When the oldest of the rows that are not yet executed was fetched.
    oldest_at: Option<Moment>,
    groups: Vec<GroupRow>,
    /// How many groups are not shown.
    hidden_count: usize,
    state_choices: Vec<StateChoice>,
    items: Vec<ItemRow>,
    is_first: bool,
    /// The URL of the first page.
    first_url: String,
    next_url: Option<String>,
}

pub(super) async fn page(page: Page<ItemsQuery>, Named(name, ..): Named<path::Job>) -> Result<Response, Problem> {
    let record = find(&page.call, &name).await?;
    let view = pump_view::read_pump(&page.call, &record).await?.ok_or_else(|| no_pump_problem(&name))?;
    zones::set_job(&record.spec);
    let (now, t) = (page.engine().now(), page.t);
    let ItemsQuery { state, cursor } = page.query();
    let states: Vec<ItemState> = state.iter().copied().collect();
    let listing = Listing::new("pump page", (record.id, &states));
    let after_name = cursor.as_deref().map(|cursor| listing.position::<String>(cursor)).transpose()?;
    let mut items = view.page(after_name.as_deref(), &states, ITEM_COUNT + 1);
    let first_url = items_url(&name, *state, None);
    let next_cursor = cut_to_page(&mut items, ITEM_COUNT).map(|last| listing.cursor(&last.item.name));
    let PumpView { root, groups, totals, .. } = &view;
    let template = PumpPage {
        shell: page.shell(Nav::Jobs),
        page_url: page.page_url().to_owned(),
        root: root.as_ref().map(|root| root_row(root, now, t)),
        item_count: view.items.len(),
        totals: *totals,
        oldest_at: totals.oldest_at.map(|at| Moment::new(at, now, t)),
        groups: groups.iter().take(GROUP_COUNT).map(|group| group_row(group, now, t)).collect(),
        hidden_count: groups.len().saturating_sub(GROUP_COUNT),
        state_choices: state_choices(&name, *state, t),
        items: items.into_iter().map(|item| item_row(&page, &record, item, now)).collect(),
        is_first: after_name.is_none(),
        first_url,
        next_url: next_cursor.map(|cursor| items_url(&name, *state, Some(&cursor))),
        name,
        t,
    };
    html(StatusCode::OK, &template)
}

fn items_url(name: &str, state: Option<ItemState>, cursor: Option<&str>) -> String {
    let pairs =
        [state.map(|state| query_pair("state", state.as_str())), cursor.map(|cursor| query_pair("cursor", cursor))];
    let query = pairs.into_iter().flatten().collect::<Vec<_>>().join("&");
    format!("/jobs/{name}/pump{}{query}", if query.is_empty() { "" } else { "?" })
}

fn state_choices(name: &str, current: Option<ItemState>, t: &Texts) -> Vec<StateChoice> {
    let states = std::iter::once(None).chain(ItemState::ALL.iter().copied().map(Some));
    let choice = |state: Option<ItemState>| StateChoice {
        word: state.map_or(t.pump_state_all, |state| class_and_word(state, t).1),
        href: items_url(name, state, None),
        is_current: state == current,
    };
    states.map(choice).collect()
}

/// The CSS class and the word of a state.
const fn class_and_word(state: ItemState, t: &Texts) -> (&'static str, &'static str) {
    match state {
        ItemState::Free => ("waiting", t.pump_state_free),
        ItemState::Dealt => ("online", t.pump_state_dealt),
        ItemState::Releasing => ("draining", t.pump_state_releasing),
    }
}

fn root_row(RootView { run, ends_at }: &RootView, now: Timestamp, t: &Texts) -> RootRow {
    let is_ending = run.cancel_by.is_some() && !run.status.is_terminal();
    RootRow {
        id: run.id,
        status: Status::of_run(run, t),
        words: if is_ending { Some(t.pump_ending.to_owned()) } else { sentence(RunStatusFacts::of(run), t.lang()) },
        ends_at: ends_at.filter(|_| !is_ending).map(|at| Moment::new(at, now, t)),
    }
}

fn group_row(GroupView { run, item_count, per_minute }: &GroupView, now: Timestamp, t: &Texts) -> GroupRow {
    GroupRow {
        id: run.id,
        number: run.shard_index + 1,
        status: Status::of_run(run, t),
        attempt: run.attempt,
        executor: run.executor.clone().unwrap_or_default(),
        item_count: *item_count,
        per_minute: *per_minute,
        started_at: run.started_at.map(|at| Moment::new(at, now, t)),
    }
}

fn item_row(page: &Page<ItemsQuery>, record: &JobRecord, view: &ItemView, now: Timestamp) -> ItemRow {
    let (ItemView { item, group, executor }, t) = (view, page.t);
    let (class, word) = class_and_word(item.state(), t);
    let moment = |at: Timestamp| Moment::new(at, now, t);
    ItemRow {
        name: item.name.clone(),
        class,
        word,
        asked_at: item.asked_at.map(moment),
        is_dry: item.is_dry,
        group: group.map(|index| index + 1).zip(item.owner.map(|owner| owner.run)),
        executor: executor.clone().unwrap_or_default(),
        epoch: item.epoch,
        counts: item.total(),
        per_minute: item.per_minute,
        oldest_at: item.oldest_at.map(moment),
        checkpoint: view.checkpoint(&page.call, record).unwrap_or_default(),
    }
}
