//! The differences between the SQL dialects of the databases, side by side, and the one place that renders a statement in a dialect.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use sqlx::Arguments;
use sqlx::any::AnyArguments;

use super::query::{Argument, Query, Statement};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    Sqlite,
    Postgres,
    MySql,
}

impl Dialect {
    /// The database's clock, in milliseconds since 1970. Fractions are cut off, so that it is never ahead.
    fn now(self) -> &'static str {
        match self {
            Self::Sqlite => "CAST(round(unixepoch('subsec') * 1000) AS INTEGER)",
            Self::Postgres => "floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint",
            Self::MySql => "CAST(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000 AS SIGNED)",
        }
    }

    /// Locks the rows that are read. SQLite needs no row locks, because its single writer locks the whole file.
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

    /// `INSERT {ignore} INTO t … {or_ignore}` leaves out the rows whose key already exists.
    fn ignore(self) -> (&'static str, &'static str) {
        match self {
            Self::Sqlite | Self::Postgres => ("", "ON CONFLICT DO NOTHING"),
            Self::MySql => ("IGNORE", ""),
        }
    }

    /// The function that returns the position of its second argument in its first, or 0 if it does not occur there.
    fn instr(self) -> &'static str {
        match self {
            Self::Sqlite | Self::MySql => "instr",
            Self::Postgres => "strpos",
        }
    }

    /// A text whose ASCII letters are in lower case. A PostgreSQL database may have a Turkish locale, in which the lower case of I is not
    /// i; the collation `C` avoids that.
    fn lower(self, column: &str) -> String {
        match self {
            Self::Sqlite | Self::MySql => format!("LOWER(COALESCE({column}, ''))"),
            Self::Postgres => format!("LOWER(COALESCE({column}, '') COLLATE \"C\")"),
        }
    }

    /// The type that a sum is cast to: 64 bits.
    fn bigint(self) -> &'static str {
        match self {
            Self::Sqlite | Self::Postgres => "BIGINT",
            Self::MySql => "SIGNED",
        }
    }

    /// The condition for rows of `job_due` that wrongly lack a next fire. MySQL has no partial indexes, so its table has a column that the
    /// other databases do not need.
    fn stuck_condition(self) -> &'static str {
        match self {
            Self::Sqlite | Self::Postgres => "job_due.next_fire_at_ms IS NULL AND job_due.is_over = 0",
            Self::MySql => "job_due.is_stuck = 1",
        }
    }

    /// The condition for rows of `job_due` that rightly have no next fire: the job fires no more, or only after the end of a run.
    fn idle_condition(self) -> &'static str {
        match self {
            Self::Sqlite | Self::Postgres => "job_due.next_fire_at_ms IS NULL AND job_due.is_over = 1",
            Self::MySql => "job_due.is_idle = 1",
        }
    }

    /// Restricts a statement to rows of `job_due` with a next fire, so that the databases use their partial index of these rows. Empty for
    /// MySQL: its index has all rows, and with the condition MySQL would first read the idle jobs of a home.
    fn and_planned(self) -> &'static str {
        match self {
            Self::Sqlite | Self::Postgres => "AND job_due.next_fire_at_ms IS NOT NULL",
            Self::MySql => "",
        }
    }

    /// `WHERE id {in_list} AND {check}…{end}` checks a condition only on the rows that the list names, without an index for the condition.
    /// Otherwise a planner whose statistics are from a time without open runs would expect an index of open runs to have a single entry,
    /// and read all of its entries.
    fn check(self) -> (&'static str, &'static str) {
        match self {
            Self::Sqlite | Self::MySql => ("(", ")"),
            Self::Postgres => ("CASE WHEN ", " THEN TRUE ELSE FALSE END"),
        }
    }

    /// `UPDATE {join:…}t SET … {from:…} WHERE …` updates a table from the rows of a batch, which MySQL names before `SET`. `{of_rows:t.id}`
    /// matches the rows of the batch with those of the table. `{delete_ids:t}` deletes the rows of a table whose ids a batch lists.
    fn joins_before_set(self) -> bool {
        self == Self::MySql
    }

    /// `INSERT … {or_update:key} a = {new:a}` updates existing rows with the values that were to be inserted. Each row is looked up by its
    /// key, whatever statistics the planner has.
    fn or_update(self, key: &str) -> String {
        match self {
            Self::Sqlite | Self::Postgres => format!("ON CONFLICT ({key}) DO UPDATE SET"),
            Self::MySql => "ON DUPLICATE KEY UPDATE".to_owned(),
        }
    }

    /// The value that was to be inserted into a column.
    fn new_value(self, column: &str) -> String {
        match self {
            Self::Sqlite | Self::Postgres => format!("excluded.{column}"),
            Self::MySql => format!("VALUES({column})"),
        }
    }

    /// The statement that begins a transaction.
    pub(super) fn begin(self) -> &'static str {
        match self {
            Self::Sqlite => "BEGIN IMMEDIATE",
            Self::Postgres => "BEGIN",
            Self::MySql => "START TRANSACTION",
        }
    }

    /// The keyword before a table that is read again for each row of the preceding table. MariaDB and SQLite have none.
    fn lateral(self) -> Option<&'static str> {
        match self {
            Self::Postgres => Some("LATERAL"),
            Self::Sqlite | Self::MySql => None,
        }
    }

    pub(super) fn has_lateral(self) -> bool {
        self.lateral().is_some()
    }

    /// Whether rows are sent as one array per column. The text is then the same for any number of rows, and is planned as quickly as for a
    /// single row. The other databases get one argument per value.
    fn sends_arrays(self) -> bool {
        self == Self::Postgres
    }

    /// Writes a table `v` of these rows, with the columns `column1`, `column2` … The types are one letter per column, `i` for integers and
    /// `t` for text: MySQL treats an argument without a cast as text.
    fn push_table_of_rows(self, writer: &mut Writer, types: &str, row_count: usize) {
        match self {
            Self::Sqlite => {
                writer.sql.push_str("(VALUES ");
                writer.push_tuples(types.len(), row_count);
                writer.sql.push_str(") AS v");
            }
            Self::Postgres => {
                writer.push_arrays(types);
                writer.sql.push_str(" AS v(");
                for column in 1..=types.len() {
                    writer.sql.push_str(if column == 1 { "column" } else { ", column" });
                    writer.sql.push_str(&column.to_string());
                }
                writer.sql.push(')');
            }
            Self::MySql => {
                writer.sql.push('(');
                for row in 0..row_count {
                    writer.sql.push_str(if row == 0 { "SELECT " } else { " UNION ALL SELECT " });
                    for (column, kind) in types.chars().enumerate() {
                        writer.sql.push_str(if column == 0 { "" } else { ", " });
                        writer.sql.push_str(if kind == 'i' { "CAST(? AS SIGNED)" } else { "?" });
                        if row == 0 {
                            writer.sql.push_str(&format!(" AS column{}", column + 1));
                        }
                    }
                }
                writer.sql.push_str(") AS v");
            }
        }
    }

    /// The statement in the SQL of this database, for a query with `row_count` rows.
    pub(super) fn render(self, statement: &Statement, row_count: usize) -> String {
        let sql = String::with_capacity(statement.text.len());
        let mut writer = Writer { dialect: self, sql, argument_count: 0, first_column: 0 };
        let mut remaining_text = statement.text;
        while let Some(mark_start) = remaining_text.find(['?', '{']) {
            writer.sql.push_str(&remaining_text[..mark_start]);
            remaining_text = &remaining_text[mark_start..];
            if let Some(text_after) = remaining_text.strip_prefix('?') {
                writer.push_argument();
                remaining_text = text_after;
                continue;
            }
            let end = remaining_text.find('}').expect("a mark in a statement ends with a brace");
            writer.push_mark(&remaining_text[1..end], row_count);
            remaining_text = &remaining_text[end + 1..];
        }
        writer.sql.push_str(remaining_text);
        writer.sql
    }
}

