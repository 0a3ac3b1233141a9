//! XXL-JOB's own database, versions 2.x and 3.x: groups become apps, jobs definitions, and lines for a shell do the rest.

mod beside;
mod family;
mod fields;
mod history;
mod place;
mod tables;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use self::place::{Part, Place};
pub(super) use self::place::{Scripts, Wishes};
pub(super) use self::tables::Tables;
use self::tables::text;
use super::dump::Row;
use super::found::Found;

/// The definitions and the rest.
pub(super) fn convert(tables: &Tables, wishes: Wishes<'_>) -> Found {
    let mut found = Found::default();
    let place = place(tables, wishes, &mut found);
    let mut parts: Vec<Part<'_>> = tables.jobs.iter().map(|row| fields::part(row, &place)).collect();
    family::tie(&mut parts, &place);
    beside::alarms(&parts, wishes, &mut found);
    for mut part in parts {
        beside::unknown(part.row, &mut part.entry);
        match part.job {
            Ok(job) => found.add(part.entry, job),
            Err(why) => found.leave_out(part.entry, why),
        }
    }
    tables.groups.iter().for_each(|row| found.entries.push(beside::group(row, wishes)));
    tables.users.iter().for_each(|row| found.entries.push(beside::user(row, &place)));
    beside::remarks(tables, &mut found);
    found
}

/// Writes the earlier scripts, each to a file of its own; returns how many.
pub(super) fn write_history(tables: &Tables, wishes: Wishes<'_>) -> std::io::Result<usize> {
    let Some(folder) = wishes.history else { return Ok(0) };
    history::write(tables, &place(tables, wishes, &mut Found::default()).names, folder)
}

fn place<'a>(tables: &'a Tables, wishes: Wishes<'a>, found: &mut Found) -> Place<'a> {
    let mut versions: BTreeMap<&str, usize> = BTreeMap::new();
    for row in &tables.versions {
        *versions.entry(text(row, "job_id").unwrap_or_default()).or_default() += 1;
    }
    Place {
        wishes,
        apps: tables.groups.iter().filter_map(|row| Some((text(row, "id")?, text(row, "app_name")?))).collect(),
        names: tables.jobs.iter().filter_map(|row| Some((text(row, "id")?, name_of(row, found)))).collect(),
        versions,
    }
}

fn name_of(row: &Row, found: &mut Found) -> String {
    let (id, glue) = (text(row, "id").unwrap_or_default(), text(row, "glue_type").unwrap_or("BEAN"));
    let stem = match text(row, "executor_handler") {
        Some(handler) if glue == "BEAN" => handler,
        _ => glue,
    };
    found.name(&format!("{stem}-{id}"))
}
