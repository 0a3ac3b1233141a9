//! Which part of its fire a run is, if the fire has several runs.

use crate::run::Run;
use crate::word_enum::word_enum;

word_enum! {
    /// Which part of its fire a run is, if the fire has several runs.
    Part {
        /// The row that stands for all shards.
        Whole = "whole",
        /// One of the shards.
        Shard = "shard",
        /// The row that stands for all groups of a pump job.
        Root = "root",
        /// One of the groups.
        Group = "group",
    }
}

impl Part {
    /// Which part of its fire a run is; `None` if the fire has no other run.
    #[must_use]
    pub fn of(run: &Run, is_pump: bool) -> Option<Self> {
        match (run.is_root(), is_pump) {
            (true, true) => Some(Self::Root),
            (true, false) => Some(Self::Whole),
            (false, true) => Some(Self::Group),
            (false, false) => run.shard_total.is_some_and(|total| total > 1).then_some(Self::Shard),
        }
    }

    /// Whether a run can be one of several runs of its fire. If it cannot, [`of`](Self::of) need not know whether its job is
    /// a pump job.
    #[must_use]
    pub fn is_possible_for(run: &Run) -> bool {
        run.is_root() || run.parent.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{AppId, JobId, NamespaceId, NodeId, RunId};
    use crate::run::RunJob;
    use crate::status::Trigger;
    use crate::time::Timestamp;

    #[test]
    fn a_run_is_a_fire_or_a_part_of_one() {
        let run_job = RunJob { namespace: NamespaceId::new(1), job: JobId::new(2), job_version: 1, app: AppId::new(3) };
        let one = Run::new(RunId::new(4), run_job, Timestamp::from_secs(60), Trigger::Cron, (NodeId::new(1), 1));
        let root = one.clone().for_all_shards();
        let shard = Run { shard_index: 1, shard_total: Some(3), parent: Some(root.id), ..one.clone() };
        let only = Run { shard_total: Some(1), ..shard.clone() };
        let parts = |is_pump| [&one, &root, &shard, &only].map(|run| Part::of(run, is_pump));
        assert_eq!(parts(false), [None, Some(Part::Whole), Some(Part::Shard), None]);
        assert_eq!(parts(true)[1..], [Some(Part::Root), Some(Part::Group), Some(Part::Group)]);
        assert_eq!([&one, &root, &shard, &only].map(Part::is_possible_for), [false, true, true, true]);
    }
}
