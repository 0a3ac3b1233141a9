//! What is said to people, in each of their languages.

mod moment;

use serde::{Deserialize, Serialize};

use crate::run::words;

pub use self::moment::moment;

words! {
    /// A language that sentences are made in.
    Lang {
        /// English.
        En = "en",
        /// Chinese.
        Zh = "zh",
    }
}
