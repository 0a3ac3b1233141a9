//! What the runs of a measurement cost the database, by the database's own counts: the difference of two snapshots, for 1,000 runs.

use std::fmt::Write as _;

use rondel_store::counters::{DatabaseCounts, RowCounts, TableCounts, TableSize, TableSizes};
use serde::Serialize;

/// A table is part of the report if at least one of its rows was changed per this number of runs.
const RUNS_PER_CHANGE_MAX: f64 = 100.0;

/// What the database did for the runs. Counts that it does not have are `None`, as are counts that started again in the meantime.
#[derive(Clone, Debug, Default, Serialize)]
pub struct DatabaseWork {
    /// How long the database was observed, in seconds: from before the first fire until the servers had stopped.
    pub seconds: f64,
    /// The runs that got a verdict in this time.
    pub runs: u64,
    /// The runs that were claimed in this time and have no verdict. If there are any, the amounts contain claims without their ends.
    pub open_runs: u64,
    /// Everything that the database did in this time.
    pub total: Amounts,
    /// The same for 1,000 runs; `None` if no run got a verdict.
    pub per_1000_runs: Option<Amounts>,
    /// The share of updates for which PostgreSQL inserted nothing into indexes.
    pub hot_percent: Option<f64>,
    /// The main tables, and the others that changed.
    pub tables: Vec<TableWork>,
    /// What could not be counted, and why.
    pub notes: Vec<String>,
}

/// Amounts of work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Amounts {
    /// Bytes of PostgreSQL's WAL, or of the redo log of MySQL and MariaDB.
    pub log_bytes: Option<f64>,
    /// Records of PostgreSQL's WAL.
    pub log_records: Option<f64>,
    /// Images of whole pages in PostgreSQL's WAL, which follow a checkpoint.
    pub log_page_images: Option<f64>,
    /// Bytes that SQLite wrote, into its WAL and its file.
    pub file_bytes: Option<f64>,
    /// Rows of all tables.
    pub rows: RowAmounts,
}

/// Amounts of rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct RowAmounts {
    /// Inserted, updated and deleted rows.
    pub changed: Option<f64>,
    /// Inserted rows.
    pub inserted: Option<f64>,
    /// Updated rows.
    pub updated: Option<f64>,
    /// Deleted rows.
    pub deleted: Option<f64>,
}

/// What the database did in one table.
#[derive(Clone, Debug, Serialize)]
pub struct TableWork {
    /// The table.
    pub name: String,
    /// The rows of this table that were written.
    pub total: RowAmounts,
    /// The same for 1,000 runs; `None` if no run got a verdict.
    pub per_1000_runs: Option<RowAmounts>,
    /// The share of updates for which PostgreSQL inserted nothing into indexes.
    pub hot_percent: Option<f64>,
    /// Before the first fire.
    pub before: TableState,
    /// After the servers had stopped.
    pub after: TableState,
}

/// The state of one table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TableState {
    /// Old versions of rows that PostgreSQL has not removed yet.
    pub dead_rows: Option<u64>,
    /// The size of the table without its indexes; on MySQL, MariaDB and SQLite this is the B-tree of the primary key.
    pub table_bytes: Option<u64>,
    /// The size of its indexes.
    pub index_bytes: Option<u64>,
}

/// What was counted up to an instant.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot {
    pub(crate) counts: DatabaseCounts,
    pub(crate) sizes: TableSizes,
    /// Bytes that SQLite had written; `None` on other databases.
    pub(crate) file_bytes: Option<u64>,
}

