//! The data of charts, for pages and the API: series of counts, and the lanes of a timeline.

pub(crate) mod lanes;
pub(crate) mod recent_failures;
pub(crate) mod series;
