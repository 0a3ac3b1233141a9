//! Authorization: what each role permits, and where: in an app, in a namespace, or everywhere. The caller is already authenticated.

use std::collections::BTreeSet;

use crate::id::{AppId, NamespaceId};
use crate::word_enum::word_enum;

word_enum! {
    /// What a caller may do in an app, in a namespace, or everywhere.
    Role {
        /// May view, and nothing else.
        Viewer = "viewer",
        /// May also start, cancel, pause and resume.
        Operator = "operator",
        /// May also define, change and delete.
        Editor = "editor",
        /// May do everything there. An admin everywhere also manages users, namespaces and the cluster.
        Admin = "admin",
        /// May open an executor's session of the app, and nothing else.
        Executor = "executor",
    }
}

/// Prefix of every token, so that secret scanners and readers recognise a token.
pub const TOKEN_PREFIX: &str = "rondel_";
/// How many characters at the beginning of a token are stored in plain text, so that its owner can recognise it.
const TOKEN_SHOWN_LEN: usize = 17;

/// The beginning of a token: enough for its owner to recognise it. A token without [`TOKEN_PREFIX`] was chosen by a user; only its first
/// two characters are returned.
///
/// ```
/// use rondel_core::access::token_beginning;
///
/// assert_eq!(token_beginning("rondel_exec_0123456789abcdef"), "rondel_exec_01234");
/// assert_eq!(token_beginning("hunter2hunter2hunter2"), "hu");
/// ```
#[must_use]
pub fn token_beginning(token: &str) -> &str {
    let len = if token.starts_with(TOKEN_PREFIX) { TOKEN_SHOWN_LEN } else { 2 };
    token.char_indices().nth(len).map_or(token, |(end, _)| &token[..end])
}

/// Whether a text has the form of a generated token: it begins with [`TOKEN_PREFIX`], and its last part has at least 16
/// hexadecimal digits. Callers use this where the name of a file is expected: an error message must not repeat a token that
/// was given by mistake.
///
/// ```
/// use rondel_core::access::is_token;
///
/// assert!(is_token("rondel_exec_0123456789abcdef0123456789abcdef"));
/// assert!(!is_token("/etc/rondel_exec_0123456789abcdef0123456789abcdef") && !is_token("rondel_billing.token"));
/// ```
#[must_use]
pub fn is_token(text: &str) -> bool {
    let Some(random_part) = text.strip_prefix(TOKEN_PREFIX) else { return false };
    let secret = random_part.rsplit('_').next().unwrap_or_default();
    secret.len() >= 16 && secret.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Names that only tokens of the server itself may have. Changes that a server makes are recorded under these names.
pub const SERVER_TOKEN_NAMES: [&str; 3] = ["admin", "system", "server"];

/// Whether a name is one of [`SERVER_TOKEN_NAMES`], in upper or lower case.
///
/// ```
/// use rondel_core::access::is_reserved_token_name;
///
/// assert!(is_reserved_token_name("Admin") && !is_reserved_token_name("admin-ci"));
/// ```
#[must_use]
pub fn is_reserved_token_name(name: &str) -> bool {
    SERVER_TOKEN_NAMES.iter().any(|reserved| name.trim().eq_ignore_ascii_case(reserved))
}

/// The permission that a request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Permission {
    /// To view and change the caller's own account. Every signed-in caller may.
    SignedIn,
    /// To view the objects of a namespace or an app.
    View,
    /// To view everywhere: needed for answers that cover all namespaces.
    ViewEverywhere,
    /// To start, cancel, pause and resume jobs that others have defined.
    Operate,
    /// To define, change and delete.
    Edit,
    /// To view and change the settings that only admins of a namespace control, such as its failure webhook and its alert channels.
    Admin,
    /// To view and change objects outside of namespaces: users, the namespaces themselves, the audit log, the cluster.
    Cluster,
}

