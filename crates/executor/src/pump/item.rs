//! An item of a pump job, as user code gets it.

use rondel_core::shape::read_with_place;
use serde::de::DeserializeOwned;

use crate::job_error::JobError;

/// An item of a pump job that the group of this call holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The item's name, unique in the job.
    pub name: String,
    /// The item's fencing token, which rises with each owner of the item. See
    /// [`PumpContext::epoch`](crate::PumpContext::epoch).
    pub epoch: i64,
    /// The item's last checkpoint, as stored by [`PumpContext::checkpoint`](crate::PumpContext::checkpoint); empty at
    /// the beginning.
    pub checkpoint: String,
    params: String,
}

impl Item {
    pub(crate) fn new(name: &str, (epoch, params, checkpoint): (i64, &str, &str)) -> Self {
        Self { name: name.to_owned(), epoch, checkpoint: checkpoint.to_owned(), params: params.to_owned() }
    }

    /// The item's parameters as JSON text; `null` if there are none.
    #[must_use]
    pub fn raw_params(&self) -> &str {
        if self.params.is_empty() { "null" } else { &self.params }
    }

    /// The item's parameters, read from JSON.
    ///
    /// # Errors
    /// The parameters do not fit the type.
    pub fn params<T: DeserializeOwned>(&self) -> Result<T, JobError> {
        let params_error = |error| JobError::terminal(format_args!("params of item {:?}: {error}", self.name));
        read_with_place(&mut serde_json::Deserializer::from_str(self.raw_params())).map_err(params_error)
    }
}