struct Writer {
    dialect: Dialect,
    sql: String,
    /// Number of arguments so far.
    argument_count: usize,
    /// Position, counted from 1, of the argument that holds the first column of the batch.
    first_column: usize,
}

impl Writer {
    fn push_argument(&mut self) {
        self.argument_count += 1;
        match self.dialect {
            Dialect::Sqlite | Dialect::MySql => self.sql.push('?'),
            Dialect::Postgres => {
                self.sql.push('$');
                self.sql.push_str(&self.argument_count.to_string());
            }
        }
    }

    fn push_list(&mut self, count: usize) {
        for index in 0..count {
            self.sql.push_str(if index == 0 { "" } else { ", " });
            self.push_argument();
        }
    }

    fn push_tuples(&mut self, width: usize, count: usize) {
        for index in 0..count {
            self.sql.push_str(if index == 0 { "(" } else { ", (" });
            self.push_list(width);
            self.sql.push(')');
        }
    }

    /// The driver cannot send arrays, so an array is sent as text.
    fn push_array(&mut self, kind: char) {
        self.push_argument();
        self.sql.push_str(match kind {
            'i' => "::text::bigint[]",
            'b' => "::text::bytea[]",
            _ => "::text::text[]",
        });
    }

    fn push_arrays(&mut self, types: &str) {
        self.first_column = self.argument_count + 1;
        for (column, kind) in types.chars().enumerate() {
            self.sql.push_str(if column == 0 { "unnest(" } else { ", " });
            self.push_array(kind);
        }
        self.sql.push(')');
    }

