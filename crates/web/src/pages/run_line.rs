//! A run as a row in the list of runs.

use rondel_core::part::Part;
use rondel_core::{Run, RunId, Timestamp};

use super::moment::{Moment, length_text};
use super::texts::Texts;
use super::view::RunRow;

/// The row of a run, with further facts for the list of runs.
#[derive(Clone, Debug)]
pub(super) struct RunLine {
    pub(super) id: RunId,
    pub(super) row: RunRow,
    /// `orders.close · 16:08:15`, with the date if that is not today.
    pub(super) name: String,
    /// The part of `name` after the job's name.
    pub(super) planned_text: String,
    pub(super) planned_at: Moment,
    /// How long the run waited for an executor.
    pub(super) queue_time: Option<String>,
}

impl RunLine {
    pub(super) fn new(run: &Run, job: String, part: Option<Part>, now: Timestamp, t: &Texts) -> Self {
        let planned_moment = Moment::new(run.fire_at, now, t);
        let day = planned_moment.date.get(5..).map(|day| format!("{day} ")).unwrap_or_default();
        let planned_text = format!("{day}{}", planned_moment.time);
        let started_at = run.started_at.filter(|at| *at >= run.due_at);
        Self {
            id: run.id,
            name: format!("{job} · {planned_text}"),
            planned_text,
            planned_at: planned_moment,
            queue_time: started_at.map(|at| length_text(at.since(run.due_at), t)),
            row: RunRow::new(run, job, now, t).with_part(part, t),
        }
    }
}
