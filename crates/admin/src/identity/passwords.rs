//! Checks whether new passwords are allowed, hashes passwords for storage, and verifies them, which is slow on purpose.

use std::sync::Arc;

use argon2::password_hash::phc;
use argon2::{Algorithm, Argon2, Block, Params, Version};
use rand::RngExt as _;
use rondel_store::access::PasswordHash;
use tokio::sync::{OnceCell, Semaphore};
use tokio::task::spawn_blocking;

/// The shortest password, in characters.
pub const PASSWORD_LEN_MIN: usize = 10;
/// The longest password, in bytes.
pub const PASSWORD_LEN_MAX: usize = 256;

/// Memory of one hash computation, in KiB.
const MEMORY_KIB: u32 = 19 * 1024;
/// Number of iterations over that memory. A computation takes 20 to 60 ms on one current core.
const HASH_PASSES: u32 = 2;
/// Minimum allocation for a hash computation, in KiB, although the computation uses less. Allocators return memory to the system
/// immediately only if it was allocated in a large piece (glibc from 32 MiB on). Otherwise they would keep 19 MiB for each thread that ever
/// computed a hash.
const ALLOCATED_KIB: usize = 33 * 1024;
const SALT_BYTES: usize = 16;
/// Maximum number of concurrent hash computations: they take memory, and the cores are needed for jobs.
const CONCURRENT_MAX: usize = 2;

/// Why a password could not be hashed.
#[derive(Debug, thiserror::Error)]
#[error("the password could not be hashed: {0}")]
pub struct PasswordError(String);

/// Hashes and checks passwords, a few at a time, on threads that do not serve requests.
#[derive(Debug)]
pub struct Passwords {
    permits: Arc<Semaphore>,
    /// The hash that is used for the password of an unknown account, so that its check takes as long as for a known account.
    decoy_hash: OnceCell<PasswordHash>,
}

impl Default for Passwords {
    fn default() -> Self {
        Self { permits: Arc::new(Semaphore::new(CONCURRENT_MAX)), decoy_hash: OnceCell::new() }
    }
}

/// Checks whether `password` is allowed as a new password of the account with the name `account`.
///
/// # Errors
/// A sentence about the requirement that is not met.
pub fn check(password: &str, account: &str) -> Result<(), String> {
    if password.chars().count() < PASSWORD_LEN_MIN {
        return Err(format!("a password has at least {PASSWORD_LEN_MIN} characters"));
    }
    if password.len() > PASSWORD_LEN_MAX {
        return Err(format!("a password has at most {PASSWORD_LEN_MAX} bytes"));
    }
    let first_char = password.chars().next();
    if password.eq_ignore_ascii_case(account) || password.chars().all(|letter| Some(letter) == first_char) {
        return Err("this password is easy to guess; choose another one".to_owned());
    }
    Ok(())
}

impl Passwords {
    /// Hashes a password for storage.
    ///
    /// # Errors
    /// The system has no randomness, or no memory.
    pub async fn hash(&self, password: &str) -> Result<PasswordHash, PasswordError> {
        let password = password.to_owned();
        self.compute(move || hash(&password)).await?
    }

    /// Checks a password against its stored hash. Without a stored hash the answer is false, after the same time.
    ///
    /// # Errors
    /// As those of [`Self::hash`].
    pub async fn verify(&self, password: &str, stored_hash: Option<&PasswordHash>) -> Result<bool, PasswordError> {
        let decoy_hash = self.decoy_hash.get_or_try_init(|| self.hash("the password of no account")).await?;
        let (has_stored_hash, stored_hash) = (stored_hash.is_some(), stored_hash.unwrap_or(decoy_hash).clone());
        // Text that is too long for a password is refused without a hash computation, both for known and for unknown accounts.
        if password.len() > PASSWORD_LEN_MAX {
            return Ok(false);
        }
        let password = password.to_owned();
        Ok(self.compute(move || verify(&password, &stored_hash)).await? && has_stored_hash)
    }

    /// Runs a hash computation on another thread. The permit goes with it: a computation goes on when its request is dropped, for example
    /// because the client disconnected.
    async fn compute<T: Send + 'static>(
        &self,
        computation: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, PasswordError> {
        let permit = Arc::clone(&self.permits).acquire_owned().await.map_err(password_error)?;
        let compute_and_release = move || {
            let result = computation();
            drop(permit);
            result
        };
        spawn_blocking(compute_and_release).await.map_err(password_error)
    }
}

fn hash(password: &str) -> Result<PasswordHash, PasswordError> {
    let salt: [u8; SALT_BYTES] = rand::rng().random();
    let params = Params::new(MEMORY_KIB, HASH_PASSES, 1, None).map_err(password_error)?;
    let derived_hash = derive(password, phc::Salt::new(&salt).map_err(password_error)?, params)?;
    Ok(PasswordHash::new(derived_hash.to_string()))
}

