//! The static files of pages. They are embedded in the binary, and their URLs change whenever their content does.

use std::sync::LazyLock;

use axum::extract::Path;
use axum::response::{IntoResponse as _, Response};
use http::header::{ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, VARY};
use http::{HeaderMap, HeaderValue};
use sha2::{Digest as _, Sha256};

use crate::problem::{Code, Problem};

struct Asset {
    href: String,
    content_type: &'static str,
    bytes: &'static [u8],
    /// The content, compressed by the build at the highest level.
    brotli_bytes: &'static [u8],
}

macro_rules! assets {
    ($($name:ident = $stem:literal . $ending:literal, $content_type:literal, $path:expr, $packed:literal;)+) => {
        /// The files by name, for templates.
        pub(crate) struct Assets { $( $name: Asset ),+ }

        static ASSETS: LazyLock<Assets> = LazyLock::new(|| Assets { $(
            $name: Asset::new(($stem, $ending, $content_type), include_bytes!($path),
                include_bytes!(concat!(env!("OUT_DIR"), "/", $packed)))
        ),+ });

        impl Assets {
            $( pub(crate) fn $name() -> &'static str { &ASSETS.$name.href } )+

            fn all(&self) -> Vec<&Asset> { vec![$( &self.$name ),+] }
        }
    };
}

assets! {
    style = "console" . "css", "text/css; charset=utf-8", concat!(env!("OUT_DIR"), "/console.css"), "console.css.br";
    run_style = "run" . "css", "text/css; charset=utf-8", concat!(env!("OUT_DIR"), "/run.css"), "run.css.br";
    script = "console" . "js", "text/javascript; charset=utf-8", concat!(env!("OUT_DIR"), "/console.js"), "console.js.br";
    log_script = "log" . "js", "text/javascript; charset=utf-8", concat!(env!("OUT_DIR"), "/log.js"), "log.js.br";
    htmx = "htmx" . "js", "text/javascript; charset=utf-8", "../../../../web/static/vendor/htmx-4.0.1.min.js", "htmx.js.br";
    logo = "logo" . "svg", "image/svg+xml", "../../../../web/static/logo.svg", "logo.svg.br";
}

/// The style sheet refers to the fonts by URL, so these URLs contain a version instead of a hash.
const FONTS: [(&str, &[u8]); 2] = [
    ("inter-5.3.0-basic.woff2", include_bytes!("../../../../web/static/vendor/inter-5.3.0-basic.woff2")),
    ("inter-5.3.0-latin.woff2", include_bytes!("../../../../web/static/vendor/inter-5.3.0-latin.woff2")),
];

impl Asset {
    fn new(
        (stem, ending, content_type): (&str, &str, &'static str),
        bytes: &'static [u8],
        brotli: &'static [u8],
    ) -> Self {
        let hash: String = Sha256::digest(bytes).iter().take(6).map(|byte| format!("{byte:02x}")).collect();
        Self { href: format!("/static/{stem}.{hash}.{ending}"), content_type, bytes, brotli_bytes: brotli }
    }
}

pub(crate) async fn get(
    headers: HeaderMap,
    path: Result<Path<String>, axum::extract::rejection::PathRejection>,
) -> Result<Response, Problem> {
    let file = path.map(|Path(file)| file).unwrap_or_default();
    let cache_forever = (CACHE_CONTROL, HeaderValue::from_static("public, max-age=31536000, immutable"));
    if let Some((_, bytes)) = FONTS.iter().find(|(name, _)| *name == file) {
        return Ok(([(CONTENT_TYPE, HeaderValue::from_static("font/woff2")), cache_forever], *bytes).into_response());
    }
    let mut assets = ASSETS.all().into_iter();
    let asset = assets.find(|asset| asset.href.strip_prefix("/static/") == Some(&file));
    let asset = asset.ok_or_else(|| Problem::new(Code::NotFound, "there is no such file"))?;
    let asset_headers = [(CONTENT_TYPE, HeaderValue::from_static(asset.content_type)), cache_forever];
    if accepts_brotli(&headers) {
        let encoding_headers =
            [(CONTENT_ENCODING, HeaderValue::from_static("br")), (VARY, HeaderValue::from_static("accept-encoding"))];
        return Ok((asset_headers, encoding_headers, asset.brotli_bytes).into_response());
    }
    Ok((asset_headers, asset.bytes).into_response())
}

/// Whether the client accepts brotli without a weight. For clients that send weights, the compression layer chooses the encoding.
fn accepts_brotli(headers: &HeaderMap) -> bool {
    let accept_headers = headers.get_all(ACCEPT_ENCODING).into_iter().filter_map(|value| value.to_str().ok());
    accept_headers.flat_map(|value| value.split(',')).any(|coding| coding.trim().eq_ignore_ascii_case("br"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_style_sheet_names_the_fonts_that_there_are() {
        let sheet = std::str::from_utf8(ASSETS.style.bytes).unwrap();
        for (name, _) in FONTS {
            assert!(sheet.contains(&format!("url(\"/static/{name}\")")), "{name}");
        }
        assert_eq!(sheet.matches("url(\"/static/").count(), FONTS.len());
    }

    #[test]
    fn a_caller_that_names_brotli_gets_it() {
        let of = |text: &'static str| {
            accepts_brotli(&HeaderMap::from_iter([(ACCEPT_ENCODING, HeaderValue::from_static(text))]))
        };
        assert!(of("gzip, deflate, br, zstd") && of("BR"));
        assert!(!of("gzip") && !of("br;q=0") && !accepts_brotli(&HeaderMap::new()));
        for asset in ASSETS.all() {
            assert!(asset.brotli_bytes.len() < asset.bytes.len(), "{} is smaller compressed", asset.href);
        }
    }
}
