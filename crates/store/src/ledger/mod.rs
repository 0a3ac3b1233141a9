//! Due jobs and runs, from claim to verdict: one trait per step.

mod adopt;
mod cancel;
mod claim;
mod dispatch;
mod finish;
mod limits;
mod r#move;
mod read;
mod relay;
mod search;

pub use self::adopt::{Adopt, Adopted, Adoption, DeadNode, OrphanedJob, OrphanedJobs};
pub use self::cancel::{Cancel, CancelElsewhere, CancelOutcome};
pub use self::claim::{Claim, ClaimJob, ClaimResult, DueJob, DueRange, KeyedRun, RequestedShards, UnsentPlace};
pub use self::dispatch::{Dispatch, MarkToRemove, NotedWait, RunAtExecutor, WaitPlace};
pub use self::finish::{AttemptEnd, EndOutcome, Ends, Finish, Finisher};
pub use self::limits::{LimitName, Limits};
pub use self::r#move::{HomeLoad, JobAtHome, Move, MovedJobs, UnsentRun};
pub use self::read::{ATTEMPT_COUNT_MAX, ExecutorRunCount, OpenPage, RunCheck, RunQuery, Runs};
pub use self::relay::{FenceRequest, Relay, RelayedAnswer};
pub use self::search::{FoundRuns, RunOrder, RunPlace, RunSearch, RunText, SEARCHED_COUNT_MAX, SearchRuns, lateness};

pub(crate) use self::adopt::{adopted_run, fewest_first, taken_nodes};
pub(crate) use self::claim::{lease_of_home, merge_by_instant};
pub(crate) use self::search::millis_of;
