//! Places where a process under test dies, stops, pauses or fails.

use clap::Args;

use crate::exit::Failure;

/// Hidden: for tests. A build without debug assertions refuses it.
#[derive(Debug, Args)]
pub(crate) struct Failpoints {
    /// NAME[@N][=ACTION]; may be given several times
    #[arg(long = "failpoint", hide = true, value_name = "PLACE")]
    places: Vec<String>,
}

impl Failpoints {
    /// Arms all failpoints that the flags name.
    pub(crate) fn arm(&self) -> Result<(), Failure> {
        for failpoint in &self.places {
            rondel_failpoint::arm(failpoint).map_err(|message| Failure::refused(format!("--failpoint: {message}")))?;
        }
        Ok(())
    }
}
