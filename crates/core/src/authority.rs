//! Which caller may view and change accounts, sign-ins and tokens. No caller may manage an account, a sign-in or a token that
//! has more rights than the caller. A token often has fewer rights than its account, and may then not manage the account's
//! sign-ins and stronger tokens. No token may change how its own account signs in.

use crate::access::{Grant, Permission, Rights};
use crate::id::AccountId;

/// The caller of a request about accounts, sign-ins or tokens.
#[derive(Clone, Copy, Debug)]
pub struct Actor<'a> {
    /// What it may do now.
    pub rights: &'a Rights,
    /// The account behind it; `None` for a token of the server.
    pub account: Option<AccountId>,
    /// Whether it acts by a token: in an API call, or in a sign-in that a token began.
    pub is_token: bool,
}

/// The token that a request reads, rotates or revokes.
#[derive(Clone, Copy, Debug)]
pub struct TokenTarget<'a> {
    /// The account that it belongs to; `None` for a token of the server.
    pub owner: Option<AccountId>,
    /// Whether it is for executors.
    pub is_executor: bool,
    pub grants: &'a [Grant],
}

impl Actor<'_> {
    /// Whether it may read, rotate and revoke a token. An account may manage its own tokens; a token may manage the tokens of
    /// its account whose grants it covers. An admin of a place may manage the executor tokens of that place. An admin everywhere
    /// may manage all tokens.
    ///
    /// ```
    /// use rondel_core::AccountId;
    /// use rondel_core::access::{Grant, Rights, Role};
    /// use rondel_core::authority::{Actor, TokenTarget};
    ///
    /// let (viewer, admin) = ([Grant::everywhere(Role::Viewer)], [Grant::everywhere(Role::Admin)]);
    /// let account = Some(AccountId::new(7));
    /// let rights = Rights::new(viewer.to_vec()).within(admin.to_vec());
    /// let token = Actor { rights: &rights, account, is_token: true };
    /// let target = |grants| TokenTarget { owner: account, is_executor: false, grants };
    /// assert!(token.may_manage_token(target(&viewer)) && !token.may_manage_token(target(&admin)));
    /// assert!(Actor { is_token: false, ..token }.may_manage_token(target(&admin)));
    /// ```
    #[must_use]
    pub fn may_manage_token(&self, target: TokenTarget<'_>) -> bool {
        if target.owner.is_some() && target.owner == self.account {
            // Both tokens are limited by the grants of the same account, so the comparison leaves out those grants.
            let own_rights = Rights::new(self.rights.grants().to_vec());
            return !self.is_token || target.grants.iter().all(|grant| own_rights.covers(grant));
        }
        let is_of_executors = target.is_executor && target.owner.is_none() && !target.grants.is_empty();
        self.rights.allow_somewhere(Permission::Cluster) || (is_of_executors && self.covers(target.grants))
    }

    /// Whether it may see and end the sign-ins of its own account. A token may do so only if it covers all grants of the
    /// account, because a sign-in can do all that the account can.
    #[must_use]
    pub fn may_manage_sign_ins(&self, account_grants: &[Grant]) -> bool {
        !self.is_token || self.covers(account_grants)
    }

    /// Whether it may change how an account signs in: its password, or a link that signs in to the account. A token may not do so for its
    /// own account: otherwise the token's holder could sign in, and have all rights of the account.
    #[must_use]
    pub fn may_change_sign_in_of(&self, account: AccountId) -> bool {
        !self.is_token || self.account != Some(account)
    }

    fn covers(&self, grants: &[Grant]) -> bool {
        grants.iter().all(|grant| self.rights.covers(grant))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Role;
    use crate::id::{AppId, NamespaceId};

    const OWN: AccountId = AccountId::new(1);
    const OTHER: AccountId = AccountId::new(2);

    fn at(role: Role, namespace: i64) -> Grant {
        Grant { role, namespace: Some(NamespaceId::new(namespace)), app: None }
    }

    #[track_caller]
    fn check(actor: Actor<'_>, owner: Option<AccountId>, grants: &[Grant], expected: bool) {
        for is_executor in [false, true] {
            let target = TokenTarget { owner, is_executor, grants };
            assert_eq!(actor.may_manage_token(target), expected, "{actor:?} {target:?}");
        }
    }

    #[test]
    fn a_token_has_authority_over_tokens_that_it_covers() {
        let account = vec![Grant::everywhere(Role::Admin)];
        let limited = Rights::new(vec![at(Role::Editor, 1)]).within(account.clone());
        let token = Actor { rights: &limited, account: Some(OWN), is_token: true };
        for (grants, expected) in [
            (vec![at(Role::Viewer, 1)], true),
            (vec![at(Role::Editor, 1)], true),
            (vec![at(Role::Admin, 1)], false),
            (vec![at(Role::Viewer, 2)], false),
            (vec![at(Role::Viewer, 1), at(Role::Viewer, 2)], false),
            (account.clone(), false),
        ] {
            check(token, Some(OWN), &grants, expected);
            check(Actor { is_token: false, ..token }, Some(OWN), &grants, true);
            check(token, Some(OTHER), &grants, false);
        }
        assert!(!token.may_manage_sign_ins(&account) && token.may_manage_sign_ins(&[at(Role::Viewer, 1)]));
        assert!(Actor { is_token: false, ..token }.may_manage_sign_ins(&account));
        assert!(!token.may_change_sign_in_of(OWN) && token.may_change_sign_in_of(OTHER));
        assert!(Actor { is_token: false, ..token }.may_change_sign_in_of(OWN));
    }

    #[test]
    fn a_token_keeps_authority_over_equals_when_its_account_loses_roles() {
        let reduced = Rights::new(vec![at(Role::Editor, 1)]).within(vec![at(Role::Viewer, 1)]);
        let token = Actor { rights: &reduced, account: Some(OWN), is_token: true };
        check(token, Some(OWN), &[at(Role::Editor, 1)], true);
        check(token, Some(OWN), &[at(Role::Admin, 1)], false);
    }

    #[test]
    fn tokens_of_executors_belong_to_the_admins_of_their_place() {
        let places = [Grant { role: Role::Executor, namespace: Some(NamespaceId::new(1)), app: Some(AppId::new(5)) }];
        for (grant, expected) in [
            (at(Role::Admin, 1), true),
            (at(Role::Editor, 1), false),
            (at(Role::Admin, 2), false),
            (Grant::everywhere(Role::Admin), true),
        ] {
            let rights = Rights::new(vec![grant]);
            let actor = Actor { rights: &rights, account: Some(OWN), is_token: true };
            let executors = |grants| TokenTarget { owner: None, is_executor: true, grants };
            assert_eq!(actor.may_manage_token(executors(&places)), expected, "{grant:?}");
            assert_eq!(actor.may_manage_token(executors(&[])), grant == Grant::everywhere(Role::Admin), "{grant:?}");
        }
    }

    /// Requests about users need [`Permission::Cluster`], and no account or token has more rights than a caller with that permission.
    #[test]
    fn an_admin_everywhere_covers_everything() {
        let everything = Rights::new(vec![Grant::everywhere(Role::Admin)]);
        let limited = everything.clone().within(vec![Grant::everywhere(Role::Editor)]);
        assert!(everything.allow_somewhere(Permission::Cluster) && !limited.allow_somewhere(Permission::Cluster));
        for role in Role::ALL {
            assert!(everything.covers(&Grant::everywhere(*role)) && everything.covers(&at(*role, 3)), "{role}");
        }
    }
}
