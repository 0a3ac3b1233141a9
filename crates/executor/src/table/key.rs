use rondel_core::RunId;

/// Identifies an attempt of a run. A trigger whose key was accepted before is a repetition, not new work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunKey {
    /// The id of the run.
    pub run: RunId,
    /// The number of the attempt, from 1.
    pub attempt: i32,
}

impl RunKey {
    /// The key of an attempt of the run.
    #[must_use]
    pub const fn new(run_id: i64, attempt: i32) -> Self {
        Self { run: RunId::new(run_id), attempt }
    }
}
