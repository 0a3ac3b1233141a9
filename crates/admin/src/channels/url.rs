//! Checks of the URLs of channels.

use rondel_core::channel::{ChannelKind, Values};
use rondel_core::outgoing::AllowedAddresses;
use rondel_outgoing::{Url, check_host};

/// Parses the URL, and checks that messages can be sent to it.
pub(super) fn read_url(text: &str) -> Result<Url, String> {
    let url = Url::parse(text.trim()).map_err(|error| format!("is not a URL: {error}"))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err("must begin with https:// or http://".to_owned());
    }
    if !url.has_host() {
        return Err("names no host".to_owned());
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("must not hold a user or a password".to_owned());
    }
    Ok(url)
}

/// Checks whether messages of this kind can be sent to the URL. Only the text of the URL is checked here; the addresses of a host name are
/// checked at each delivery.
pub(super) fn check_url(kind: ChannelKind, text: &str, allowed_addresses: &AllowedAddresses) -> Result<(), String> {
    let url = read_url(text)?;
    check_host(&url, allowed_addresses).map_err(|refused| refused.to_string())?;
    let has_query = |name: &str| url.query_pairs().any(|(key, value)| key == name && !value.is_empty());
    let is_ip_host = url.host_str().is_some_and(is_ip_address);
    if url.scheme() == "http" && !is_ip_host && !matches!(kind, ChannelKind::Webhook | ChannelKind::Ntfy) {
        return Err("must begin with https://: the URL is a secret".to_owned());
    }
    match kind {
        ChannelKind::Dingtalk if !has_query("access_token") => {
            Err("has no access_token: copy the whole URL that DingTalk shows for the robot".to_owned())
        }
        ChannelKind::Wecom if !has_query("key") => {
            Err("has no key: copy the whole URL that WeCom shows for the robot".to_owned())
        }
        ChannelKind::Feishu if !url.path().contains("/hook/") => {
            Err("has no /hook/ in its path: copy the whole URL that Feishu shows for the robot".to_owned())
        }
        ChannelKind::Slack | ChannelKind::Teams if url.path().len() <= 1 => {
            Err("has no path: copy the whole URL that the service shows".to_owned())
        }
        _ => Ok(()),
    }
}

/// Whether the host is an IP address. [`check_host`] has already allowed the address.
fn is_ip_address(host: &str) -> bool {
    host.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>().is_ok()
}

/// The host of a channel's URL, which is the only part of the URL that may be shown; `None` if there is no usable URL.
pub(super) fn shown_host(values: &Values) -> Option<String> {
    let url = read_url(values.get("url")?).ok()?;
    url.host_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(kind: ChannelKind, url: &str, expected: Result<(), &str>) {
        let found = check_url(kind, url, &AllowedAddresses::loopback());
        match (found, expected) {
            (Ok(()), Ok(())) => {}
            (Err(found), Err(words)) => assert!(found.contains(words), "{url}: {found}"),
            (found, _) => panic!("{url}: {found:?}"),
        }
    }

    #[test]
    fn a_url_is_the_whole_one_of_its_service() {
        use ChannelKind::{Dingtalk, Feishu, Slack, Webhook, Wecom};
        check(Slack, "https://hooks.slack.com/services/T/B/x", Ok(()));
        check(Slack, "http://127.0.0.1:9/services/T/B/x", Ok(()));
        check(Slack, "http://hooks.slack.com/services/T/B/x", Err("https://"));
        check(Slack, "https://hooks.slack.com", Err("no path"));
        check(Slack, "https://10.0.0.1/x", Err("outgoing_allow"));
        check(Slack, "ftp://hooks.slack.com/x", Err("must begin"));
        check(Slack, "https://u:p@hooks.slack.com/x", Err("user or a password"));
        check(Webhook, "http://receiver.example.com/", Ok(()));
        check(Dingtalk, "https://oapi.dingtalk.com/robot/send?access_token=x", Ok(()));
        check(Dingtalk, "https://oapi.dingtalk.com/robot/send", Err("access_token"));
        check(Wecom, "https://qyapi.weixin.qq.com/cgi-bin/webhook/send?key=", Err("no key"));
        check(Feishu, "https://open.feishu.cn/open-apis/bot/v2/hook/x", Ok(()));
        check(Feishu, "https://open.feishu.cn/", Err("/hook/"));
    }
}
