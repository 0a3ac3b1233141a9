//! Statements as they are written, queries as they are sent, and the reading of rows.
//!
//! A statement is a constant with `?` for each argument, in the order in which the arguments are given. A few marks in braces stand for
//! text that differs between the databases ([`super::dialect`]). A batch statement has one mark that stands for as many rows as the query
//! has.

use rondel_core::Timestamp;
use serde::de::DeserializeOwned;
use sqlx::Row;
use sqlx::any::AnyRow;

use crate::StoreError;

/// Maximum number of rows that one statement carries.
pub(super) const CHUNK_MAX: usize = 512;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StatementSize {
    /// Maximum number of rows.
    pub(super) rows: usize,
    /// Maximum size of the arguments, in bytes. A row that is larger is sent alone.
    pub(super) bytes: usize,
}

impl StatementSize {
    /// Splits these items into queries of one batch statement, each with the items that it writes.
    pub(super) fn queries<'i, T, A>(self, statement: &'static Statement, items: &'i [T], add: A) -> Queries<'i, T, A>
    where
        A: Fn(Query, &T) -> Query,
    {
        Queries { statement, size: self, remaining_items: items, add }
    }
}

/// The iterator of [`StatementSize::queries`].
#[derive(Debug)]
pub(super) struct Queries<'i, T, A> {
    statement: &'static Statement,
    size: StatementSize,
    remaining_items: &'i [T],
    add: A,
}

impl<'i, T, A: Fn(Query, &T) -> Query> Iterator for Queries<'i, T, A> {
    type Item = (Query, &'i [T]);

    fn next(&mut self) -> Option<Self::Item> {
        let mut query = Query::new(self.statement);
        let (mut count, mut bytes) = (0, 0);
        for item in self.remaining_items.iter().take(self.size.rows.clamp(1, CHUNK_MAX)) {
            let count_before = query.arguments.len();
            query = (self.add)(query, item);
            bytes += query.arguments[count_before..].iter().map(Argument::bytes).sum::<usize>();
            if count > 0 && bytes > self.size.bytes {
                query.arguments.truncate(count_before);
                break;
            }
            count += 1;
        }
        let (items, remaining_items) = self.remaining_items.split_at(count);
        self.remaining_items = remaining_items;
        query.batch = Some((0, count));
        (count > 0).then_some((query, items))
    }
}

/// A statement, before it is rendered for a database.
#[derive(Debug)]
pub(super) struct Statement {
    /// Names the statement in errors.
    pub(super) name: &'static str,
    pub(super) text: &'static str,
}

#[derive(Clone, Debug)]
pub(super) enum Argument {
    Int(Option<i64>),
    Text(Option<String>),
    Bytes(Vec<u8>),
}

impl Argument {
    /// Approximate size on the way to the database, in bytes.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Int(_) | Self::Text(None) => 8,
            Self::Text(Some(text)) => 8 + text.len(),
            Self::Bytes(bytes) => 8 + bytes.len(),
        }
    }
}

/// A statement with its arguments.
#[derive(Debug)]
pub(super) struct Query {
    pub(super) statement: &'static Statement,
    /// The arguments in the order of the text. If a mark stands for rows, their arguments come row by row.
    pub(super) arguments: Vec<Argument>,
    /// The index of the rows' first argument and the number of rows; `None` if the text has no mark for rows.
    pub(super) batch: Option<(usize, usize)>,
}

impl Query {
    pub(super) fn new(statement: &'static Statement) -> Self {
        Self { statement, arguments: Vec::new(), batch: None }
    }

    fn push(mut self, argument: Argument) -> Self {
        self.arguments.push(argument);
        self
    }

    pub(super) fn int(self, value: i64) -> Self {
        self.push(Argument::Int(Some(value)))
    }

    pub(super) fn text(self, value: &str) -> Self {
        self.push(Argument::Text(Some(value.to_owned())))
    }

    pub(super) fn opt_int(self, value: Option<i64>) -> Self {
        self.push(Argument::Int(value))
    }

    pub(super) fn opt_text(self, value: Option<&str>) -> Self {
        self.push(Argument::Text(value.map(str::to_owned)))
    }

    pub(super) fn bytes(self, value: &[u8]) -> Self {
        self.push(Argument::Bytes(value.to_vec()))
    }

    pub(super) fn at(self, value: Timestamp) -> Self {
        self.int(value.as_millis())
    }

    pub(super) fn opt_at(self, value: Option<Timestamp>) -> Self {
        self.opt_int(value.map(Timestamp::as_millis))
    }

    /// The numbers of an `{in_list}`; at least one, at most [`CHUNK_MAX`].
    pub(super) fn list(mut self, values: impl ExactSizeIterator<Item = i64>) -> Self {
        self.batch = Some((self.arguments.len(), values.len()));
        self.arguments.extend(values.map(|value| Argument::Int(Some(value))));
        self
    }

