//! Failpoints: points at which a debug build can be made to abort, stop, pause or fail, so that tests see the effects of a crash or stall
//! there. A build without debug assertions has none: [`arm`] refuses, and [`pass`] does nothing.
//!
//! ```
//! # #[cfg(debug_assertions)] {
//! rondel_failpoint::arm("claim.written@2=error").unwrap();
//! assert!(rondel_failpoint::try_pass("claim", "written").is_ok(), "the first time nothing happens");
//! assert!(rondel_failpoint::try_pass("claim", "written").is_err());
//! assert!(rondel_failpoint::try_pass("claim", "written").is_ok(), "it happens once");
//! # }
//! ```

#[cfg(debug_assertions)]
mod armed;
pub mod mutant;
pub mod points;

/// Why a failpoint was not armed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArmError {
    /// This build has no failpoints.
    NotCompiledIn,
    /// There is no failpoint with this name.
    Unknown(String),
    /// The text after `@` is not a number from 1.
    Count(String),
    /// The text after `=` is not an action that this failpoint supports.
    Action(String),
}

impl std::fmt::Display for ArmError {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotCompiledIn => {
                out.write_str("this build has no failpoints: only debug builds have them, for tests")
            }
            Self::Unknown(name) => write!(out, "there is no failpoint {name:?}"),
            Self::Count(text) => write!(out, "{text:?} is not a number of 1 or more: write NAME@N"),
            Self::Action(text) => write!(
                out,
                "{text:?} cannot happen there: abort, stop, pause:MILLISECONDS, or, where a transaction ends, error"
            ),
        }
    }
}

impl std::error::Error for ArmError {}

/// The error of [`try_pass`] at a failpoint that was armed with `error`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Injected;

/// Arms a failpoint: `NAME`; `NAME@N` for the Nth time that the process reaches it; `NAME=ACTION` or `NAME@N=ACTION` for an
/// action other than the default. An armed failpoint acts once. Several failpoints may be armed, and one failpoint several
/// times.
///
/// | action | what happens |
/// |---|---|
/// | `abort` | the process dies immediately; the default |
/// | `stop` | all threads of the process stop until it receives SIGCONT |
/// | `pause:MILLISECONDS` | the thread that reached the failpoint sleeps; the rest of the process continues |
/// | `error` | at the end of a transaction: its caller gets the error that the database is unavailable, whether or not it committed |
///
/// # Errors
/// [`ArmError`]; always [`ArmError::NotCompiledIn`] in a build without debug assertions.
pub fn arm(text: &str) -> Result<(), ArmError> {
    #[cfg(debug_assertions)]
    return armed::arm(text);
    #[cfg(not(debug_assertions))]
    {
        let _: &str = text;
        Err(ArmError::NotCompiledIn)
    }
}

/// Marks the place of a failpoint in the code. The failpoint acts if it is armed and due.
#[inline]
pub fn pass(name: &'static str) {
    #[cfg(debug_assertions)]
    armed::pass(name);
    #[cfg(not(debug_assertions))]
    let _: &str = name;
}

/// Marks the place of the failpoint `OPERATION.STEP` of a transaction. The failpoint acts if it is armed and due.
///
/// # Errors
/// [`Injected`], if it was armed with `error`.
#[inline]
pub fn try_pass(operation: &'static str, step: &'static str) -> Result<(), Injected> {
    #[cfg(debug_assertions)]
    return armed::try_pass(operation, step);
    #[cfg(not(debug_assertions))]
    {
        let _: (&str, &str) = (operation, step);
        Ok(())
    }
}
