//! Reads what an answer shows again while the database does not answer.

use std::time::Duration;

use tokio::time::Instant;

use crate::problem::{Code, Problem};

/// How long a read is repeated.
const REPEATED_FOR: Duration = Duration::from_secs(20);
/// The pause before each further try.
const PAUSE: Duration = Duration::from_millis(500);

/// Reads what the answer shows of something that was stored just now. An error would make the caller repeat the request, which would be carried
/// out a second time.
pub(crate) async fn read_again<T, R>(read: impl Fn() -> R) -> Result<T, Problem>
where
    R: Future<Output = Result<T, Problem>>,
{
    let until = Instant::now() + REPEATED_FOR;
    loop {
        match read().await {
            Err(problem) if problem.code() == Code::Unavailable && Instant::now() < until => {
                tokio::time::sleep(PAUSE).await;
            }
            done => return done,
        }
    }
}