impl DatabaseWork {
    /// The work between two snapshots, in which `runs` got a verdict and `open_runs` did not.
    pub(crate) fn between(before: &Snapshot, after: &Snapshot, seconds: f64, (runs, open_runs): (u64, u64)) -> Self {
        let (counts_before, counts) = (&before.counts, &after.counts);
        let total = Amounts {
            log_bytes: rise(counts_before.log_bytes, counts.log_bytes),
            log_records: rise(counts_before.log_records, counts.log_records),
            log_page_images: rise(counts_before.log_page_images, counts.log_page_images),
            file_bytes: rise(before.file_bytes, after.file_bytes),
            rows: RowAmounts::between(&counts_before.rows, &counts.rows),
        };
        let factor = (runs > 0).then(|| 1_000.0 / runs as f64);
        let mut names: Vec<&String> = after.sizes.tables.keys().chain(counts.tables.keys()).collect();
        names.sort_unstable();
        names.dedup();
        let tables = names.into_iter().map(|name| TableWork::between(name, before, after, factor));
        let changes_min = runs as f64 / RUNS_PER_CHANGE_MAX;
        let is_shown = |table: &TableWork| {
            let changed = table.total.changed.unwrap_or_default();
            after.sizes.tables.contains_key(&table.name) || (changed > 0.0 && changed >= changes_min)
        };
        let mut notes: Vec<String> = Vec::new();
        for note in [&counts_before.notes, &before.sizes.notes, &counts.notes, &after.sizes.notes].into_iter().flatten()
        {
            if !notes.contains(note) {
                notes.push(note.clone());
            }
        }
        Self {
            seconds,
            runs,
            open_runs,
            total,
            per_1000_runs: factor.map(|factor| total.times(factor)),
            hot_percent: hot_percent(&counts_before.rows, &counts.rows),
            tables: tables.filter(is_shown).collect(),
            notes,
        }
    }

    /// The work as lines of names and values.
    pub(crate) fn lines(&self) -> Vec<(String, String)> {
        let mut lines = Vec::new();
        let mut add = |name: &str, value: String| lines.push((name.to_owned(), value));
        let Self { seconds, runs, open_runs, .. } = self;
        let mut text = format!("{runs} runs in {seconds:.1} s");
        if *open_runs > 0 {
            write!(text, "; {open_runs} more were claimed and have no verdict").ok();
        }
        add("database counted", text);
        let (amounts, unit) = match self.per_1000_runs {
            Some(amounts) => (amounts, "for 1000 runs"),
            None => (self.total, "in all"),
        };
        let text = format!(
            "{} bytes, {} records, {} page images {unit}",
            number(amounts.log_bytes, 0),
            number(amounts.log_records, 0),
            number(amounts.log_page_images, 1)
        );
        add("database log", text);
        if amounts.file_bytes.is_some() {
            add("database files", format!("{} bytes written {unit}", number(amounts.file_bytes, 0)));
        }
        let rows = format!("{} changed: {}", number(amounts.rows.changed, 1), amounts.rows.text(self.hot_percent));
        add("database rows", format!("{rows} {unit}"));
        lines.extend(self.tables.iter().flat_map(|table| table.lines(unit)));
        lines.extend(self.notes.iter().map(|note| ("not counted".to_owned(), note.clone())));
        lines
    }
}

impl TableWork {
    fn between(name: &str, before: &Snapshot, after: &Snapshot, factor: Option<f64>) -> Self {
        let counts = |snapshot: &Snapshot| snapshot.counts.tables.get(name).copied();
        let rows = |counts: Option<TableCounts>| counts.map(|table| table.rows).unwrap_or_default();
        let (rows_before, rows_after) = (rows(counts(before)), rows(counts(after)));
        let state = |snapshot: &Snapshot| {
            let size = snapshot.sizes.tables.get(name).copied();
            TableState {
                dead_rows: counts(snapshot).and_then(|table| table.dead),
                table_bytes: size.map(|TableSize { table_bytes, .. }| table_bytes),
                index_bytes: size.map(|TableSize { index_bytes, .. }| index_bytes),
            }
        };
        let total = RowAmounts::between(&rows_before, &rows_after);
        Self {
            name: name.to_owned(),
            total,
            per_1000_runs: factor.map(|factor| total.times(factor)),
            hot_percent: hot_percent(&rows_before, &rows_after),
            before: state(before),
            after: state(after),
        }
    }