impl Role {
    /// Whether the role permits this at the place for which it is granted. For [`Permission::ViewEverywhere`] and
    /// [`Permission::Cluster`], the place itself must be checked too.
    #[must_use]
    pub const fn permits(self, permission: Permission) -> bool {
        match permission {
            Permission::SignedIn => true,
            Permission::View | Permission::ViewEverywhere => !matches!(self, Self::Executor),
            Permission::Operate => matches!(self, Self::Operator | Self::Editor | Self::Admin),
            Permission::Edit => matches!(self, Self::Editor | Self::Admin),
            Permission::Admin | Permission::Cluster => matches!(self, Self::Admin),
        }
    }

    /// Whether a caller with this role may do all that `other` may at the same place.
    #[must_use]
    pub const fn covers(self, other: Self) -> bool {
        match other {
            Self::Viewer => self.permits(Permission::View),
            Self::Operator => self.permits(Permission::Operate),
            Self::Editor => self.permits(Permission::Edit),
            Self::Admin => self.permits(Permission::Admin),
            Self::Executor => matches!(self, Self::Executor | Self::Admin),
        }
    }
}

/// A role at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Grant {
    pub role: Role,
    /// The namespace; `None` for every namespace.
    pub namespace: Option<NamespaceId>,
    /// The app of that namespace; `None` for every app.
    pub app: Option<AppId>,
}

impl Grant {
    #[must_use]
    pub const fn everywhere(role: Role) -> Self {
        Self { role, namespace: None, app: None }
    }

    const fn is_everywhere(&self) -> bool {
        self.namespace.is_none() && self.app.is_none()
    }

    fn holds_at(&self, namespace: NamespaceId, app: Option<AppId>) -> bool {
        let is_in_namespace = self.namespace.is_none_or(|own_namespace| own_namespace == namespace);
        is_in_namespace && self.app.is_none_or(|own_app| app == Some(own_app))
    }
}

/// The apps of a namespace for which a caller has a permission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PermittedApps {
    /// All apps of the namespace, and the objects that belong to the namespace itself.
    All,
    /// Only these apps; an empty set means none.
    Apps(BTreeSet<AppId>),
}

impl PermittedApps {
    /// Whether it includes no app.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        matches!(self, Self::Apps(apps) if apps.is_empty())
    }

    /// Whether it includes this app.
    #[must_use]
    pub fn has(&self, app: AppId) -> bool {
        match self {
            Self::All => true,
            Self::Apps(apps) => apps.contains(&app),
        }
    }

    fn intersect(self, other: Self) -> Self {
        match (self, other) {
            (Self::All, apps) | (apps, Self::All) => apps,
            (Self::Apps(a), Self::Apps(b)) => Self::Apps(a.intersection(&b).copied().collect()),
        }
    }
}

/// All that a caller may do. Its grants must permit an action and, if there is a limit, the limit must permit it as well. The
/// limit of a token is the grants of its owner.
///
/// ```
/// use rondel_core::access::{Grant, Permission, Rights, Role};
/// use rondel_core::{AppId, NamespaceId};
///
/// let (here, there) = (NamespaceId::new(1), NamespaceId::new(2));
/// let rights = Rights::new(vec![Grant { role: Role::Operator, namespace: Some(here), app: Some(AppId::new(7)) }]);
/// assert!(rights.allow(Permission::Operate, here, Some(AppId::new(7))));
/// assert!(!rights.allow(Permission::Operate, here, Some(AppId::new(8))));
/// assert!(!rights.allow(Permission::View, there, Some(AppId::new(7))));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    grants: Vec<Grant>,
    limit: Option<Vec<Grant>>,
}

impl Rights {
    /// Rights with these grants, without a limit.
    #[must_use]
    pub const fn new(grants: Vec<Grant>) -> Self {
        Self { grants, limit: None }
    }

    /// Limits these rights: an action must then be permitted by both the grants and `limit`.
    #[must_use]
    pub fn within(self, limit: Vec<Grant>) -> Self {
        Self { limit: Some(limit), ..self }
    }

