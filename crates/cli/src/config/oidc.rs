//! Settings for signing in through an OIDC provider.

use std::path::PathBuf;

use rondel_admin::oidc::OidcConfig;

use super::check::bad_setting;
use super::layer::{Layer, settings};
use super::values::GroupRoleText;
use crate::exit::Failure;

const SECTION: &str = OidcSettings::SECTION;

settings! {
    /// One layer of settings, or several merged layers.
    "oidc", OidcSettings => OidcValues {
        /// The issuer URL of the provider through which users sign in
        #[arg(long = "oidc-issuer", global = true, value_name = "URL", env = "RONDEL_OIDC_ISSUER")]
        issuer: String, example "\"https://id.example.com/realms/main\"";
        /// The client ID of this server at the provider
        #[arg(long = "oidc-client-id", global = true, value_name = "ID", env = "RONDEL_OIDC_CLIENT_ID")]
        client_id: String, example "\"rondel\"";
        /// The file with the client's secret, read at each sign-in; left out for a client without a secret
        #[arg(
            long = "oidc-client-secret-file",
            global = true,
            value_name = "FILE",
            env = "RONDEL_OIDC_CLIENT_SECRET_FILE"
        )]
        client_secret_file: PathBuf, example "\"/etc/rondel/oidc.secret\"";
        /// The URL to which the provider redirects browsers, as registered there: this server's URL with /sign-in/oidc/callback
        #[arg(long = "oidc-redirect-url", global = true, value_name = "URL", env = "RONDEL_OIDC_REDIRECT_URL")]
        redirect_url: String, example "\"https://rondel.example.com/sign-in/oidc/callback\"";
        /// The scopes to request from the provider, in addition to openid; several may be given
        #[arg(long = "oidc-scope", global = true, value_name = "SCOPE", env = "RONDEL_OIDC_SCOPES", value_delimiter = ',')]
        scopes: Vec<String> = vec!["email".to_owned(), "profile".to_owned()];
        /// The claim of the provider's token that lists groups
        #[arg(long = "oidc-groups-claim", global = true, value_name = "NAME", env = "RONDEL_OIDC_GROUPS_CLAIM")]
        groups_claim: String = "groups".to_owned();
        #[arg(
            long = "oidc-group-role",
            global = true,
            value_name = "GROUP=ROLE[:PLACE]",
            env = "RONDEL_OIDC_GROUP_ROLES",
            value_delimiter = ',',
            help = "A role that a group gives: GROUP=ROLE, GROUP=ROLE:NAMESPACE or GROUP=ROLE:NAMESPACE/APP; several may be given. \
                    If there is any, users of the provider have the roles of their groups, and no others"
        )]
        group_roles: Vec<GroupRoleText> = Vec::new();
        /// Create an account for each user of the provider who has none here; it has only the roles of the user's groups
        #[arg(long = "oidc-create-accounts", global = true, env = "RONDEL_OIDC_CREATE_ACCOUNTS", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
        create_accounts: bool = false;
    }
}

impl OidcSettings {
    /// The checked configuration; `None` without an issuer.
    pub(crate) fn checked(self) -> Result<Option<OidcConfig>, Failure> {
        let settings = self.values();
        let Some(issuer) = settings.issuer else {
            let dependent_settings = [
                ("client_id", settings.client_id.is_some()),
                ("client_secret_file", settings.client_secret_file.is_some()),
                ("redirect_url", settings.redirect_url.is_some()),
                ("group_roles", !settings.group_roles.is_empty()),
                ("create_accounts", settings.create_accounts),
            ];
            return match dependent_settings.iter().find(|(_, is_given)| *is_given) {
                Some((key, _)) => Err(bad_setting(SECTION, key, "has no effect without issuer")),
                None => Ok(None),
            };
        };
        let missing_setting = |key: &str| bad_setting(SECTION, key, "is missing; issuer requires it");
        let config = OidcConfig {
            issuer,
            client_id: settings.client_id.ok_or_else(|| missing_setting("client_id"))?,
            client_secret_file: settings.client_secret_file,
            redirect_url: settings.redirect_url.ok_or_else(|| missing_setting("redirect_url"))?,
            scopes: settings.scopes,
            groups_claim: settings.groups_claim,
            group_roles: settings.group_roles.into_iter().map(|text| text.0).collect(),
            create_accounts: settings.create_accounts,
        };
        config.check().map_err(|(key, sentence)| bad_setting(SECTION, key, sentence))?;
        Ok(Some(config))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_settings_are_named() {
        const GOOD: &str = "issuer = \"https://id.example.com\"\nclient_id = \"rondel\"\n\
                            redirect_url = \"https://rondel.example.com/sign-in/oidc/callback\"\n";
        let check = |text: &str| {
            let settings: OidcSettings = toml::from_str(text).map_err(|error| error.to_string())?;
            settings.checked().map_err(|failure| format!("{failure:?}"))
        };
        for (text, part) in [
            ("client_id = \"rondel\"", "oidc.client_id"),
            ("group_roles = [\"ops=admin\"]", "oidc.group_roles: has no effect without issuer"),
            ("create_accounts = true", "oidc.create_accounts: has no effect without issuer"),
            ("issuer = \"https://id.example.com\"", "oidc.client_id"),
            (&GOOD.replace("https://id", "ftp://id"), "oidc.issuer"),
            (&GOOD.replace("/callback", ""), "oidc.redirect_url"),
            (&format!("{GOOD}client_secret_file = \"/nowhere\""), "oidc.client_secret_file"),
            (&format!("{GOOD}group_roles = [\"ops\"]"), "GROUP=ROLE"),
            (&format!("{GOOD}secret = \"x\""), "secret"),
        ] {
            let refusal = check(text).unwrap_err();
            assert!(refusal.contains(part), "{text}: {refusal}");
        }
        let good = check(&format!("{GOOD}group_roles = [\"ops=admin\"]")).unwrap().unwrap();
        assert_eq!((good.group_roles.len(), good.create_accounts), (1, false));
        assert!(check("").unwrap().is_none());
    }
}
