//! Limits the rate of each caller's requests with a token bucket per caller.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderName, HeaderValue};
use rondel_admin::{Engine, Limit};
use tokio::time::Instant;

use crate::limits::CallerKey;
use crate::problem::{Code, Problem};

const LIMIT_HEADER: HeaderName = HeaderName::from_static("ratelimit");
const POLICY_HEADER: HeaderName = HeaderName::from_static("ratelimit-policy");
/// Maximum number of buckets. If there are more, the full ones are dropped; if that is not enough, all buckets are dropped.
const CALLER_COUNT_MAX: usize = 10_000;

/// The maximum rate of one caller's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Requests per second on average.
    pub per_second: u32,
    /// Requests in a burst after a pause.
    pub burst: u32,
}

/// The burst as a multiple of the requests per second.
const BURST_FACTOR: u32 = 5;

impl Rate {
    /// A rate of `per_second` with a burst of five times as many; `None` (no limit) for 0.
    #[must_use]
    pub fn with_burst(per_second: u32) -> Option<Self> {
        (per_second > 0).then(|| Self { per_second, burst: per_second.saturating_mul(BURST_FACTOR) })
    }
}

/// The buckets of all callers.
#[derive(Debug, Default)]
pub(crate) struct Buckets {
    by_caller: Mutex<HashMap<CallerKey, Bucket>>,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    /// How many requests were left at the instant `at`.
    remaining: f64,
    /// The instant at which `remaining` was computed.
    at: Instant,
}

/// The state of the caller's bucket after a request.
#[derive(Clone, Copy, Debug, PartialEq)]
struct BucketState {
    /// How many requests are left after this one.
    remaining: u32,
    /// The time until the next request is allowed; `None` if this request was allowed.
    wait: Option<Duration>,
}

impl Buckets {
    fn take(&self, caller: CallerKey, rate: Rate, now: Instant) -> BucketState {
        let mut by_caller = self.by_caller.lock().unwrap_or_else(PoisonError::into_inner);
        if by_caller.len() >= CALLER_COUNT_MAX && !by_caller.contains_key(&caller) {
            by_caller.retain(|_, bucket| bucket.tokens_at(rate, now) < f64::from(rate.burst));
            if by_caller.len() >= CALLER_COUNT_MAX {
                by_caller.clear();
            }
        }
        let bucket = by_caller.entry(caller).or_insert(Bucket { remaining: f64::from(rate.burst), at: now });
        let remaining_tokens = bucket.tokens_at(rate, now);
        if remaining_tokens < 1.0 {
            *bucket = Bucket { remaining: remaining_tokens, at: now };
            let wait = Duration::from_secs_f64((1.0 - remaining_tokens) / f64::from(rate.per_second.max(1)));
            return BucketState { remaining: 0, wait: Some(wait) };
        }
        *bucket = Bucket { remaining: remaining_tokens - 1.0, at: now };
        BucketState { remaining: whole_tokens(remaining_tokens - 1.0), wait: None }
    }
}

impl Bucket {
    fn tokens_at(self, rate: Rate, now: Instant) -> f64 {
        let added_tokens = now.saturating_duration_since(self.at).as_secs_f64() * f64::from(rate.per_second);
        (self.remaining + added_tokens).min(f64::from(rate.burst))
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and the burst")]
fn whole_tokens(remaining_tokens: f64) -> u32 {
    remaining_tokens as u32
}

/// The outcome of counting a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RateStatus {
    rate: Rate,
    state: BucketState,
}

/// Counts a request against the rate limit of its caller. `Ok(None)` if there is no limit; the error if the limit is exceeded.
pub(crate) fn count_request(
    engine: &Engine,
    buckets: &Buckets,
    rate: Option<Rate>,
    caller: CallerKey,
) -> Result<Option<RateStatus>, (Problem, RateStatus)> {
    let Some(rate) = rate else { return Ok(None) };
    let state = buckets.take(caller, rate, Instant::now());
    let rate_status = RateStatus { rate, state };
    let Some(wait) = state.wait else { return Ok(Some(rate_status)) };
    engine.note_limit_reached(Limit::ApiRate, &caller);
    let seconds = wait.as_secs() + 1;
    let message = format!("this caller may make {} requests a second; try again in {seconds}s", rate.per_second);
    let problem = Problem::new(Code::RateLimited, message);
    Err((problem.with_header(RETRY_AFTER, HeaderValue::from(seconds)), rate_status))
}

impl RateStatus {
    /// Adds the headers with the state of the bucket, as defined by the IETF draft.
    pub(crate) fn add_headers(self, headers: &mut HeaderMap) {
        let Self { rate, state } = self;
        let window = u64::from(rate.burst.div_ceil(rate.per_second.max(1)).max(1));
        let policy = format!("\"token\";q={};w={window}", rate.burst);
        let reset_secs = state.wait.map_or(0, |wait| wait.as_secs() + 1);
        let limit = format!("\"token\";r={};t={reset_secs}", state.remaining);
        for (name, text) in [(POLICY_HEADER, policy), (LIMIT_HEADER, limit)] {
            if let Ok(value) = HeaderValue::try_from(text) {
                headers.insert(name, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rondel_core::TokenId;

    use super::*;

    const RATE: Rate = Rate { per_second: 10, burst: 3 };

    #[test]
    fn a_bucket_fills_up_at_its_rate() {
        let (buckets, start) = (Buckets::default(), Instant::now());
        let take = |token, at_ms| {
            buckets.take(CallerKey::Token(TokenId::new(token)), RATE, start + Duration::from_millis(at_ms))
        };
        let remaining: Vec<u32> = (0..3).map(|_| take(1, 0).remaining).collect();
        assert_eq!(remaining, [2, 1, 0]);
        assert_eq!(take(1, 0).wait, Some(Duration::from_millis(100)));
        assert_eq!(take(2, 0), BucketState { remaining: 2, wait: None });
        assert!(take(1, 50).wait.is_some());
        assert_eq!(take(1, 100), BucketState { remaining: 0, wait: None });
        assert_eq!(take(1, 60_000), BucketState { remaining: 2, wait: None });
    }

    #[test]
    fn memory_is_bounded() {
        let (buckets, now) = (Buckets::default(), Instant::now());
        for number in 0..2 * i64::try_from(CALLER_COUNT_MAX).unwrap() {
            buckets.take(CallerKey::Token(TokenId::new(number)), RATE, now);
        }
        assert!(buckets.by_caller.lock().unwrap().len() <= CALLER_COUNT_MAX);
    }
}
