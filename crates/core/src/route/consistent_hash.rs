//! Consistent hash: a job stays on its executor, and few jobs move when executors come and go (XXL-JOB's `CONSISTENT_HASH` with its exact
//! ring: 100 points for each executor, md5, the first four bytes little-endian). Remembers nothing.
//!
//! The key is the job's id in decimal, as in XXL-JOB: an id survives a rename, and jobs with the same handler, or with the same
//! name in different namespaces, are still spread. For a shard, its index is appended to the id, so that the shards of a job
//! spread and each shard stays on its executor. A job that was imported from XXL-JOB keeps its id from there as its key. The
//! points on the ring are hashes of stable names and, for executors of XXL-JOB, of their addresses, as in XXL-JOB.

use super::hash_points;
use super::memory::Memory;
use super::request::{Choice, RouteRequest};

pub(super) fn pick(request: &RouteRequest<'_>, _: &mut Memory) -> Choice {
    let job_key = request.hash_key.map_or_else(|| request.job.to_string(), str::to_owned);
    let key = if request.shards > 1 { format!("{job_key}-{}", request.shard) } else { job_key };
    let key_hash = hash_points::hash(&key);
    // If two executors share a point, the later one in the list has it, as if it had been put on the ring last.
    request
        .open()
        .min_by_key(|index| (request.candidates[*index].hashed_name.distance(key_hash), usize::MAX - index))
        .into()
}
