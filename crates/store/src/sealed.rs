//! Encrypts secrets that must be readable again, such as the keys that sign webhooks, so that a copy of the database does not reveal them.
//!
//! Uses ChaCha20-Poly1305 with a random nonce. The row's table and primary key are authenticated as well, so that a sealed text is not
//! valid in another row. A sealed text contains the id of the key that sealed it.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD_NO_PAD;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom as _, SystemRandom};
use sha2::{Digest, Sha256};

const KEY_LEN: usize = 32;
/// The beginning of sealed texts.
const PREFIX: &str = "sealed:1:";
/// Number of hexadecimal digits in the id of a key.
const KEY_ID_LEN: usize = 8;

/// The keys that seal secrets. The first key seals new secrets, and each key opens the secrets that it sealed.
#[derive(Clone)]
pub struct SecretKeys {
    /// Each key with its id.
    keys: Vec<(String, LessSafeKey)>,
}

impl SecretKeys {
    /// A new key in the form that [`FromStr`] reads; `None` if the system provides no random numbers.
    #[must_use]
    pub fn generate() -> Option<String> {
        let mut key = [0; KEY_LEN];
        SystemRandom::new().fill(&mut key).ok()?;
        Some(hex(&key))
    }
}

impl FromStr for SecretKeys {
    type Err = String;

    /// One key per line, as 64 hexadecimal digits.
    fn from_str(text: &str) -> Result<Self, String> {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let keys: Vec<_> =
            lines.enumerate().map(|(index, line)| read_key(index + 1, line)).collect::<Result<_, _>>()?;
        if keys.is_empty() {
            return Err(
                "has no key: write a key of 64 hexadecimal digits, for example the output of openssl rand -hex 32"
                    .to_owned(),
            );
        }
        Ok(Self { keys })
    }
}

fn read_key(number: usize, line: &str) -> Result<(String, LessSafeKey), String> {
    let key_error = || {
        format!(
            "key {number} must be {} hexadecimal digits, for example the output of openssl rand -hex 32",
            KEY_LEN * 2
        )
    };
    let digits: Vec<u8> = line
        .chars()
        .map(|digit| digit.to_digit(16).and_then(|digit| u8::try_from(digit).ok()))
        .collect::<Option<_>>()
        .ok_or_else(key_error)?;
    let key: Vec<u8> =
        digits.chunks_exact(2).map(|pair| pair.iter().fold(0, |byte, digit| (byte << 4) | digit)).collect();
    if digits.len() != KEY_LEN * 2 {
        return Err(key_error());
    }
    let unbound_key = UnboundKey::new(&CHACHA20_POLY1305, &key).map_err(|_| key_error())?;
    let mut id = hex(&Sha256::digest([b"rondel key id".as_slice(), &key].concat()));
    id.truncate(KEY_ID_LEN);
    Ok((id, LessSafeKey::new(unbound_key)))
}

impl fmt::Debug for SecretKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.keys.iter().map(|(id, _)| id)).finish()
    }
}

/// Seals and opens texts. Without keys, texts are stored as plain text.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sealer(Option<SecretKeys>);

impl Sealer {
    pub(crate) const fn new(keys: Option<SecretKeys>) -> Self {
        Self(keys)
    }

