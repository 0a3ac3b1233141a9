//! Tests of what other users of the machine can read, and what a copy of the database reveals.

use std::path::Path;

use rondel_core::{AppId, ExecutorId, NamespaceId, Timestamp};

use super::super::SqlStore;
use crate::outbox::FailureWebhook;
use crate::request_keys::{CallState, KeyedCall, StoredAnswer};
use crate::xxl::XxlExecutor;
use crate::{DatabaseUrl, OpenError, Outbox as _, RequestKeys as _, SecretKeys, StoreConfig, XxlExecutors as _};

const HERE: NamespaceId = NamespaceId::new(1);
const SECRET: &str = "whsec_to-be-kept";
/// The path of this URL is a secret: with it, anyone can write into the channel.
const URL: &str = "https://hooks.example.com/services/T0/B0/to-be-kept-too";

fn config(folder: &Path, keys: Option<&str>) -> StoreConfig {
    let secret_keys = keys.map(|text| text.parse().unwrap());
    StoreConfig { url: DatabaseUrl::sqlite_file(folder.join("rondel.db")), secret_keys, ..StoreConfig::default() }
}

async fn open(folder: &Path, keys: Option<&str>) -> SqlStore {
    SqlStore::open(&config(folder, keys)).await.unwrap()
}

async fn put(store: &SqlStore) {
    let now = Timestamp::from_secs(1);
    let webhook = FailureWebhook { url: URL.to_owned(), secret: SECRET.to_owned(), created_at: now, updated_at: now };
    assert!(store.put_failure_webhook(HERE, &webhook).await.unwrap());
}

async fn secret(store: &SqlStore) -> String {
    let webhook = store.failure_webhook(HERE).await.unwrap().unwrap();
    assert_eq!(webhook.url, URL);
    webhook.secret
}

/// Whether a file of the folder contains this text.
fn is_readable(folder: &Path, text: &str) -> bool {
    let files = std::fs::read_dir(folder).unwrap().map(|entry| std::fs::read(entry.unwrap().path()).unwrap());
    files.into_iter().any(|bytes| bytes.windows(text.len()).any(|window| window == text.as_bytes()))
}

#[tokio::test]
async fn secrets_do_not_stand_in_the_files_of_the_database() {
    let folder = tempfile::tempdir().unwrap();
    let key = SecretKeys::generate().unwrap();
    let store = open(folder.path(), Some(&key)).await;
    put(&store).await;
    let call = KeyedCall { scope: "s", key: "k", fingerprint: "f" };
    let now = Timestamp::from_secs(1);
    assert_eq!(store.begin_call(call, now, now).await.unwrap(), CallState::New);
    let answer = StoredAnswer { status: 201, headers: "{}".to_owned(), body: "{\"token\":\"rondel_once\"}".to_owned() };
    store.end_call(call, Some(&answer)).await.unwrap();
    assert_eq!(store.begin_call(call, now, now).await.unwrap(), CallState::Answered(answer));
    assert_eq!(secret(&store).await, SECRET);
    assert!(!is_readable(folder.path(), SECRET) && !is_readable(folder.path(), "rondel_once"));
    assert!(!is_readable(folder.path(), "to-be-kept-too") && !is_readable(folder.path(), "hooks.example.com"));
    assert!(is_readable(folder.path(), "failure_webhook"), "the files that were looked at are the right ones");
    store.close().await;
}

#[tokio::test]
async fn plain_secrets_are_sealed_at_the_next_start_and_a_missing_or_wrong_key_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), None).await;
    put(&store).await;
    assert!(is_readable(folder.path(), SECRET) && is_readable(folder.path(), URL));
    store.close().await;
    drop(store);
    let (old, new) = (SecretKeys::generate().unwrap(), SecretKeys::generate().unwrap());
    let kept = async |keys: &str| {
        let store = open(folder.path(), Some(keys)).await;
        let row = store.row(super::Query::new(&super::READ_WEBHOOKS)).await.unwrap().unwrap();
        let mut columns = super::Reader::new(&row, "failure_webhook");
        columns.int("namespace_id").unwrap();
        let kept = ["url", "secret"].map(|column| columns.text(column).unwrap());
        assert_eq!(secret(&store).await, SECRET);
        store.close().await;
        kept
    };
    let first = kept(&old).await;
    assert!(first.iter().all(|text| text.starts_with("sealed:1:")), "{first:?}");
    assert_eq!(kept(&old).await, first, "it is sealed once");
    for (keys, wanted) in [(None, "this server has no key: set secret_key_file"), (Some(&new), "with that key")] {
        let error = SqlStore::open(&config(folder.path(), keys.map(String::as_str))).await.unwrap_err();
        assert!(matches!(error, OpenError::SecretKey { .. }), "{error}");
        assert!(error.to_string().contains(wanted) && error.to_string().contains("namespace 1"), "{error}");
    }
    // With two keys, secrets that the old key sealed are read, and are sealed again with the new key.
    let second = kept(&format!("{new}\n{old}")).await;
    assert!(first.iter().zip(&second).all(|(old, new)| old != new), "{second:?}");
    assert_eq!(kept(&new).await, second);
}

