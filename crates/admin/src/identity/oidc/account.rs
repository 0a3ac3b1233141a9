//! The account of a user whom the provider has authenticated: the account whose name is the user's email address.

use rondel_core::access::Grant;
use rondel_core::{AccountId, Timestamp, name};
use rondel_store::Store;
use rondel_store::access::{Account, AccountChange, AccountChanged, ProviderLink};

use super::provider::Identity;
use super::{OidcConfig, OidcError, Refusal, roles};

/// Maximum length of a display name, in characters.
const DISPLAY_NAME_LEN_MAX: usize = 100;

/// The account of a user who signs in, and the changes to store for it. The caller writes the audit entry before it stores them.
#[derive(Clone, Debug)]
pub struct AccountUpdate {
    /// The account, with the changes.
    pub account: Account,
    /// Whether the account is to be created.
    pub is_new: bool,
    /// Whether the account is to be linked to the provider: it has no password, and signs in through the provider for the first time.
    pub links_to_provider: bool,
    /// The account's earlier roles, if the user's groups give it other roles; `None` for a new account.
    pub grants_before: Option<Vec<Grant>>,
}

/// Result of storing an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredUpdate {
    /// The account that signs in.
    pub account: AccountId,
    /// Whether the account was created, or received its new roles. False if another server created the account first, or if the new roles
    /// would leave no account with all rights.
    pub is_changed: bool,
}

/// Finds or prepares the account of a user whom the provider has authenticated, with the changes that the sign-in makes.
pub(super) async fn resolve(
    store: &dyn Store,
    config: &OidcConfig,
    identity: &Identity,
    id: i64,
    now: Timestamp,
) -> Result<AccountUpdate, OidcError> {
    let email = &identity.email;
    name::check_account(email).map_err(|_| Refusal::NotAName(email.clone()))?;
    let mut update = match store.account_by_name(email).await? {
        Some(account) => AccountUpdate {
            links_to_provider: account.provider_linked_at.is_none(),
            account,
            is_new: false,
            grants_before: None,
        },
        None if config.create_accounts => AccountUpdate {
            account: new_account(identity, id, now),
            is_new: true,
            links_to_provider: false,
            grants_before: None,
        },
        None => return Err(Refusal::NoAccount(email.clone()).into()),
    };
    if update.account.disabled {
        return Err(Refusal::Disabled(email.clone()).into());
    }
    // An account's name may have been chosen freely, so an equal name does not prove that the account belongs to this user.
    if update.links_to_provider && update.account.password.is_some() {
        return Err(Refusal::NotLinked(email.clone()).into());
    }
    if update.links_to_provider {
        update.account.provider_linked_at = Some(now);
    }
    if !config.group_roles.is_empty() {
        // The groups decide all roles of the account.
        let granted_roles = roles::grants(store, &config.group_roles, &identity.groups).await?;
        if update.account.grants != granted_roles {
            let grants_before = std::mem::replace(&mut update.account.grants, granted_roles);
            update.grants_before = (!update.is_new).then_some(grants_before);
        }
    }
    Ok(update)
}

/// A new account has no role. Administrators or the user's groups assign its roles.
fn new_account(identity: &Identity, id: i64, now: Timestamp) -> Account {
    let display_name = identity.display_name.as_deref().filter(|name| !name.contains(char::is_control));
    Account {
        id: AccountId::new(id),
        name: identity.email.clone(),
        display_name: display_name.unwrap_or(&identity.email).chars().take(DISPLAY_NAME_LEN_MAX).collect(),
        password: None,
        disabled: false,
        created_at: now,
        password_changed_at: None,
        provider_linked_at: Some(now),
        grants: Vec::new(),
    }
}

impl AccountUpdate {
    /// Whether the account is to be created, or to get other roles.
    #[must_use]
    pub const fn changes_account(&self) -> bool {
        self.is_new || self.grants_before.is_some()
    }

