//! Compares fires of Rondel with those of the scheduler that Rondel is to replace: which fires both had, and which only one
//! of them had.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::id::RunId;
use crate::reason::milliseconds;
use crate::time::Timestamp;
use crate::word_enum::word_enum;

/// Maximum difference between the two schedulers' instants of one fire: the other scheduler may store
/// rounded seconds.
pub const SAME_FIRE_WITHIN: Duration = Duration::from_millis(1_500);
/// Maximum number of differences that one comparison names.
pub const DIFFERENCE_COUNT_MAX: usize = 100;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RondelFire {
    pub run: RunId,
    /// The planned instant.
    pub fire_at: Timestamp,
    /// When it was sent, or would have been.
    pub sent_at: Option<Timestamp>,
    /// The executor that had it, or would have had it.
    pub executor: Option<String>,
}

word_enum! {
    /// How a fire ended in the other scheduler.
    OldOutcome {
        /// It was sent; no end was known.
        Started = "started",
        /// It succeeded.
        Succeeded = "succeeded",
        /// It could not be sent, or failed.
        Failed = "failed",
    }
}

/// A fire of the other scheduler, as it was observed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OldFire {
    /// Its number in the other scheduler.
    pub source_id: i64,
    /// The planned instant, if that is known.
    pub due_at: Option<Timestamp>,
    /// When it was sent.
    pub started_at: Timestamp,
    /// The executor; empty if none had it.
    pub executor: String,
    /// How it ended.
    pub outcome: OldOutcome,
}

impl OldFire {
    /// The instant that is compared with Rondel's: the planned instant if it is known, else the instant at which the fire was sent.
    #[must_use]
    pub fn at(&self) -> Timestamp {
        self.due_at.unwrap_or(self.started_at)
    }
}

word_enum! {
    /// How a fire differs on both sides.
    DifferenceKind {
        /// The other scheduler had it, and Rondel did not.
        OnlyOld = "only_old",
        /// Rondel had it, and the other scheduler did not.
        OnlyRondel = "only_rondel",
        /// The other scheduler had it more than once.
        Twice = "twice",
        /// The other scheduler had it late.
        OldLate = "old_late",
        /// Rondel had it late.
        RondelLate = "rondel_late",
        /// Both had it, on different executors.
        OtherExecutor = "other_executor",
    }
}

/// A fire that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "ShadowDifference")]
pub struct Difference {
    /// How the fire differs.
    pub kind: DifferenceKind,
    /// The planned instant or, for a fire that only the other scheduler had, the instant at which it was sent there.
    pub at: Timestamp,
    /// The run in Rondel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<RunId>,
    /// The number of the fire in the other scheduler.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_id: Option<i64>,
    /// How late it was, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub late_ms: Option<u64>,
    /// The executor that Rondel chose, or those of a broadcast; only for a fire that the other scheduler sent to another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub executor: Option<String>,
    /// The executor that the other scheduler chose, by its name in Rondel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old_executor: Option<String>,
}

impl Difference {
    fn of(kind: DifferenceKind, at: Timestamp, own_fire: Option<&RondelFire>, old_fire: Option<&OldFire>) -> Self {
        Self {
            kind,
            at,
            run: own_fire.map(|fire| fire.run),
            source_id: old_fire.map(|fire| fire.source_id),
            late_ms: None,
            executor: None,
            old_executor: None,
        }
    }
}

/// How late the fires of one side were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "ShadowLateness")]
pub struct LatenessStats {
    /// The mean, in milliseconds.
    pub mean_ms: u64,
    /// The maximum, in milliseconds.
    pub max_ms: u64,
}

