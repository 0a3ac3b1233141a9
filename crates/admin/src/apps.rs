//! Apps are created by the first job, token or executor that names them, up to a limit per namespace.

use rondel_core::{AppId, NamespaceId, Timestamp};
use rondel_store::catalog::App;
use rondel_store::{Store, StoreError};

/// Maximum number of apps in a namespace. Concurrent callers can exceed it, since each caller counts the apps before it creates one.
pub const APP_COUNT_MAX: usize = 1_000;

/// Why [`ensure`] returned no app.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    /// The namespace has reached its maximum.
    #[error("the namespace has {APP_COUNT_MAX} apps, the maximum; use one of them, or another namespace")]
    TooMany,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Returns the app with this name. If there is none, creates one with the id `id`.
///
/// # Errors
/// [`AppError`].
pub async fn ensure(
    store: &dyn Store,
    id: AppId,
    (namespace, name): (NamespaceId, &str),
    now: Timestamp,
) -> Result<App, AppError> {
    if let Some(app) = store.app(namespace, name).await? {
        return Ok(app);
    }
    if store.apps(namespace).await?.len() >= APP_COUNT_MAX {
        return Err(AppError::TooMany);
    }
    Ok(store.ensure_app(id, namespace, name, now).await?)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rondel_store::{MemStore, Namespaces as _};

    use super::*;

    #[tokio::test]
    async fn the_number_of_apps_in_a_namespace_is_bounded() {
        const NOW: Timestamp = Timestamp::from_secs(1_790_000_000);
        let store = MemStore::new(Arc::new(|| NOW));
        let namespace = NamespaceId::new(1);
        for number in 1..1_000 {
            store.ensure_app(AppId::new(number), namespace, &format!("app-{number}"), NOW).await.unwrap();
        }
        let ensure = async |id, name| ensure(&store, AppId::new(id), (namespace, name), NOW).await;
        assert_eq!(ensure(1_000, "last").await.unwrap().id, AppId::new(1_000));
        assert!(matches!(ensure(1_001, "more").await, Err(AppError::TooMany)));
        assert_eq!(ensure(1_002, "last").await.unwrap().id, AppId::new(1_000), "one that is there stays");
    }
}
