//! Checks the settings for executors of XXL-JOB.

use std::time::Duration;

use rondel_core::outgoing::{AllowedAddresses, XXL_SETTING};
use rondel_xxl::XxlConfig;

use super::check::bad_setting;
use super::layer::Layer;
use super::server::{ServerSettings, ServerValues};
use super::values::DurationText;
use crate::exit::Failure;

const SECTION: &str = ServerSettings::SECTION;
/// The minimum of `xxl_callback_timeout`. Only tests use a value this low: executors that could not reach a server resend
/// their callbacks within half a minute.
const XXL_CALLBACK_MIN: Duration = Duration::from_secs(1);
const XXL_CALLBACK_MAX: Duration = Duration::from_secs(24 * 3600);

/// The settings for serving executors of XXL-JOB; `None` if no network is named.
pub(super) fn xxl_config(settings: &ServerValues) -> Result<Option<XxlConfig>, Failure> {
    let refusal = |key, sentence: String| Err(bad_setting(SECTION, key, sentence));
    let networks = AllowedAddresses::parse(settings.xxl_networks.clone());
    let networks = networks.map_err(|sentence| bad_setting(SECTION, XXL_SETTING, sentence))?;
    let timeout = settings.xxl_callback_timeout;
    if !(XXL_CALLBACK_MIN..=XXL_CALLBACK_MAX).contains(&timeout.0) {
        let (min_text, max_text) = (DurationText(XXL_CALLBACK_MIN), DurationText(XXL_CALLBACK_MAX));
        return refusal("xxl_callback_timeout", format!("{timeout} is not from {min_text} to {max_text}"));
    }
    if let Some(prefix) = &settings.xxl_prefix {
        let is_valid_part = |path_part: &str| {
            !path_part.is_empty()
                && path_part.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
        };
        let path_parts = prefix.strip_prefix('/').map(|path| path.trim_end_matches('/').split('/').collect::<Vec<_>>());
        // A route below the prefix can exclude a route of the console: the server would not start. The table lacks the
        // prefix of namespaces and the gRPC service.
        let is_reserved_part = |first_path_part: &&str| {
            matches!(*first_path_part, "n" | "rondel.v1.Gateway")
                || rondel_web::route_table().iter().any(|route| route.path.split('/').nth(1) == Some(*first_path_part))
        };
        // The server appends `/api` to each prefix, so the routes of this one would be those of the usual prefix.
        let is_own_path = |path_parts: Vec<&str>| {
            path_parts.iter().all(|path_part| is_valid_part(path_part))
                && !path_parts.first().is_some_and(is_reserved_part)
                && path_parts != ["xxl-job-admin", "api"]
        };
        if !path_parts.is_some_and(is_own_path) {
            return refusal("xxl_prefix", format!("{prefix:?} is not a path of its own; write it as /scheduler"));
        }
        if networks.is_empty() {
            return refusal("xxl_prefix", "has no effect without xxl_networks: no such executor is served".to_owned());
        }
    }
    let (prefix, callback_timeout) = (settings.xxl_prefix.clone(), timeout.0);
    Ok((!networks.is_empty()).then_some(XxlConfig { networks, prefix, callback_timeout }))
}
