//! Limits how much of the server's work one caller may use at the same time: reads of the database, exports, applied lists, and the
//! memory of unread answers.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use axum::body::HttpBody as _;
use axum::response::{IntoResponse as _, Response};
use http::HeaderValue;
use http::header::RETRY_AFTER;
use rondel_admin::Limit;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use crate::limits::{APPLY_LEN_MAX, CallerKey, Share};
use crate::permits::{HeavyWork, Shares};
use crate::problem::{Code, Problem};
use crate::sending_body::ReleasedAtEnd;
use crate::state::Web;

/// How long a request waits for its turn to read.
const TURN_TIMEOUT: Duration = Duration::from_secs(15);
/// Shorter answers are not counted: the limit on the number of requests suffices for them.
const COUNTED_ANSWER_LEN_MIN: usize = 16 * 1024;
/// Before a map of semaphores grows beyond this number, the unused ones are removed.
const SEMAPHORE_COUNT_MAX: usize = 1_000;

/// Extension of the answer to a dry run. A refusal may replace this answer, since nothing was changed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DryRunAnswer;

/// A place in the server's limit for one kind of heavy work, and a place in the caller's limit for it.
#[derive(Debug)]
pub(crate) struct HeavyWorkShare {
    _caller_share: Share<(HeavyWork, Option<CallerKey>)>,
    _server_share: Share<(HeavyWork, Option<CallerKey>)>,
}

/// The memory of a list of jobs, counted for all callers together and for its caller.
#[derive(Debug)]
pub(crate) struct ApplyRoom {
    _caller_permit: OwnedSemaphorePermit,
    _server_permit: OwnedSemaphorePermit,
}

impl Shares {
    /// The semaphore for a caller's turns. It grants them in the order of the requests.
    fn turn_semaphore(&self, caller: CallerKey, permit_count: usize) -> Arc<Semaphore> {
        semaphore_of(&self.read_turns, caller, permit_count)
    }
}

fn semaphore_of(
    semaphores: &Mutex<BTreeMap<CallerKey, Weak<Semaphore>>>,
    caller: CallerKey,
    permit_count: usize,
) -> Arc<Semaphore> {
    let mut semaphores = semaphores.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(semaphore) = semaphores.get(&caller).and_then(Weak::upgrade) {
        return semaphore;
    }
    if semaphores.len() >= SEMAPHORE_COUNT_MAX {
        semaphores.retain(|_, semaphore| semaphore.strong_count() > 0);
    }
    let semaphore_of_caller = Arc::new(Semaphore::new(permit_count));
    semaphores.insert(caller, Arc::downgrade(&semaphore_of_caller));
    semaphore_of_caller
}

/// Waits until there is room for a list of `list_len` bytes. The sum of all lists in memory has a limit.
pub(crate) async fn apply_room(web: &Web, caller: CallerKey, list_len: usize) -> Result<ApplyRoom, Problem> {
    let rooms = &web.permits.shares.apply_rooms;
    let caller_kib_max = APPLY_LEN_MAX / 1024;
    let size_kib = u32::try_from(list_len.div_ceil(1024).clamp(1, caller_kib_max)).unwrap_or(u32::MAX);
    let deadline = Instant::now() + TURN_TIMEOUT;
    let caller_permit = semaphore_of(&rooms.by_caller, caller, caller_kib_max).acquire_many_owned(size_kib);
    let Ok(Ok(caller_permit)) = timeout_at(deadline, caller_permit).await else {
        web.engine.note_limit_reached(Limit::AppliesPerCaller, &caller);
        return Err(too_many_problem(
            "lists of yours are being applied that take the memory for it; wait for one to end",
            5,
        ));
    };
    let Ok(Ok(server_permit)) = timeout_at(deadline, Arc::clone(&rooms.all_callers).acquire_many_owned(size_kib)).await
    else {
        web.engine.note_limit_reached(Limit::Applies, &caller);
        let detail = "lists are being applied that take the memory for it; try again, or send a shorter list";
        return Err(Problem::overloaded(detail, 5));
    };
    Ok(ApplyRoom { _caller_permit: caller_permit, _server_permit: server_permit })
}

/// Waits for the caller's turn to read. Each caller may read with only a few requests concurrently, so that it cannot occupy all
/// connections to the database.
pub(crate) async fn wait_for_turn(web: &Web, caller: CallerKey) -> Result<OwnedSemaphorePermit, Problem> {
    let read_count_max = web.config.limits.reads_per_caller;
    let semaphore = web.permits.shares.turn_semaphore(caller, read_count_max);
    match tokio::time::timeout(TURN_TIMEOUT, semaphore.acquire_owned()).await {
        Ok(Ok(permit)) => Ok(permit),
        Ok(Err(_)) | Err(_) => {
            web.engine.note_limit_reached(Limit::ReadsPerCaller, &caller);
            let detail =
                format!("a caller reads with {read_count_max} requests at the same time, and too many of yours wait");
            Err(too_many_problem(&detail, 2))
        }
    }
}

