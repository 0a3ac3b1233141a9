//! How many requests a token may make: a bucket for each, which fills up at a steady rate.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use http::header::{AUTHORIZATION, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue};
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use crate::app::Web;
use crate::problem::{Code, Problem};

const LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
/// Tokens that are remembered; of more, those that were quiet are forgotten.
const TOKEN_COUNT_MAX: usize = 10_000;

/// How fast one token may ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// How many requests a second, in the long run.
    pub per_second: u32,
    /// How many at once, after a pause.
    pub burst: u32,
}

/// The buckets of all tokens.
#[derive(Debug, Default)]
pub(crate) struct Buckets {
    by_token: Mutex<HashMap<[u8; 32], Bucket>>,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    /// How many requests are left.
    left: f64,
    /// When that was so.
    at: Instant,
}

/// What a request found.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Found {
    /// How many requests are left after it.
    left: u32,
    /// How long until there is one, where there was none for it.
    wait: Option<Duration>,
}

impl Buckets {
    fn take(&self, token: [u8; 32], rate: Rate, now: Instant) -> Found {
        let mut by_token = self.by_token.lock().unwrap_or_else(PoisonError::into_inner);
        if by_token.len() >= TOKEN_COUNT_MAX && !by_token.contains_key(&token) {
            by_token.retain(|_, bucket| bucket.filled(rate, now) < f64::from(rate.burst));
            if by_token.len() >= TOKEN_COUNT_MAX {
                by_token.clear();
            }
        }
        let bucket = by_token.entry(token).or_insert(Bucket { left: f64::from(rate.burst), at: now });
        let left = bucket.filled(rate, now);
        if left < 1.0 {
            *bucket = Bucket { left, at: now };
            let wait = Duration::from_secs_f64((1.0 - left) / f64::from(rate.per_second.max(1)));
            return Found { left: 0, wait: Some(wait) };
        }
        *bucket = Bucket { left: left - 1.0, at: now };
        Found { left: whole(left - 1.0), wait: None }
    }
}

impl Bucket {
    fn filled(self, rate: Rate, now: Instant) -> f64 {
        let added = now.saturating_duration_since(self.at).as_secs_f64() * f64::from(rate.per_second);
        (self.left + added).min(f64::from(rate.burst))
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and the burst")]
fn whole(left: f64) -> u32 {
    left as u32
}

/// Around a route behind its gate: counts the request for its token.
pub(crate) async fn limit(State(web): State<Web>, request: Request, next: Next) -> Response {
    let Some(rate) = web.config.rate else { return next.run(request).await };
    let authorization = request.headers().get(AUTHORIZATION).map_or(&b""[..], HeaderValue::as_bytes);
    let token: [u8; 32] = Sha256::digest(authorization).into();
    let found = web.buckets.take(token, rate, Instant::now());
    let mut response = match found.wait {
        None => next.run(request).await,
        Some(wait) => {
            let seconds = wait.as_secs() + 1;
            let message = format!("this token may make {} requests a second; try again in {seconds}s", rate.per_second);
            let problem = Problem::new(Code::RateLimited, message);
            problem.with_header(RETRY_AFTER, HeaderValue::from(seconds)).into_response()
        }
    };
    tell(response.headers_mut(), rate, found);
    response
}

/// Says so on every answer, as the draft of the IETF has it.
fn tell(headers: &mut HeaderMap, rate: Rate, found: Found) {
    let window = u64::from(rate.burst.div_ceil(rate.per_second.max(1)).max(1));
    let policy = format!("\"token\";q={};w={window}", rate.burst);
    let reset = found.wait.map_or(0, |wait| wait.as_secs() + 1);
    let limit = format!("\"token\";r={};t={reset}", found.left);
    for (name, text) in [(POLICY, policy), (LIMIT, limit)] {
        if let Ok(value) = HeaderValue::try_from(text) {
            headers.insert(name, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Rate = Rate { per_second: 10, burst: 3 };

    #[test]
    fn a_bucket_fills_up_at_its_rate() {
        let (buckets, start) = (Buckets::default(), Instant::now());
        let take = |token, at_ms| buckets.take([token; 32], RATE, start + Duration::from_millis(at_ms));
        let left: Vec<u32> = (0..3).map(|_| take(1, 0).left).collect();
        assert_eq!(left, [2, 1, 0]);
        assert_eq!(take(1, 0).wait, Some(Duration::from_millis(100)));
        assert_eq!(take(2, 0), Found { left: 2, wait: None });
        assert!(take(1, 50).wait.is_some());
        assert_eq!(take(1, 100), Found { left: 0, wait: None });
        assert_eq!(take(1, 60_000), Found { left: 2, wait: None });
    }

    #[test]
    fn memory_is_bounded() {
        let (buckets, now) = (Buckets::default(), Instant::now());
        for number in 0..2 * TOKEN_COUNT_MAX {
            let mut token = [0; 32];
            token[..size_of::<usize>()].copy_from_slice(&number.to_be_bytes());
            buckets.take(token, RATE, now);
        }
        assert!(buckets.by_token.lock().unwrap().len() <= TOKEN_COUNT_MAX);
    }
}
