//! The ending of the run of a group.

use rondel_core::RunStatus;

use super::group::{Counts, Group};
use crate::ending::Ending;
use crate::run::StopCause;

/// How many keys of failed rows a message names.
const NAMED_COUNT_MAX: usize = 10;

/// The ending of a group that has released every item, with the group's counts. A group that a server or a drain asked to
/// release its items yields: other groups continue with them.
pub(super) fn ending<R: Clone>(cause: Option<&StopCause>, group: &Group<R>, failed_select_count: u64) -> Ending {
    let Counts { rows, done, failed, .. } = group.total();
    let mut counts = serde_json::json!({"fetched": rows, "done": done, "failed": failed});
    let mut message = format!("fetched {rows}, done {done}, failed {failed}");
    let failed_rows = group.failed_rows();
    if failed_rows.len() > 0 {
        counts["failed_for_good"] = failed_rows.len().into();
        message = format!("{message}; failed for good: {}", key_list(failed_rows));
    }
    if failed_select_count > 0 {
        counts["failed_selects"] = failed_select_count.into();
        let last_select_text = if group.has_failed_select() { ", and the last one did" } else { "" };
        message = format!("{message}; {failed_select_count} selects failed{last_select_text}");
    }
    let ending = match cause {
        None | Some(StopCause::Drained) => Ending::yielded(message),
        Some(StopCause::Cancelled { .. }) => Ending::new(RunStatus::Cancelled, message, false),
        Some(cause @ (StopCause::Silence { .. } | StopCause::TimedOut { .. })) => {
            let ending = cause.ending(None);
            Ending { message: format!("{}; {message}", ending.message), ..ending }
        }
    };
    Ending { result: Some(counts.to_string()), is_unfinished: group.is_unfinished(), ..ending }
}

/// The first [`NAMED_COUNT_MAX`] keys as a list, and the number of the other keys.
pub(super) fn key_list<'k>(keys: impl ExactSizeIterator<Item = &'k str>) -> String {
    let more_count = keys.len().saturating_sub(NAMED_COUNT_MAX);
    let names = keys.take(NAMED_COUNT_MAX).collect::<Vec<_>>().join(", ");
    if more_count > 0 { format!("{names} and {more_count} more") } else { names }
}
