//! Where to start reading a range of an index that begins long ago and is nearly always empty.
//!
//! Deleted rows leave dead index entries behind. Every read steps over them until the database removes them, which it cannot do while an
//! old transaction may still see them. With two million dead entries a read takes most of a second, and there is one read each second.
//! Therefore, after a read of the whole range that found nothing, the next reads begin at a low-water mark. The whole range is read again
//! after a multiple of the time that this read took, so that a database without dead entries is read as a whole each time.
//!
//! The mark loses nothing: an entry that appears below it later (a transaction with an older key that commits late, a job that is healed or
//! moves here with a fire of long ago) is found by the next read of the whole range.

use std::time::Duration;

use rondel_core::Timestamp;
use tokio::time::Instant;

/// The mark of one range.
#[derive(Debug, Default)]
pub(crate) struct LowWater {
    mark: Option<Mark>,
}

#[derive(Debug)]
struct Mark {
    /// Where readings of the range begin, up to the instant `until`.
    from: Timestamp,
    /// When the whole range is read again.
    until: Instant,
}

impl LowWater {
    /// Where the next reading begins; the epoch if it reads the whole range.
    pub(crate) fn reading_start(&self, now: Instant) -> Timestamp {
        self.mark.as_ref().filter(|mark| now < mark.until).map_or(Timestamp::EPOCH, |mark| mark.from)
    }

    /// Sets the mark after a reading of the whole range that found nothing below `caught_up_to`. The whole range is read again after `read_pause`.
    pub(crate) fn raise(&mut self, caught_up_to: Timestamp, now: Instant, read_pause: Duration) {
        self.mark = Some(Mark { from: caught_up_to, until: now + read_pause });
    }

    /// Makes the next read cover the whole range.
    pub(crate) fn forget(&mut self) {
        self.mark = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_whole_range_is_read_again_after_a_while() {
        let second = Duration::from_secs(1);
        let mut low_water = LowWater::default();
        assert_eq!(low_water.reading_start(Instant::now()), Timestamp::EPOCH);
        low_water.raise(Timestamp::from_secs(100), Instant::now(), 5 * second);
        tokio::time::advance(4 * second).await;
        assert_eq!(low_water.reading_start(Instant::now()), Timestamp::from_secs(100));
        tokio::time::advance(second).await;
        assert_eq!(low_water.reading_start(Instant::now()), Timestamp::EPOCH);
        low_water.raise(Timestamp::from_secs(200), Instant::now(), 5 * second);
        low_water.forget();
        assert_eq!(low_water.reading_start(Instant::now()), Timestamp::EPOCH);
    }
}
