//! What routers compute of an executor's name once, when it comes online.

use md5::{Digest as _, Md5};

/// Places on the hash ring for each executor, as XXL-JOB has them.
const POINT_COUNT: usize = 100;

/// An executor's stable name, with its places on the hash ring.
///
/// ```
/// let points = rondel_core::route::HashPoints::new("billing-1");
/// assert_eq!(points.name(), "billing-1");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HashPoints {
    name: Box<str>,
    key: u64,
    points: Box<[u32; POINT_COUNT]>,
}

impl HashPoints {
    /// Hashes the name: some 10 µs.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self::at(name, name)
    }

    /// The places of another text than the name: an address, as XXL-JOB has them.
    #[must_use]
    pub fn at(name: &str, place: &str) -> Self {
        let mut points = Box::new([0; POINT_COUNT]);
        for (number, point) in points.iter_mut().enumerate() {
            *point = hash(&format!("SHARD-{place}-NODE-{number}"));
        }
        points.sort_unstable();
        let digest: [u8; 16] = Md5::digest(name).into();
        let key = u64::from_le_bytes([
            digest[0], digest[1], digest[2], digest[3], digest[4], digest[5], digest[6], digest[7],
        ]);
        Self { name: name.into(), key, points }
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What the name is remembered by: 64 bits of its md5, so that a memory holds no texts.
    pub(super) const fn key(&self) -> u64 {
        self.key
    }

    /// How far the first of its places at or behind `at` lies from there, once around the ring.
    pub(super) fn distance(&self, at: u32) -> u32 {
        let next = self.points.partition_point(|point| *point < at);
        let point = self.points.get(next).unwrap_or(&self.points[0]);
        point.wrapping_sub(at)
    }
}

/// The first four bytes of the md5, little-endian: XXL-JOB's hash.
pub(super) fn hash(text: &str) -> u32 {
    let digest: [u8; 16] = Md5::digest(text).into();
    u32::from_le_bytes([digest[0], digest[1], digest[2], digest[3]])
}

#[cfg(test)]
mod tests {
    #[test]
    fn hashes_as_xxl_job_does() {
        assert_eq!(super::hash("1"), 943_901_380);
    }
}
