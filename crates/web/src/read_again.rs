//! Repeats a read after a change until the database answers.

use std::time::Duration;

use tokio::time::Instant;

use crate::problem::{Code, Problem};

/// How long a read is repeated. This is longer than the timeout of a request, so a call normally ends by that timeout, whose answer states
/// that the call may have taken effect. A call with an idempotency key continues after the timeout: an error would free its key, and a
/// repeated call would be carried out a second time.
const RETRY_TIMEOUT: Duration = Duration::from_secs(60);
/// The pause before each further try.
const RETRY_DELAY: Duration = Duration::from_millis(500);

/// Reads something that was stored just now, and repeats the read while the database is unavailable. An error would make the caller repeat the
/// request, which would be carried out a second time.
pub(crate) async fn read_again<T, R>(read: impl Fn() -> R) -> Result<T, Problem>
where
    R: Future<Output = Result<T, Problem>>,
{
    let deadline = Instant::now() + RETRY_TIMEOUT;
    loop {
        match read().await {
            Err(problem) if problem.code() == Code::Unavailable && Instant::now() < deadline => {
                tokio::time::sleep(RETRY_DELAY).await;
            }
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use super::*;
    use crate::state::WebConfig;

    #[tokio::test(start_paused = true)]
    async fn a_read_is_repeated_for_longer_than_a_request_may_take() {
        let begin = Instant::now();
        let answers_after = |length: Duration| {
            move || {
                let is_there = begin.elapsed() >= length;
                ready(if is_there { Ok(7) } else { Err(Problem::new(Code::Unavailable, "the database is away")) })
            }
        };
        let answered = read_again(answers_after(WebConfig::default().request_timeout + Duration::from_secs(5))).await;
        assert_eq!(answered.ok(), Some(7));
        assert!(read_again(answers_after(Duration::from_secs(600))).await.is_err(), "it ends");
    }
}