    fn each_list_permits(&self, mut has_grant: impl FnMut(&[Grant]) -> bool) -> bool {
        has_grant(&self.grants) && self.limit.as_deref().is_none_or(has_grant)
    }

    /// Whether this is permitted for an app of a namespace or, without an app, for the objects that belong to the namespace itself. A
    /// caller who may view at least one app of the namespace may also view those objects. The place does not matter for
    /// [`Permission::SignedIn`], [`Permission::ViewEverywhere`] and [`Permission::Cluster`].
    #[must_use]
    pub fn allow(&self, permission: Permission, namespace: NamespaceId, app: Option<AppId>) -> bool {
        if matches!(permission, Permission::SignedIn | Permission::ViewEverywhere | Permission::Cluster) {
            return self.allow_somewhere(permission);
        }
        let is_namespace_view = app.is_none() && permission == Permission::View;
        self.each_list_permits(|grants| {
            grants.iter().any(|grant| {
                let app_to_check = if is_namespace_view { grant.app } else { app };
                grant.role.permits(permission) && grant.holds_at(namespace, app_to_check)
            })
        })
    }

    /// Whether both the grants and the limit permit this somewhere, though perhaps not at the same place. For a first check,
    /// before the requested object is known.
    #[must_use]
    pub fn allow_somewhere(&self, permission: Permission) -> bool {
        self.each_list_permits(|grants| match permission {
            Permission::SignedIn => true,
            Permission::ViewEverywhere => {
                grants.iter().any(|grant| grant.is_everywhere() && grant.role.permits(permission))
            }
            Permission::Cluster => grants.contains(&Grant::everywhere(Role::Admin)),
            _ => grants.iter().any(|grant| grant.role.permits(permission)),
        })
    }

    /// The apps of a namespace for which this is permitted.
    #[must_use]
    pub fn permitted_apps(&self, permission: Permission, namespace: NamespaceId) -> PermittedApps {
        let apps_of = |grants: &[Grant]| {
            let applies_here = |grant: &&Grant| {
                grant.role.permits(permission) && grant.namespace.is_none_or(|own_namespace| own_namespace == namespace)
            };
            let mut apps = BTreeSet::new();
            for grant in grants.iter().filter(applies_here) {
                match grant.app {
                    None => return PermittedApps::All,
                    Some(app) => apps.insert(app),
                };
            }
            PermittedApps::Apps(apps)
        };
        let own_apps = apps_of(&self.grants);
        match &self.limit {
            None => own_apps,
            Some(limit) => own_apps.intersect(apps_of(limit)),
        }
    }

    /// Whether the caller may connect as an executor of this app; without an app, as an executor of any app of the namespace,
    /// including apps that do not exist yet.
    #[must_use]
    pub fn allow_executor(&self, namespace: NamespaceId, app: Option<AppId>) -> bool {
        self.each_list_permits(|grants| {
            grants.iter().any(|grant| grant.role.covers(Role::Executor) && grant.holds_at(namespace, app))
        })
    }

    /// Whether these rights include all that a grant gives: a caller cannot grant more than it has.
    #[must_use]
    pub fn covers(&self, wanted_grant: &Grant) -> bool {
        self.each_list_permits(|grants| {
            grants.iter().any(|own_grant| {
                let covers_namespace = own_grant.namespace.is_none() || own_grant.namespace == wanted_grant.namespace;
                own_grant.role.covers(wanted_grant.role)
                    && covers_namespace
                    && (own_grant.app.is_none() || own_grant.app == wanted_grant.app)
            })
        })
    }

