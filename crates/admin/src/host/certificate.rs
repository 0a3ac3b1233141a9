//! Reads the expiry of a TLS certificate.

use der::asn1::{AnyRef, GeneralizedTime, UtcTime};
use der::{Decode as _, Error, Reader as _, SliceReader, Tag, Tagged as _};
use rondel_core::Timestamp;

/// The earliest expiry of these DER certificates, since a chain is valid only as long as all of its certificates are.
pub(super) fn earliest_expiry<'c>(chain: impl IntoIterator<Item = &'c [u8]>) -> Result<Timestamp, String> {
    let mut earliest: Option<Timestamp> = None;
    for certificate in chain {
        let expiry = not_after(certificate).map_err(|error| format!("a certificate that is not X.509: {error}"))?;
        earliest = Some(earliest.map_or(expiry, |first| first.min(expiry)));
    }
    earliest.ok_or_else(|| "no certificate".to_owned())
}

/// Reads `notAfter` (RFC 5280, section 4.1). `Certificate` begins with `TBSCertificate`, whose fields are version (if it is not 1), serial
/// number, signature, issuer, validity …
fn not_after(certificate: &[u8]) -> Result<Timestamp, Error> {
    let mut certificate_reader = SliceReader::new(certificate)?;
    let certificate = AnyRef::decode(&mut certificate_reader)?;
    let mut body_reader = SliceReader::new(certificate.value())?;
    let signed_body = AnyRef::decode(&mut body_reader)?;
    let mut fields = SliceReader::new(signed_body.value())?;
    if fields.peek_byte().is_some_and(|tag| tag == 0xa0) {
        AnyRef::decode(&mut fields)?;
    }
    for _serial_signature_issuer in 0..3 {
        AnyRef::decode(&mut fields)?;
    }
    let validity = AnyRef::decode(&mut fields)?;
    let mut validity = SliceReader::new(validity.value())?;
    let _not_before = AnyRef::decode(&mut validity)?;
    let not_after = AnyRef::decode(&mut validity)?;
    let since_epoch = match not_after.tag() {
        Tag::UtcTime => not_after.decode_as::<UtcTime>()?.to_unix_duration(),
        _ => not_after.decode_as::<GeneralizedTime>()?.to_unix_duration(),
    };
    Ok(Timestamp::from_secs(i64::try_from(since_epoch.as_secs()).unwrap_or(i64::MAX)))
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;

    use super::*;

    /// A certificate whose expiry has a two-digit year, the format for dates before 2050.
    const SOON: &str = "-----BEGIN CERTIFICATE-----
MIIBbTCCAROgAwIBAgIUAo2D0FUZbFfDIKdZrYeg9msBy3IwCgYIKoZIzj0EAwIw
DDEKMAgGA1UEAwwBYTAeFw0yNjExMjIyMzQ3MjVaFw0yNzEyMjcyMzQ3MjVaMAwx
CjAIBgNVBAMMAWEwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAAStn2JLWTdi+Z+F
IHZ67A4oRgqIJOULR+QBfuLY82W//LZg+unIs2Ike+bYGjS9Eo8YxZ3kmdrZ71F8
OgN0mfswo1MwUTAdBgNVHQ4EFgQUnqI/REZRWfBOK8xyH6zMtaJjsNQwHwYDVR0j
BBgwFoAUnqI/REZRWfBOK8xyH6zMtaJjsNQwDwYDVR0TAQH/BAUwAwEB/zAKBggq
hkjOPQQDAgNIADBFAiBQRxsUO3jBm6etZdQ9t5kpSFbr0Pr7t3BsZnOBG11jlAIh
ALTeaNQUSBN5SlXVqDK7URUGsf3v3KYz6w4N8/8VBOJX
-----END CERTIFICATE-----
";
    const SOON_END: i64 = 1_829_951_245;
    const FAR: &str = "-----BEGIN CERTIFICATE-----
MIIBbzCCARWgAwIBAgIUerL46mcU9TiJZfN5FJVfpikaxUcwCgYIKoZIzj0EAwIw
DDEKMAgGA1UEAwwBYjAgFw0yNjExMjIyMzQ3MjVaGA8yMDYxMDIxMTIzNDcyNVow
DDEKMAgGA1UEAwwBYjBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABK2fYktZN2L5
n4UgdnrsDihGCogk5QtH5AF+4tjzZb/8tmD66cizYiR75tgaNL0SjxjFneSZ2tnv
UXw6A3SZ+zCjUzBRMB0GA1UdDgQWBBSeoj9ERlFZ8E4rzHIfrMy1omOw1DAfBgNV
HSMEGDAWgBSeoj9ERlFZ8E4rzHIfrMy1omOw1DAPBgNVHRMBAf8EBTADAQH/MAoG
CCqGSM49BAMCA0gAMEUCIQCckhQI8eJ1cFQXHU7nSG1nKP9NfgZWQ1al4Why/4ax
vwIgai9q7RSgIJAbD3gQ79e+lmnid8xHxUmKamJ0AIb3Sa0=
-----END CERTIFICATE-----
";
    const FAR_END: i64 = 2_875_391_245;

    fn der(pem: &str) -> Vec<u8> {
        STANDARD.decode(pem.lines().filter(|line| !line.starts_with("---")).collect::<String>()).unwrap()
    }

    #[test]
    fn the_first_end_of_a_chain_counts() {
        let (soon, far) = (der(SOON), der(FAR));
        assert_eq!(earliest_expiry([&*soon]), Ok(Timestamp::from_secs(SOON_END)));
        assert_eq!(earliest_expiry([&*far]), Ok(Timestamp::from_secs(FAR_END)));
        assert_eq!(earliest_expiry([&*far, &*soon]), Ok(Timestamp::from_secs(SOON_END)));
    }

    #[test]
    fn an_invalid_certificate_is_an_error_and_no_panic() {
        assert!(earliest_expiry([]).is_err_and(|message| message.contains("no certificate")));
        assert!(earliest_expiry([&b"!!"[..]]).is_err_and(|message| message.contains("X.509")));
        let bytes = der(SOON);
        for length in 0..100 {
            assert!(not_after(&bytes[..length]).is_err(), "{length}");
        }
        let is_read = |at: &usize| {
            let mut changed = bytes.clone();
            changed[*at] ^= 0xff;
            not_after(&changed).is_ok()
        };
        assert!((0..bytes.len()).filter(is_read).count() < bytes.len());
    }
}
