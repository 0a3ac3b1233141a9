//! Draws the tree of a fire.

use rondel_core::Timestamp;
use serde_json::Value;

use super::cells::duration_text;
use super::{shard_text, status_text};
use crate::client::{Body, Client, text_of};
use crate::exit::Failure;
use crate::format::{Format, FormatArgs};
use crate::output;
use crate::terminal::harmless_text;

/// Prints the tree that a run belongs to, if it has more than one run; only in tables.
pub(super) async fn print(client: &Client, run: &str, format: FormatArgs, now: Timestamp) -> Result<(), Failure> {
    if format.format != Format::Table {
        return Ok(());
    }
    let tree: Body = client.get(&["runs", run, "tree"], &[]).await?;
    let tree = tree.value()?;
    let items = tree["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    if items.len() < 2 {
        return Ok(());
    }
    let mut drawn_lines = vec![String::new()];
    drawn_lines.append(&mut lines(items, run, now));
    if tree["has_more"] == true {
        drawn_lines.push("… and more".to_owned());
    }
    output::print_lines(&drawn_lines.join("\n"))
}

/// A line for each run, with its branches in front; the requested run has a mark.
fn lines(items: &[Value], shown_run: &str, now: Timestamp) -> Vec<String> {
    let depths: Vec<usize> = items.iter().map(depth).collect();
    let tree_line = |(index, item): (usize, &Value)| {
        let cells = [
            text_of(&item["id"]),
            text_of(&item["job"]),
            tree_status_text(item),
            duration_text(item, now),
            text_of(&item["executor"]),
        ];
        let cells: Vec<String> =
            cells.iter().filter(|cell| !cell.is_empty()).map(|cell| harmless_text(cell).into_owned()).collect();
        let shown_mark = if item["id"] == shown_run { "  ←" } else { "" };
        format!("{}{}{shown_mark}", branches(&depths, index), cells.join("  "))
    };
    items.iter().enumerate().map(tree_line).collect()
}

fn depth(item: &Value) -> usize {
    item["depth"].as_u64().and_then(|depth| usize::try_from(depth).ok()).unwrap_or_default()
}

/// The status, and how the run belongs to the tree: `succeeded, shard 1 of 2`, `pending, after b, c`.
fn tree_status_text(item: &Value) -> String {
    let parent_names: Vec<String> = item["after"].as_array().into_iter().flatten().map(text_of).collect();
    let mut texts = vec![status_text(item)];
    match (item["kind"].as_str(), shard_text(item)) {
        (Some("shard"), group) if group.starts_with("group ") => texts.push(group),
        (Some("shard"), shard) if !shard.is_empty() => texts.push(format!("shard {shard}")),
        (Some("retry"), _) => texts.push("run again".to_owned()),
        _ => {}
    }
    if !parent_names.is_empty() {
        texts.push(format!("after {}", parent_names.join(", ")));
    }
    texts.join(", ")
}

/// `│  └─ `: the branches in front of a line, from its depth and the depths of the lines after it.
fn branches(depths: &[usize], index: usize) -> String {
    let own_depth = depths[index];
    let mut text = String::new();
    for level in 1..=own_depth {
        // The branch of this level continues if the next line that is not deeper is exactly on this level.
        let has_later_sibling = depths[index + 1..].iter().find(|depth| **depth <= level) == Some(&level);
        text.push_str(match (level == own_depth, has_later_sibling) {
            (true, true) => "├─ ",
            (true, false) => "└─ ",
            (false, true) => "│  ",
            (false, false) => "   ",
        });
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_group_of_a_pump_is_not_called_a_shard() {
        let mut item =
            json!({"status": "running", "kind": "shard", "part": "group", "shard_index": 0, "shard_total": 2});
        assert_eq!(tree_status_text(&item), "running, group 1 of 2");
        item["part"] = json!("shard");
        assert_eq!(tree_status_text(&item), "running, shard 1 of 2");
    }

    #[test]
    fn a_tree_is_drawn_with_its_branches() {
        let item = |id: &str, job: &str, depth: usize, more: Value| {
            let mut item = json!({"id": id, "job": job, "depth": depth, "status": "succeeded", "after": []});
            item.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            item
        };
        let items = [
            item("1", "a", 0, json!({"executor": "w-1"})),
            item("2", "b", 1, json!({"kind": "child", "status": "failed", "attempt": 3})),
            item("4", "d", 2, json!({"kind": "child", "after": ["b", "c"]})),
            item("8", "b", 2, json!({"kind": "retry"})),
            item("3", "c", 1, json!({"kind": "child"})),
            item("5", "e", 2, json!({"kind": "child"})),
            item("6", "e", 3, json!({"kind": "shard", "shard_index": 0, "shard_total": 2})),
            item("7", "e", 3, json!({"kind": "shard", "shard_index": 1, "shard_total": 2})),
        ];
        let expected = [
            "1  a  succeeded  w-1",
            "├─ 2  b  failed (attempt 3)",
            "│  ├─ 4  d  succeeded, after b, c  ←",
            "│  └─ 8  b  succeeded, run again",
            "└─ 3  c  succeeded",
            "   └─ 5  e  succeeded",
            "      ├─ 6  e  succeeded, shard 1 of 2",
            "      └─ 7  e  succeeded, shard 2 of 2",
        ];
        assert_eq!(lines(&items, "4", Timestamp::from_secs(100)), expected);
    }
}
