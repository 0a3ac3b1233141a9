//! Lists of the API, read page by page.

use clap::Args;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::client::{Body, Client};
use crate::exit::Failure;
use crate::output;

/// Maximum number of items in one answer of the server.
pub(crate) const PAGE_LEN_MAX: usize = 200;
/// How many pages of a list an overview reads.
pub(crate) const OVERVIEW_PAGES_MAX: usize = 10;

const LIMIT_DEFAULT: u32 = 50;
/// Lists that begin with the newest item. No note is printed for older items that were left out.
const COLLECTIONS_BY_TIME: [&str; 3] = ["runs", "audit", "incidents"];

/// How much of a list is read.
#[derive(Debug, Args)]
pub(crate) struct BoundArgs {
    /// Maximum number of items
    #[arg(long, value_name = "N", default_value_t = LIMIT_DEFAULT, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// List all items
    #[arg(long, conflicts_with = "limit")]
    all: bool,
}

impl BoundArgs {
    /// The bounds of a list that is read to its end.
    pub(crate) const fn unlimited() -> Self {
        Self { limit: 1, all: true }
    }

    /// The maximum number of items.
    pub(crate) fn count_max(&self) -> usize {
        if self.all { usize::MAX } else { usize::try_from(self.limit).unwrap_or(usize::MAX) }
    }
}

/// Reads a list. If one page is enough, the server's answer is returned unchanged. If the default limit cuts a list that is
/// not in `COLLECTIONS_BY_TIME`, a note on stderr states this; otherwise the user may think that the list is complete.
pub(crate) async fn read(
    client: &Client,
    collection: &str,
    query: &[(&str, &str)],
    bounds: &BoundArgs,
) -> Result<Body, Failure> {
    let body = read_at(client, &[collection], query, bounds).await?;
    let has_default_limit = !bounds.all && bounds.limit == LIMIT_DEFAULT;
    if has_default_limit && !COLLECTIONS_BY_TIME.contains(&collection) && body.page()?.next_cursor.is_some() {
        output::print_message(&format!("the first {LIMIT_DEFAULT} are shown; --all shows the others too"));
    }
    Ok(body)
}

/// Reads a list at any path: `path` holds the segments after `/api/v1`.
pub(crate) async fn read_at(
    client: &Client,
    path: &[&str],
    query: &[(&str, &str)],
    bounds: &BoundArgs,
) -> Result<Body, Failure> {
    read_in_pages(client, path, query, (bounds, PAGE_LEN_MAX)).await
}

/// Like [`read_at`], for a list of which one answer of the server has at most `page_len_max` items.
pub(crate) async fn read_in_pages(
    client: &Client,
    path: &[&str],
    query: &[(&str, &str)],
    (bounds, page_len_max): (&BoundArgs, usize),
) -> Result<Body, Failure> {
    let count_max = bounds.count_max();
    let first_page = request_page(client, path, query, (count_max.min(page_len_max), None)).await?;
    let PageItems { mut items, mut next_cursor, mut searched_to } = parse_page(&first_page)?;
    print_unreadable(&first_page)?;
    let mut has_later_page = false;
    while items.len() < count_max {
        let Some(cursor) = &next_cursor else { break };
        let count = (count_max - items.len()).min(page_len_max);
        let body = request_page(client, path, query, (count, Some(cursor))).await?;
        let page = parse_page(&body)?;
        print_unreadable(&body)?;
        items.extend(page.items);
        (next_cursor, searched_to) = (page.next_cursor, page.searched_to);
        has_later_page = true;
    }
    if !has_later_page {
        return Ok(first_page);
    }
    let items: Vec<_> = items.iter().map(|item| item.get()).collect();
    let next_cursor = serde_json::to_string(&next_cursor)?;
    let searched_field = match &searched_to {
        Some(searched_to) => format!(",\"searched_to\":{}", serde_json::to_string(searched_to)?),
        None => String::new(),
    };
    Ok(Body::new(format!("{{\"items\":[{}],\"next_cursor\":{next_cursor}{searched_field}}}", items.join(","))))
}

/// The items of a list with pages, read to its end.
pub(crate) async fn all_items(client: &Client, path: &[&str]) -> Result<Vec<Value>, Failure> {
    let mut list = read_at(client, path, &[], &BoundArgs::unlimited()).await?.value()?;
    let items = list.get_mut("items").map(Value::take);
    Ok(if let Some(Value::Array(items)) = items { items } else { Vec::new() })
}

/// The items of a list with or without pages; at most [`OVERVIEW_PAGES_MAX`] pages are read.
pub(crate) async fn items(client: &Client, path: &[&str], query: &[(&str, &str)]) -> Result<Vec<Value>, Failure> {
    Ok(items_and_rest(client, path, query).await?.0)
}

/// Like [`items`], and whether items are left that were not read.
pub(crate) async fn items_and_rest(
    client: &Client,
    path: &[&str],
    query: &[(&str, &str)],
) -> Result<(Vec<Value>, bool), Failure> {
    let (mut items, mut cursor) = (Vec::new(), None::<String>);
    for _ in 0..OVERVIEW_PAGES_MAX {
        let mut query = query.to_vec();
        query.extend(cursor.as_deref().map(|cursor| ("cursor", cursor)));
        let mut page = client.get(path, &query).await?.value()?;
        if let Some(Value::Array(page_items)) = page.get_mut("items").map(Value::take) {
            items.extend(page_items);
        }
        cursor = page["next_cursor"].as_str().map(str::to_owned);
        if cursor.is_none() {
            break;
        }
    }
    Ok((items, cursor.is_some()))
}

/// The items of a page, and what the page reports about the rest of its list.
struct PageItems {
    items: Vec<Box<RawValue>>,
    /// The cursor of the next page; `None` on the last page.
    next_cursor: Option<String>,
    /// The instant back to which a search went; `None` if it left out no older items.
    searched_to: Option<String>,
}

fn parse_page(body: &Body) -> Result<PageItems, Failure> {
    let page = body.page()?;
    let items = page.items.into_iter().map(ToOwned::to_owned).collect();
    Ok(PageItems { items, next_cursor: page.next_cursor, searched_to: page.searched_to })
}

/// Names on stderr the jobs that the server cannot read; otherwise the user may think that they do not exist.
fn print_unreadable(body: &Body) -> Result<(), Failure> {
    for job in body.page()?.unreadable {
        output::print_message(&format!("{}: {}", job.name, job.message));
    }
    Ok(())
}

async fn request_page(
    client: &Client,
    path: &[&str],
    query: &[(&str, &str)],
    (count, cursor): (usize, Option<&str>),
) -> Result<Body, Failure> {
    let limit = count.to_string();
    let mut query = query.to_vec();
    query.push(("limit", &limit));
    query.extend(cursor.map(|cursor| ("cursor", cursor)));
    client.get(path, &query).await
}
