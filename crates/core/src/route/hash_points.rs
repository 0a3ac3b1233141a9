//! The hashes of an executor's name, computed once when it comes online.

use md5::{Digest as _, Md5};

/// Points on the hash ring for each executor, as in XXL-JOB.
const POINT_COUNT: usize = 100;

/// An executor's stable name, with its points on the hash ring.
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
    /// Hashes the name, which takes about 10 µs.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self::at(name, name)
    }

    /// Computes the points from `address` instead of the name: executors of XXL-JOB are placed by their address, as in XXL-JOB.
    #[must_use]
    pub fn at(name: &str, address: &str) -> Self {
        let mut points = Box::new([0; POINT_COUNT]);
        for (number, point) in points.iter_mut().enumerate() {
            *point = hash(&format!("SHARD-{address}-NODE-{number}"));
        }
        points.sort_unstable();
        let digest: [u8; 16] = Md5::digest(name).into();
        let key = u64::from_le_bytes([
            digest[0], digest[1], digest[2], digest[3], digest[4], digest[5], digest[6], digest[7],
        ]);
        Self { name: name.into(), key, points }
    }

    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The executor's key in a memory: 64 bits of the md5 of its name, so that a memory holds no strings.
    pub(super) const fn key(&self) -> u64 {
        self.key
    }

    /// Distance from `at` to the executor's next point at or after it, around the ring.
    pub(super) fn distance(&self, at: u32) -> u32 {
        let next_index = self.points.partition_point(|point| *point < at);
        let point = self.points.get(next_index).unwrap_or(&self.points[0]);
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