/// An executor that was registered by hand may never register itself. Then only a start of the server can seal its token again.
#[tokio::test]
async fn the_token_of_an_executor_that_is_registered_by_hand_is_sealed_with_the_newest_key() {
    let folder = tempfile::tempdir().unwrap();
    let (old, new) = (SecretKeys::generate().unwrap(), SecretKeys::generate().unwrap());
    let now = Timestamp::from_secs(1);
    let executor = XxlExecutor {
        id: ExecutorId::new(7),
        namespace: HERE,
        app: AppId::new(9),
        address: "http://10.0.0.5:9999".to_owned(),
        token: SECRET.to_owned(),
        first_seen_at: now,
        last_seen_at: now,
        left_at: None,
        by_hand_at: None,
    };
    let store = open(folder.path(), Some(&old)).await;
    store.register_xxl_by_hand(&executor, now).await.unwrap();
    store.close().await;
    drop(store);
    for keys in [format!("{new}\n{old}"), new] {
        let store = open(folder.path(), Some(&keys)).await;
        let found = store.xxl_registered_by_hand(None, 10).await.unwrap();
        assert_eq!(found.iter().map(|one| one.token.as_str()).collect::<Vec<_>>(), [SECRET]);
        store.close().await;
    }
}

/// An older server sealed secrets, but not URLs.
#[tokio::test]
async fn a_plain_url_beside_a_sealed_secret_is_read_and_sealed_at_the_next_start() {
    let folder = tempfile::tempdir().unwrap();
    let key = SecretKeys::generate().unwrap();
    let store = open(folder.path(), Some(&key)).await;
    put(&store).await;
    let kept = async |store: &SqlStore| {
        let row = store.row(super::Query::new(&super::READ_WEBHOOKS)).await.unwrap().unwrap();
        let mut columns = super::Reader::new(&row, "failure_webhook");
        columns.int("namespace_id").unwrap();
        (columns.text("url").unwrap(), columns.text("secret").unwrap())
    };
    let (_, sealed_secret) = kept(&store).await;
    let now = Timestamp::from_secs(2);
    store.execute(super::Query::new(&super::UPDATE_WEBHOOK).text(URL).at(now).int(HERE.get())).await.unwrap();
    assert_eq!(kept(&store).await, (URL.to_owned(), sealed_secret.clone()));
    assert_eq!(secret(&store).await, SECRET);
    store.close().await;
    drop(store);
    let store = open(folder.path(), Some(&key)).await;
    let (url, unchanged) = kept(&store).await;
    assert!(url.starts_with("sealed:1:") && unchanged == sealed_secret, "{url} {unchanged}");
    assert_eq!(secret(&store).await, SECRET);
    store.close().await;
}

#[cfg(unix)]
#[tokio::test]
async fn the_files_of_the_database_are_the_owners_alone_also_those_of_an_older_server() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let names = ["rondel.db", "rondel.db-wal", "rondel.db-shm", "rondel.db.lock"];
    let modes = || names.map(|name| folder.path().join(name).metadata().unwrap().permissions().mode() & 0o777);
    let store = open(folder.path(), None).await;
    put(&store).await;
    assert_eq!(modes(), [0o600; 4]);
    for name in names {
        std::fs::set_permissions(folder.path().join(name), std::fs::Permissions::from_mode(0o644)).unwrap();
    }
    // The files beside the database are restored, as they would remain after `kill -9`.
    let saved: Vec<_> = names.iter().map(|name| (name, std::fs::read(folder.path().join(name)).unwrap())).collect();
    store.close().await;
    drop(store);
    for (name, bytes) in saved {
        std::fs::write(folder.path().join(name), bytes).unwrap();
        std::fs::set_permissions(folder.path().join(name), std::fs::Permissions::from_mode(0o644)).unwrap();
    }
    let store = open(folder.path(), None).await;
    assert_eq!(secret(&store).await, SECRET);
    assert_eq!(modes(), [0o600; 4]);
    store.close().await;
}
