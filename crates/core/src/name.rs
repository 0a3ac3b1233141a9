//! Names: what people and URLs call namespaces, apps, jobs and executors by.

/// The longest name, in bytes.
pub const NAME_LEN_MAX: usize = 100;

/// Words that the API uses behind a collection, so that `/jobs/{name}` stays unambiguous.
const RESERVED: [&str; 9] = ["apply", "export", "preview", "search", "bulk", "new", "edit", "stats", "versions"];

/// Says whether `name` can name a namespace, an app, a job or an executor; `Err` holds the sentence for the user.
///
/// # Errors
/// A sentence that says what is allowed, without the field's name.
///
/// ```
/// assert!(rondel_core::name::check("orders.export-2").is_ok());
/// assert!(rondel_core::name::check("Orders").is_err());
/// ```
pub fn check(name: &str) -> Result<(), String> {
    let body = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '_' | '-');
    let starts_well = name.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
    if !starts_well || name.len() > NAME_LEN_MAX || !name.chars().all(body) {
        return Err(format!(
            "{name:?} is not a name: 1 to {NAME_LEN_MAX} of a-z, 0-9, '.', '_' and '-', beginning with a letter or digit"
        ));
    }
    if RESERVED.contains(&name) {
        return Err(format!("{name:?} is a word that the API uses itself; choose another name"));
    }
    Ok(())
}

/// Says whether `name` can name an account: like other names, or like an address of electronic mail.
///
/// # Errors
/// A sentence that says what is allowed.
///
/// ```
/// assert!(rondel_core::name::check_account("ann@example.com").is_ok());
/// assert!(rondel_core::name::check_account("Ann").is_err());
/// ```
pub fn check_account(name: &str) -> Result<(), String> {
    let body = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '_' | '-' | '+' | '@');
    let starts_well = name.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
    if starts_well && name.len() <= NAME_LEN_MAX && name.chars().all(body) {
        return Ok(());
    }
    Err(format!(
        "{name:?} is not a user's name: 1 to {NAME_LEN_MAX} of a-z, 0-9, '.', '_', '-', '+' and '@', beginning with a \
         letter or digit"
    ))
}

/// Says whether `name` can name a handler, which is code's own word: letters of both cases are allowed.
///
/// # Errors
/// A sentence that says what is allowed.
pub fn check_handler(name: &str) -> Result<(), String> {
    let body = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | ':');
    if name.is_empty() || name.len() > NAME_LEN_MAX || !name.chars().all(body) {
        return Err(format!(
            "{name:?} is not a handler's name: 1 to {NAME_LEN_MAX} of a-z, A-Z, 0-9, '.', '_', '-' and ':'"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn names() {
        let longest = "a".repeat(100);
        for name in ["a", "0", "a.b_c-d", &longest] {
            assert_eq!(super::check(name), Ok(()), "{name}");
        }
        let too_long = "a".repeat(101);
        for name in ["", "A", ".a", "-a", "a b", "ä", "a/b", "search", "<script>", "a\0", &too_long] {
            assert!(super::check(name).is_err(), "{name}");
        }
    }
}