    /// Stores the changes.
    ///
    /// # Errors
    /// The account was deleted, or created meanwhile with a password, or the store fails.
    pub async fn save(self, store: &dyn Store) -> Result<StoredUpdate, OidcError> {
        let mut is_changed = self.changes_account();
        let Self { account, is_new, links_to_provider, grants_before } = self;
        let no_account = || Refusal::NoAccount(account.name.clone());
        if is_new && !store.create_account(&account).await? {
            // Another tab, another server or an administrator created the account first; the administrator may have set a password. The next
            // sign-in checks the roles again.
            let stored_account = store.account_by_name(&account.name).await?.ok_or_else(no_account)?;
            if stored_account.password.is_some() && stored_account.provider_linked_at.is_none() {
                return Err(Refusal::NotLinked(stored_account.name).into());
            }
            return Ok(StoredUpdate { account: stored_account.id, is_changed: false });
        }
        if let Some(linked_at) = account.provider_linked_at.filter(|_| links_to_provider) {
            let change =
                AccountChange { provider_link: Some(ProviderLink::Since(linked_at)), ..AccountChange::default() };
            if store.change_account(account.id, &change).await? == AccountChanged::NotFound {
                return Err(no_account().into());
            }
        }
        if grants_before.is_some() {
            let change = AccountChange { grants: Some(account.grants.clone()), ..AccountChange::default() };
            match store.change_account(account.id, &change).await? {
                AccountChanged::Done => {}
                AccountChanged::NotFound => return Err(no_account().into()),
                AccountChanged::LastAdmin => {
                    is_changed = false;
                    let name = &account.name;
                    tracing::warn!(
                        name,
                        "the user's groups would leave no account with all rights; the roles are not changed"
                    );
                }
            }
        }
        Ok(StoredUpdate { account: account.id, is_changed })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rondel_core::access::Role;
    use rondel_store::access::{KeptAccess, PasswordHash};
    use rondel_store::{Accounts as _, MemStore};

    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_790_000_000);

    fn config(create_accounts: bool, group_roles: &[&str]) -> OidcConfig {
        OidcConfig {
            issuer: String::new(),
            client_id: String::new(),
            client_secret_file: None,
            redirect_url: String::new(),
            scopes: Vec::new(),
            groups_claim: "groups".to_owned(),
            group_roles: group_roles.iter().map(|text| text.parse().unwrap()).collect(),
            create_accounts,
        }
    }

    fn ann(groups: &[&str]) -> Identity {
        Identity {
            email: "ann@example.com".to_owned(),
            display_name: Some("Ann".to_owned()),
            groups: groups.iter().map(|&group| group.to_owned()).collect(),
        }
    }

    async fn refusal_of(store: &MemStore, config: &OidcConfig, identity: &Identity) -> Refusal {
        match resolve(store, config, identity, 8, NOW).await.unwrap_err() {
            OidcError::Refused(refusal) => refusal,
            other => unreachable!("{other}"),
        }
    }

    #[tokio::test]
    async fn an_account_is_there_or_is_made_without_a_role() {
        let store = MemStore::new(Arc::new(|| NOW));
        let email = ann(&[]).email;
        assert_eq!(refusal_of(&store, &config(false, &[]), &ann(&[])).await, Refusal::NoAccount(email.clone()));
        let made = resolve(&store, &config(true, &[]), &ann(&["ops"]), 7, NOW).await.unwrap();
        let stored = |is_changed| StoredUpdate { account: AccountId::new(7), is_changed };
        assert_eq!(made.clone().save(&store).await.unwrap(), stored(true));
        let late = AccountUpdate { account: Account { id: AccountId::new(8), ..made.account.clone() }, ..made.clone() };
        assert_eq!(late.save(&store).await.unwrap(), stored(false), "another tab was faster");
        let bob = Account { id: AccountId::new(9), name: "bob@example.com".to_owned(), ..made.account.clone() };
        let password = Some(PasswordHash::new("$argon2id$".to_owned()));
        let by_admin = Account { id: AccountId::new(10), password, provider_linked_at: None, ..bob.clone() };
        assert!(store.create_account(&by_admin).await.unwrap());
        let late = AccountUpdate { account: bob, ..made.clone() };
        assert!(matches!(late.save(&store).await, Err(OidcError::Refused(Refusal::NotLinked(_)))));
        assert!(made.is_new && made.account.grants.is_empty() && made.account.password.is_none());
        assert_eq!(made.account.display_name, "Ann");
        let again = resolve(&store, &config(true, &[]), &ann(&[]), 8, NOW).await.unwrap();
        assert!(!again.is_new && again.account.id == made.account.id);
        let lock = AccountChange { disabled: Some(true), ..AccountChange::default() };
        store.change_account(made.account.id, &lock).await.unwrap();
        assert_eq!(refusal_of(&store, &config(true, &["ops=admin"]), &ann(&["ops"])).await, Refusal::Disabled(email));
        let strange = Identity { email: "Ä@example.com".to_lowercase(), ..ann(&[]) };
        assert!(matches!(refusal_of(&store, &config(true, &[]), &strange).await, Refusal::NotAName(_)));
    }

