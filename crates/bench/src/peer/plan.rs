//! The plan of a measurement of another server, and where that server is.

use std::fmt;

use reqwest::Url;

use crate::BenchError;

/// How many fires a measurement has at most: each one is kept in memory.
const FIRES_MAX: u64 = 5_000_000;
/// By how much the port of ratch-job's console exceeds the port that its executors call, by default.
const CONSOLE_PORT_STEP: u16 = 100;

/// The kind of an admin server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerKind {
    /// XXL-JOB 2.3 to 3.4.
    Xxl,
    /// ratch-job.
    Ratch,
}

/// A password or token.
#[derive(Clone)]
pub struct PeerSecret(String);

impl PeerSecret {
    /// Wraps a secret.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for PeerSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PeerSecret")
    }
}

/// One measurement of an admin server that already runs.
#[derive(Clone, Debug)]
pub struct PeerPlan {
    /// The URL that executors are configured with.
    pub url: String,
    /// The URL of ratch-job's console; `None` for the port that it has by default.
    pub console: Option<String>,
    /// The kind of the server; `None` to ask the server.
    pub kind: Option<PeerKind>,
    /// The user that creates the jobs.
    pub user: String,
    /// The user's password.
    pub password: PeerSecret,
    /// The token that the server and its executors share.
    pub token: PeerSecret,
    /// The ids of the processes whose usage is counted, each with its descendants.
    pub pids: Vec<u32>,
    /// The number of jobs, each of which fires each second.
    pub jobs: u32,
    /// How long the measurement takes, in seconds.
    pub seconds: u32,
    /// How long the jobs run before the measurement, in seconds.
    pub warm_up: u32,
    /// The number of executors, each with a port of its own.
    pub executors: u32,
}

impl PeerPlan {
    /// The number of fires in the window.
    pub(crate) fn planned_count(&self) -> u64 {
        u64::from(self.jobs) * u64::from(self.seconds)
    }

    /// Refuses a plan that measures nothing, or too much.
    pub(crate) fn check(&self) -> Result<(), BenchError> {
        if self.jobs == 0 || self.executors == 0 || self.seconds == 0 {
            return Err(BenchError::refused("--jobs, --executors and --seconds: at least one of each"));
        }
        if self.planned_count() > FIRES_MAX {
            let message = format!("--jobs times --seconds: at most {FIRES_MAX} fires can be measured");
            return Err(BenchError::refused(message));
        }
        Ok(())
    }
}

/// Where an admin server is; URLs have no slash at their ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PeerUrls {
    /// The URL that executors are configured with.
    pub(crate) base_url: String,
    /// Its scheme, host and port.
    pub(crate) origin: String,
    /// The scheme, host and port of ratch-job's console.
    pub(crate) console: String,
}

impl PeerUrls {
    pub(crate) fn of(plan: &PeerPlan) -> Result<Self, BenchError> {
        let base_url = parse_url("--peer-url", &plan.url)?;
        let console = match &plan.console {
            Some(text) => parse_url("--peer-console", text)?,
            None => {
                let mut console = base_url.clone();
                let port = base_url.port_or_known_default().and_then(|port| port.checked_add(CONSOLE_PORT_STEP));
                // If the port would be too high, the URL has none. XXL-JOB does not need it: its console is at the
                // base URL.
                console.set_port(port).ok();
                console
            }
        };
        Ok(Self {
            base_url: base_url.as_str().trim_end_matches('/').to_owned(),
            origin: base_url.origin().ascii_serialization(),
            console: console.origin().ascii_serialization(),
        })
    }
}

fn parse_url(flag: &str, text: &str) -> Result<Url, BenchError> {
    let url = Url::parse(text).map_err(|error| BenchError::refused(format!("{flag}: no URL: {error}")))?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return Err(BenchError::refused(format!(
            "{flag}: {text:?} does not begin with http:// or https:// and a host"
        )));
    }
    if !url.username().is_empty() || url.password().is_some() {
        let message = format!("{flag}: the URL holds a user or a password; use --peer-user and --peer-password-file");
        return Err(BenchError::refused(message));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(BenchError::refused(format!("{flag}: {text:?} has a query or a fragment")));
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(url: &str) -> PeerPlan {
        PeerPlan {
            url: url.to_owned(),
            console: None,
            kind: None,
            user: "admin".to_owned(),
            password: PeerSecret::new("123456"),
            token: PeerSecret::new("default_token"),
            pids: Vec::new(),
            jobs: 10,
            seconds: 3,
            warm_up: 0,
            executors: 1,
        }
    }

    #[test]
    fn all_urls_follow_from_the_url_of_executors() {
        let urls = PeerUrls::of(&plan("http://127.0.0.1:8725/xxl-job-admin/")).unwrap();
        let [base_url, origin, console] =
            ["http://127.0.0.1:8725/xxl-job-admin", "http://127.0.0.1:8725", "http://127.0.0.1:8825"]
                .map(str::to_owned);
        assert_eq!(urls, PeerUrls { base_url, origin, console });
        assert_eq!(PeerUrls::of(&plan("https://peer")).unwrap().console, "https://peer:543");
        assert_eq!(PeerUrls::of(&plan("http://peer:65535/")).unwrap().base_url, "http://peer:65535");

        let console = Some("http://other:1/ratchjob/".to_owned());
        let urls = PeerUrls::of(&PeerPlan { console, ..plan("http://peer:9") }).unwrap();
        assert_eq!((urls.origin.as_str(), urls.console.as_str()), ("http://peer:9", "http://other:1"));
    }

    #[test]
    fn bad_input_is_refused_by_its_flag() {
        for (url, word) in [
            ("peer:8080", "http://"),
            ("", "no URL"),
            ("ftp://peer", "http://"),
            ("http://admin:123456@peer", "--peer-user"),
            ("http://peer/?a=b", "query"),
        ] {
            let refusal = PeerUrls::of(&plan(url)).unwrap_err().to_string();
            assert!(refusal.starts_with("--peer-url: ") && refusal.contains(word), "{url}: {refusal}");
            assert!(!refusal.contains("123456"), "{refusal}");
        }
        let console = Some("x".to_owned());
        let refusal = PeerUrls::of(&PeerPlan { console, ..plan("http://peer") }).unwrap_err().to_string();
        assert!(refusal.starts_with("--peer-console: "), "{refusal}");

        assert!(plan("http://peer").check().is_ok());
        for bad_plan in [
            PeerPlan { jobs: 0, ..plan("http://peer") },
            PeerPlan { executors: 0, ..plan("http://peer") },
            PeerPlan { jobs: 100_000, seconds: 86_400, ..plan("http://peer") },
        ] {
            assert!(matches!(bad_plan.check(), Err(BenchError::Refused { .. })), "{bad_plan:?}");
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        assert!(!format!("{:?}", plan("http://peer")).contains("123456"));
    }
}
