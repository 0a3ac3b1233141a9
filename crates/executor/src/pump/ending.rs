//! The ending of the run of a group.

use rondel_core::RunStatus;

use super::group::{Counts, Group};
use crate::ending::Ending;
use crate::run::StopCause;

/// How many keys of failed rows a message names.
const NAMED_COUNT_MAX: usize = 10;

/// The ending of a group that has released every item, with its counts. A group that ended on its own or by a drain
/// yields: other groups continue with its items.
pub(super) fn ending<R: Clone>(cause: Option<&StopCause>, group: &Group<R>, failed_selects: u64) -> Ending {
    let Counts { rows, done, failed, .. } = group.total();
    let mut counts = serde_json::json!({"fetched": rows, "done": done, "failed": failed});
    let mut message = format!("fetched {rows}, done {done}, failed {failed}");
    let left = group.failed_rows();
    if left.len() > 0 {
        counts["failed_for_good"] = left.len().into();
        message = format!("{message}; failed for good: {}", key_list(left));
    }
    if failed_selects > 0 {
        counts["failed_selects"] = failed_selects.into();
        let and_last = if group.has_failed_select() { ", and the last one did" } else { "" };
        message = format!("{message}; {failed_selects} selects failed{and_last}");
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

/// The first of these keys, and the number of the others.
pub(super) fn key_list<'k>(keys: impl ExactSizeIterator<Item = &'k str>) -> String {
    let more = keys.len().saturating_sub(NAMED_COUNT_MAX);
    let named = keys.take(NAMED_COUNT_MAX).collect::<Vec<_>>().join(", ");
    if more > 0 { format!("{named} and {more} more") } else { named }
}
