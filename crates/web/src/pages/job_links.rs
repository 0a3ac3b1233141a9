//! The parents and the children of a job, for its page.

use rondel_core::spec::AfterWhat;
use rondel_store::catalog::JobRecord;

use super::texts::Texts;
use crate::call::Call;
use crate::problem::Problem;

/// The jobs before and after a job in the graph of dependencies, except those that the caller may not see.
#[derive(Debug)]
pub(crate) struct JobLinks {
    /// The jobs that it follows, and how their runs must have ended.
    pub(crate) parents: Vec<(String, &'static str)>,
    pub(crate) children: Vec<String>,
}

impl JobLinks {
    pub(super) async fn read<Q>(call: &Call<Q>, record: &JobRecord, t: &Texts) -> Result<Self, Problem> {
        let parents_of_spec = record.spec.parents();
        let mut parents: Vec<_> =
            parents_of_spec.iter().map(|parent| (parent.name.to_owned(), relation_text(parent.on, t))).collect();
        let mut children = call.engine().store().child_names(record.id).await?;
        let names: Vec<String> = parents.iter().map(|(name, _)| name).chain(&children).cloned().collect();
        let hidden_names = call.hidden_jobs(&names).await?;
        parents.retain(|(name, _)| !hidden_names.contains(name));
        children.retain(|name| !hidden_names.contains(name));
        Ok(Self { parents, children })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.parents.is_empty() && self.children.is_empty()
    }
}

const fn relation_text(outcome: AfterWhat, t: &Texts) -> &'static str {
    match outcome {
        AfterWhat::Success => t.on_success,
        AfterWhat::Failure => t.on_failure,
        AfterWhat::Either => t.on_either,
    }
}
