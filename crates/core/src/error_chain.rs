//! Renders an error and its causes as one text, for log lines, answers and messages.

use std::error::Error;

/// The text of an error and of each of its causes, separated by colons. A cause that the text already ends with is left
/// out, because some libraries repeat the cause in their own text.
///
/// ```
/// use rondel_core::error_chain::chain;
///
/// let error = "x".parse::<u8>().unwrap_err();
/// assert_eq!(chain(&error), "invalid digit found in string");
/// ```
#[must_use]
pub fn chain(error: &dyn Error) -> String {
    chain_of(error, |error| error.to_string())
}

/// As [`chain`], without line breaks, for output that has room for one line.
#[must_use]
pub fn chain_in_one_line(error: &dyn Error) -> String {
    chain_of(error, |error| {
        let text = error.to_string();
        text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
    })
}

fn chain_of(error: &dyn Error, text_of: impl Fn(&dyn Error) -> String) -> String {
    let mut chain_text = text_of(error);
    let mut next_cause = error.source();
    while let Some(cause) = next_cause {
        let text = text_of(cause);
        if !chain_text.ends_with(&text) {
            chain_text.push_str(": ");
            chain_text.push_str(&text);
        }
        next_cause = cause.source();
    }
    chain_text
}

#[cfg(test)]
mod tests {
    use std::fmt;

    use super::*;

    #[derive(Debug)]
    struct Layer(&'static str, Option<Box<Layer>>);

    impl fmt::Display for Layer {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Error for Layer {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.1.as_deref().map(|cause| cause as &(dyn Error + 'static))
        }
    }

    #[test]
    fn each_cause_is_printed_once() {
        let refused = Layer("refused", None);
        let connect = Layer("cannot connect: refused", Some(Box::new(refused)));
        assert_eq!(chain(&Layer("cannot read", Some(Box::new(connect)))), "cannot read: cannot connect: refused");
    }

    #[test]
    fn line_breaks_become_spaces_where_there_is_one_line() {
        let refused = Layer("connection\n  refused\n", None);
        let read = Layer("cannot read", Some(Box::new(refused)));
        assert_eq!(chain_in_one_line(&read), "cannot read: connection refused");
        assert_eq!(chain(&read), "cannot read: connection\n  refused\n");
    }
}
