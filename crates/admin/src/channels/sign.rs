//! Message signatures that services require.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

pub(super) use crate::delivery::signature as standard_signature;

fn hmac_base64(key: &[u8], message: &[u8]) -> Option<String> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).ok()?;
    mac.update(message);
    Some(BASE64_STANDARD.encode(mac.finalize().into_bytes()))
}

/// `DingTalk`'s `sign` for the query: an HMAC of the timestamp in milliseconds and the key, computed with the key.
pub(super) fn dingtalk_signature(key: &str, timestamp_ms: i64) -> Option<String> {
    hmac_base64(key.as_bytes(), format!("{timestamp_ms}\n{key}").as_bytes())
}

/// Feishu's `sign` for the body: an HMAC of an empty text. The HMAC's key consists of the timestamp in seconds and the signing key.
pub(super) fn feishu_signature(key: &str, timestamp: i64) -> Option<String> {
    hmac_base64(format!("{timestamp}\n{key}").as_bytes(), b"")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected values computed by the Python examples in the services' documents.
    #[test]
    fn signatures_are_those_of_the_documents_programs() {
        let dingtalk = dingtalk_signature("SECthis is a secret", 1_772_953_200_123);
        assert_eq!(dingtalk.as_deref(), Some("uu+EfO7onGwELR0lSsaZ9iN2QhK2qf/k0QvS7oNvj9M="));
        let feishu = feishu_signature("this is a secret", 1_772_953_200);
        assert_eq!(feishu.as_deref(), Some("PAmPO1YjasnfYr3rxJVF9ELd+o828LnLdO+cLMdHJyU="));
    }
}
