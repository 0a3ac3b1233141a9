//! The first message of a stream: which executor connects, and whether it is admitted.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::time::Duration;

use rondel_core::homes::Switch;
use rondel_core::{AppId, ExecutorId, NamespaceId, RunId, name};
use rondel_proto::v1::executor_message::Body;
use rondel_proto::{PROTOCOL, v1};
use rondel_store::cluster::{ExecutorRecord, HostProcess};
use tokio_stream::{Stream, StreamExt as _};
use tonic::Status;

use super::{ExecutorAccess, bounds, message_bounds, proof};
use crate::apps::{self, AppError};
use crate::declared::DeclaredSet;
use crate::dispatch::{Report, StartReports};
use crate::host_process;
use crate::node::Shared;
use crate::registry::OnlineExecutor;

const HELLO_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct AdmittedExecutor {
    pub(super) online_executor: OnlineExecutor,
    pub(super) record: ExecutorRecord,
    pub(super) report: Report,
    /// The jobs that its code declares.
    pub(super) declared_set: DeclaredSet,
    /// Its process, if it runs on this host.
    pub(super) process: Option<HostProcess>,
    pub(super) hello_number: u64,
}

/// Waits for the first message of a stream, which must be a hello.
pub(super) async fn receive(
    messages: &mut (impl Stream<Item = Result<v1::ExecutorMessage, Status>> + Unpin),
) -> Result<v1::Hello, Status> {
    let first_message = tokio::time::timeout(HELLO_TIMEOUT, messages.next())
        .await
        .map_err(|_| Status::deadline_exceeded("no hello came"))?
        .transpose()
        .map_err(|status| message_bounds::undecodable_status(&status).unwrap_or(status))?;
    match first_message.and_then(|message| message.body) {
        Some(Body::Hello(hello)) => Ok(hello),
        _ => Err(Status::invalid_argument("the first message must be a hello")),
    }
}

