//! Secrets and signatures in the Standard Webhooks format.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use rand::RngExt as _;
use sha2::Sha256;

/// Prefix of every secret.
const PREFIX: &str = "whsec_";
const KEY_BYTES: usize = 32;

/// A new secret: 256 random bits.
pub(crate) fn generate_secret() -> String {
    let key: [u8; KEY_BYTES] = rand::rng().random();
    format!("{PREFIX}{}", BASE64_STANDARD.encode(key))
}

/// The value of `webhook-signature`; `None` if the secret does not have the format of [`generate_secret`].
pub(crate) fn signature(secret: &str, id: &str, timestamp: i64, body: &str) -> Option<String> {
    let key = BASE64_STANDARD.decode(secret.strip_prefix(PREFIX)?).ok()?;
    let mut mac = Hmac::<Sha256>::new_from_slice(&key).ok()?;
    mac.update(format!("{id}.{timestamp}.").as_bytes());
    mac.update(body.as_bytes());
    Some(format!("v1,{}", BASE64_STANDARD.encode(mac.finalize().into_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the specification's own libraries.
    #[test]
    fn signatures_are_those_of_the_standard() {
        let signed = signature(
            "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
            "msg_p5jXN8AQM9LWM0D4loKWxJek",
            1_614_265_330,
            r#"{"test": 2432232314}"#,
        );
        assert_eq!(signed.as_deref(), Some("v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="));
        assert_eq!(signature("secret", "id", 0, ""), None);
    }

    #[test]
    fn secrets_differ_and_sign() {
        let (a, b) = (generate_secret(), generate_secret());
        assert_ne!(a, b);
        assert_ne!(signature(&a, "id", 0, "").unwrap(), signature(&b, "id", 0, "").unwrap());
    }
}