/// How the fires of both schedulers in a range compare.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "ShadowComparison")]
pub struct Comparison {
    /// Fires that both had.
    pub both: u64,
    /// Fires that only the other scheduler had.
    pub only_old: u64,
    /// Fires that only Rondel had: the other scheduler lost them.
    pub only_rondel: u64,
    /// Repeated fires of the other scheduler.
    pub twice: u64,
    /// Fires that both had and that the other scheduler sent late.
    pub old_late: u64,
    /// Fires that both had and that Rondel sent late.
    pub rondel_late: u64,
    /// Fires that both had, on different executors.
    pub other_executor: u64,
    /// How late the other scheduler was with the fires that both had.
    pub old_lateness: LatenessStats,
    /// How late Rondel was with them.
    pub rondel_lateness: LatenessStats,
    /// The fires that differ, by instant, then those that went to another executor; at most 100.
    pub differences: Vec<Difference>,
    /// How many more there are.
    pub differences_more: u64,
}

/// The range that is compared, and the bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The first instant.
    pub from: Timestamp,
    /// The first instant after it.
    pub to: Timestamp,
    /// How much later a fire of the other scheduler may be and still count as the same fire.
    pub tolerance: Duration,
    /// A fire that is late by at least this counts as late.
    pub late_from: Duration,
}

impl Range {
    fn has(&self, at: Timestamp) -> bool {
        self.from <= at && at < self.to
    }

    /// The range of fires that the caller must read, so that those at the edges of the compared range find their counterparts.
    #[must_use]
    pub fn with_edges(&self) -> (Timestamp, Timestamp) {
        (self.from - self.tolerance - SAME_FIRE_WITHIN, self.to + self.tolerance + SAME_FIRE_WITHIN)
    }
}

/// Compares the fires of one job. `own_fires` and `old_fires` must include those around the edges of the range
/// ([`Range::with_edges`]), in any order.
///
/// A fire of the other scheduler is paired with Rondel's fire at the same instant. If there is none, it is matched with
/// Rondel's last fire before it, within the tolerance: as the late pair of that fire or, if that fire has a pair already, as a
/// repetition.
#[must_use]
pub fn compare(mut own_fires: Vec<RondelFire>, mut old_fires: Vec<OldFire>, range: Range) -> Comparison {
    own_fires.sort_by_key(|fire| (fire.fire_at, fire.run));
    old_fires.sort_by_key(|fire| (fire.at(), fire.source_id));
    let match_distance = same_fire_within(&own_fires);
    let mut pair_indexes: Vec<Option<usize>> = vec![None; own_fires.len()];
    let mut unmatched_indexes = Vec::new();
    for (index, fire) in old_fires.iter().enumerate() {
        match nearest_unpaired(&own_fires, &pair_indexes, fire.at(), match_distance) {
            Some(own_index) => pair_indexes[own_index] = Some(index),
            None => unmatched_indexes.push(index),
        }
    }
    let mut builder = ComparisonBuilder::default();
    for index in unmatched_indexes {
        let fire = &old_fires[index];
        let index_before =
            own_fires.partition_point(|own_fire| own_fire.fire_at <= fire.at() + match_distance).checked_sub(1);
        match index_before.filter(|own_index| fire.at().since(own_fires[*own_index].fire_at) <= range.tolerance) {
            Some(own_index) if pair_indexes[own_index].is_none() => pair_indexes[own_index] = Some(index),
            Some(own_index) if range.has(own_fires[own_index].fire_at) => {
                builder.comparison.twice += 1;
                builder.add_difference(
                    DifferenceKind::Twice,
                    own_fires[own_index].fire_at,
                    Some(&own_fires[own_index]),
                    Some(fire),
                    None,
                );
            }
            // The fire belongs to another range.
            Some(_) => {}
            None if range.has(fire.at()) => {
                builder.comparison.only_old += 1;
                builder.add_difference(DifferenceKind::OnlyOld, fire.at(), None, Some(fire), None);
            }
            None => {}
        }
    }
    for (fire, pair) in own_fires.iter().zip(&pair_indexes).filter(|(fire, _)| range.has(fire.fire_at)) {
        match pair {
            Some(index) => builder.add_pair(fire, &old_fires[*index], range.late_from),
            None => {
                builder.comparison.only_rondel += 1;
                builder.add_difference(DifferenceKind::OnlyRondel, fire.fire_at, Some(fire), None, None);
            }
        }
    }
    builder.finish()
}

