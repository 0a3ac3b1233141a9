//! Colours: on a terminal that has them, unless `NO_COLOR` is set.

use std::io::IsTerminal as _;

/// A colour or style, by its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ink {
    /// New, or successful.
    Green,
    /// Removed, or failed.
    Red,
    /// Changed, or not ended yet.
    Yellow,
    /// Less important.
    Dim,
    /// The subject of a line.
    Bold,
}

/// Whether text for stdout is painted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Paint {
    is_on: bool,
}

impl Paint {
    /// Paints nothing.
    #[cfg(test)]
    pub(crate) const OFF: Self = Self { is_on: false };

    /// Paints if stdout is a terminal with colours, and `NO_COLOR` is not set.
    pub(crate) fn of_stdout() -> Self {
        let nonempty_variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let is_dumb = nonempty_variable("TERM").is_none_or(|term| term == "dumb");
        Self { is_on: std::io::stdout().is_terminal() && nonempty_variable("NO_COLOR").is_none() && !is_dumb }
    }

    /// The text in this ink. The text must already be harmless.
    pub(crate) fn ink(self, ink: Ink, text: &str) -> String {
        if !self.is_on || text.is_empty() {
            return text.to_owned();
        }
        let code = match ink {
            Ink::Green => 32,
            Ink::Red => 31,
            Ink::Yellow => 33,
            Ink::Dim => 2,
            Ink::Bold => 1,
        };
        format!("\u{1b}[{code}m{text}\u{1b}[0m")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_colours_nothing_is_added() {
        assert_eq!(Paint::OFF.ink(Ink::Red, "x"), "x");
        assert_eq!(Paint { is_on: true }.ink(Ink::Red, "x"), "\u{1b}[31mx\u{1b}[0m");
    }
}
