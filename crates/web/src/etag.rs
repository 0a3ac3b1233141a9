//! Entity tags for versions of jobs, calendars and scripts (`"v3"`), and `If-Match`.

use axum::extract::FromRequestParts;
use http::HeaderValue;
use http::header::IF_MATCH;
use http::request::Parts;

use crate::openapi::{HandlerInputs, Input};
use crate::parameter::Parameter;
use crate::problem::{Code, Problem};
use crate::state::Web;

/// The entity tag of a version.
pub(crate) fn version_tag(version: i64) -> HeaderValue {
    HeaderValue::from_str(&format!("\"v{version}\"")).unwrap_or_else(|_| HeaderValue::from_static("\"v0\""))
}

/// The versions on which the caller's change is based.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum IfMatch {
    /// Any version: no header, or `*`.
    Any,
    /// One of these versions. A tag that this API did not issue matches no version.
    OneOf(Vec<i64>),
}

impl IfMatch {
    /// Checks the current version against the header. Returns the version that must still be current when the change is saved; `None` for
    /// any.
    pub(crate) fn expected_version(&self, version: i64) -> Result<Option<i64>, Problem> {
        match self {
            Self::Any => Ok(None),
            Self::OneOf(versions) if versions.contains(&version) => Ok(Some(version)),
            Self::OneOf(_) => Err(mismatch_problem(version)),
        }
    }

    /// Whether the caller gave a version.
    pub(crate) const fn is_given(&self) -> bool {
        matches!(self, Self::OneOf(_))
    }
}

/// The refusal of a change, with the current version; 0 for an object that does not exist.
pub(crate) fn mismatch_problem(version: i64) -> Problem {
    let detail = match version {
        0 => "nothing has this name now: leave out If-Match to create it".to_owned(),
        _ => format!("it has version {version} now: read it again and repeat the change"),
    };
    Problem::new(Code::VersionMismatch, detail)
        .with_current_version(version)
        .with_header(http::header::ETAG, version_tag(version))
}

impl Input for IfMatch {
    fn describe(inputs: &mut HandlerInputs) {
        let about = "The change is refused unless this is the current version, such as `\"v3\"`. Several versions are separated by \
             commas; `*` matches any version.";
        inputs.headers.push(Parameter::text("If-Match").about(about));
        inputs.refusals.extend([Code::InvalidHeader, Code::VersionMismatch]);
    }
}

impl FromRequestParts<Web> for IfMatch {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _web: &Web) -> Result<Self, Problem> {
        let mut versions = Vec::new();
        let mut is_given = false;
        for header in parts.headers.get_all(IF_MATCH) {
            is_given = true;
            let text = header.to_str().map_err(|_| unreadable_problem())?.trim();
            if text == "*" {
                return Ok(Self::Any);
            }
            for tag in text.split(',') {
                versions.extend(parse_tag(tag.trim())?);
            }
        }
        Ok(if is_given { Self::OneOf(versions) } else { Self::Any })
    }
}

/// The version of a tag. `None` for tags that never match: weak ones, and those that this API did not issue.
fn parse_tag(tag: &str) -> Result<Option<i64>, Problem> {
    let tag_without_prefix = tag.strip_prefix("W/").unwrap_or(tag);
    let opaque_tag =
        tag_without_prefix.strip_prefix('"').and_then(|text| text.strip_suffix('"')).ok_or_else(unreadable_problem)?;
    let version = opaque_tag.strip_prefix('v').and_then(|digits| digits.parse().ok());
    Ok(version.filter(|_| tag_without_prefix == tag))
}

fn unreadable_problem() -> Problem {
    Problem::new(Code::InvalidHeader, "If-Match is neither * nor a list of tags such as \"v3\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_read() {
        for (tag, version) in [("\"v3\"", Some(3)), ("W/\"v3\"", None), ("\"abc\"", None), ("\"\"", None)] {
            assert_eq!(parse_tag(tag).unwrap(), version, "{tag}");
        }
        for tag in ["v3", "", "\"v3", "\""] {
            assert!(parse_tag(tag).is_err(), "{tag:?}");
        }
    }
}
