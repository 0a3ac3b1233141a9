//! The admin server that is measured, of either kind.

use std::time::Duration;

use super::http::Session;
use super::job::JobChange;
use super::plan::{PeerKind, PeerPlan, PeerUrls};
use super::ratch_admin::RatchAdmin;
use super::xxl_admin::XxlAdmin;
use crate::BenchError;
use crate::xxl::{TOKEN_HEADER, registration};

/// A signed-in user at an admin server.
pub(crate) enum Admin {
    Xxl(XxlAdmin),
    Ratch(RatchAdmin),
}

impl Admin {
    /// Finds out which kind the server is, unless the plan names it, and signs in.
    pub(crate) async fn sign_in(plan: &PeerPlan, urls: &PeerUrls) -> Result<Self, BenchError> {
        let (session, credentials) = (Session::new()?, (plan.user.as_str(), plan.password.reveal()));
        let version = match plan.kind {
            Some(PeerKind::Xxl) => None,
            None => RatchAdmin::version(&session, urls).await?,
            Some(PeerKind::Ratch) => {
                let version = RatchAdmin::version(&session, urls).await?;
                Some(version.unwrap_or_else(|| "of an unknown version".to_owned()))
            }
        };
        match version {
            Some(version) => Ok(Self::Ratch(RatchAdmin::sign_in(session, urls, version, credentials).await?)),
            None => Ok(Self::Xxl(XxlAdmin::sign_in(session, &urls.base_url, credentials).await?)),
        }
    }

    /// The kind and the version, as far as they are known.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Xxl(admin) => admin.name().to_owned(),
            Self::Ratch(admin) => admin.name(),
        }
    }

    /// The longest time from a job's start to its first fire.
    pub(crate) const fn head_start(&self) -> Duration {
        match self {
            // XXL-JOB's scan reads five seconds ahead, so a started job is first due five seconds later.
            Self::Xxl(_) => Duration::from_secs(7),
            Self::Ratch(_) => Duration::from_secs(2),
        }
    }

    pub(crate) async fn create_app(&mut self, app: &str) -> Result<(), BenchError> {
        match self {
            Self::Xxl(admin) => admin.create_app(app).await,
            Self::Ratch(admin) => admin.create_app(app).await,
        }
    }

    /// Whether the server sends triggers to all of these executors.
    pub(crate) async fn has_executors(&self, app: &str, addresses: &[String]) -> Result<bool, BenchError> {
        match self {
            Self::Xxl(admin) => admin.has_executors(app, addresses).await,
            Self::Ratch(admin) => admin.has_executors(app, addresses).await,
        }
    }

    /// Creates a stopped job that fires each second; returns its id.
    pub(crate) async fn create_job(&self, name: &str) -> Result<i64, BenchError> {
        match self {
            Self::Xxl(admin) => admin.create_job(name).await,
            Self::Ratch(admin) => admin.create_job(name).await,
        }
    }

    pub(crate) async fn change_job(&self, id: i64, change: JobChange) -> Result<(), BenchError> {
        match self {
            Self::Xxl(admin) => admin.change_job(id, change).await,
            Self::Ratch(admin) => admin.change_job(id, change).await,
        }
    }

    /// The ids of the app's jobs: of all, or of those on the first page.
    pub(crate) async fn jobs(&self, app: &str) -> Result<Vec<i64>, BenchError> {
        match self {
            Self::Xxl(admin) => admin.jobs(app).await,
            Self::Ratch(admin) => admin.jobs(app).await,
        }
    }

    pub(crate) async fn remove_app(&self, app: &str) -> Result<(), BenchError> {
        match self {
            Self::Xxl(admin) => admin.remove_app(app).await,
            Self::Ratch(admin) => admin.remove_app(app).await,
        }
    }
}

/// The part of the server that executors call.
pub(crate) struct Registry {
    session: Session,
    base_url: String,
    token: String,
    app: String,
}

impl Registry {
    pub(crate) fn new(urls: &PeerUrls, token: &str, app: &str) -> Result<Self, BenchError> {
        let (base_url, token, app) = (urls.base_url.clone(), token.to_owned(), app.to_owned());
        Ok(Self { session: Session::new()?, base_url, token, app })
    }

    /// Registers executors, which also checks whether the server accepts their token.
    pub(crate) async fn register(&self, addresses: &[String]) -> Result<(), BenchError> {
        self.call("registry", addresses).await
    }

    /// Ends registrations.
    pub(crate) async fn unregister(&self, addresses: &[String]) -> Result<(), BenchError> {
        self.call("registryRemove", addresses).await
    }

    async fn call(&self, path: &str, addresses: &[String]) -> Result<(), BenchError> {
        let url = format!("{}/api/{path}", self.base_url);
        for address in addresses {
            let body = registration(&self.app, address);
            let answer = self.session.post_json_with_header(&url, (TOKEN_HEADER, self.token.as_str()), &body).await?;
            let code = answer.json().and_then(|value| value["code"].as_i64());
            match code {
                Some(200) => {}
                // Registrations have no other reason to be refused.
                Some(_) => {
                    return Err(BenchError::Auth { message: format!("--peer-token-file: {}", answer.describe()) });
                }
                None => return Err(answer.unexpected()),
            }
        }
        Ok(())
    }
}