/// How far apart the instants of one fire may be: [`SAME_FIRE_WITHIN`], but at most half of the shortest gap between fires, so that no fire is taken
/// for its neighbour.
fn same_fire_within(own_fires: &[RondelFire]) -> Duration {
    let gaps = own_fires.windows(2).map(|pair| pair[1].fire_at.since(pair[0].fire_at)).filter(|gap| !gap.is_zero());
    gaps.min().map_or(SAME_FIRE_WITHIN, |gap| SAME_FIRE_WITHIN.min(gap / 2))
}

fn nearest_unpaired(
    own_fires: &[RondelFire],
    pair_indexes: &[Option<usize>],
    at: Timestamp,
    match_distance: Duration,
) -> Option<usize> {
    let first_near_index = own_fires.partition_point(|fire| fire.fire_at < at - match_distance);
    let near_count =
        own_fires[first_near_index..].iter().take_while(|fire| fire.fire_at <= at + match_distance).count();
    let distance =
        |own_index: &usize| own_fires[*own_index].fire_at.since(at).max(at.since(own_fires[*own_index].fire_at));
    (first_near_index..first_near_index + near_count)
        .filter(|own_index| pair_indexes[*own_index].is_none())
        .min_by_key(distance)
}

#[derive(Default)]
struct ComparisonBuilder {
    comparison: Comparison,
    /// The lateness of all paired fires of the other scheduler, added up.
    old_lateness_sum: Duration,
    /// The lateness of all paired fires of Rondel, added up.
    own_lateness_sum: Duration,
}

impl ComparisonBuilder {
    fn add_pair(&mut self, own_fire: &RondelFire, old_fire: &OldFire, late_from: Duration) {
        let comparison = &mut self.comparison;
        comparison.both += 1;
        let (own_lateness, old_lateness) = (
            own_fire.sent_at.map_or(Duration::ZERO, |at| at.since(own_fire.fire_at)),
            old_fire.started_at.since(own_fire.fire_at),
        );
        self.own_lateness_sum += own_lateness;
        self.old_lateness_sum += old_lateness;
        let raise_max =
            |lateness: &mut LatenessStats, length| lateness.max_ms = lateness.max_ms.max(milliseconds(length));
        raise_max(&mut comparison.rondel_lateness, own_lateness);
        raise_max(&mut comparison.old_lateness, old_lateness);
        if is_other_executor(own_fire.executor.as_deref(), &old_fire.executor) {
            comparison.other_executor += 1;
            comparison.differences.push(Difference {
                executor: own_fire.executor.clone(),
                old_executor: Some(old_fire.executor.clone()),
                ..Difference::of(DifferenceKind::OtherExecutor, own_fire.fire_at, Some(own_fire), Some(old_fire))
            });
        }
        if old_lateness >= late_from {
            self.comparison.old_late += 1;
            self.add_difference(
                DifferenceKind::OldLate,
                own_fire.fire_at,
                Some(own_fire),
                Some(old_fire),
                Some(old_lateness),
            );
        }
        if own_lateness >= late_from {
            self.comparison.rondel_late += 1;
            self.add_difference(
                DifferenceKind::RondelLate,
                own_fire.fire_at,
                Some(own_fire),
                Some(old_fire),
                Some(own_lateness),
            );
        }
    }

    fn add_difference(
        &mut self,
        kind: DifferenceKind,
        at: Timestamp,
        own_fire: Option<&RondelFire>,
        old_fire: Option<&OldFire>,
        lateness: Option<Duration>,
    ) {
        let difference = Difference::of(kind, at, own_fire, old_fire);
        self.comparison.differences.push(Difference { late_ms: lateness.map(milliseconds), ..difference });
    }

