//! Collects the errors of the items of a list. An error that several items share is one entry, which names these items.

use std::collections::HashMap;

use crate::problem::{Code, Complaint, Problem};

/// Maximum number of different errors that are reported for a list.
const ERROR_COUNT_MAX: usize = 200;
/// Maximum number of indexes that one error names.
const INDEX_COUNT_MAX: usize = 100;

/// The errors of the items. Errors with the same pointer (relative to the item), code and message share one entry.
#[derive(Debug, Default)]
pub(super) struct ListErrors {
    /// The index of each error in `complaints`, keyed by its pointer, code and message.
    error_indexes: HashMap<(Option<String>, &'static str, String), usize>,
    complaints: Vec<Complaint>,
    /// How many errors the items have in all, including those without an entry in `complaints`.
    count: usize,
}

impl ListErrors {
    pub(super) const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Adds the errors of one item. `complaints` may have only some of its `count` errors.
    pub(super) fn add(&mut self, index: usize, complaints: Vec<Complaint>, count: usize) {
        self.count += count;
        for complaint in complaints {
            let key = (complaint.pointer.clone(), complaint.code, complaint.message.clone());
            if let Some(error) = self.error_indexes.get(&key).and_then(|at| self.complaints.get_mut(*at)) {
                error.count = error.count.map(|count| count + 1);
                if error.indexes.len() < INDEX_COUNT_MAX {
                    error.indexes.push(index);
                }
            } else if self.complaints.len() < ERROR_COUNT_MAX {
                self.error_indexes.insert(key, self.complaints.len());
                let pointer = Some(format!("/{index}{}", complaint.pointer.as_deref().unwrap_or_default()));
                self.complaints.push(Complaint { pointer, indexes: vec![index], count: Some(1), ..complaint });
            }
        }
    }

    /// Adds an error whose pointer begins with the item's index in the list. An error whose pointer has no index is added unchanged.
    pub(super) fn add_located(&mut self, complaint: Complaint) {
        match complaint.pointer.as_deref().and_then(split_item_index) {
            Some((index, pointer_in_item)) => {
                let pointer = Some(pointer_in_item.to_owned());
                self.add(index, vec![Complaint { pointer, ..complaint }], 1);
            }
            None => {
                self.count += 1;
                self.complaints.push(complaint);
            }
        }
    }

    /// The refusal. Each error has its line and column if `position_of` knows them.
    pub(super) fn into_problem(self, position_of: impl Fn(&str) -> Option<(usize, usize)>) -> Problem {
        let mut complaints = self.complaints;
        for complaint in &mut complaints {
            if let Some((line, column)) = complaint.pointer.as_deref().and_then(&position_of) {
                complaint.message.push_str(&format!(" (line {line}, column {column})"));
            }
        }
        Problem::of_some_complaints(Code::InvalidBody, complaints, self.count)
    }
}

/// Splits a pointer that begins with the index of an item into this index and the pointer within the item.
pub(super) fn split_item_index(pointer: &str) -> Option<(usize, &str)> {
    let without_slash = pointer.strip_prefix('/')?;
    let index_end = without_slash.find('/').unwrap_or(without_slash.len());
    Some((without_slash[..index_end].parse().ok()?, &without_slash[index_end..]))
}
