//! What the databases say differently, side by side, and the one place that puts a statement into their words.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::query::Statement;

/// Which database speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    Sqlite,
    Postgres,
    /// MariaDB too.
    MySql,
}

impl Dialect {
    /// The database's clock, in milliseconds since 1970. Never ahead: fractions are cut off.
    fn now(self) -> &'static str {
        match self {
            Self::Sqlite => "CAST(round(unixepoch('subsec') * 1000) AS INTEGER)",
            Self::Postgres => "floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint",
            Self::MySql => "CAST(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000 AS SIGNED)",
        }
    }

    /// SQLite has one writer, which holds the whole file.
    fn for_update(self) -> &'static str {
        match self {
            Self::Sqlite => "",
            Self::Postgres | Self::MySql => "FOR UPDATE",
        }
    }

    fn skip_locked(self) -> &'static str {
        match self {
            Self::Sqlite => "",
            Self::Postgres | Self::MySql => "FOR UPDATE SKIP LOCKED",
        }
    }

    /// `INSERT {ignore} INTO t … {or_ignore}` leaves out the rows whose key exists.
    fn ignore(self) -> (&'static str, &'static str) {
        match self {
            Self::Sqlite | Self::Postgres => ("", "ON CONFLICT DO NOTHING"),
            Self::MySql => ("IGNORE", ""),
        }
    }

    /// The position of a text (second) in another (first), 0 if it is not there.
    fn instr(self) -> &'static str {
        match self {
            Self::Sqlite | Self::MySql => "instr",
            Self::Postgres => "strpos",
        }
    }

    /// `UPDATE t {join:…} SET … {from:…} WHERE …` updates from rows.
    fn joins_before_set(self) -> bool {
        self == Self::MySql
    }

    /// How a transaction begins.
    pub(super) fn begin(self) -> &'static str {
        match self {
            Self::Sqlite => "BEGIN IMMEDIATE",
            Self::Postgres => "BEGIN",
            Self::MySql => "START TRANSACTION",
        }
    }

    /// The argument at `position` (from 1).
    fn placeholder(self, text: &mut String, position: usize) {
        match self {
            Self::Sqlite | Self::MySql => text.push('?'),
            Self::Postgres => {
                text.push('$');
                text.push_str(&position.to_string());
            }
        }
    }

    /// A table `v` with the columns `column1`, `column2` … of these rows. The types are one letter per column, `i` for
    /// integers and `t` for text: MySQL takes an argument that stands alone for text.
    fn table_of_rows(self, writer: &mut Writer, types: &str, row_count: usize) {
        match self {
            Self::Sqlite | Self::Postgres => {
                writer.out.push_str("(VALUES ");
                writer.tuples(types.len(), row_count);
                writer.out.push_str(") AS v");
            }
            Self::MySql => {
                writer.out.push('(');
                for row in 0..row_count {
                    writer.out.push_str(if row == 0 { "SELECT " } else { " UNION ALL SELECT " });
                    for (column, kind) in types.chars().enumerate() {
                        writer.out.push_str(if column == 0 { "" } else { ", " });
                        writer.out.push_str(if kind == 'i' { "CAST(? AS SIGNED)" } else { "?" });
                        if row == 0 {
                            writer.out.push_str(&format!(" AS column{}", column + 1));
                        }
                    }
                }
                writer.out.push_str(") AS v");
            }
        }
    }

    /// The statement in the words of this database, for a query that carries `row_count` rows.
    pub(super) fn render(self, statement: &Statement, row_count: usize) -> String {
        let mut writer = Writer { dialect: self, out: String::with_capacity(statement.text.len()), arguments: 0 };
        let mut rest = statement.text;
        while let Some(at) = rest.find(['?', '{']) {
            writer.out.push_str(&rest[..at]);
            rest = &rest[at..];
            if let Some(after) = rest.strip_prefix('?') {
                writer.argument();
                rest = after;
                continue;
            }
            let end = rest.find('}').expect("a mark in a statement ends with a brace");
            writer.mark(&rest[1..end], row_count);
            rest = &rest[end + 1..];
        }
        writer.out.push_str(rest);
        writer.out
    }
}

/// A statement on its way into the words of a database.
struct Writer {
    dialect: Dialect,
    out: String,
    arguments: usize,
}

impl Writer {
    fn argument(&mut self) {
        self.arguments += 1;
        self.dialect.placeholder(&mut self.out, self.arguments);
    }