    fn finish(self) -> Comparison {
        let mut comparison = self.comparison;
        let mean_ms = |sum: Duration| milliseconds(sum).checked_div(comparison.both).unwrap_or(0);
        (comparison.old_lateness.mean_ms, comparison.rondel_lateness.mean_ms) =
            (mean_ms(self.old_lateness_sum), mean_ms(self.own_lateness_sum));
        // Routers that choose at random cause many differences. These must not displace fires that were lost or late.
        comparison.differences.sort_by_key(|difference| {
            (difference.kind == DifferenceKind::OtherExecutor, difference.at, difference.source_id)
        });
        let left_out_count = comparison.differences.len().saturating_sub(DIFFERENCE_COUNT_MAX);
        comparison.differences.truncate(DIFFERENCE_COUNT_MAX);
        comparison.differences_more = u64::try_from(left_out_count).unwrap_or(u64::MAX);
        comparison
    }
}

/// Maximum number of executors that [`name_all`] names.
const NAMED_MAX: usize = 10;
const MORE_PREFIX: &str = "and ";

/// The executors that would have had the shards of a run, in one text; `None` without executors.
#[must_use]
pub fn name_all(names: &[&str]) -> Option<String> {
    let listed_names = names.iter().take(NAMED_MAX).copied().collect::<Vec<_>>().join(", ");
    match names.len() {
        0 => None,
        1..=NAMED_MAX => Some(listed_names),
        count => Some(format!("{listed_names}, {MORE_PREFIX}{} more", count - NAMED_MAX)),
    }
}

