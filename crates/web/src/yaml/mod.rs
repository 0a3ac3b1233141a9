//! Reads and writes YAML in the form in which users write definitions. Reading yields JSON values that know their lines and columns.
//!
//! Scalars follow YAML 1.2 (`yes` and `on` are texts). The merge key `<<` of YAML 1.1 is supported, since it is widely used. Values that
//! JSON cannot express are refused.

mod read;
mod scalar;
mod write;

pub(crate) use read::{MAP_NODE_COUNT, NODE_COUNT_MAX};
pub use read::{Node, YamlError, documents};
pub use write::{write, write_value};
