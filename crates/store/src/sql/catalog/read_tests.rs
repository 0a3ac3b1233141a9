//! Tests of definitions that cannot be read.

use rondel_core::{AppId, JobId, NamespaceId, Timestamp};
use serde_json::json;

use super::{Query, SqlStore, Statement};
use crate::catalog::NewJob;
use crate::{Catalog as _, CreateJobs as _, DatabaseUrl, Namespaces as _, StoreConfig};

const REPLACE_SPEC: Statement =
    Statement { name: "replace_spec", text: "UPDATE job_version SET spec = ? WHERE job_id = ?" };

/// A newer server may have saved a definition with a field that this one does not know.
#[tokio::test]
async fn a_definition_that_cannot_be_read_holds_up_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let url = DatabaseUrl::sqlite_file(folder.path().join("rondel.db"));
    let store = SqlStore::open(&StoreConfig { url, ..StoreConfig::default() }).await.unwrap();
    let (namespace, app, now) = (NamespaceId::new(1), AppId::new(7), Timestamp::from_secs(1_800_000_000));
    store.ensure_app(app, namespace, "a", now).await.unwrap();
    let jobs = [1, 2].map(|id| NewJob {
        id: JobId::new(id),
        namespace,
        app,
        spec: serde_json::from_value(json!({"name": format!("j{id}"), "app": "a", "handler": "h"})).unwrap(),
        anchor: now,
        next_fire_at: None,
        delay: None,
        calendar: None,
        declared: None,
        author: "test".to_owned(),
        now,
    });
    store.create_jobs(&jobs).await.unwrap();
    let newer = r#"{"name": "j1", "app": "a", "handler": "h", "of_a_newer_server": 1}"#;
    assert_eq!(store.execute(Query::new(&REPLACE_SPEC).text(newer).int(1)).await.unwrap(), 1);
    let keys: Vec<(JobId, i64)> = jobs.iter().map(|job| (job.id, 1)).collect();
    let found = store.definitions(&keys).await.unwrap();
    assert_eq!(found.iter().map(|definition| definition.job.get()).collect::<Vec<_>>(), [2]);
    store.close().await;
}
