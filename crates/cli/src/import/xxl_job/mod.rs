//! Reads XXL-JOB's own database, versions 2.x and 3.x: groups become apps and jobs become definitions. For settings that no
//! definition can contain (alarm mail, fixed addresses, users), the import writes shell commands for the user to run.

mod commands;
mod context;
mod family;
mod fields;
mod history;
mod tables;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use self::context::{ImportContext, JobDraft};
pub(super) use self::context::{ImportOptions, Scripts};
pub(super) use self::tables::Tables;
use self::tables::text;
use super::dump::Row;
use super::result::ImportResult;

/// Converts the tables into definitions and commands.
pub(super) fn convert(tables: &Tables, options: ImportOptions<'_>) -> ImportResult {
    let mut result = ImportResult::with_prefix(options.prefix);
    let context = import_context(tables, options, &mut result);
    let mut drafts: Vec<JobDraft<'_>> = tables.jobs.iter().map(|row| fields::convert_row(row, &context)).collect();
    family::set_parents(&mut drafts, &context);
    commands::add_alarms(&drafts, options, &mut result);
    for mut draft in drafts {
        commands::record_unknown_columns(draft.row, &mut draft.entry);
        match draft.job {
            Ok(job) => result.add(draft.entry, job),
            Err(reason) => result.leave_out(draft.entry, reason),
        }
    }
    tables.groups.iter().for_each(|row| result.entries.push(commands::convert_group(row, options)));
    tables.users.iter().for_each(|row| result.entries.push(commands::convert_user(row, &context)));
    commands::add_remarks(tables, &mut result);
    result
}

/// Writes each earlier script to a file of its own; returns their number.
pub(super) fn write_history(tables: &Tables, options: ImportOptions<'_>) -> std::io::Result<usize> {
    let Some(folder) = options.history else { return Ok(0) };
    history::write(
        tables,
        &import_context(tables, options, &mut ImportResult::with_prefix(options.prefix)).names,
        folder,
    )
}

fn import_context<'a>(tables: &'a Tables, options: ImportOptions<'a>, result: &mut ImportResult) -> ImportContext<'a> {
    let mut versions: BTreeMap<&str, usize> = BTreeMap::new();
    for row in &tables.versions {
        *versions.entry(text(row, "job_id").unwrap_or_default()).or_default() += 1;
    }
    ImportContext {
        options,
        apps: tables.groups.iter().filter_map(|row| Some((text(row, "id")?, commands::app_name(row)?))).collect(),
        names: tables.jobs.iter().filter_map(|row| Some((text(row, "id")?, job_name(row, result)))).collect(),
        versions,
    }
}

fn job_name(row: &Row, result: &mut ImportResult) -> String {
    let (id, glue) = (text(row, "id").unwrap_or_default(), text(row, "glue_type").unwrap_or("BEAN"));
    let stem = match text(row, "executor_handler") {
        Some(handler) if glue == "BEAN" => handler,
        _ => glue,
    };
    result.names.unique_name_with_id(stem, id)
}