    #[tokio::test]
    async fn an_account_with_a_password_needs_a_link() {
        let store = MemStore::new(Arc::new(|| NOW));
        let config = config(true, &[]);
        let came = async || {
            let update = resolve(&store, &config, &ann(&[]), 8, NOW).await.unwrap();
            update.save(&store).await.unwrap().account
        };
        let password = Some(PasswordHash::new("$argon2id$".to_owned()));
        let account = Account { password, provider_linked_at: None, ..new_account(&ann(&[]), 7, NOW) };
        assert!(store.create_account(&account).await.unwrap());
        assert_eq!(refusal_of(&store, &config, &ann(&[])).await, Refusal::NotLinked(account.name.clone()));
        let link = |link| AccountChange { provider_link: Some(link), ..AccountChange::default() };
        store.change_account(account.id, &link(ProviderLink::Since(NOW))).await.unwrap();
        assert_eq!(came().await, account.id);
        store.change_account(account.id, &link(ProviderLink::None)).await.unwrap();
        assert_eq!(refusal_of(&store, &config, &ann(&[])).await, Refusal::NotLinked(account.name.clone()));
        // An account that signed in through the provider before it had a password can still do so after it has set one.
        store.delete_account(account.id).await.unwrap();
        assert!(store.create_account(&Account { password: None, ..account.clone() }).await.unwrap());
        assert_eq!(came().await, account.id);
        let password = PasswordHash::new("$argon2id$own".to_owned());
        store.set_password(account.id, &password, KeptAccess::default(), NOW).await.unwrap();
        assert_eq!(came().await, account.id);
    }

    #[tokio::test]
    async fn groups_give_roles_and_take_them() {
        let store = MemStore::new(Arc::new(|| NOW));
        let config = config(true, &["ops=admin", "dev=viewer", "lost=viewer:nowhere"]);
        // Signs in with these groups; returns the roles afterwards.
        let came = async |groups: &[&str]| {
            let update = resolve(&store, &config, &ann(groups), 7, NOW).await.unwrap();
            let wanted = update.account.grants.clone();
            let is_asked = update.changes_account();
            let StoredUpdate { account, is_changed } = update.save(&store).await.unwrap();
            let grants = store.account(account).await.unwrap().unwrap().grants;
            assert_eq!(is_changed, is_asked && grants == wanted, "{groups:?}");
            grants
        };
        assert_eq!(came(&["dev", "lost"]).await, [Grant::everywhere(Role::Viewer)]);
        let promoted = resolve(&store, &config, &ann(&["ops"]), 7, NOW).await.unwrap();
        assert_eq!(promoted.grants_before, Some(vec![Grant::everywhere(Role::Viewer)]));
        assert_eq!(came(&["ops"]).await, [Grant::everywhere(Role::Admin)]);
        assert_eq!(resolve(&store, &config, &ann(&["ops"]), 7, NOW).await.unwrap().grants_before, None);
        assert_eq!(came(&["dev"]).await, [Grant::everywhere(Role::Admin)], "the last one who may do everything");
        let grants = vec![Grant::everywhere(Role::Admin)];
        let other = Account { id: AccountId::new(9), name: "other".to_owned(), grants, ..promoted.account };
        assert!(store.create_account(&other).await.unwrap());
        assert!(came(&[]).await.is_empty(), "who leaves all groups loses all roles");
    }
}