/// Checks whether the executor is admitted, and collects what its session needs. If the hello declares jobs of an app that does not exist,
/// the app is created.
pub(super) async fn check(
    shared: &Shared,
    mut hello: v1::Hello,
    access: &ExecutorAccess,
) -> Result<AdmittedExecutor, Status> {
    check_protocol(hello.protocol)?;
    bounds::check(&hello)?;
    if access.may_take_any_handler {
        hello.handlers = vec![name::ANY_HANDLER.to_owned()];
    }
    if shared.membership.switch() == Switch::Stopped {
        return Err(Status::unavailable(
            "this server is stopped by its switch; connect to another server of the cluster",
        ));
    }
    if !hello.declared.is_empty() && !access.may_declare {
        return Err(Status::permission_denied(
            "this token does not let executors declare jobs: create one with rondel token create --declares",
        ));
    }
    if let Some(names) = &access.allowed_names {
        check_certificate(names, &hello)?;
    }
    let denied_status = || {
        let message =
            format!("this token does not admit executors of app {:?} in namespace {:?}", hello.app, hello.namespace);
        Status::permission_denied(message)
    };
    let unavailable_status = |error: rondel_store::StoreError| {
        tracing::warn!(error = %rondel_core::error_chain::chain(&error), "cannot look up an executor's app");
        Status::unavailable("the server cannot reach its database now")
    };
    let namespace = shared.store.namespace(&hello.namespace).await.map_err(unavailable_status)?;
    let Some(namespace) = namespace else {
        // A token that is limited to a namespace must not reveal which other namespaces exist.
        if !access.rights.allow_executor(NamespaceId::new(0), None) {
            return Err(denied_status());
        }
        return Err(Status::failed_precondition(format!("there is no namespace {:?}", hello.namespace)));
    };
    let app_record = shared.store.app(namespace.id, &hello.app).await.map_err(unavailable_status)?;
    if !access.rights.allow_executor(namespace.id, app_record.as_ref().map(|app| app.id)) {
        return Err(denied_status());
    }
    let app = match app_record {
        None if !hello.declared.is_empty() => {
            // An app is created with the first job that its executors declare, as it is with the first job that a user creates.
            let now = shared.clock.now();
            let id = AppId::new(shared.membership.latest_lease().ids.next(now));
            let result = apps::ensure(shared.store.as_ref(), id, (namespace.id, &hello.app), now).await;
            Some(result.map_err(|error| match error {
                AppError::TooMany => Status::failed_precondition(format!("app: {error}")),
                AppError::Store(error) => unavailable_status(error),
            })?)
        }
        app_record => app_record,
    };
    let Some(app) = app else {
        let message =
            format!("there is no app {:?} in namespace {:?}; create it, or a job in it", hello.app, namespace.name);
        return Err(Status::failed_precondition(message));
    };
    // The metrics show executors with the name of their namespace, which is recorded here.
    shared.definitions.namespaces.of(namespace.id, &namespace.name);
    let id = ExecutorId::new(hello.incarnation);
    check_incarnation(shared, id, &hello)?;
    let now = shared.clock.now();
    shared.registry.rows.admit((app.id, access.token, id), &hello, now, |id| shared.registry.is_online(id))?;
    let lineage = proof::lineage(shared, app.id, &hello).await.map_err(unavailable_status)?;
    let predecessor = lineage.first().copied();
    let declared_set = DeclaredSet::new(&hello.declared);
    let process = host_process::find_living(hello.process.as_ref());
    let has_handler = |info: &v1::HandlerInfo| hello.handlers.contains(&info.name);
    let infos = hello.handler_infos.into_iter().filter(has_handler).map(|info| (info.name, info.params_schema));
    let params_schemas = shared.registry.schemas.of_executor(app.id, &hello.name, infos);
    let labels: BTreeMap<String, String> = hello.labels.into_iter().collect();
    let record = ExecutorRecord {
        id,
        namespace: namespace.id,
        app: app.id,
        name: hello.name.clone(),
        predecessor,
        sdk_version: hello.sdk_version.clone(),
        labels: json_object(&labels),
        weight: hello.weight,
        slots: hello.slots,
        handlers: json_array(&hello.handlers),
        secret_hash: proof::secret_hash(&hello.secret),
        first_seen_at: now,
        last_seen_at: now,
    };
    let online_executor = OnlineExecutor {
        id,
        namespace: namespace.id,
        app: app.id,
        app_name: app.name,
        name: hello.name,
        labels,
        weight: hello.weight,
        slots: hello.slots,
        ahead_max: Duration::from_millis(hello.ahead_max_ms.into()),
        running: 0,
        handlers: hello.handlers,
        params_schemas,
        sdk_version: hello.sdk_version,
        connected_at: now,
        last_seen_at: now,
        is_draining: false,
        unanswered: None,
        avoided_until: None,
        hello_number: hello.hello_number,
    };
    let attempt_keys = |refs: Vec<v1::RunRef>| refs.into_iter().map(|r| (RunId::new(r.run_id), r.attempt)).collect();
    let starts = StartReports::of(&hello.held, (now, shared.clock.boot_micros()));
    let (held_runs, finished_runs, hello_number) =
        (attempt_keys(hello.held), attempt_keys(hello.finished), hello.hello_number);
    let report = Report { held_runs, finished_runs, starts, predecessor, lineage: lineage.into() };
    Ok(AdmittedExecutor { online_executor, record, report, declared_set, process, hello_number })
}

