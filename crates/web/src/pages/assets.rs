//! What pages are made with, inside of the binary, at addresses that change with the content.

use std::sync::LazyLock;

use axum::extract::Path;
use axum::response::{IntoResponse as _, Response};
use http::HeaderValue;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use sha2::{Digest as _, Sha256};

use crate::problem::{Code, Problem};

struct Asset {
    /// Its address.
    href: String,
    content_type: &'static str,
    bytes: &'static [u8],
}

macro_rules! assets {
    ($($name:ident = $stem:literal . $ending:literal, $content_type:literal, $path:literal;)+) => {
        /// The addresses, for templates.
        pub(crate) struct Assets { $( $name: Asset ),+ }

        static ASSETS: LazyLock<Assets> = LazyLock::new(|| Assets { $(
            $name: Asset::new($stem, $ending, $content_type, include_bytes!(concat!("../../../../web/static/", $path)))
        ),+ });

        impl Assets {
            $( pub(crate) fn $name() -> &'static str { &ASSETS.$name.href } )+

            fn all(&self) -> Vec<&Asset> { vec![$( &self.$name ),+] }
        }
    };
}

assets! {
    style = "console" . "css", "text/css; charset=utf-8", "console.css";
    script = "console" . "js", "text/javascript; charset=utf-8", "console.js";
    htmx = "htmx" . "js", "text/javascript; charset=utf-8", "vendor/htmx-4.0.1.min.js";
    logo = "logo" . "svg", "image/svg+xml", "logo.svg";
}

impl Asset {
    fn new(stem: &str, ending: &str, content_type: &'static str, bytes: &'static [u8]) -> Self {
        let hash: String = Sha256::digest(bytes).iter().take(6).map(|byte| format!("{byte:02x}")).collect();
        Self { href: format!("/static/{stem}.{hash}.{ending}"), content_type, bytes }
    }
}

pub(crate) async fn get(
    path: Result<Path<String>, axum::extract::rejection::PathRejection>,
) -> Result<Response, Problem> {
    let file = path.map(|Path(file)| file).unwrap_or_default();
    let mut all = ASSETS.all().into_iter();
    let found = all.find(|asset| asset.href.strip_prefix("/static/") == Some(&file));
    let asset = found.ok_or_else(|| Problem::new(Code::NotFound, "there is no such file"))?;
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static(asset.content_type)),
        (CACHE_CONTROL, HeaderValue::from_static("public, max-age=31536000, immutable")),
    ];
    Ok((headers, asset.bytes).into_response())
}