    /// The text in its stored form. `context` names where it is stored, such as the table and the key of the row.
    pub(crate) fn seal(&self, context: &str, text: &str) -> Result<String, String> {
        let Some((id, key)) = self.0.as_ref().and_then(|keys| keys.keys.first()) else { return Ok(text.to_owned()) };
        let no_random_error = |_| "the system has no random numbers".to_owned();
        let mut nonce = [0; NONCE_LEN];
        SystemRandom::new().fill(&mut nonce).map_err(no_random_error)?;
        let mut sealed_bytes = text.as_bytes().to_vec();
        let context = Aad::from(context.as_bytes());
        key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), context, &mut sealed_bytes)
            .map_err(no_random_error)?;
        let bytes = [nonce.as_slice(), &sealed_bytes].concat();
        Ok(format!("{PREFIX}{id}:{}", BASE64_STANDARD_NO_PAD.encode(bytes)))
    }

    /// The plain text of a stored text. Fails if it was sealed with another context.
    pub(crate) fn open(&self, context: &str, sealed_text: &str) -> Result<String, String> {
        let Some(sealed_part) = sealed_text.strip_prefix(PREFIX) else { return Ok(sealed_text.to_owned()) };
        let (id, bytes) = sealed_part.split_once(':').unwrap_or_default();
        let Some(keys) = &self.0 else {
            return Err(format!("it is sealed with key {id}, and this server has no key: set secret_key_file"));
        };
        let Some((_, key)) = keys.keys.iter().find(|(key_id, _)| key_id == id) else {
            return Err(format!(
                "it is sealed with key {id}, and this server has {keys:?}: set secret_key_file to a file with that key"
            ));
        };
        let damage_error = || format!("it is sealed with key {id} and was changed or moved");
        let mut bytes = BASE64_STANDARD_NO_PAD.decode(bytes).map_err(|_| damage_error())?;
        let (nonce, sealed_bytes) = bytes.split_at_mut_checked(NONCE_LEN).ok_or_else(damage_error)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| damage_error())?;
        let text = key.open_in_place(nonce, Aad::from(context.as_bytes()), sealed_bytes).map_err(|_| damage_error())?;
        String::from_utf8(text.to_vec()).map_err(|_| damage_error())
    }

    /// Whether a stored text must be sealed again, because it is plain or not sealed with the first key.
    pub(crate) fn is_stale(&self, sealed_text: &str) -> bool {
        let first_key = self.0.as_ref().and_then(|keys| keys.keys.first());
        first_key.is_some_and(|(id, _)| !sealed_text.starts_with(&format!("{PREFIX}{id}:")))
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealer(text: &str) -> Sealer {
        Sealer::new(Some(text.parse().unwrap()))
    }

    #[test]
    fn a_sealed_text_is_opened_only_with_its_key_and_context() {
        let (one, two) = (SecretKeys::generate().unwrap(), SecretKeys::generate().unwrap());
        let (first, both, other) = (sealer(&one), sealer(&format!("{two}\n{one}\n")), sealer(&two));
        let kept = first.seal("webhook 1", "whsec_ä").unwrap();
        assert!(kept.starts_with(PREFIX) && !kept.contains("whsec"), "{kept}");
        assert_ne!(first.seal("webhook 1", "whsec_ä").unwrap(), kept, "a nonce of its own");
        assert_eq!(first.open("webhook 1", &kept).unwrap(), "whsec_ä");
        assert_eq!(both.open("webhook 1", &kept).unwrap(), "whsec_ä");
        assert!(first.open("webhook 2", &kept).unwrap_err().contains("moved"));
        assert!(other.open("webhook 1", &kept).unwrap_err().contains("a file with that key"));
        assert!(Sealer::default().open("webhook 1", &kept).unwrap_err().contains("secret_key_file"));
        for broken in [&kept[..kept.len() - 2], &kept[..PREFIX.len() + KEY_ID_LEN + 3], &format!("{kept}!")] {
            assert!(first.open("webhook 1", broken).is_err(), "{broken}");
        }
        // A text that was stored before a key was configured.
        assert_eq!(first.open("webhook 1", "plain").unwrap(), "plain");
        assert!(first.is_stale("plain") && !first.is_stale(&kept) && both.is_stale(&kept));
        assert!(!Sealer::default().is_stale("plain"));
        assert_eq!(Sealer::default().seal("webhook 1", "plain").unwrap(), "plain");
        // A sealed secret fits its column.
        assert!(first.seal("webhook 1", &"x".repeat(100)).unwrap().len() <= 255);
    }

    #[test]
    fn a_key_is_64_digits_and_is_not_shown() {
        let key = SecretKeys::generate().unwrap();
        let shown = format!("{:?}", key.parse::<SecretKeys>().unwrap());
        assert!(!shown.contains(&key) && shown.len() < 20, "{shown}");
        for (text, wanted) in [
            ("", "no key"),
            ("\n \n", "no key"),
            ("abc", "key 1"),
            (&key[1..], "key 1"),
            (&format!("{key}\nx{}", &key[1..]), "key 2"),
        ] {
            let refused = text.parse::<SecretKeys>().unwrap_err();
            assert!(refused.contains(wanted) && !refused.contains(&key[1..]), "{refused}");
        }
    }
}