    /// The grants, to which the limit has not been applied.
    #[must_use]
    pub fn grants(&self) -> &[Grant] {
        &self.grants
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HERE: NamespaceId = NamespaceId::new(1);
    const THERE: NamespaceId = NamespaceId::new(2);
    const APP: AppId = AppId::new(7);
    const OTHER: AppId = AppId::new(8);

    fn grant(role: Role, namespace: Option<NamespaceId>, app: Option<AppId>) -> Rights {
        Rights::new(vec![Grant { role, namespace, app }])
    }

    #[test]
    fn a_token_is_distinguished_from_a_file_name() {
        let hex = "0123456789abcdef";
        for (text, is_one) in [
            (format!("{TOKEN_PREFIX}exec_{hex}"), true),
            (format!("{TOKEN_PREFIX}exec_{}", &hex[1..]), false),
            (format!("{TOKEN_PREFIX}exec_{hex}{hex}"), true),
            (format!("{TOKEN_PREFIX}exec_{}g", &hex[1..]), false),
            (format!("{TOKEN_PREFIX}{hex}"), true),
            (hex.to_owned(), false),
            (String::new(), false),
        ] {
            assert_eq!(is_token(&text), is_one, "{text}");
        }
    }

    #[test]
    fn roles_permit_more_and_more() {
        use Permission::{Admin, Cluster, Edit, Operate, SignedIn, View, ViewEverywhere};
        let table = [
            (Role::Viewer, vec![SignedIn, View, ViewEverywhere]),
            (Role::Operator, vec![SignedIn, View, ViewEverywhere, Operate]),
            (Role::Editor, vec![SignedIn, View, ViewEverywhere, Operate, Edit]),
            (Role::Admin, vec![SignedIn, View, ViewEverywhere, Operate, Edit, Admin, Cluster]),
            (Role::Executor, vec![SignedIn]),
        ];
        for (role, permitted) in table {
            for permission in [SignedIn, View, ViewEverywhere, Operate, Edit, Admin, Cluster] {
                let expected = permitted.contains(&permission);
                assert_eq!(role.permits(permission), expected, "{role} {permission:?}");
                assert_eq!(grant(role, None, None).allow_somewhere(permission), expected, "{role} {permission:?}");
            }
        }
    }

    #[test]
    fn a_grant_ends_at_its_namespace_and_its_app() {
        let app = grant(Role::Editor, Some(HERE), Some(APP));
        assert!(app.allow(Permission::Edit, HERE, Some(APP)));
        assert!(!app.allow(Permission::Edit, HERE, Some(OTHER)) && !app.allow(Permission::View, HERE, Some(OTHER)));
        assert!(!app.allow(Permission::View, THERE, Some(APP)) && !app.allow(Permission::View, THERE, None));
        assert!(app.allow(Permission::View, HERE, None), "calendars of the namespace may be looked at");
        assert!(!app.allow(Permission::Edit, HERE, None), "and not changed");
        assert_eq!(app.permitted_apps(Permission::View, HERE), PermittedApps::Apps([APP].into()));
        assert!(
            app.permitted_apps(Permission::Admin, HERE).is_empty()
                && app.permitted_apps(Permission::View, THERE).is_empty()
        );
        let whole = grant(Role::Admin, Some(HERE), None);
        assert!(whole.allow(Permission::Admin, HERE, None) && whole.allow(Permission::Edit, HERE, Some(OTHER)));
        assert!(!whole.allow(Permission::Cluster, HERE, None) && !whole.allow_somewhere(Permission::Cluster));
        assert!(
            !whole.allow_somewhere(Permission::ViewEverywhere),
            "what describes all namespaces is for callers who may see all"
        );
        assert_eq!(whole.permitted_apps(Permission::Edit, HERE), PermittedApps::All);
    }

    #[test]
    fn executors_are_let_in_to_their_app_alone() {
        let executor = grant(Role::Executor, Some(HERE), Some(APP));
        assert!(executor.allow_executor(HERE, Some(APP)));
        assert!(!executor.allow_executor(HERE, Some(OTHER)) && !executor.allow_executor(THERE, Some(APP)));
        assert!(!executor.allow_somewhere(Permission::View));
        assert!(!grant(Role::Editor, None, None).allow_executor(HERE, Some(APP)));
        assert!(grant(Role::Admin, None, None).allow_executor(HERE, Some(APP)));
    }

    #[test]
    fn a_token_has_no_more_than_its_owner() {
        let token = Rights::new(vec![Grant::everywhere(Role::Admin)]);
        let owner = vec![Grant { role: Role::Viewer, namespace: Some(HERE), app: Some(APP) }];
        let rights = token.clone().within(owner);
        assert!(rights.allow(Permission::View, HERE, Some(APP)) && !rights.allow(Permission::Edit, HERE, Some(APP)));
        assert!(!rights.allow(Permission::View, THERE, None) && !rights.allow_somewhere(Permission::Cluster));
        assert_eq!(rights.permitted_apps(Permission::View, HERE), PermittedApps::Apps([APP].into()));
        assert!(!token.within(Vec::new()).allow_somewhere(Permission::View));
    }

    #[test]
    fn no_caller_grants_more_than_it_has() {
        let editor = grant(Role::Editor, Some(HERE), None);
        let wanted_grant = |role, namespace, app| Grant { role, namespace, app };
        assert!(editor.covers(&wanted_grant(Role::Viewer, Some(HERE), Some(APP))));
        assert!(editor.covers(&wanted_grant(Role::Editor, Some(HERE), None)));
        assert!(!editor.covers(&wanted_grant(Role::Admin, Some(HERE), None)));
        assert!(
            !editor.covers(&wanted_grant(Role::Viewer, None, None))
                && !editor.covers(&wanted_grant(Role::Viewer, Some(THERE), None))
        );
        assert!(!editor.covers(&wanted_grant(Role::Executor, Some(HERE), Some(APP))));
        assert!(grant(Role::Admin, Some(HERE), Some(APP)).covers(&wanted_grant(Role::Executor, Some(HERE), Some(APP))));
    }

    fn any_grant() -> impl Strategy<Value = Grant> {
        let namespace = proptest::option::of((1_i64..3).prop_map(NamespaceId::new));
        let app = proptest::option::of((7_i64..9).prop_map(AppId::new));
        (0..Role::ALL.len(), namespace, app).prop_map(|(role, namespace, app)| Grant {
            role: Role::ALL[role],
            namespace,
            app: app.filter(|_| namespace.is_some()),
        })
    }

    proptest! {
        /// `permitted_apps`, which filters lists, admits exactly what `allow` permits.
        #[test]
        fn permitted_apps_and_allow_agree(
            grants in proptest::collection::vec(any_grant(), 0..4),
            limit in proptest::option::of(proptest::collection::vec(any_grant(), 0..4)),
        ) {
            let rights = Rights { grants, limit };
            for permission in [Permission::View, Permission::Operate, Permission::Edit, Permission::Admin] {
                for namespace in [HERE, THERE] {
                    let apps = rights.permitted_apps(permission, namespace);
                    for app in [APP, OTHER] {
                        prop_assert_eq!(apps.has(app), rights.allow(permission, namespace, Some(app)));
                    }
                    if apps == PermittedApps::All {
                        prop_assert!(rights.allow(permission, namespace, None));
                    }
                    if !apps.is_empty() {
                        prop_assert!(rights.allow_somewhere(permission));
                    }
                }
            }
        }

        /// A grant that the giver's rights cover permits nothing beyond these rights.
        #[test]
        fn a_covered_grant_is_no_more(own in proptest::collection::vec(any_grant(), 0..4), wanted_grant in any_grant()) {
            let (giver, given) = (Rights::new(own), Rights::new(vec![wanted_grant]));
            if giver.covers(&wanted_grant) {
                for permission in [Permission::View, Permission::Operate, Permission::Edit, Permission::Admin] {
                    for (namespace, app) in [(HERE, Some(APP)), (HERE, Some(OTHER)), (THERE, Some(APP)), (HERE, None)] {
                        prop_assert!(!given.allow(permission, namespace, app) || giver.allow(permission, namespace, app));
                    }
                }
                prop_assert!(!given.allow_somewhere(Permission::Cluster) || giver.allow_somewhere(Permission::Cluster));
            }
        }
    }
}
