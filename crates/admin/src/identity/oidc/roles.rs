//! Maps the groups in a provider's token to roles here: `ops=operator:default/billing`.

use std::fmt;
use std::str::FromStr;

use rondel_core::access::{Grant, Role};
use rondel_core::name;
use rondel_store::{Store, StoreError};

/// A role at a place, by names: `admin`, `operator:NAMESPACE`, `editor:NAMESPACE/APP`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoleAt {
    role: Role,
    namespace: Option<String>,
    app: Option<String>,
}

impl FromStr for RoleAt {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (role, place) = match text.split_once(':') {
            Some((role, place)) => (role, Some(place)),
            None => (text, None),
        };
        let checked_role: Role = role.parse()?;
        if checked_role == Role::Executor {
            return Err("executor is a role for tokens, not for users".to_owned());
        }
        let (namespace, app) = match place.map(|place| place.split_once('/').unwrap_or((place, ""))) {
            Some((namespace, app)) => (Some(namespace), (!app.is_empty()).then_some(app)),
            None => (None, None),
        };
        for name in namespace.iter().chain(&app) {
            name::check(name)?;
        }
        Ok(Self { role: checked_role, namespace: namespace.map(str::to_owned), app: app.map(str::to_owned) })
    }
}

impl fmt::Display for RoleAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.role.as_str())?;
        if let Some(namespace) = &self.namespace {
            write!(f, ":{namespace}")?;
        }
        if let Some(app) = &self.app {
            write!(f, "/{app}")?;
        }
        Ok(())
    }
}

/// A group, and the role that it gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupRole {
    group: String,
    role: RoleAt,
}

impl FromStr for GroupRole {
    type Err = String;

    /// Splits at the last `=`, because names of groups may contain `=`, as in LDAP.
    fn from_str(text: &str) -> Result<Self, String> {
        let (group, role) = text.rsplit_once('=').filter(|(group, _)| !group.is_empty()).ok_or_else(|| {
            format!("{text:?} is not of the form GROUP=ROLE, GROUP=ROLE:NAMESPACE or GROUP=ROLE:NAMESPACE/APP")
        })?;
        let role = role.parse().map_err(|sentence: String| format!("{text:?}: {sentence}"))?;
        Ok(Self { group: group.to_owned(), role })
    }
}

impl fmt::Display for GroupRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.group, self.role)
    }
}

/// The roles that these groups give. A place that does not exist gives no role, and is logged.
pub(super) async fn grants(
    store: &dyn Store,
    group_roles: &[GroupRole],
    groups: &[String],
) -> Result<Vec<Grant>, StoreError> {
    let mut grants = Vec::new();
    for group_role in group_roles.iter().filter(|group_role| groups.contains(&group_role.group)) {
        match grant(store, &group_role.role).await? {
            Some(grant) => grants.push(grant),
            None => {
                tracing::warn!(group = group_role.group, role = %group_role.role, "a group gives a role at a place that does not exist")
            }
        }
    }
    grants.sort_unstable();
    grants.dedup();
    Ok(grants)
}

async fn grant(store: &dyn Store, role_at: &RoleAt) -> Result<Option<Grant>, StoreError> {
    let Some(namespace) = &role_at.namespace else { return Ok(Some(Grant::everywhere(role_at.role))) };
    let Some(namespace) = store.namespace(namespace).await? else { return Ok(None) };
    let Some(app) = &role_at.app else {
        return Ok(Some(Grant { role: role_at.role, namespace: Some(namespace.id), app: None }));
    };
    let app = store.app(namespace.id, app).await?;
    Ok(app.map(|app| Grant { role: role_at.role, namespace: Some(namespace.id), app: Some(app.id) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_of_groups_are_parsed() {
        for text in ["ops=admin", "CN=ops,OU=x=viewer:default", "a b=editor:default/billing"] {
            assert_eq!(text.parse::<GroupRole>().unwrap().to_string(), text);
        }
        for (text, part) in [
            ("ops", "GROUP=ROLE"),
            ("=admin", "GROUP=ROLE"),
            ("ops=root", "root"),
            ("ops=executor:default/billing", "tokens"),
            ("ops=viewer:", "name"),
            ("ops=viewer:Default", "Default"),
        ] {
            let refused = text.parse::<GroupRole>().unwrap_err();
            assert!(refused.contains(part), "{text}: {refused}");
        }
    }
}
