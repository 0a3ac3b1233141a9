//! Measures resources of the server's host that can run out: space on its disks, and the validity of its TLS certificate.
//!
//! Each server measures its own host every 10 seconds; the next heartbeat writes the result to the server's row, where alert rules read it.

mod certificate;
pub(crate) mod watched;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rondel_store::host::{DiskReport, HostReport};
use rustix::fs::statvfs;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use self::watched::WatchedHost;
use crate::background::{Background, TickError};
use crate::node::Shared;

const PERIOD: Duration = Duration::from_secs(10);
/// Timeout for a disk's answer; a network disk may not answer at all.
const TIMEOUT: Duration = Duration::from_secs(10);

type Measurement = (HostReport, Result<(), String>);

/// The loop that measures the host.
#[derive(Debug)]
pub(crate) struct HostLoop {
    shared: Arc<Shared>,
    /// The measurement in progress. While a disk does not answer, no second measurement is started.
    measurement: Option<JoinHandle<Measurement>>,
}

impl HostLoop {
    pub(crate) const fn new(shared: Arc<Shared>) -> Self {
        Self { shared, measurement: None }
    }
}

impl Background for HostLoop {
    const NAME: &'static str = "host";
    const ACTION: &'static str = "read the free space of the disks and the end of the certificate";

    fn period(&self) -> Option<Duration> {
        // A server that evaluates alert rules more often than usual, as in tests, also measures more often.
        Some(PERIOD.min(self.shared.config.alert_rules_period * 5))
    }

    async fn tick(&mut self, _stop: &CancellationToken) -> Result<u64, TickError> {
        let host = self.shared.config.host.clone();
        let measurement = self.measurement.get_or_insert_with(|| tokio::task::spawn_blocking(move || measure(&host)));
        let Ok(measurement) = tokio::time::timeout(TIMEOUT, measurement).await else {
            return Err(TickError::new(format!("a disk has not answered for {} s", TIMEOUT.as_secs())));
        };
        self.measurement = None;
        let (report, result) = measurement?;
        self.shared.loops.put_host(Self::NAME, report);
        result.map(|()| 0).map_err(TickError::new)
    }
}

/// Measures everything that it can; returns the last error, if any.
fn measure(host: &WatchedHost) -> Measurement {
    let (mut report, mut result) = (HostReport::default(), Ok(()));
    for folder in &host.folders {
        match measure_disk(folder) {
            Ok(disk) => report.disks.push(disk),
            Err(error) => result = Err(format!("the disk of {}: {error}", folder.display())),
        }
    }
    if let Some(certificate) = &host.certificate {
        match certificate.ends_at() {
            Ok(at) => report.certificate_ends_at = Some(at),
            Err(error) => result = Err(format!("the certificate in use: {error}")),
        }
    }
    (report, result)
}

fn measure_disk(folder: &Path) -> io::Result<DiskReport> {
    let statistics = statvfs(folder)?;
    let bytes = |blocks: u64| blocks.saturating_mul(statistics.f_frsize);
    Ok(DiskReport {
        folder: folder.display().to_string(),
        free_bytes: bytes(statistics.f_bavail),
        size_bytes: bytes(statistics.f_blocks),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_measurement_does_not_hide_the_others() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("missing");
        let folders = vec![missing, folder.path().to_owned()];
        let (report, result) = measure(&WatchedHost { folders, certificate: None });
        let [disk] = report.disks.as_slice() else { panic!("{report:?}") };
        assert!(disk.size_bytes > 0 && disk.free_bytes <= disk.size_bytes, "{disk:?}");
        assert!(result.unwrap_err().contains("missing"));
        let certificate = Some(watched::ServedCertificate::new([&b"none"[..]]));
        let (report, result) = measure(&WatchedHost { folders: Vec::new(), certificate });
        assert_eq!(report, HostReport::default());
        assert!(result.unwrap_err().starts_with("the certificate "));
    }
}
