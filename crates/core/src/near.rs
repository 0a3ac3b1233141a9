//! Finds names that are similar to a wanted name, for messages that ask "did you mean".

use strsim::osa_distance;

/// The names that may be meant by `wanted`, the nearest first, at most `max`: those that differ in a few characters, and those that contain
/// it or are a part of it.
///
/// ```
/// use rondel_core::near::near_misses;
///
/// let names = ["report.daily", "report.weekly", "orders.close"];
/// assert_eq!(near_misses("report.dayly", names, 3), ["report.daily"]);
/// assert_eq!(near_misses("report", names, 3), ["report.daily", "report.weekly"]);
/// ```
#[must_use]
pub fn near_misses<'n>(wanted: &str, names: impl IntoIterator<Item = &'n str>, max: usize) -> Vec<&'n str> {
    let lower_wanted = wanted.to_lowercase();
    let distance_max = (lower_wanted.chars().count() / 4).max(1);
    let rank = |name: &'n str| {
        let lower_name = name.to_lowercase();
        let distance = osa_distance(&lower_wanted, &lower_name);
        let is_part =
            lower_wanted.len() >= 2 && (lower_name.contains(&lower_wanted) || lower_wanted.contains(&lower_name));
        (distance <= distance_max || is_part).then_some((distance > distance_max, distance, name))
    };
    let mut ranked_names: Vec<_> = names.into_iter().filter(|name| *name != wanted).filter_map(rank).collect();
    ranked_names.sort_unstable();
    ranked_names.dedup();
    ranked_names.into_iter().take(max).map(|(_, _, name)| name).collect()
}
