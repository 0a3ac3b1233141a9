//! Failpoints: places at which a debug build can be told to die, so that tests see what a crash there leaves behind.
//! A release build has none of it.

#[cfg(debug_assertions)]
use std::sync::{Mutex, PoisonError};

#[cfg(debug_assertions)]
static ARMED: Mutex<Option<(String, u32)>> = Mutex::new(None);

/// Makes the process abort at the failpoint `NAME`, or with `NAME@N` the Nth time that it comes there.
#[cfg(debug_assertions)]
pub fn arm(place: &str) {
    let (name, count) = place.split_once('@').unwrap_or((place, "1"));
    let count = count.parse().unwrap_or(1);
    *ARMED.lock().unwrap_or_else(PoisonError::into_inner) = Some((name.to_owned(), count));
}

/// Comes to a failpoint.
#[inline]
pub(crate) fn pass(name: &str) {
    #[cfg(debug_assertions)]
    {
        let mut armed = ARMED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((wanted, left)) = armed.as_mut().filter(|(wanted, _)| wanted == name) {
            *left -= 1;
            if *left == 0 {
                tracing::error!(failpoint = %wanted, "aborting at a failpoint");
                std::process::abort();
            }
        }
    }
    #[cfg(not(debug_assertions))]
    let _: &str = name;
}
