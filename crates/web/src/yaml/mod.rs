//! Reads and writes YAML as users write definitions in it. Reading makes JSON values that know their lines and columns.
//!
//! The scalars are those of YAML 1.2 (`yes` and `on` are words), with the merge key `<<` of 1.1, which is in wide use. What
//! JSON cannot express is refused.

mod read;
mod scalar;
mod write;

pub(crate) use read::{MAP_NODE_COUNT, NODE_COUNT_MAX};
pub use read::{Node, YamlError, documents};
pub use write::{write, write_value};
