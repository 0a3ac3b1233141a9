//! How the run of a group ends.

use rondel_core::RunStatus;

use super::group::Counts;
use crate::ending::Ending;
use crate::run::StopCause;

/// The ending of a group that has released every item, with its counts. A group that no one cancelled goes on elsewhere.
pub(super) fn ending(cause: Option<&StopCause>, total: Counts, failed_selects: u64) -> Ending {
    let Counts { rows, done, failed, .. } = total;
    let mut counts = serde_json::json!({"fetched": rows, "done": done, "failed": failed});
    let mut message = format!("fetched {rows}, done {done}, failed {failed}");
    if failed_selects > 0 {
        counts["failed_selects"] = failed_selects.into();
        message = format!("{message}; {failed_selects} selects failed");
    }
    let ending = match cause {
        None | Some(StopCause::Drained) => Ending::yielded(message),
        Some(StopCause::Cancelled { .. }) => Ending::new(RunStatus::Cancelled, message, false),
        Some(cause @ (StopCause::Silence { .. } | StopCause::TimedOut { .. })) => {
            let ending = cause.ending(None);
            Ending { message: format!("{}; {message}", ending.message), ..ending }
        }
    };
    Ending { result: Some(counts.to_string()), ..ending }
}
