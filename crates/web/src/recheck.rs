//! Checks repeatedly whether the caller of a stream still has its permission, since a stream may last much longer than its token.

use std::time::Duration;

use rondel_admin::auth::principal_of;
use rondel_admin::sign_in::by_hash;
use rondel_core::access::{Permission, Rights};
use rondel_core::error_chain::chain;
use rondel_core::{AppId, NamespaceId};
use rondel_store::StoreError;
use tokio::time::Instant;

use crate::caller::Caller;
use crate::problem::{Code, Problem};
use crate::state::Web;

/// How often the caller's permission is checked.
const CHECK_PERIOD: Duration = Duration::from_secs(3);
/// How long checks may fail before the stream ends.
const UNCHECKED_MAX: Duration = Duration::from_secs(30);

/// The caller of a stream, with the rights found by the last check.
#[derive(Debug)]
pub(crate) struct RecheckedCaller {
    caller: Caller,
    checked_at: Instant,
}

/// Why a stream to a caller must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AccessLoss {
    /// The token or the sign-in has ended, or no longer has the permission.
    Ended,
    /// The database did not answer for [`UNCHECKED_MAX`].
    Unverified,
}

impl AccessLoss {
    /// The problem for work that ends early. Its message ends with `progress`.
    pub(crate) fn problem(self, progress: &str) -> Problem {
        match self {
            Self::Ended => {
                let detail = format!("the token or sign-in has ended, or lost its rights, {progress}");
                Problem::new(Code::Unauthenticated, detail)
            }
            Self::Unverified => {
                let detail =
                    format!("the database did not answer whether the token or sign-in is still valid, {progress}");
                Problem::new(Code::Unavailable, detail)
            }
        }
    }
}

impl RecheckedCaller {
    pub(crate) fn new(caller: Caller) -> Self {
        Self { caller, checked_at: Instant::now() }
    }

    pub(crate) const fn caller(&self) -> &Caller {
        &self.caller
    }

    /// Why the caller may no longer see this namespace or app; `None` while it may. The database is asked at most once per
    /// [`CHECK_PERIOD`].
    pub(crate) async fn access_loss(
        &mut self,
        web: &Web,
        namespace: NamespaceId,
        app: Option<AppId>,
    ) -> Option<AccessLoss> {
        self.access_loss_unless(web, |rights| rights.allow(Permission::View, namespace, app)).await
    }

    /// Like `access_loss`, for a stream that needs other permissions.
    pub(crate) async fn access_loss_unless(
        &mut self,
        web: &Web,
        has_access: impl Fn(&Rights) -> bool,
    ) -> Option<AccessLoss> {
        if self.checked_at.elapsed() < CHECK_PERIOD {
            return None;
        }
        match self.renew(web).await {
            Ok(true) => {
                self.checked_at = Instant::now();
                (!has_access(&self.caller.rights)).then_some(AccessLoss::Ended)
            }
            Ok(false) => Some(AccessLoss::Ended),
            Err(error) => {
                tracing::warn!(target: "http", error = chain(&error), "cannot check whether the caller of a stream still has its permission");
                (self.checked_at.elapsed() >= UNCHECKED_MAX).then_some(AccessLoss::Unverified)
            }
        }
    }

    /// Reads the caller's current rights. `false` if the token or the sign-in has ended.
    async fn renew(&mut self, web: &Web) -> Result<bool, StoreError> {
        let (store, now) = (web.engine.store(), web.engine.now());
        // Checked before the token: a sign-in by a token's link also has a token, but may end earlier than the token.
        if let Some(hash) = &self.caller.cookie_hash {
            let Some(signed_in) = by_hash(store, hash, now).await? else { return Ok(false) };
            self.caller.rights = signed_in.rights;
            return Ok(true);
        }
        let Some(token) = self.caller.token else { return Ok(false) };
        let Some(record) = store.token_by_id(token).await? else { return Ok(false) };
        let Some(principal) = principal_of(store, record, now).await? else { return Ok(false) };
        self.caller.rights = principal.rights;
        Ok(true)
    }
}
