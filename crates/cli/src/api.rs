//! `rondel api`: any call of the REST API, with the answer unchanged.

use std::path::PathBuf;

use clap::Args;
use reqwest::Method;

use crate::client::{Call, ClientArgs, JSON};
use crate::exit::{Failure, output_or_verdict};
use crate::input::read_text;
use crate::output;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  rondel api GET /jobs\n  rondel api GET '/runs?status=failed&limit=5'\n  \
    rondel api POST /jobs/report.daily/runs -d '{\"params\": {\"day\": \"2026-03-08\"}}'\n  \
    rondel api PATCH /jobs/report.daily -d @patch.json --header 'If-Match: \"v3\"'\n\n\
    The body of the answer goes to stdout unchanged, also that of a refusal; the exit code differs.")]
pub(crate) struct ApiArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// GET, POST, PUT, PATCH or DELETE
    #[arg(value_name = "METHOD", value_parser = parse_method)]
    method: Method,
    /// The path below /api/v1, with its query
    #[arg(value_name = "PATH")]
    path: String,
    /// The body; @FILE for a file, - for stdin
    #[arg(short, long, value_name = "TEXT")]
    data: Option<String>,
    /// A header, `Name: value`; may be repeated
    #[arg(short = 'H', long = "header", value_name = "HEADER", value_parser = parse_header)]
    headers: Vec<(String, String)>,
}

fn parse_method(text: &str) -> Result<Method, String> {
    match text.to_ascii_uppercase().as_str() {
        "GET" => Ok(Method::GET),
        "POST" => Ok(Method::POST),
        "PUT" => Ok(Method::PUT),
        "PATCH" => Ok(Method::PATCH),
        "DELETE" => Ok(Method::DELETE),
        _ => Err("is none of GET, POST, PUT, PATCH and DELETE".to_owned()),
    }
}

fn parse_header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once(':').ok_or_else(|| "has no colon; write \"Name: value\"".to_owned())?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

impl ApiArgs {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let client = self.client.client()?;
        let (path, query) = self.path.split_once('?').unwrap_or((&self.path, ""));
        let path = path.trim_start_matches('/');
        let path = path.strip_prefix("api/v1/").unwrap_or(path);
        let segments: Vec<String> = path.split('/').map(decode_segment).collect();
        let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
        let pairs: Vec<(String, String)> =
            reqwest::Url::parse(&format!("http://x/?{query}"))?.query_pairs().into_owned().collect();
        let query: Vec<(&str, &str)> = pairs.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let headers: Vec<(&str, &str)> =
            self.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let body = self.body()?.map(|text| (JSON, text));
        let call = Call { method: self.method, path: &segments, query: &query, body, headers: &headers };
        match client.call(call).await? {
            Ok(body) => output::print_answer(body.text()),
            Err(refusal) => output_or_verdict(output::print_answer(&refusal.text), Err(client.failure(&refusal))),
        }
    }

    fn body(&self) -> Result<Option<String>, Failure> {
        match self.data.as_deref() {
            None => Ok(None),
            Some("-") => read_text(&PathBuf::from("-")).map(Some),
            Some(text) => match text.strip_prefix('@') {
                Some(file) => read_text(&PathBuf::from(file)).map(Some),
                None => Ok(Some(text.to_owned())),
            },
        }
    }
}

/// Decodes the percent escapes of a path segment, because the client escapes the segment again.
fn decode_segment(segment: &str) -> String {
    let bytes = segment.as_bytes();
    let mut decoded_bytes = Vec::with_capacity(bytes.len());
    let mut position = 0;
    while position < bytes.len() {
        let hex = segment.get(position + 1..position + 3).filter(|_| bytes[position] == b'%');
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                decoded_bytes.push(byte);
                position += 3;
            }
            None => {
                decoded_bytes.push(bytes[position]);
                position += 1;
            }
        }
    }
    String::from_utf8_lossy(&decoded_bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_lose_their_percent_signs() {
        for (segment, plain) in
            [("jobs", "jobs"), ("a%2Fb", "a/b"), ("100%", "100%"), ("%e6%97%a5", "日"), ("%zz", "%zz")]
        {
            assert_eq!(decode_segment(segment), plain);
        }
    }

    #[test]
    fn headers_have_a_colon() {
        assert_eq!(parse_header("If-Match: \"v3\""), Ok(("If-Match".to_owned(), "\"v3\"".to_owned())));
        assert!(parse_header("If-Match").is_err());
    }
}
