//! Namespaces, apps, and jobs with their versions.

pub(super) mod change;
pub(super) mod create;
pub(super) mod namespaces;
pub(super) mod parents;
pub(super) mod read;
pub(super) mod versions;
