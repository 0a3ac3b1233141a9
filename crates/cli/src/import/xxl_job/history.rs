//! Writes the versions of scripts that XXL-JOB keeps: a folder for each job, with a file for each version and a list.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::path::Path;

use super::tables::{Tables, text};
use crate::import::dump::Row;

/// Writes the versions into `folder`, and returns their number.
pub(super) fn write(tables: &Tables, names: &HashMap<&str, String>, folder: &Path) -> std::io::Result<usize> {
    let mut rows_by_job: BTreeMap<&str, Vec<&Row>> = BTreeMap::new();
    for row in &tables.versions {
        if let Some(name) = text(row, "job_id").and_then(|id| names.get(id)) {
            rows_by_job.entry(name).or_default().push(row);
        }
    }
    let mut count = 0;
    for (name, rows) in rows_by_job {
        let folder = folder.join(name);
        std::fs::create_dir_all(&folder)?;
        let mut list = String::from("file\tsaved\tremark\n");
        for row in rows {
            // A row whose id is no number is skipped, so that no other text becomes part of a path.
            let Some(id) = text(row, "id").and_then(|id| id.parse::<i64>().ok()) else { continue };
            let file = format!("{id}.{}", file_extension(text(row, "glue_type").unwrap_or_default()));
            std::fs::write(folder.join(&file), row.get("glue_source").map_or("", String::as_str))?;
            let one_line_text =
                |column: &str| text(row, column).unwrap_or_default().replace(|c: char| c.is_control(), " ");
            writeln!(list, "{file}\t{}\t{}", one_line_text("add_time"), one_line_text("glue_remark")).ok();
            count += 1;
        }
        std::fs::write(folder.join("versions.tsv"), list)?;
    }
    Ok(count)
}

fn file_extension(kind: &str) -> &'static str {
    match kind {
        "GLUE_SHELL" => "sh",
        "GLUE_PYTHON" | "GLUE_PYTHON2" => "py",
        "GLUE_NODEJS" => "js",
        "GLUE_PHP" => "php",
        "GLUE_POWERSHELL" => "ps1",
        "GLUE_GROOVY" => "groovy",
        _ => "txt",
    }
}
