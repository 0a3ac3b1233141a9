//! The authenticated caller of a request.

use rondel_admin::auth::{Principal, signature};
use rondel_admin::sign_in::SignedIn;
use rondel_core::access::{Grant, Permission, Rights, Role};
use rondel_core::authority::Actor;
use rondel_core::{AccountId, NamespaceId, SessionId, TokenId};
use rondel_store::access::{AuthMethod, TokenKind};

use crate::limits::CallerKey;

/// A caller with a valid token or session.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    name: String,
    auth_method: AuthMethod,
    namespace: Option<NamespaceId>,
    pub(crate) rights: Rights,
    /// The account that owns the token or session; `None` if no account owns it.
    pub(crate) account: Option<AccountId>,
    pub(crate) token: Option<TokenId>,
    /// The line of the caller's token: a first token and all tokens created from it or its descendants. The first token's id identifies the
    /// line. Requests of callers without an account are counted per line.
    pub(crate) line: Option<TokenId>,
    pub(crate) session: Option<SessionId>,
    /// The hash of the session cookie, for checking again that the sign-in is still valid.
    pub(crate) cookie_hash: Option<String>,
    /// The token that created the sign-in link with which the account signed in, if there was one.
    minted_by: Option<TokenId>,
}

impl From<Principal> for Caller {
    fn from(principal: Principal) -> Self {
        let Principal { token, owner, rights } = principal;
        let method = match token.kind {
            TokenKind::Api => AuthMethod::Token,
            TokenKind::Executor | TokenKind::Xxl => AuthMethod::Executor,
        };
        Self {
            name: signature(&token, owner.as_ref()),
            auth_method: method,
            namespace: token.namespace,
            rights,
            account: owner.map(|owner| owner.id),
            token: Some(token.id),
            line: Some(token.line),
            session: None,
            cookie_hash: None,
            minted_by: None,
        }
    }
}

impl From<SignedIn> for Caller {
    fn from(signed_in: SignedIn) -> Self {
        let SignedIn { session, account, token, rights } = signed_in;
        let name = match (&account, &token) {
            (Some(account), _) => account.name.clone(),
            (None, Some(token)) => signature(token, None),
            (None, None) => String::new(),
        };
        Self {
            name,
            auth_method: AuthMethod::Session,
            namespace: token.as_ref().and_then(|token| token.namespace),
            rights,
            account: account.map(|account| account.id),
            line: token.as_ref().map(|token| token.line),
            token: token.map(|token| token.id),
            session: Some(session.id),
            cookie_hash: Some(session.hash),
            minted_by: session.minted_by,
        }
    }
}

impl Caller {
    /// The caller that authenticates with the configured metrics secret, which has no row in the store.
    pub(crate) fn metrics_reader() -> Self {
        Self {
            name: "metrics".to_owned(),
            auth_method: AuthMethod::System,
            namespace: None,
            rights: Rights::new(vec![Grant::everywhere(Role::Viewer)]),
            account: None,
            token: None,
            line: None,
            session: None,
            cookie_hash: None,
            minted_by: None,
        }
    }

    #[cfg(test)]
    pub(crate) fn for_tests(rights: Rights) -> Self {
        Self {
            name: String::new(),
            auth_method: AuthMethod::Token,
            namespace: None,
            rights,
            account: None,
            token: Some(TokenId::new(1)),
            line: Some(TokenId::new(1)),
            session: None,
            cookie_hash: None,
            minted_by: None,
        }
    }

    /// The name of the caller in the audit log and in objects that the caller changes.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) const fn auth_method(&self) -> AuthMethod {
        self.auth_method
    }

    /// The default namespace of the caller's requests; `None` stands for `default`.
    pub(crate) const fn namespace(&self) -> Option<NamespaceId> {
        self.namespace
    }

    /// The caller as the actor of operations on accounts, sign-ins and tokens.
    pub(crate) const fn actor(&self) -> Actor<'_> {
        Actor { rights: &self.rights, account: self.account, is_token: self.token.is_some() }
    }

    /// The token that is recorded as the creator of the caller's new tokens and links: when it ends, they end too. `None` if no token is
    /// involved.
    pub(crate) fn minting_token(&self) -> Option<TokenId> {
        self.token.or(self.minted_by)
    }

    /// The key by which limits count the caller's requests.
    pub(crate) fn key(&self) -> CallerKey {
        match (self.account, self.line, self.session) {
            _ if self.auth_method == AuthMethod::Executor => CallerKey::Executor(self.token.unwrap_or(TokenId::new(0))),
            (Some(account), ..) => CallerKey::Account(account),
            (None, Some(line), _) => CallerKey::Token(line),
            (None, None, session) => CallerKey::Session(session.unwrap_or(SessionId::new(0))),
        }
    }

    /// Whether the caller has the permission for at least one namespace or app. Executors' tokens never have it: an executor can
    /// only open its gRPC stream with such a token.
    pub(crate) fn may_anywhere(&self, permission: Permission) -> bool {
        self.auth_method != AuthMethod::Executor && self.rights.allow_somewhere(permission)
    }
}

#[cfg(test)]
mod tests {
    use rondel_admin::auth::Token;
    use rondel_core::Timestamp;
    use rondel_store::access::TokenRecord;

    use super::*;

    #[test]
    fn tokens_of_a_line_are_one_caller() {
        let caller = |id: i64, kind: TokenKind, line: i64| {
            let record = Token::generate_for(kind).record(id, kind, Timestamp::EPOCH);
            let token = TokenRecord { line: TokenId::new(line), ..record };
            Caller::from(Principal { token, owner: None, rights: Rights::new(Vec::new()) }).key()
        };
        assert_eq!(caller(2, TokenKind::Api, 1), caller(3, TokenKind::Api, 1));
        assert_ne!(caller(2, TokenKind::Api, 1), caller(3, TokenKind::Api, 3));
        assert_eq!(caller(2, TokenKind::Executor, 1), CallerKey::Executor(TokenId::new(2)), "executors share no bound");
    }
}
