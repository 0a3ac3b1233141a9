//! The filter of lists of runs and jobs, as users write it in the console, the API and the command line:
//! `status:failed app:orders job:orders.* since:8h duration:>5m -trigger:manual "refused"`.
//!
//! [`Filter::parse`] reads it, `Display` writes it in its canonical form, and [`suggest`] completes what is being typed. Words without a
//! key are searched in messages and in the names of jobs. Text with an unknown key, such as `note:x`, is searched like a word without a
//! key, so that text pasted from elsewhere is not refused. Only a key that is almost a known one is an error.

mod error;
mod parse;
mod suggest;
mod terms;
mod value;
mod write;

#[cfg(test)]
mod tests;

pub use self::error::{FilterError, FilterProblem};
pub use self::suggest::{Names, SUGGESTION_COUNT_MAX, Suggestion, suggest};
pub use self::terms::{
    FILTER_LEN_MAX, Filter, JobState, Key, LabelTerm, RunState, Scope, TERM_COUNT_MAX, Text, ValueCondition,
};
pub use self::value::{Bound, InstantBound, LabelTest, LengthRange, Pattern};

impl Filter {
    /// Reads a filter.
    ///
    /// ```
    /// use rondel_core::filter::{Filter, Scope};
    ///
    /// let filter = Filter::parse(r#"since:8h status:failed,unknown app:orders "refused""#, Scope::Runs)?;
    /// assert_eq!(filter.to_string(), "status:failed,unknown app:orders since:8h refused");
    /// let error = Filter::parse("app:orders status:faild", Scope::Runs).unwrap_err();
    /// assert_eq!((error.column, error.length), (19, 5));
    /// assert!(Filter::parse("订单:orders shell", Scope::Runs)?.texts.len() == 2);
    /// # Ok::<(), rondel_core::filter::FilterError>(())
    /// ```
    ///
    /// # Errors
    /// [`FilterError`] names the problem, such as a value that the key does not accept, and its column.
    pub fn parse(text: &str, scope: Scope) -> Result<Self, FilterError> {
        parse::parse(text, scope)
    }

    /// Whether it has no terms, so that every item passes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Its terms in their canonical form. Each term is a filter too.
    #[must_use]
    pub fn terms(&self) -> Vec<String> {
        write::terms(self)
    }
}