    /// The texts of a `{words}`; at least one.
    pub(super) fn words(mut self, values: &[&str]) -> Self {
        self.batch = Some((self.arguments.len(), values.len()));
        self.arguments.extend(values.iter().map(|value| Argument::Text(Some((*value).to_owned()))));
        self
    }

    /// The rows of a `{values}` or a table of rows; at least one, at most [`CHUNK_MAX`]. `add` adds the arguments of one row.
    pub(super) fn rows<T>(mut self, items: &[T], add: impl Fn(Self, &T) -> Self) -> Self {
        self.batch = Some((self.arguments.len(), items.len()));
        for item in items {
            self = add(self, item);
        }
        self
    }
}

/// The ids in the first column of some rows.
pub(super) fn read_ids(rows: &[AnyRow], table: &'static str, column: &'static str) -> Result<Vec<i64>, StoreError> {
    rows.iter().map(|row| Reader::new(row, table).int(column)).collect()
}

/// Reads the columns of a row from left to right.
pub(super) struct Reader<'r> {
    row: &'r AnyRow,
    table: &'static str,
    /// The index of the column that is read next.
    next_column: usize,
}

impl<'r> Reader<'r> {
    pub(super) fn new(row: &'r AnyRow, table: &'static str) -> Self {
        Self { row, table, next_column: 0 }
    }

    /// An error about a column of this row. The first column is taken for the id of the row.
    pub(super) fn corrupt(&self, column: &'static str, message: impl std::fmt::Display) -> StoreError {
        let id = self.row.try_get::<i64, _>(0).unwrap_or_default();
        StoreError::Corrupt { table: self.table, column, id, message: message.to_string() }
    }

    fn get<T>(&mut self, column: &'static str) -> Result<T, StoreError>
    where
        T: sqlx::Decode<'r, sqlx::Any> + sqlx::Type<sqlx::Any>,
    {
        let value = self.row.try_get(self.next_column).map_err(|error| self.corrupt(column, error));
        self.next_column += 1;
        value
    }

    pub(super) fn int(&mut self, column: &'static str) -> Result<i64, StoreError> {
        self.get(column)
    }

    pub(super) fn opt_int(&mut self, column: &'static str) -> Result<Option<i64>, StoreError> {
        self.get(column)
    }

    pub(super) fn int32(&mut self, column: &'static str) -> Result<i32, StoreError> {
        let value = self.int(column)?;
        i32::try_from(value).map_err(|error| self.corrupt(column, error))
    }

    pub(super) fn opt_int32(&mut self, column: &'static str) -> Result<Option<i32>, StoreError> {
        let value = self.opt_int(column)?;
        value.map(i32::try_from).transpose().map_err(|error| self.corrupt(column, error))
    }

    pub(super) fn at(&mut self, column: &'static str) -> Result<Timestamp, StoreError> {
        self.int(column).map(Timestamp::from_millis)
    }

    pub(super) fn opt_at(&mut self, column: &'static str) -> Result<Option<Timestamp>, StoreError> {
        Ok(self.opt_int(column)?.map(Timestamp::from_millis))
    }

    pub(super) fn text(&mut self, column: &'static str) -> Result<String, StoreError> {
        self.get(column)
    }

    pub(super) fn opt_text(&mut self, column: &'static str) -> Result<Option<String>, StoreError> {
        self.get(column)
    }

    pub(super) fn bytes(&mut self, column: &'static str) -> Result<Vec<u8>, StoreError> {
        self.get(column)
    }

    /// Reads an enum from a column with the word for its value.
    pub(super) fn word<T: std::str::FromStr<Err = String>>(&mut self, column: &'static str) -> Result<T, StoreError> {
        self.text(column)?.parse().map_err(|message: String| self.corrupt(column, message))
    }

    pub(super) fn json<T: DeserializeOwned>(&mut self, column: &'static str) -> Result<T, StoreError> {
        let text = self.text(column)?;
        serde_json::from_str(&text).map_err(|error| self.corrupt(column, error))
    }

    pub(super) fn opt_json<T: DeserializeOwned>(&mut self, column: &'static str) -> Result<Option<T>, StoreError> {
        let value = self.opt_text(column)?.map(|text| serde_json::from_str(&text)).transpose();
        value.map_err(|error| self.corrupt(column, error))
    }

    /// Like [`Self::word`]; `None` for NULL.
    pub(super) fn opt_word<T: std::str::FromStr<Err = String>>(
        &mut self,
        column: &'static str,
    ) -> Result<Option<T>, StoreError> {
        let word = self.opt_text(column)?.map(|word| word.parse()).transpose();
        word.map_err(|message: String| self.corrupt(column, message))
    }
}