/// Takes a share for heavy work of a caller. The share must live until the work has ended.
pub(crate) fn take_heavy_work_share(web: &Web, work: HeavyWork, caller: CallerKey) -> Result<HeavyWorkShare, Problem> {
    let limits = &web.config.limits;
    let (work_name, caller_count_max, server_count_max, caller_limit, server_limit) = match work {
        HeavyWork::Export => {
            let (caller_limit, server_limit) = (Limit::ExportsPerCaller, Limit::Exports);
            ("exports", limits.exports_per_caller, limits.exports, caller_limit, server_limit)
        }
        HeavyWork::Apply => {
            let (caller_limit, server_limit) = (Limit::AppliesPerCaller, Limit::Applies);
            ("applied lists", limits.applies_per_caller, limits.applies, caller_limit, server_limit)
        }
    };
    let tally = &web.permits.shares.heavy_work;
    let caller_share = tally.take((work, Some(caller)), 1, caller_count_max).ok_or_else(|| {
        web.engine.note_limit_reached(caller_limit, &caller);
        too_many_problem(
            &format!(
                "a caller may have {caller_count_max} {work_name} on one server at the same time; wait for one to end"
            ),
            5,
        )
    })?;
    let server_share = tally.take((work, None), 1, server_count_max).ok_or_else(|| {
        web.engine.note_limit_reached(server_limit, &caller);
        Problem::overloaded(
            &format!("this server has {server_count_max} {work_name} in progress, its maximum; try again"),
            5,
        )
    })?;
    Ok(HeavyWorkShare { _caller_share: caller_share, _server_share: server_share })
}

/// Counts the bytes of an answer until its client has read it. If too many bytes are unread, a refusal replaces the answer, unless it
/// reports a change that was made.
pub(crate) fn count_answer(web: &Web, caller: CallerKey, is_change: bool, mut response: Response) -> Response {
    let len = response.body().size_hint().exact().and_then(|len| usize::try_from(len).ok()).unwrap_or_default();
    if len < COUNTED_ANSWER_LEN_MIN {
        return response;
    }
    let is_change = is_change && response.extensions().get::<DryRunAnswer>().is_none();
    let len_max = if is_change { usize::MAX } else { web.config.limits.answer_size };
    let unread_bytes = &web.permits.shares.unread_answer_bytes;
    let Some(caller_share) = unread_bytes.take(Some(caller), len, len_max / 2) else {
        web.engine.note_limit_reached(Limit::AnswerSize, &caller);
        let detail = "your unread answers take too much memory; read them first";
        return too_many_problem(detail, 2).into_response();
    };
    let Some(server_share) = unread_bytes.take(None, len, len_max) else {
        web.engine.note_limit_reached(Limit::AnswerSize, &caller);
        return Problem::overloaded("too many bytes of answers are being sent; try again", 2).into_response();
    };
    let earlier_releases = response.extensions_mut().remove::<ReleasedAtEnd>();
    response.extensions_mut().insert(ReleasedAtEnd::new((caller_share, server_share, earlier_releases)));
    response
}

fn too_many_problem(detail: &str, seconds: u64) -> Problem {
    Problem::new(Code::RateLimited, detail).with_header(RETRY_AFTER, HeaderValue::from(seconds))
}

#[cfg(test)]
mod tests {
    use rondel_core::TokenId;

    use super::*;

    #[tokio::test]
    async fn turns_of_a_caller_are_few_and_not_those_of_others() {
        let shares = Shares::default();
        let [first, second] = [1, 2].map(|id| CallerKey::Token(TokenId::new(id)));
        let held = shares.turn_semaphore(first, 1).acquire_owned().await.unwrap();
        assert!(shares.turn_semaphore(first, 1).try_acquire_owned().is_err());
        assert!(shares.turn_semaphore(second, 1).try_acquire_owned().is_ok());
        drop(held);
        assert!(shares.turn_semaphore(first, 1).try_acquire_owned().is_ok());
        for id in 0..i64::try_from(2 * SEMAPHORE_COUNT_MAX).unwrap() {
            drop(shares.turn_semaphore(CallerKey::Token(TokenId::new(id)), 1));
        }
        assert!(shares.read_turns.lock().unwrap().len() <= SEMAPHORE_COUNT_MAX, "unused queues are forgotten");
    }
}