    /// Compares with each number of an array argument. The array is in a subquery, so that its text is parsed once and not for each row.
    fn push_is_any_of(&mut self, argument: usize) {
        self.sql.push_str(&format!("= ANY((SELECT ${argument}::text::bigint[])::bigint[])"));
    }

    fn push_mark(&mut self, mark: &str, row_count: usize) {
        let dialect = self.dialect;
        match mark.split_once(':') {
            None => match mark {
                "now" => self.sql.push_str(dialect.now()),
                "for_update" => self.sql.push_str(dialect.for_update()),
                "skip_locked" => self.sql.push_str(dialect.skip_locked()),
                "ignore" => self.sql.push_str(dialect.ignore().0),
                "or_ignore" => self.sql.push_str(dialect.ignore().1),
                "is_stuck" => self.sql.push_str(dialect.stuck_condition()),
                "is_idle" => self.sql.push_str(dialect.idle_condition()),
                "and_planned" => self.sql.push_str(dialect.and_planned()),
                "instr" => self.sql.push_str(dialect.instr()),
                "bigint" => self.sql.push_str(dialect.bigint()),
                "lateral" => self.sql.push_str(dialect.lateral().unwrap_or_default()),
                "check" => self.sql.push_str(dialect.check().0),
                "end" => self.sql.push_str(dialect.check().1),
                "in_list" if dialect.sends_arrays() => {
                    self.argument_count += 1;
                    self.push_is_any_of(self.argument_count);
                }
                "in_list" => {
                    self.sql.push_str("IN (");
                    self.push_list(row_count);
                    self.sql.push(')');
                }
                "words" => self.push_list(row_count),
                _ => unreachable!("no mark is called {mark}"),
            },
            Some(("values", types)) if dialect.sends_arrays() => {
                self.sql.push_str("SELECT * FROM ");
                self.push_arrays(types);
            }
            Some(("values", types)) => {
                self.sql.push_str("VALUES ");
                self.push_tuples(types.len(), row_count);
            }
            Some(("rows", types)) => dialect.push_table_of_rows(self, types, row_count),
            Some(("join", types)) if dialect.joins_before_set() => {
                dialect.push_table_of_rows(self, types, row_count);
                // `STRAIGHT_JOIN` reads the rows of the batch first. Otherwise the optimizer may scan a small table, and lock all of its
                // rows.
                self.sql.push_str(" STRAIGHT_JOIN ");
            }
            Some(("from", types)) if !dialect.joins_before_set() => {
                self.sql.push_str("FROM ");
                dialect.push_table_of_rows(self, types, row_count);
            }
            Some(("join" | "from", _)) => {}
            // As above: with a plain list, the optimizer may scan a small table, and lock all of its rows.
            Some(("delete_ids", table)) if dialect.joins_before_set() => {
                self.sql.push_str(&format!("DELETE {table} FROM "));
                dialect.push_table_of_rows(self, "i", row_count);
                self.sql.push_str(&format!(" STRAIGHT_JOIN {table} ON {table}.id = v.column1"));
            }
            Some(("delete_ids", table)) => {
                self.sql.push_str(&format!("DELETE FROM {table} WHERE id "));
                self.push_mark("in_list", row_count);
            }
            Some(("or_update", key)) => self.sql.push_str(&dialect.or_update(key)),
            Some(("new", column)) => self.sql.push_str(&dialect.new_value(column)),
            Some(("lower", column)) => self.sql.push_str(&dialect.lower(column)),
            Some(("of_rows", column)) => {
                self.sql.push_str(column);
                self.sql.push_str(" = v.column1");
                // Repeats the condition in another form. Without this form, a planner whose statistics are from a time when the table was
                // empty scans the whole table, and searches `v` for each of its rows.
                if dialect.sends_arrays() {
                    self.sql.push_str(" AND ");
                    self.sql.push_str(column);
                    self.sql.push(' ');
                    self.push_is_any_of(self.first_column);
                }
            }
            Some((other, _)) => unreachable!("no mark is called {other}"),
        }
    }
}

/// The rendered statements, by the address of their text and the number of rows.
#[derive(Debug)]
pub(super) struct RenderedStatements {
    dialect: Dialect,
    rendered_texts: Mutex<HashMap<(usize, usize, usize), Arc<str>>>,
}

impl RenderedStatements {
    pub(super) fn new(dialect: Dialect) -> Self {
        Self { dialect, rendered_texts: Mutex::default() }
    }

