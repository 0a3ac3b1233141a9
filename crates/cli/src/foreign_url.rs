//! Checks the URL of another product's database before it is used.

use rondel_store::{DatabaseUrl, OpenError};

use crate::exit::Failure;

/// Refuses a URL with a password that is not percent-encoded: the rest of the password would be taken for the host.
///
/// # Errors
/// The URL without its password, and how to encode the password.
pub(crate) fn check(url: &str) -> Result<(), Failure> {
    let url = url.strip_prefix("jdbc:").unwrap_or(url);
    match url.parse::<DatabaseUrl>() {
        Err(error @ OpenError::Unencoded { .. }) => Err(Failure::refused(error.to_string())),
        // The connection reports all other errors.
        Ok(_) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_that_ends_too_early_is_refused_and_not_shown() {
        for url in ["mysql://reader:p@ss/w#1@db/xxl_job", "jdbc:mysql://reader:p/w@db/xxl_job"] {
            let failure = check(url).expect_err("it has signs that end it");
            let text = failure.message();
            assert!(text.contains("/ as %2F") && text.contains("reader:***@db") && !text.contains("p/w"), "{text}");
        }
        let failure = check("jdbc:mysql://db:3306/x?user=reader&password=p@tail#tail").expect_err("it has a #");
        assert!(!failure.message().contains("tail"), "{}", failure.message());
        for url in ["mysql://reader:p%40ss%2Fw%231@db/xxl_job", "jdbc:mysql://db/xxl_job?useSSL=false", "oracle:x", ""]
        {
            check(url).expect("it is left to the connection");
        }
    }
}
