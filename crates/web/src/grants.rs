//! Grants as the API shows them, with names of namespaces and apps instead of ids.

use std::collections::HashMap;

use rondel_admin::Engine;
use rondel_admin::apps::{self, AppError};
use rondel_core::access::{Grant, Role};
use rondel_core::{AppId, NamespaceId, name};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::body::refuse_value;
use crate::call::quoted_input;
use crate::caller::Caller;
use crate::problem::{Code, Problem};

/// Maximum number of grants of an account or a token.
const GRANT_COUNT_MAX: usize = 100;

/// A role and where it applies: in one app, in one namespace, or everywhere (`namespace` and `app` are null).
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Grant")]
pub(crate) struct GrantJson {
    pub(crate) role: Role,
    /// Null for every namespace.
    #[serde(default)]
    pub(crate) namespace: Option<String>,
    /// Null for every app.
    #[serde(default)]
    pub(crate) app: Option<String>,
}

/// Resolves the names in these grants, and returns the grants sorted and without duplicates. Refuses more than [`GRANT_COUNT_MAX`].
pub(crate) async fn resolve_grants(engine: &Engine, requested_grants: &[GrantJson]) -> Result<Vec<Grant>, Problem> {
    if requested_grants.len() > GRANT_COUNT_MAX {
        return Err(refuse_value(
            "/grants",
            format!("{} roles; at most {GRANT_COUNT_MAX} can be given", requested_grants.len()),
        ));
    }
    let mut grants = Vec::with_capacity(requested_grants.len());
    for (index, grant_json) in requested_grants.iter().enumerate() {
        let grant = resolve_grant(engine, grant_json).await;
        grants.push(grant.map_err(|(field, message)| refuse_value(&format!("/grants/{index}/{field}"), message))??);
    }
    grants.sort_unstable();
    grants.dedup();
    Ok(grants)
}

/// Like [`resolve_grants`], for a user. A user cannot have the role of executors.
pub(crate) async fn resolve_grants_of_user(
    engine: &Engine,
    requested_grants: &[GrantJson],
) -> Result<Vec<Grant>, Problem> {
    if let Some(index) = requested_grants.iter().position(|grant| grant.role == Role::Executor) {
        let message = "executor is a role for tokens, not for users".to_owned();
        return Err(refuse_value(&format!("/grants/{index}/role"), message));
    }
    resolve_grants(engine, requested_grants).await
}

/// The field of a grant that is refused, and why.
type Refusal = (&'static str, String);

/// Resolves the names in a grant. The outer error names the field that is refused; the inner error means that the database cannot be read.
async fn resolve_grant(engine: &Engine, requested_grant: &GrantJson) -> Result<Result<Grant, Problem>, Refusal> {
    let Some(namespace) = &requested_grant.namespace else {
        if requested_grant.app.is_some() {
            return Err(("app", "needs a namespace too: an app belongs to a namespace".to_owned()));
        }
        return Ok(Ok(Grant::everywhere(requested_grant.role)));
    };
    let namespace_record = match name::check(namespace) {
        Ok(()) => engine.store().namespace(namespace).await,
        Err(_) => Ok(None),
    };
    let namespace_record = match namespace_record {
        Ok(namespace_record) => namespace_record
            .ok_or_else(|| ("namespace", format!("there is no namespace {}", quoted_input(namespace))))?,
        Err(error) => return Ok(Err(error.into())),
    };
    let Some(app) = &requested_grant.app else {
        return Ok(Ok(Grant { role: requested_grant.role, namespace: Some(namespace_record.id), app: None }));
    };
    name::check(app).map_err(|message| ("app", message))?;
    // The first executor of an app needs a token before the app has a job, so the app is created here.
    let app_record = match requested_grant.role {
        Role::Executor => {
            let id = AppId::new(engine.new_id());
            match apps::ensure(engine.store(), id, (namespace_record.id, app), engine.now()).await {
                Ok(app) => Ok(Some(app)),
                Err(AppError::Store(error)) => Err(error),
                Err(error @ AppError::TooMany) => return Err(("app", error.to_string())),
            }
        }
        _ => engine.store().app(namespace_record.id, app).await,
    };
    match app_record {
        Ok(Some(app)) => {
            Ok(Ok(Grant { role: requested_grant.role, namespace: Some(namespace_record.id), app: Some(app.id) }))
        }
        Ok(None) => Err(("app", format!("there is no app {} in namespace {namespace}", quoted_input(app)))),
        Err(error) => Ok(Err(error.into())),
    }
}

/// Refuses grants that exceed the rights of the caller.
pub(crate) fn check_covered(caller: &Caller, grants: &[Grant]) -> Result<(), Problem> {
    match grants.iter().position(|grant| !caller.rights.covers(grant)) {
        None => Ok(()),
        Some(index) => Err(Problem::new(
            Code::Forbidden,
            format!("/grants/{index}: your own roles do not include this one, so you cannot grant it"),
        )),
    }
}

/// The names of namespaces and apps, keyed by their ids.
#[derive(Debug)]
pub(crate) struct GrantNames {
    namespaces: HashMap<NamespaceId, String>,
    apps: HashMap<AppId, String>,
}

impl GrantNames {
    /// Reads the names that these grants need.
    pub(crate) async fn read<'g>(engine: &Engine, grants: impl Iterator<Item = &'g Grant>) -> Result<Self, Problem> {
        let store = engine.store();
        let namespace_records = store.namespaces().await?;
        let namespaces = namespace_records.into_iter().map(|namespace| (namespace.id, namespace.name)).collect();
        let mut namespaces_with_apps: Vec<NamespaceId> =
            grants.filter(|grant| grant.app.is_some()).filter_map(|grant| grant.namespace).collect();
        namespaces_with_apps.sort_unstable();
        namespaces_with_apps.dedup();
        let mut apps = HashMap::new();
        for namespace in namespaces_with_apps {
            apps.extend(store.apps(namespace).await?.into_iter().map(|app| (app.id, app.name)));
        }
        Ok(Self { namespaces, apps })
    }

    /// The grants with names. A namespace or app that no longer exists is shown by its id.
    pub(crate) fn to_json(&self, grants: &[Grant]) -> Vec<GrantJson> {
        let namespace = |id: NamespaceId| self.namespaces.get(&id).cloned().unwrap_or_else(|| id.to_string());
        let app = |id: AppId| self.apps.get(&id).cloned().unwrap_or_else(|| id.to_string());
        let grant_json = |grant: &Grant| GrantJson {
            role: grant.role,
            namespace: grant.namespace.map(namespace),
            app: grant.app.map(app),
        };
        grants.iter().map(grant_json).collect()
    }
}
