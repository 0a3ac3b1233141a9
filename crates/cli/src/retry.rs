//! Repeats calls to a server that is unreachable, such as one that restarts.

use std::time::Duration;

use tokio::time::Instant;

use crate::exit::Failure;
use crate::output;

/// A call fails if the server is unreachable for longer than this.
const UNREACHABLE_MAX: Duration = Duration::from_secs(60);
/// The first pause before a call is repeated; it doubles up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(250);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Repeats a call while the server is unreachable, for at most a minute and at most until the deadline. The call must change
/// nothing, because the server may execute it more than once.
pub(crate) async fn retry_while_unreachable<T>(
    deadline: Option<Instant>,
    mut call: impl AsyncFnMut() -> Result<T, Failure>,
) -> Result<T, Failure> {
    let give_up_at = Instant::now() + UNREACHABLE_MAX;
    let give_up_at = deadline.map_or(give_up_at, |deadline| deadline.min(give_up_at));
    let (mut pause, mut is_reported) = (PAUSE_MIN, false);
    loop {
        let failure = match call().await {
            Err(failure) if failure.is_temporary() && Instant::now() < give_up_at => failure,
            result => return result,
        };
        if !is_reported {
            output::print_message(&format!("{}; trying again", failure.message()));
            is_reported = true;
        }
        tokio::time::sleep_until(give_up_at.min(Instant::now() + pause)).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;

    #[tokio::test]
    async fn a_server_that_comes_back_is_outlasted() {
        let unreachable = || Failure::new(Exit::Unreachable, "cannot reach the server").temporary();
        let mut tries = 0;
        let found = retry_while_unreachable(None, async || {
            tries += 1;
            if tries < 3 { Err(unreachable()) } else { Ok(tries) }
        });
        assert_eq!(found.await.unwrap(), 3);
        let deadline = Instant::now() + Duration::from_millis(300);
        let failure = retry_while_unreachable(Some(deadline), async || Err::<(), _>(unreachable())).await.unwrap_err();
        assert!(failure.exit() == Exit::Unreachable && Instant::now() >= deadline);
        let mut tries = 0;
        let refused = retry_while_unreachable(None, async || {
            tries += 1;
            Err::<(), _>(Failure::refused("no"))
        });
        assert_eq!(refused.await.unwrap_err().exit(), Exit::Refused);
        assert_eq!(tries, 1);
    }
}
