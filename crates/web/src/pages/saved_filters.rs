//! Filters that users have saved for the lists of jobs and runs: chips above the list, and forms to save and delete filters.

use axum::response::Response;
use rondel_core::filter::{Filter, Scope};
use rondel_core::plain;
use rondel_store::saved_filters::{FilterOwner, FilteredList, SAVED_FILTER_COUNT_MAX, SavedFilter};
use serde_json::json;

use super::filter_bar::list_url;
use super::form::Fields;
use super::shell::Page;
use super::toast::{self, Toast};
use crate::body::refuse_value;
use crate::problem::{Code, Problem};
use crate::redirect::own_path;
use crate::run_filter;

/// Maximum length of a name, in characters.
const NAME_LEN_MAX: usize = 60;
/// Maximum length of a filter, in characters: that of the input field above the list.
const FILTER_LEN_MAX: usize = 1_000;

/// A saved filter, as a chip above its list.
#[derive(Debug)]
pub(super) struct SavedChip {
    pub(super) name: String,
    pub(super) filter: String,
    pub(super) href: String,
    pub(super) is_current: bool,
}

/// The saved filters of a list, and the form that saves the current one.
#[derive(Debug)]
pub(super) struct SavedBar {
    pub(super) list: &'static str,
    pub(super) chips: Vec<SavedChip>,
    /// The current filter; empty if there is nothing to save.
    pub(super) text: String,
    /// The URL of this page, to return to after a filter was saved or deleted.
    pub(super) return_url: String,
    /// Why the current filter cannot be saved; `None` if it can.
    pub(super) save_refusal: Option<String>,
    pub(super) name_len_max: usize,
}

impl SavedBar {
    /// The caller's filters for this list. `text` is the current filter.
    pub(super) async fn read<Q>(page: &Page<Q>, filtered_list: FilteredList, text: &str) -> Result<Self, Problem> {
        let t = page.t;
        let owner = filter_owner(page).await?;
        let filters = match owner {
            Some(owner) => page.engine().store().saved_filters(owner).await?,
            None => Vec::new(),
        };
        let save_refusal = match owner {
            None => Some(t.filter_no_owner.to_owned()),
            Some(_) if filters.len() >= SAVED_FILTER_COUNT_MAX => Some(t.filters_full(SAVED_FILTER_COUNT_MAX)),
            Some(_) => None,
        };
        let chip = |saved_filter: SavedFilter| SavedChip {
            href: list_url(list_path(filtered_list), &saved_filter.filter, &[]),
            is_current: saved_filter.filter == text,
            name: saved_filter.name,
            filter: saved_filter.filter,
        };
        let chips: Vec<SavedChip> =
            filters.into_iter().filter(|saved_filter| saved_filter.list == filtered_list).map(chip).collect();
        let is_saved = chips.iter().any(|chip| chip.is_current);
        let text = if is_saved { String::new() } else { text.to_owned() };
        let (filtered_list, return_url) = (filtered_list.as_str(), page.page_url().to_owned());
        Ok(Self { list: filtered_list, chips, text, return_url, save_refusal, name_len_max: NAME_LEN_MAX })
    }
}

const fn list_path(filtered_list: FilteredList) -> &'static str {
    match filtered_list {
        FilteredList::Jobs => "/jobs",
        FilteredList::Runs => "/runs",
    }
}

/// The owner of a caller's filters: the caller's account or, without an account, the line of its token. Filters can name objects that only
/// the account may see, so a token that lacks some of its account's rights uses the filters of its line instead.
async fn filter_owner<Q>(page: &Page<Q>) -> Result<Option<FilterOwner>, Problem> {
    let caller = &page.call.caller;
    let token_owner = caller.line.map(FilterOwner::Token);
    let Some(id) = caller.account else { return Ok(token_owner) };
    if caller.token.is_none() {
        return Ok(Some(FilterOwner::Account(id)));
    }
    let account = page.engine().store().account(id).await?;
    let has_all_rights = account.is_some_and(|account| caller.actor().may_manage_sign_ins(&account.grants));
    Ok(if has_all_rights { Some(FilterOwner::Account(id)) } else { token_owner })
}

/// Reads owner, list and name from a form that saves or deletes a filter.
async fn read_target(page: &Page, fields: &Fields) -> Result<(FilterOwner, FilteredList, String), Problem> {
    let list = fields.get("list").parse().map_err(|message: String| refuse_value("/list", message))?;
    let name = fields.get("name").to_owned();
    plain::check_line(&name, NAME_LEN_MAX).map_err(|message| refuse_value("/name", message))?;
    let owner = filter_owner(page).await?.ok_or_else(|| Problem::new(Code::Forbidden, page.t.filter_no_owner))?;
    page.call.note.set_object(&name);
    Ok((owner, list, name))
}

/// Saves a filter for a list. Replaces the owner's filter of that list with the same name.
pub(super) async fn save(page: Page, fields: Fields) -> Result<Response, Problem> {
    let (owner, list, name) = read_target(&page, &fields).await?;
    let scope = match list {
        FilteredList::Jobs => Scope::Jobs,
        FilteredList::Runs => Scope::Runs,
    };
    let filter = Filter::parse(fields.get("q"), scope).map_err(|error| run_filter::filter_problem(&error))?.to_string();
    let len = filter.chars().count();
    if len == 0 || len > FILTER_LEN_MAX {
        return Err(refuse_value("/q", format!("{len} characters; a filter has 1 to {FILTER_LEN_MAX}")));
    }
    let saved_filter = SavedFilter { list, name, filter };
    if !page.engine().store().save_filter(owner, &saved_filter, page.engine().now()).await? {
        return Err(refuse_value("/name", page.t.filters_full(SAVED_FILTER_COUNT_MAX)));
    }
    page.call.note.changed_to(&json!({"list": list.as_str(), "filter": saved_filter.filter}));
    redirect_to_list(&page, page.t.filter_saved(&saved_filter.name), list, &fields)
}

/// Deletes a filter of the caller. Deleting a filter that no longer exists is no error.
pub(super) async fn delete(page: Page, fields: Fields) -> Result<Response, Problem> {
    let (owner, list, name) = read_target(&page, &fields).await?;
    page.call.note.before(&json!({"list": list.as_str()}));
    page.engine().store().delete_filter(owner, list, &name).await?;
    redirect_to_list(&page, page.t.filter_deleted(&name), list, &fields)
}

fn redirect_to_list(
    page: &Page,
    text: String,
    filtered_list: FilteredList,
    fields: &Fields,
) -> Result<Response, Problem> {
    let return_url = own_path(fields.get("back")).unwrap_or_else(|| list_path(filtered_list));
    toast::toast_response(page, Toast { text, ..Toast::default() }, return_url)
}