    fn lines(&self, unit: &str) -> Vec<(String, String)> {
        let name = format!("table {}", self.name);
        let mut lines = Vec::new();
        if self.total.changed.is_some() {
            let rows = self.per_1000_runs.unwrap_or(self.total);
            lines.push((name.clone(), format!("{} {unit}", rows.text(self.hot_percent))));
        }
        let change = |value: fn(&TableState) -> Option<u64>, divisor: f64, decimals: usize| {
            let shown = |state: &TableState| number(value(state).map(|value| value as f64 / divisor), decimals);
            format!("{} before, {} after", shown(&self.before), shown(&self.after))
        };
        let text = format!(
            "dead rows {}; MB without indexes {}; MB of indexes {}",
            change(|state| state.dead_rows, 1.0, 0),
            change(|state| state.table_bytes, 1e6, 1),
            change(|state| state.index_bytes, 1e6, 1)
        );
        lines.push((name, text));
        lines
    }
}

impl Amounts {
    fn times(self, factor: f64) -> Self {
        let times = |value: Option<f64>| value.map(|value| value * factor);
        Self {
            log_bytes: times(self.log_bytes),
            log_records: times(self.log_records),
            log_page_images: times(self.log_page_images),
            file_bytes: times(self.file_bytes),
            rows: self.rows.times(factor),
        }
    }
}

impl RowAmounts {
    fn between(before: &RowCounts, after: &RowCounts) -> Self {
        Self {
            changed: rise(before.changed, after.changed),
            inserted: rise(before.inserted, after.inserted),
            updated: rise(before.updated, after.updated),
            deleted: rise(before.deleted, after.deleted),
        }
    }

    fn times(self, factor: f64) -> Self {
        let times = |value: Option<f64>| value.map(|value| value * factor);
        Self {
            changed: times(self.changed),
            inserted: times(self.inserted),
            updated: times(self.updated),
            deleted: times(self.deleted),
        }
    }

    fn text(self, hot_percent: Option<f64>) -> String {
        format!(
            "{} inserted, {} updated (HOT {} %), {} deleted",
            number(self.inserted, 1),
            number(self.updated, 1),
            number(hot_percent, 1),
            number(self.deleted, 1)
        )
    }
}

/// By how much a count rose; `None` if it is not known or started again.
fn rise(before: Option<u64>, after: Option<u64>) -> Option<f64> {
    after?.checked_sub(before?).map(|rise| rise as f64)
}

/// The share of HOT updates; `None` without updates.
fn hot_percent(before: &RowCounts, after: &RowCounts) -> Option<f64> {
    let updated = rise(before.updated, after.updated).filter(|updated| *updated > 0.0)?;
    Some(100.0 * rise(before.hot_updated, after.hot_updated)? / updated)
}

