//! Ed25519 signatures of scripts, over the text that [`rondel_core::script::signed_text`] builds.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::digest::{SHA256, digest};
use ring::signature::{ED25519, UnparsedPublicKey};

const PEM_BEGIN: &str = "-----BEGIN PUBLIC KEY-----";
const PEM_END: &str = "-----END PUBLIC KEY-----";
/// The bytes before the 32 bytes of an Ed25519 key in its DER form (RFC 8410).
const DER_PREFIX: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// A public key that verifies the scripts an agent may run.
#[derive(Clone, PartialEq, Eq)]
pub struct ScriptKey([u8; 32]);

impl fmt::Debug for ScriptKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ScriptKey(…)")
    }
}

impl ScriptKey {
    /// A key from the PEM file that `rondel script key` or `openssl pkey -pubout` writes.
    ///
    /// ```
    /// let text = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=\n-----END PUBLIC KEY-----\n";
    /// assert!(rondel::agent::ScriptKey::from_pem(text).is_ok());
    /// ```
    ///
    /// # Errors
    /// Why the text is not such a key, as a sentence without its subject: `is not a public key in PEM…`.
    pub fn from_pem(text: &str) -> Result<Self, String> {
        let pem_body = text.trim().strip_prefix(PEM_BEGIN).and_then(|text| text.strip_suffix(PEM_END));
        let pem_body = pem_body.ok_or_else(|| format!("is not a public key in PEM, which begins with {PEM_BEGIN}"))?;
        let base64: String = pem_body.split_whitespace().collect();
        let der = STANDARD.decode(base64).map_err(|error| format!("is not a public key in PEM: {error}"))?;
        let key = der.strip_prefix(&DER_PREFIX).and_then(|key| key.try_into().ok());
        key.map(Self).ok_or_else(|| "is a public key, but not an Ed25519 key".to_owned())
    }

    /// Whether this key made the signature of the text. `signature` is in base64.
    pub(super) fn has_signed(&self, text: &str, signature: &str) -> bool {
        let Ok(signature) = STANDARD.decode(signature) else { return false };
        UnparsedPublicKey::new(&ED25519, &self.0).verify(text.as_bytes(), &signature).is_ok()
    }
}

/// SHA-256 of a source, in hex.
pub(super) fn hash(source: &[u8]) -> String {
    use fmt::Write as _;
    digest(&SHA256, source).as_ref().iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").ok();
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_the_same_as_that_of_other_programs() {
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(hash(b"abc"), expected);
    }

    /// The second test of RFC 8032, section 7.1.
    #[test]
    fn a_signature_is_of_one_key_and_one_text() {
        let key = "MCowBQYDK2VwAyEAPUAXw+hDiVqStwqnTRt+vJyYLM8uxJaMwM1V8Sr0Zgw=";
        let key = ScriptKey::from_pem(&format!("{PEM_BEGIN}\n{key}\n{PEM_END}\n")).unwrap();
        let signature = "kqAJqfDUyrhyDoILX2QlQKKye1QWUD+Ps3YiI+vbadoIWsHkPhWZbkWPNhPQ8R2MOHsurrQwKu6wDSkWErsMAA==";
        let other = "k6AJqfDUyrhyDoILX2QlQKKye1QWUD+Ps3YiI+vbadoIWsHkPhWZbkWPNhPQ8R2MOHsurrQwKu6wDSkWErsMAA==";
        let tries = [("r", signature), ("s", signature), ("r", other), ("r", ""), ("r", "ä")];
        let found = tries.map(|(text, signature)| key.has_signed(text, signature));
        assert_eq!(found, [true, false, false, false, false]);
    }

    #[test]
    fn invalid_keys_are_refused() {
        for text in ["", "MCow", "-----BEGIN PUBLIC KEY-----\nÄ\n-----END PUBLIC KEY-----"] {
            assert!(ScriptKey::from_pem(text).unwrap_err().contains("is not a public key"), "{text}");
        }
        let other = format!("{PEM_BEGIN}\nMCowBQYDK2VuAyEAPUAXw+hDiVqStwqnTRt+vJyYLM8uxJaMwM1V8Sr0Zgw=\n{PEM_END}");
        assert_eq!(ScriptKey::from_pem(&other).unwrap_err(), "is a public key, but not an Ed25519 key");
    }
}
