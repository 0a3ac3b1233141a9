//! Statuses of HTTP answers.

/// Whether a later try of the same message may be accepted, since the receiver was overloaded, not ready, or failing.
pub(crate) const fn is_temporary(status: u16) -> bool {
    matches!(status, 408 | 425 | 429 | 500..=599)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_of_the_message_is_final() {
        for status in [301, 302, 400, 401, 404, 410, 413] {
            assert!(!is_temporary(status), "{status}");
        }
        for status in [408, 425, 429, 500, 503, 599] {
            assert!(is_temporary(status), "{status}");
        }
    }
}
