//! Lists of names in a line of `rondel doctor`.

/// How many names one line lists, and how many jobs with overdue runs get a line of their own.
pub(super) const NAME_COUNT_MAX: usize = 5;

pub(super) fn first_names(names: &[&str]) -> String {
    let ellipsis = if names.len() > NAME_COUNT_MAX { ", …" } else { "" };
    format!("{}{ellipsis}", names.iter().take(NAME_COUNT_MAX).copied().collect::<Vec<_>>().join(", "))
}
