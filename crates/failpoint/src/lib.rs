//! Failpoints: places at which a debug build can be made to die, to stop, to pause, or to fail, so that tests see what a
//! crash or a stall there leaves behind. A build without debug assertions has none of it: [`arm`] refuses, and [`pass`]
//! is nothing at all.
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
    /// There is no such place.
    Unknown(String),
    /// What stands behind `@` is no number from 1.
    Count(String),
    /// What stands behind `=` is nothing that can happen there.
    Action(String),
}

impl std::fmt::Display for ArmError {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotCompiledIn => {
                out.write_str("this build has no failpoints: they are for tests, in debug builds alone")
            }
            Self::Unknown(name) => write!(out, "there is no failpoint {name:?}"),
            Self::Count(text) => write!(out, "{text:?} is no number from 1: write NAME@N"),
            Self::Action(text) => write!(
                out,
                "{text:?} cannot happen there: abort, stop, pause:MILLISECONDS, or, where a transaction ends, error"
            ),
        }
    }
}

impl std::error::Error for ArmError {}

/// What [`try_pass`] answers where it was set to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Injected;

/// Arms a place: `NAME`, `NAME@N` for the Nth time that the process comes there, `NAME=ACTION` or `NAME@N=ACTION` for
/// something else than its death. It happens once; several places may be armed, and one place several times.
///
/// | action | what happens |
/// |---|---|
/// | `abort` | the process dies at once; the default |
/// | `stop` | the process stops, all of it, until it receives SIGCONT |
/// | `pause:MILLISECONDS` | the thread that came there sleeps; the rest of the process goes on |
/// | `error` | where a transaction ends: its caller gets the error that the database is gone, whether or not it committed |
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

/// Comes to a place.
#[inline]
pub fn pass(name: &'static str) {
    #[cfg(debug_assertions)]
    armed::pass(name);
    #[cfg(not(debug_assertions))]
    let _: &str = name;
}

/// Comes to the place `OPERATION.STEP` of a transaction.
///
/// # Errors
/// [`Injected`], where it was armed so.
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
