//! Cursors of lists. They are opaque to clients, and valid only for the list that issued them.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::problem::{Code, Complaint, Problem};
use crate::query::{FromQuery, Reader};

const CURSOR_LEN_MAX: usize = 1024;

/// The query parameter of a console page with a list: the cursor from which the list continues; `None` for its beginning.
#[derive(Debug)]
pub(crate) struct CursorQuery(pub(crate) Option<String>);

impl FromQuery for CursorQuery {
    fn from_query(reader: &mut Reader) -> Self {
        Self(reader.single("cursor"))
    }
}

/// Identifies a list together with its filters. It refuses cursors of any other list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listing(String);

#[derive(Serialize, Deserialize)]
struct Cursor<T> {
    /// The digest of the listing that the cursor is for.
    #[serde(rename = "l")]
    listing_digest: String,
    /// The position after which the list continues.
    #[serde(rename = "a")]
    position: T,
}

impl Listing {
    /// The list `noun` with these filters. The digest of their `Debug` text identifies them.
    pub(crate) fn new(noun: &'static str, filters: impl std::fmt::Debug) -> Self {
        use std::fmt::Write as _;
        let digest = Sha256::digest(format!("{noun} {filters:?}"));
        let hex = digest.iter().take(8).fold(String::new(), |mut text, byte| {
            write!(text, "{byte:02x}").ok();
            text
        });
        Self(hex)
    }

    /// A cursor for the part of the list after `position`.
    pub(crate) fn cursor(&self, position: impl Serialize) -> String {
        let cursor = Cursor { listing_digest: self.0.clone(), position };
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(&cursor).unwrap_or_default())
    }

    /// The name in a cursor; `None` without a cursor. `check` refuses texts that are not names.
    pub(crate) fn name_after(
        &self,
        cursor: Option<&str>,
        check: fn(&str) -> Result<(), String>,
    ) -> Result<Option<String>, Problem> {
        match cursor.map(|cursor| self.position::<String>(cursor)).transpose()? {
            Some(name) if check(&name).is_err() => Err(invalid_cursor_problem("does not hold a name")),
            name => Ok(name),
        }
    }

    /// The id in a cursor; `None` without a cursor. `number_of` gives its number, which must be positive.
    pub(crate) fn id_after<T: DeserializeOwned + Copy>(
        &self,
        cursor: Option<&str>,
        number_of: fn(T) -> i64,
    ) -> Result<Option<T>, Problem> {
        match cursor.map(|cursor| self.position::<T>(cursor)).transpose()? {
            Some(id) if number_of(id) <= 0 => Err(invalid_cursor_problem("does not hold an id")),
            id => Ok(id),
        }
    }

    /// The position in a cursor. Refuses a cursor of another list.
    pub(crate) fn position<T: DeserializeOwned>(&self, cursor: &str) -> Result<T, Problem> {
        self.position_in("cursor", cursor)
    }

    /// The position in the cursor that was sent in the parameter `name`.
    pub(crate) fn position_in<T: DeserializeOwned>(&self, name: &str, cursor: &str) -> Result<T, Problem> {
        let bytes = if cursor.len() <= CURSOR_LEN_MAX { URL_SAFE_NO_PAD.decode(cursor).ok() } else { None };
        let parsed_cursor = bytes.and_then(|bytes| serde_json::from_slice::<Cursor<T>>(&bytes).ok());
        let Some(parsed_cursor) = parsed_cursor else {
            return Err(invalid_cursor_problem_in(name, "is not a cursor of this API"));
        };
        if parsed_cursor.listing_digest == self.0 {
            Ok(parsed_cursor.position)
        } else {
            Err(invalid_cursor_problem_in(name, "belongs to another list or another filter; begin without a cursor"))
        }
    }
}

/// Removes the extra item that was read to detect a next page. If there is a next page, returns the last item of the current page.
pub(crate) fn cut_to_page<T>(items: &mut Vec<T>, limit: u32) -> Option<&T> {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let has_more = items.len() > limit;
    items.truncate(limit);
    items.last().filter(|_| has_more)
}

/// The refusal of a cursor.
pub(crate) fn invalid_cursor_problem(message: &str) -> Problem {
    invalid_cursor_problem_in("cursor", message)
}

/// The refusal of the cursor that was sent in the parameter `name`.
pub(crate) fn invalid_cursor_problem_in(name: &str, message: &str) -> Problem {
    Problem::of_complaints(Code::InvalidCursor, vec![Complaint::query(name, "invalid_value", message)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_belongs_to_its_list() {
        let (runs, others) = (Listing::new("runs", ("a", 1)), Listing::new("runs", ("a", 2)));
        let cursor = runs.cursor("42");
        assert_eq!(runs.position::<String>(&cursor).unwrap(), "42");
        assert!(others.position::<String>(&cursor).is_err());
        for bad in ["", "x", "e30", &cursor[1..], &"A".repeat(5000)] {
            assert!(runs.position::<String>(bad).is_err(), "{bad}");
        }
    }
}