fn verify(password: &str, stored_hash: &PasswordHash) -> bool {
    let Ok(stored_hash) = phc::PasswordHash::new(stored_hash.reveal()) else { return false };
    let (Some(salt), Ok(params)) = (stored_hash.salt, Params::try_from(&stored_hash)) else { return false };
    let Ok(derived_hash) = derive(password, salt, params) else { return false };
    let is_same_algorithm =
        (derived_hash.algorithm, derived_hash.version) == (stored_hash.algorithm, stored_hash.version);
    // Outputs are compared in constant time.
    is_same_algorithm && derived_hash.hash.is_some() && derived_hash.hash == stored_hash.hash
}

fn derive(password: &str, salt: phc::Salt, params: Params) -> Result<phc::PasswordHash, PasswordError> {
    let mut memory: Vec<Block> = Vec::with_capacity(params.block_count().max(ALLOCATED_KIB * 1024 / Block::SIZE));
    memory.resize(params.block_count(), Block::new());
    let mut output = [0; Params::DEFAULT_OUTPUT_LEN];
    let params_text = phc::ParamsString::try_from(&params).map_err(password_error)?;
    let (algorithm, version) = (Algorithm::Argon2id, Version::V0x13);
    let argon2 = Argon2::new(algorithm, version, params);
    argon2
        .hash_password_into_with_memory(password.as_bytes(), &salt, &mut output, &mut memory)
        .map_err(password_error)?;
    Ok(phc::PasswordHash {
        algorithm: algorithm.ident(),
        version: Some(version.into()),
        params: params_text,
        salt: Some(salt),
        hash: Some(phc::Output::new(&output).map_err(password_error)?),
    })
}

fn password_error(error: impl std::fmt::Display) -> PasswordError {
    PasswordError(error.to_string())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn only_the_password_itself_is_right() {
        let passwords = Passwords::default();
        let stored = passwords.hash("correct horse").await.unwrap();
        assert!(stored.reveal().starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "{}", stored.reveal());
        assert_ne!(stored, passwords.hash("correct horse").await.unwrap(), "salted");
        assert!(passwords.verify("correct horse", Some(&stored)).await.unwrap());
        for wrong in ["correct horsf", "", "correct horse ", &"x".repeat(100_000)] {
            assert!(!passwords.verify(wrong, Some(&stored)).await.unwrap());
        }
        assert!(!passwords.verify("the password of no account", None).await.unwrap());
        // A hash with other parameters, as other programs write it.
        let reference = "$argon2id$v=19$m=65536,t=2,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc";
        let reference = PasswordHash::new(reference.to_owned());
        assert!(passwords.verify("password", Some(&reference)).await.unwrap());
        let broken = PasswordHash::new("plain text".to_owned());
        assert!(!passwords.verify("plain text", Some(&broken)).await.unwrap());
        assert_eq!(format!("{stored:?}"), "PasswordHash(…)");
    }

    /// XXL-JOB stores unsalted hashes: equal passwords have equal hashes, and common ones can be looked up.
    #[tokio::test]
    async fn xxl_job_unsalted_hashes_equal_passwords_are_kept_as_different_texts() {
        let passwords = Passwords::default();
        let (first, second) =
            (passwords.hash("correct horse").await.unwrap(), passwords.hash("correct horse").await.unwrap());
        assert_ne!(first.reveal(), second.reveal());
        assert!(first.reveal().starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "{}", first.reveal());
    }

    /// Otherwise a client that disconnects at once could start any number of computations.
    #[tokio::test]
    async fn a_computation_keeps_its_permit_after_its_request_is_dropped() {
        let passwords = Passwords::default();
        let (finish, wait) = std::sync::mpsc::channel();
        let request = passwords.compute(move || wait.recv());
        assert!(tokio::time::timeout(Duration::ZERO, request).await.is_err());
        assert_eq!(passwords.permits.available_permits(), CONCURRENT_MAX - 1);
        finish.send(()).unwrap();
        let all_permits = passwords.permits.acquire_many(u32::try_from(CONCURRENT_MAX).unwrap());
        assert!(all_permits.await.is_ok());
    }

    #[test]
    fn refused_passwords() {
        assert!(check("correct horse", "ann").is_ok());
        assert!(check("七転び八起き七転び八起き", "ann").is_ok());
        for (password, account) in [("short", "ann"), ("aaaaaaaaaaaa", "ann"), ("Administrator", "administrator")] {
            assert!(check(password, account).is_err(), "{password}");
        }
        assert!(check(&"ab".repeat(200), "ann").is_err());
    }
}