/// A number, or a dash if it is not known.
fn number(value: Option<f64>, decimals: usize) -> String {
    value.map_or_else(|| "–".to_owned(), |value| format!("{value:.decimals$}"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn rows(inserted: u64, updated: u64, hot_updated: u64, deleted: u64) -> RowCounts {
        RowCounts {
            changed: Some(inserted + updated + deleted),
            inserted: Some(inserted),
            updated: Some(updated),
            hot_updated: Some(hot_updated),
            deleted: Some(deleted),
        }
    }

    fn postgres(log_bytes: u64, run: RowCounts, dead: u64, table_bytes: u64) -> Snapshot {
        let table = |rows, dead| TableCounts { rows, dead: Some(dead) };
        Snapshot {
            counts: DatabaseCounts {
                log_bytes: Some(log_bytes),
                log_records: Some(log_bytes / 100),
                log_page_images: Some(7),
                rows: run,
                tables: BTreeMap::from([
                    ("node".to_owned(), table(rows(0, log_bytes / 1_000_000, 0, 0), 1)),
                    ("run".to_owned(), table(run, dead)),
                ]),
                notes: Vec::new(),
            },
            sizes: TableSizes {
                tables: BTreeMap::from([("run".to_owned(), TableSize { table_bytes, index_bytes: 2 * table_bytes })]),
                notes: Vec::new(),
            },
            file_bytes: None,
        }
    }

    fn text(work: &DatabaseWork) -> Vec<String> {
        work.lines().into_iter().map(|(name, value)| format!("{name}: {value}")).collect()
    }

    #[test]
    fn postgres_counts_by_table() {
        let before = postgres(1_000_000, rows(500, 400, 100, 0), 40, 1_000_000);
        let after = postgres(5_000_000, rows(2_500, 4_400, 1_100, 20), 3_040, 2_500_000);
        let work = DatabaseWork::between(&before, &after, 12.34, (2_000, 0));
        let per_1000_runs = work.per_1000_runs.unwrap();
        assert_eq!((per_1000_runs.log_bytes, per_1000_runs.rows.updated), (Some(2_000_000.0), Some(2_000.0)));
        assert_eq!((work.total.rows.changed, work.hot_percent), (Some(6_020.0), Some(25.0)));
        assert_eq!(
            text(&work),
            [
                "database counted: 2000 runs in 12.3 s",
                "database log: 2000000 bytes, 20000 records, 0.0 page images for 1000 runs",
                "database rows: 3010.0 changed: 1000.0 inserted, 2000.0 updated (HOT 25.0 %), 10.0 deleted for 1000 runs",
                "table run: 1000.0 inserted, 2000.0 updated (HOT 25.0 %), 10.0 deleted for 1000 runs",
                "table run: dead rows 40 before, 3040 after; MB without indexes 1.0 before, 2.5 after; \
                 MB of indexes 2.0 before, 5.0 after",
            ],
            "fewer than one run in a hundred changed a row of `node`"
        );
    }

    #[test]
    fn counts_that_a_database_does_not_have_are_dashes() {
        let sqlite = |changed, file_bytes| Snapshot {
            counts: DatabaseCounts {
                rows: RowCounts { changed: Some(changed), ..RowCounts::default() },
                notes: vec!["the sizes cannot be read: no rights".to_owned()],
                ..DatabaseCounts::default()
            },
            file_bytes: Some(file_bytes),
            ..Snapshot::default()
        };
        let work = DatabaseWork::between(&sqlite(10, 4_096), &sqlite(50, 8_192), 1.0, (10, 3));
        assert_eq!(
            text(&work),
            [
                "database counted: 10 runs in 1.0 s; 3 more were claimed and have no verdict",
                "database log: – bytes, – records, – page images for 1000 runs",
                "database files: 409600 bytes written for 1000 runs",
                "database rows: 4000.0 changed: – inserted, – updated (HOT – %), – deleted for 1000 runs",
                "not counted: the sizes cannot be read: no rights",
            ]
        );
        let json = serde_json::to_value(&work).unwrap();
        assert!(json["total"]["log_bytes"].is_null() && json["per_1000_runs"]["rows"]["inserted"].is_null(), "{json}");
        assert_eq!(json["per_1000_runs"]["file_bytes"], 409_600.0);
    }

    #[test]
    fn without_runs_the_whole_amounts_are_shown() {
        let (before, after) = (postgres(0, rows(0, 0, 0, 0), 0, 0), postgres(900, rows(1, 0, 0, 0), 0, 0));
        let work = DatabaseWork::between(&before, &after, 60.0, (0, 0));
        assert_eq!(work.per_1000_runs, None);
        assert_eq!(text(&work)[1], "database log: 900 bytes, 9 records, 0.0 page images in all");
        assert!(text(&work)[2].starts_with("database rows: 1.0 changed: 1.0 inserted, 0.0 updated (HOT – %)"));
    }

    #[test]
    fn only_what_rose_is_known() {
        for (before, after, expected) in [
            (Some(3), Some(10), Some(7.0)),
            (Some(3), Some(3), Some(0.0)),
            (Some(3), Some(2), None),
            (None, Some(2), None),
            (Some(3), None, None),
        ] {
            assert_eq!(rise(before, after), expected, "{before:?} {after:?}");
        }
        for (updated, hot_updated, expected) in [(8, 2, Some(25.0)), (8, 8, Some(100.0)), (0, 0, None)] {
            assert_eq!(hot_percent(&rows(0, 0, 0, 0), &rows(5, updated, hot_updated, 0)), expected);
        }
    }
}
