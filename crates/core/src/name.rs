//! Names of namespaces, apps, jobs, executors, accounts and handlers.

/// The longest name, in bytes.
pub const NAME_LEN_MAX: usize = 100;

/// Path segments that the API uses in the place of a name. They are not allowed as names, so that `/jobs/{name}` stays unambiguous.
const RESERVED: [&str; 9] = ["apply", "export", "preview", "search", "bulk", "new", "edit", "stats", "versions"];

/// Checks that `name` can name a namespace, an app, a job or an executor; `Err` holds the sentence for the user.
///
/// # Errors
/// A sentence that describes the allowed form, without the field's name.
///
/// ```
/// assert!(rondel_core::name::check("orders.export-2").is_ok());
/// assert!(rondel_core::name::check("Orders").is_err());
/// ```
pub fn check(name: &str) -> Result<(), String> {
    let is_name_char = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '_' | '-');
    let has_valid_start = name.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
    if !has_valid_start || name.len() > NAME_LEN_MAX || !name.chars().all(is_name_char) {
        return Err(format!(
            "{name:?} is not a name: 1 to {NAME_LEN_MAX} of a-z, 0-9, '.', '_' and '-', beginning with a letter or digit"
        ));
    }
    if RESERVED.contains(&name) {
        return Err(format!("{name:?} is a word that the API uses itself; choose another name"));
    }
    Ok(())
}

/// Checks that `name` can name an account: like other names, or like an e-mail address.
///
/// # Errors
/// A sentence that describes the allowed form.
///
/// ```
/// assert!(rondel_core::name::check_account("ann@example.com").is_ok());
/// assert!(rondel_core::name::check_account("Ann").is_err());
/// ```
pub fn check_account(name: &str) -> Result<(), String> {
    let is_name_char =
        |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '_' | '-' | '+' | '@');
    let has_valid_start = name.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
    if has_valid_start && name.len() <= NAME_LEN_MAX && name.chars().all(is_name_char) {
        return Ok(());
    }
    Err(format!(
        "{name:?} is not a user's name: 1 to {NAME_LEN_MAX} of a-z, 0-9, '.', '_', '-', '+' and '@', beginning with a \
         letter or digit"
    ))
}

/// Checks that `name` can name a handler. Letters of both cases are allowed, because these names are chosen in code.
///
/// # Errors
/// A sentence that describes the allowed form.
pub fn check_handler(name: &str) -> Result<(), String> {
    let is_name_char = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | ':');
    if name.is_empty() || name.len() > NAME_LEN_MAX || !name.chars().all(is_name_char) {
        return Err(format!(
            "{name:?} is not a handler's name: 1 to {NAME_LEN_MAX} of a-z, A-Z, 0-9, '.', '_', '-' and ':'"
        ));
    }
    Ok(())
}

/// Stands for all handlers: an executor that declares it takes any run, and fails a run of a handler that it lacks. No handler has this
/// name.
pub const ANY_HANDLER: &str = "*";

/// Whether an executor with these handlers takes a run of the handler `wanted_handler`.
///
/// ```
/// use rondel_core::name::{ANY_HANDLER, takes_handler};
///
/// assert!(takes_handler(["a", "b"], "b") && takes_handler([ANY_HANDLER], "b"));
/// assert!(!takes_handler(["a"], "b"));
/// ```
pub fn takes_handler<'a>(handlers: impl IntoIterator<Item = &'a str>, wanted_handler: &str) -> bool {
    handlers.into_iter().any(|handler| handler == wanted_handler || handler == ANY_HANDLER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_all(check: impl Fn(&str) -> Result<(), String>, good: &[&str], bad: &[&str]) {
        let (longest, too_long) = ("a".repeat(NAME_LEN_MAX), "a".repeat(NAME_LEN_MAX + 1));
        for name in good.iter().copied().chain([longest.as_str()]) {
            assert_eq!(check(name), Ok(()), "{name}");
        }
        for name in bad.iter().copied().chain(["", " ", "a b", "ä", "a/b", "a\0", "<script>", too_long.as_str()]) {
            assert!(check(name).is_err(), "{name}");
        }
    }

    #[test]
    fn names() {
        check_all(check, &["a", "0", "9z", "a.b_c-d", "searches"], &["A", "aB", ".a", "-a", "_a", "a:b", "a@b", "a+b"]);
        for reserved in RESERVED {
            assert!(check(reserved).unwrap_err().contains("choose another"), "{reserved}");
        }
    }

    #[test]
    fn names_of_accounts() {
        check_all(
            check_account,
            &["a", "0", "ann@example.com", "a+b_c-d.e", "search"],
            &["A", "@a", "+a", "aB", "a:b"],
        );
    }

    #[test]
    fn names_of_handlers() {
        check_all(check_handler, &["a", "A", "Close:all", ".a", "-", "_x9", "search"], &["a@b", "a+b"]);
    }
}