/// Whether the other scheduler chose an executor that is not among those chosen here. `old_executor` is its name in Rondel.
fn is_other_executor(own_executor: Option<&str>, old_executor: &str) -> bool {
    let names = own_executor.unwrap_or_default();
    let is_same_executor = |name: &str| name == old_executor || name.starts_with(MORE_PREFIX);
    !names.is_empty() && !old_executor.is_empty() && !names.split(", ").any(is_same_executor)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(ms: i64) -> RondelFire {
        let fire_at = Timestamp::EPOCH + Duration::from_millis(ms.unsigned_abs());
        let executor = Some("10.0.0.5-9999".to_owned());
        RondelFire { run: RunId::new(ms + 1), fire_at, sent_at: Some(fire_at + Duration::from_millis(3)), executor }
    }

    fn old(id: i64, ms: i64) -> OldFire {
        let started_at = Timestamp::EPOCH + Duration::from_millis(ms.unsigned_abs());
        let executor = "10.0.0.5-9999".to_owned();
        OldFire { source_id: id, due_at: None, started_at, executor, outcome: OldOutcome::Succeeded }
    }

    fn range(from: i64, to: i64) -> Range {
        let (from, to) = (Timestamp::from_secs(from), Timestamp::from_secs(to));
        Range { from, to, tolerance: Duration::from_secs(30), late_from: Duration::from_secs(3) }
    }

    fn named(comparison: &Comparison) -> Vec<String> {
        let name = |one: &Difference| format!("{} {}", one.kind, one.at.as_millis() / 1_000);
        comparison.differences.iter().map(name).collect()
    }

    #[test]
    fn lost_late_and_repeated_fires_are_named_and_no_others() {
        let fires = (0..10).map(|minute| own(minute * 60_000)).collect();
        let mut old_fires: Vec<OldFire> = (0..10).map(|minute| old(minute, minute * 60_000)).collect();
        old_fires[4].started_at = old_fires[4].started_at + Duration::from_secs(20);
        old_fires[6].executor = "10.0.0.6-9999".to_owned();
        old_fires.remove(2);
        old_fires.push(old(90, 5 * 60_000));
        old_fires.push(old(91, 7 * 60_000 + 2_000));
        old_fires.push(old(92, 8 * 60_000 + 40_000));
        let comparison = compare(fires, old_fires, range(0, 600));
        let expected =
            ["only_rondel 120", "old_late 240", "twice 300", "twice 420", "only_old 520", "other_executor 360"];
        assert_eq!(named(&comparison), expected);
        let other = &comparison.differences[5];
        let executors = (other.executor.as_deref(), other.old_executor.as_deref());
        assert_eq!(executors, (Some("10.0.0.5-9999"), Some("10.0.0.6-9999")));
        assert_eq!((comparison.both, comparison.other_executor), (9, 1));
        assert_eq!(comparison.old_lateness, LatenessStats { mean_ms: 2_222, max_ms: 20_000 });
        assert_eq!(comparison.rondel_lateness, LatenessStats { mean_ms: 3, max_ms: 3 });
    }

    #[test]
    fn an_executor_is_another_one_if_no_shard_went_to_it() {
        let many: Vec<String> = (0..40).map(|number| format!("e-{number}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(name_all(&[]), None);
        assert_eq!(name_all(&["a-1", "b-1"]).as_deref(), Some("a-1, b-1"));
        let long = name_all(&many).unwrap();
        assert!(long.ends_with("e-9, and 30 more"), "{long}");
        for (own, old, expected) in [
            (Some("a-1"), "a-1", false),
            (Some("a-1"), "b-1", true),
            (Some("a-1, b-1"), "b-1", false),
            (Some("a-1, b-1"), "c-1", true),
            (Some("a-1, b-1"), "a", true),
            (Some(long.as_str()), "e-33", false),
            (None, "a-1", false),
            (Some("a-1"), "", false),
        ] {
            assert_eq!(is_other_executor(own, old), expected, "{own:?} {old}");
        }
    }

    #[test]
    fn a_repetition_in_a_row_of_seconds_does_not_shift_its_neighbours() {
        let fires = (0..20).map(|second| own(second * 1_000)).collect();
        let mut old_fires: Vec<OldFire> = (0..20).map(|second| old(second, second * 1_000)).collect();
        old_fires.push(old(50, 7_000));
        old_fires.remove(12);
        assert_eq!(named(&compare(fires, old_fires, range(0, 20))), ["twice 7", "only_rondel 12"]);
    }

    #[test]
    fn whole_seconds_are_the_same_fire() {
        let fires = vec![own(10_400), own(70_900)];
        let comparison = compare(fires, vec![old(1, 10_000), old(2, 72_000)], range(0, 100));
        assert_eq!((comparison.both, comparison.differences.len()), (2, 0));
    }

    #[test]
    fn fires_of_the_range_before_or_after_are_left_out() {
        let fires = vec![own(99_000), own(100_000), own(150_000), own(200_000)];
        let old_fires = vec![old(1, 99_000), old(2, 110_000), old(3, 99_000), old(4, 170_000), old(5, 200_000)];
        let comparison = compare(fires, old_fires, range(100, 200));
        assert_eq!(named(&comparison), ["old_late 100", "old_late 150"]);
        assert_eq!(comparison.both, 2);
    }

    /// If the planned instant of a fire is known, it decides, and not the time at which the fire was sent.
    #[test]
    fn a_planned_instant_pairs_however_late() {
        let fires = vec![own(0), own(10_000)];
        let late = OldFire { due_at: Some(Timestamp::EPOCH), ..old(1, 10_000) };
        let comparison = compare(fires, vec![late, old(2, 10_000)], range(0, 20));
        assert_eq!(named(&comparison), ["old_late 0"]);
    }

    #[test]
    fn without_fires_there_is_nothing_to_name() {
        assert_eq!(compare(Vec::new(), Vec::new(), range(0, 10)), Comparison::default());
        assert_eq!(named(&compare(Vec::new(), vec![old(1, 5_000)], range(0, 10))), ["only_old 5"]);
    }
}