    fn list(&mut self, count: usize) {
        for index in 0..count {
            self.out.push_str(if index == 0 { "" } else { ", " });
            self.argument();
        }
    }

    fn tuples(&mut self, width: usize, count: usize) {
        for index in 0..count {
            self.out.push_str(if index == 0 { "(" } else { ", (" });
            self.list(width);
            self.out.push(')');
        }
    }

    fn mark(&mut self, mark: &str, row_count: usize) {
        let dialect = self.dialect;
        match mark.split_once(':') {
            None => match mark {
                "now" => self.out.push_str(dialect.now()),
                "for_update" => self.out.push_str(dialect.for_update()),
                "skip_locked" => self.out.push_str(dialect.skip_locked()),
                "ignore" => self.out.push_str(dialect.ignore().0),
                "or_ignore" => self.out.push_str(dialect.ignore().1),
                "instr" => self.out.push_str(dialect.instr()),
                "list" => self.list(row_count),
                _ => unreachable!("no mark is called {mark}"),
            },
            Some(("values", types)) => self.tuples(types.len(), row_count),
            Some(("rows", types)) => dialect.table_of_rows(self, types, row_count),
            Some(("join", types)) if dialect.joins_before_set() => {
                self.out.push_str("JOIN ");
                dialect.table_of_rows(self, types, row_count);
            }
            Some(("from", types)) if !dialect.joins_before_set() => {
                self.out.push_str("FROM ");
                dialect.table_of_rows(self, types, row_count);
            }
            Some(("join" | "from", _)) => {}
            Some((other, _)) => unreachable!("no mark is called {other}"),
        }
    }
}

/// Statements as they were put into the words of the database, by where their text stands and the number of rows.
#[derive(Debug)]
pub(super) struct Texts {
    dialect: Dialect,
    known: Mutex<HashMap<(usize, usize, usize), Arc<str>>>,
}

impl Texts {
    pub(super) fn new(dialect: Dialect) -> Self {
        Self { dialect, known: Mutex::default() }
    }

    pub(super) fn dialect(&self) -> Dialect {
        self.dialect
    }

    pub(super) fn get(&self, statement: &Statement, row_count: usize) -> Arc<str> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (statement.text.as_ptr().addr(), statement.text.len(), row_count);
        Arc::clone(known.entry(key).or_insert_with(|| Arc::from(self.dialect.render(statement, row_count))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BATCH: Statement = Statement {
        name: "batch",
        text: "UPDATE t {join:it} SET a = v.column2 {from:it} WHERE t.id = v.column1 AND b = ? {for_update}",
    };

    #[track_caller]
    fn check_render(dialect: Dialect, statement: &Statement, row_count: usize, expected: &str) {
        assert_eq!(dialect.render(statement, row_count), expected);
    }

    #[test]
    fn a_batch_update_is_said_as_each_database_wants_it() {
        check_render(
            Dialect::Postgres,
            &BATCH,
            2,
            "UPDATE t  SET a = v.column2 FROM (VALUES ($1, $2), ($3, $4)) AS v WHERE t.id = v.column1 AND b = $5 FOR UPDATE",
        );
        check_render(
            Dialect::Sqlite,
            &BATCH,
            1,
            "UPDATE t  SET a = v.column2 FROM (VALUES (?, ?)) AS v WHERE t.id = v.column1 AND b = ? ",
        );
        check_render(
            Dialect::MySql,
            &BATCH,
            2,
            "UPDATE t JOIN (SELECT CAST(? AS SIGNED) AS column1, ? AS column2 UNION ALL SELECT CAST(? AS SIGNED), ?) AS v \
             SET a = v.column2  WHERE t.id = v.column1 AND b = ? FOR UPDATE",
        );
    }

    #[test]
    fn lists_and_values_grow_with_the_rows() {
        let insert = Statement { name: "insert", text: "INSERT {ignore} INTO t VALUES {values:iit} {or_ignore}" };
        check_render(Dialect::MySql, &insert, 2, "INSERT IGNORE INTO t VALUES (?, ?, ?), (?, ?, ?) ");
        let select = Statement { name: "select", text: "SELECT a FROM t WHERE b = ? AND id IN ({list})" };
        check_render(Dialect::Postgres, &select, 3, "SELECT a FROM t WHERE b = $1 AND id IN ($2, $3, $4)");
    }
}