    pub(super) fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// The text and the arguments of a query as the driver takes them.
    pub(super) fn render_query(&self, query: Query) -> (Arc<str>, AnyArguments) {
        let Query { statement, mut arguments, batch } = query;
        let mut text_row_count = 0;
        if let Some((start, row_count)) = batch {
            let end = start + row_count * width(statement);
            let has_words_mark = statement.text.contains("{words}");
            if has_words_mark {
                text_row_count = row_count;
            } else if self.dialect.sends_arrays() {
                let columns = columns(&arguments[start..end], row_count);
                arguments.splice(start..end, columns);
            } else if may_repeat_rows(statement) {
                text_row_count = pad_rows(&mut arguments, start..end, row_count);
            } else {
                text_row_count = row_count;
            }
        }
        (self.text(statement, text_row_count), bind(arguments))
    }

    fn text(&self, statement: &Statement, row_count: usize) -> Arc<str> {
        let mut rendered_texts = self.rendered_texts.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (statement.text.as_ptr().addr(), statement.text.len(), row_count);
        Arc::clone(rendered_texts.entry(key).or_insert_with(|| Arc::from(self.dialect.render(statement, row_count))))
    }
}

/// Number of arguments in one row of a statement's batch.
fn width(statement: &Statement) -> usize {
    let types = |mark: &str| {
        let start = statement.text.find(mark)? + mark.len();
        statement.text[start..].find('}')
    };
    ["{values:", "{rows:", "{from:"].into_iter().find_map(types).unwrap_or(1)
}

/// Whether the statement has the same effect if a row of its batch is repeated. A plain INSERT would violate a key, and an INSERT that adds
/// to existing values would add twice. A list of ids names the same rows if an id is repeated.
fn may_repeat_rows(statement: &Statement) -> bool {
    let (text, marks) = (statement.text, ["{ignore}", "{in_list}"]);
    !text.starts_with("INSERT") || marks.iter().any(|mark| text.contains(mark))
}

/// Fills up the rows to a power of two, so that few different texts are prepared on each connection. Repeats the smallest row, so the
/// statement becomes at most twice as large. Used only for statements that [`may_repeat_rows`] allows. Returns the number of rows.
fn pad_rows(arguments: &mut Vec<Argument>, rows: std::ops::Range<usize>, row_count: usize) -> usize {
    let width = rows.len() / row_count;
    let padded_count = row_count.next_power_of_two();
    if padded_count == row_count {
        return padded_count;
    }
    let bytes = |row: &&[Argument]| row.iter().map(Argument::bytes).sum::<usize>();
    let smallest_row = arguments[rows.clone()].chunks(width).min_by_key(bytes).unwrap_or_default().to_vec();
    let padding = smallest_row.iter().cycle().take((padded_count - row_count) * width).cloned();
    let arguments_after: Vec<Argument> = arguments.drain(rows.end..).collect();
    arguments.extend(padding);
    arguments.extend(arguments_after);
    padded_count
}

/// The columns of some rows, each as the text of an array.
fn columns(rows: &[Argument], row_count: usize) -> Vec<Argument> {
    let width = rows.len() / row_count;
    let column = |column: usize| {
        let mut text = String::with_capacity(row_count * 8);
        for (row, value) in rows.iter().skip(column).step_by(width).enumerate() {
            text.push(if row == 0 { '{' } else { ',' });
            push_element(&mut text, value);
        }
        text.push('}');
        Argument::Text(Some(text))
    };
    (0..width).map(column).collect()
}

fn push_element(text: &mut String, value: &Argument) {
    use std::fmt::Write;
    const INFALLIBLE: &str = "a String takes everything";
    match value {
        Argument::Int(Some(value)) => write!(text, "{value}").expect(INFALLIBLE),
        Argument::Int(None) | Argument::Text(None) => text.push_str("NULL"),
        Argument::Text(Some(value)) => {
            text.push('"');
            for part in value.split_inclusive(['"', '\\']) {
                match part.strip_suffix(['"', '\\']) {
                    Some(plain_text) => {
                        text.push_str(plain_text);
                        text.push('\\');
                        text.push_str(&part[plain_text.len()..]);
                    }
                    None => text.push_str(part),
                }
            }
            text.push('"');
        }
        Argument::Bytes(value) => {
            text.push_str("\"\\\\x");
            for byte in value {
                write!(text, "{byte:02x}").expect(INFALLIBLE);
            }
            text.push('"');
        }
    }
}

fn bind(arguments: Vec<Argument>) -> AnyArguments {
    const ENCODES: &str = "integers, text and bytes can always be encoded";
    let mut bound_arguments = AnyArguments::default();
    bound_arguments.reserve(arguments.len(), 0);
    for argument in arguments {
        match argument {
            Argument::Int(value) => bound_arguments.add(value).expect(ENCODES),
            Argument::Text(value) => bound_arguments.add(value).expect(ENCODES),
            Argument::Bytes(value) => bound_arguments.add(value).expect(ENCODES),
        }
    }
    bound_arguments
}

#[cfg(test)]
mod tests;
