//! Keys that sign scripts: Ed25519, in PEM files that OpenSSL can read and write too.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::digest::{SHA256, digest};
use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use rondel_core::script::signed_text;

use crate::exit::Failure;
use crate::input::read_text;
use crate::output;
use crate::startup_files::StartupFiles;

const SECRET_LABEL: &str = "PRIVATE KEY";
const PUBLIC_LABEL: &str = "PUBLIC KEY";
/// The bytes before the 32 bytes of a public key in its DER form (RFC 8410).
const PUBLIC_PREFIX: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
/// The bytes before the 32 bytes of a secret key in its DER form without a public part, as OpenSSL writes it.
const SECRET_PREFIX: [u8; 16] =
    [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];

/// A secret key.
pub(super) struct SigningKey(Ed25519KeyPair);

impl SigningKey {
    pub(super) fn read(path: &Path) -> Result<Self, Failure> {
        let refusal = |message: &str| Failure::refused(format!("{}: {message}", path.display()));
        let text = read_text(path)?;
        let der = from_pem(SECRET_LABEL, &text)
            .ok_or_else(|| refusal("is not a secret key in PEM; rondel script key makes one"))?;
        let key_pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(&der);
        key_pair.map(Self).map_err(|_| refusal("is a secret key, but none of Ed25519; rondel script key makes one"))
    }

    pub(super) fn sign(&self, namespace: &str, name: &str, language: &str, source: &str) -> Result<String, Failure> {
        let hash = digest(&SHA256, source.as_bytes());
        let hash: String = hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(STANDARD.encode(self.0.sign(signed_text(namespace, name, language, &hash).as_bytes())))
    }
}

/// Makes a pair of keys in the files `path` and `path.pub`, and prints the public key and its path.
pub(super) fn make_key_pair(path: &Path) -> Result<(), Failure> {
    let key_pair_der = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new());
    let failure = |_| Failure::from_text("the host gave no random numbers");
    let key_pair_der = key_pair_der.map_err(failure)?;
    let key_pair = Ed25519KeyPair::from_pkcs8(key_pair_der.as_ref())
        .map_err(|_| Failure::from_text("the new key cannot be read"))?;
    // The file has only the seed: older programs cannot read a file that also has the public part.
    let seed = key_pair_der.as_ref().get(SECRET_PREFIX.len()..SECRET_PREFIX.len() + 32).unwrap_or_default();
    let mut public_path = path.as_os_str().to_owned();
    public_path.push(".pub");
    let public_path = Path::new(&public_path);
    let mut files = StartupFiles::default();
    files.write_secret_file(path, &to_pem(SECRET_LABEL, &[&SECRET_PREFIX, seed].concat()))?;
    let public_pem = to_pem(PUBLIC_LABEL, &[&PUBLIC_PREFIX, key_pair.public_key().as_ref()].concat());
    files.write_secret_file(public_path, &public_pem)?;
    files.commit();
    output::print_message(&format!("for agents: --script-key {}", public_path.display()));
    output::print_lines(public_pem.trim_end())
}

fn to_pem(kind: &str, der: &[u8]) -> String {
    format!("-----BEGIN {kind}-----\n{}\n-----END {kind}-----\n", STANDARD.encode(der))
}

fn from_pem(kind: &str, text: &str) -> Option<Vec<u8>> {
    let (first_line, last_line) = (format!("-----BEGIN {kind}-----"), format!("-----END {kind}-----"));
    let base64 = text.trim().strip_prefix(&first_line)?.strip_suffix(&last_line)?;
    STANDARD.decode(base64.split_whitespace().collect::<String>()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_was_made_signs() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("release.key");
        make_key_pair(&path).unwrap();
        let key = SigningKey::read(&path).unwrap();
        let signature = key.sign("default", "a", "shell", "date").unwrap();
        assert_ne!(signature, key.sign("other", "a", "shell", "date").unwrap());
        let public = std::fs::read_to_string(folder.path().join("release.key.pub")).unwrap();
        assert!(rondel::agent::ScriptKey::from_pem(&public).is_ok());
        assert!(make_key_pair(&path).is_err(), "a key is not written over");
        assert!(SigningKey::read(&folder.path().join("release.key.pub")).is_err());
    }
}
