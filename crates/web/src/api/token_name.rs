//! Checks the names of tokens: no name may look like a name of the server, of an account, or of another token.

use rondel_admin::auth::TOKEN_MARK;
use rondel_core::access::is_reserved_token_name;
use rondel_core::plain::check_line;
use unicode_security::{RestrictionLevel, RestrictionLevelDetection as _};

use crate::body::refuse_value;
use crate::call::quoted_input;
use crate::problem::Problem;

const NAME_LEN_MAX: usize = 100;

/// Checks the name of a token. To exclude look-alike letters, it must meet the level "highly restrictive" of Unicode's TR39: letters of
/// one script, or Latin letters with Chinese, Japanese or Korean ones.
pub(super) fn check(name: &str) -> Result<(), Problem> {
    check_line(name, NAME_LEN_MAX).map_err(|message| refuse_value("/name", message))?;
    if is_reserved_token_name(name) {
        let message = format!("{} is the name of a token of the server itself; choose another one", quoted_input(name));
        return Err(refuse_value("/name", message));
    }
    if name.to_ascii_lowercase().starts_with(TOKEN_MARK) {
        let message = format!(
            "{} begins with {TOKEN_MARK}, which marks every token that is shown; leave it out",
            quoted_input(name)
        );
        return Err(refuse_value("/name", message));
    }
    // Spaces and punctuation are not checked: they belong to every script.
    let letters: String = name.chars().filter(|c| c.is_alphanumeric()).collect();
    if !letters.check_restriction_level(RestrictionLevel::HighlyRestrictive) {
        let message = format!(
            "{} has letters of several scripts, or rare ones, which look like others; use the letters of one script: Latin \
             letters may stand beside Chinese, Japanese or Korean ones",
            quoted_input(name)
        );
        return Err(refuse_value("/name", message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_cannot_be_named_like_another_caller() {
        for name in
            ["ci", "nightly import 表", "CI 部署 (2026)", "Сборка", "バックアップ api", "my:token", "deploy_prod-1"]
        {
            assert!(check(name).is_ok(), "{name}");
        }
        for (name, part) in [
            ("Admin", "is the name of a token of the server itself"),
            ("token:admin", "leave it out"),
            ("Token:ci", "leave it out"),
            ("\u{430}dmin", "\"\u{430}dmin\" has letters of several scripts"),
            ("b\u{3bf}b", "use the letters of one script"),
            ("\u{ff41}dmin", "or rare ones"),
            ("\u{1d41a}dmin", "or rare ones"),
            ("a\u{202e}b", "invisible characters"),
            ("ad\u{200c}min", "invisible characters"),
            ("ad\u{200d}min", "invisible characters"),
        ] {
            let problem = check(name).unwrap_err();
            let complaint = &problem.complaints()[0];
            assert_eq!(complaint.pointer.as_deref(), Some("/name"), "{name}");
            assert!(complaint.message.contains(part), "{name}: {}", complaint.message);
        }
    }
}