/// Refuses an executor whose certificate does not name its app and itself. The certificate names both in one DNS name, `NAME.APP.NAMESPACE`
/// or `*.APP.NAMESPACE` for any executor of the app, or in two, `APP` or `APP.NAMESPACE` together with `NAME`.
fn check_certificate(names: &[String], hello: &v1::Hello) -> Result<(), Status> {
    let v1::Hello { namespace, app, name, .. } = hello;
    let has_name = |wanted: &str| names.iter().any(|name| name == wanted);
    let app_domain = format!("{app}.{namespace}");
    let has_app = has_name(&app_domain) || (has_name(app) && app != name);
    if has_name(&format!("{name}.{app_domain}")) || has_name(&format!("*.{app_domain}")) || (has_app && has_name(name))
    {
        return Ok(());
    }
    let names_text: String = format!("{names:?}").chars().take(500).collect();
    Err(Status::permission_denied(format!(
        "the client certificate is made out to {names_text}, and not to executor {name:?} of app {app:?}: it needs the DNS name \
         {name}.{app_domain} or *.{app_domain}, or both {app_domain} and {name}"
    )))
}

/// Refuses other protocol versions: an executor that does not answer fences would block recovery until it is declared lost.
fn check_protocol(protocol: u32) -> Result<(), Status> {
    let advice = match protocol.cmp(&PROTOCOL) {
        Ordering::Equal => return Ok(()),
        Ordering::Less => "older than this server's; update the executor's SDK",
        Ordering::Greater => "newer than this server's; update the server first",
    };
    Err(Status::failed_precondition(format!(
        "protocol: this executor speaks version {protocol}, {advice} ({PROTOCOL})"
    )))
}

/// Refuses an incarnation that is online, because two live processes with one incarnation id would settle each other's runs. A stream with a recent
/// heartbeat is live. A stale stream is replaced, unless the executor has not closed it. In that case the executor may have received runs on it
/// since the hello was made; the hello lacks these runs, and they would count as not received.
fn check_incarnation(shared: &Shared, id: ExecutorId, hello: &v1::Hello) -> Result<(), Status> {
    if hello.connected_nodes.contains(&shared.membership.token().node.get()) {
        return Err(Status::already_exists("the executor is connected to this server by another URL"));
    }
    let Some(online_executor) = shared.registry.get(id) else { return Ok(()) };
    let is_same_executor = online_executor.name == hello.name && online_executor.app_name == hello.app;
    let was_heard_lately =
        online_executor.last_seen_at + shared.config.heartbeat.saturating_mul(2) > shared.clock.now();
    if is_same_executor && !was_heard_lately {
        return Ok(());
    }
    // The message is the same for executors of every app: a token must not reveal other apps.
    Err(Status::already_exists("another executor is online with this incarnation"))
}

fn json_object(labels: &BTreeMap<String, String>) -> String {
    serde_json::to_string(labels).unwrap_or_else(|_| "{}".to_owned())
}

fn json_array(handlers: &[String]) -> String {
    serde_json::to_string(handlers).unwrap_or_else(|_| "[]".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_fits_the_app_and_the_name() {
        let hello = |app: &str, name: &str| v1::Hello {
            namespace: "default".to_owned(),
            app: app.to_owned(),
            name: name.to_owned(),
            ..v1::Hello::default()
        };
        let billing = hello("billing", "b1");
        for (names, hello, wanted) in [
            (&["b1.billing.default"][..], &billing, true),
            (&["*.billing.default"], &billing, true),
            (&["billing.default", "b1"], &billing, true),
            (&["b1", "billing"], &billing, true),
            // Only the app, only the name, another app, another namespace.
            (&["billing"], &billing, false),
            (&["billing.default"], &billing, false),
            (&["b1"], &billing, false),
            (&["b1", "files"], &billing, false),
            (&["b2.billing.default"], &billing, false),
            (&["*.billing.other"], &billing, false),
            (&["*.files.default"], &billing, false),
            (&["b1", "billing.other"], &billing, false),
            (&[], &billing, false),
            // One name cannot be both.
            (&["files"], &hello("files", "files"), false),
            (&["files", "files.default"], &hello("files", "files"), true),
        ] {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            let found = check_certificate(&names, hello);
            assert_eq!(found.is_ok(), wanted, "{names:?}");
            assert!(found.is_ok() || found.unwrap_err().message().contains("is made out to"));
        }
    }
}
