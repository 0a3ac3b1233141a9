//! Namespaces, apps, and jobs with their versions.

mod change;
mod create;
mod namespaces;
mod parents;
mod read;
