//! Consistent hash: the same executor for the same job, and few jobs that move when executors come and go (XXL-JOB's
//! `CONSISTENT_HASH`, its exact ring: 100 places for each executor, md5, the first four bytes little-endian). Remembers
//! nothing.
//!
//! The key is the job's id in decimal, as XXL-JOB has it: ids outlive renames, and jobs that share a handler or a name
//! with one of another namespace still spread. A shard has its index behind the id, so that the shards of a job
//! spread, and the same shard stays where it was. A job that was imported from XXL-JOB keeps the id that it had there
//! as its key. The ring is hashed from stable names, and for executors of XXL-JOB from their addresses, as there.

use super::ask::{Ask, Choice};
use super::hash_points;
use super::memory::Memory;

pub(super) fn pick(ask: &Ask<'_>, _: &mut Memory) -> Choice {
    let job = ask.hash_key.map_or_else(|| ask.job.to_string(), str::to_owned);
    let key = if ask.shards > 1 { format!("{job}-{}", ask.shard) } else { job };
    let at = hash_points::hash(&key);
    // Of two with the same place the later one has it: it was put on the ring last.
    ask.open().min_by_key(|index| (ask.candidates[*index].points.distance(at), usize::MAX - index)).into()
}
