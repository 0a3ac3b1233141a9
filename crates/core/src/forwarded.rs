//! Finds the client of a request that came through proxies. The headers `Forwarded` (RFC 7239) and `X-Forwarded-For` are
//! believed only as far as trusted proxies wrote them.

use std::net::{IpAddr, Ipv6Addr};

use ipnet::IpNet;

use crate::outgoing::parse_network;

/// Maximum number of entries of one header that are read, counted from the end.
const HOP_COUNT_MAX: usize = 32;

/// The networks of the proxies whose headers are believed.
///
/// ```
/// use rondel_core::forwarded::TrustedProxies;
///
/// let trusted = TrustedProxies::parse(["10.0.0.0/8"]).unwrap();
/// let client = trusted.client([10, 0, 0, 1].into(), &[], &["203.0.113.9, 10.0.0.2"]);
/// assert_eq!(client, std::net::IpAddr::from([203, 0, 113, 9]));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrustedProxies(Vec<IpNet>);

impl TrustedProxies {
    /// Networks such as `10.1.0.0/16`, and single addresses.
    ///
    /// # Errors
    /// A sentence about the first text that is neither.
    pub fn parse<T: AsRef<str>>(texts: impl IntoIterator<Item = T>) -> Result<Self, String> {
        texts.into_iter().map(|text| parse_network(text.as_ref())).collect::<Result<_, _>>().map(Self)
    }

    /// Whether this is the address of a trusted proxy.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|network| network.contains(&address))
    }

    /// The client of a connection from `peer`. The headers are read from the right, because each proxy appends to them: the
    /// first entry that is not a trusted proxy is the client. If an entry is not an address, the client is the last trusted
    /// hop. If both headers are present and disagree, the client sent one of them itself, and neither is believed.
    #[must_use]
    pub fn client(&self, peer: IpAddr, forwarded: &[&str], x_forwarded_for: &[&str]) -> IpAddr {
        let peer = peer.to_canonical();
        if !self.contains(peer) {
            return peer;
        }
        let forwarded_client = (!forwarded.is_empty()).then(|| self.last_hop(peer, forwarded, forwarded_node));
        let x_forwarded_for_client =
            (!x_forwarded_for.is_empty()).then(|| self.last_hop(peer, x_forwarded_for, parse_address));
        match (forwarded_client, x_forwarded_for_client) {
            (Some(first_client), Some(second_client)) if first_client != second_client => peer,
            (Some(client), _) | (None, Some(client)) => client,
            (None, None) => peer,
        }
    }

    fn last_hop(&self, peer: IpAddr, lines: &[&str], read: fn(&str) -> Option<IpAddr>) -> IpAddr {
        let mut last_hop = peer;
        for entry in lines.iter().rev().flat_map(|line| line.rsplit(',')).take(HOP_COUNT_MAX) {
            let Some(address) = read(entry) else { return last_hop };
            last_hop = address;
            if !self.contains(address) {
                return address;
            }
        }
        last_hop
    }
}

/// The address in the `for` of one element of `Forwarded`.
fn forwarded_node(element: &str) -> Option<IpAddr> {
    let mut pairs = element.split(';').filter_map(|pair| pair.split_once('='));
    let (_, value) = pairs.find(|(name, _)| name.trim().eq_ignore_ascii_case("for"))?;
    parse_address(value)
}

/// An address with or without quotes, brackets and a port.
fn parse_address(text: &str) -> Option<IpAddr> {
    let text = text.trim();
    let text = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(text);
    let host = match text.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?.0,
        None => match text.split_once(':') {
            Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
            _ => text,
        },
    };
    host.parse::<IpAddr>().ok().map(|address| address.to_canonical())
}

/// The address under which a client is counted: for IPv6 its /64 network, because one client can use all addresses of that network.
#[must_use]
pub fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(peer: &str, forwarded: &[&str], list: &[&str], expected: &str) {
        let trusted = TrustedProxies::parse(["10.0.0.0/8", "2001:db8:1::/48"]).unwrap();
        let client = trusted.client(peer.parse().unwrap(), forwarded, list);
        assert_eq!(client, expected.parse::<IpAddr>().unwrap(), "{peer} {forwarded:?} {list:?}");
    }

    #[test]
    fn one_ipv6_network_is_one_client() {
        let network = |text: &str| network_of(text.parse().unwrap());
        assert_eq!(network("2001:db8:1:2::1"), network("2001:db8:1:2:ffff::9"));
        assert_ne!(network("2001:db8:1:2::1"), network("2001:db8:1:3::1"));
        assert_eq!(network("::ffff:192.0.2.1"), network("192.0.2.1"));
    }

    #[test]
    fn only_trusted_proxies_are_believed() {
        check("203.0.113.1", &[], &["198.51.100.7"], "203.0.113.1");
        check("203.0.113.1", &["for=198.51.100.7"], &[], "203.0.113.1");
        check("10.0.0.1", &[], &[], "10.0.0.1");
        check("10.0.0.1", &[], &["198.51.100.7"], "198.51.100.7");
        check("::ffff:10.0.0.1", &[], &["198.51.100.7"], "198.51.100.7");
        check("10.0.0.1", &["for=198.51.100.7;proto=https"], &[], "198.51.100.7");
    }

    #[test]
    fn the_list_is_read_from_the_right_as_far_as_it_is_trusted() {
        check("10.0.0.1", &[], &["1.2.3.4, 198.51.100.7, 10.0.0.2"], "198.51.100.7");
        check("10.0.0.1", &[], &["1.2.3.4", "198.51.100.7, 10.0.0.2"], "198.51.100.7");
        check("10.0.0.1", &[], &["10.0.0.3, 10.0.0.2"], "10.0.0.3");
        check("10.0.0.1", &[], &["198.51.100.7, unknown, 10.0.0.2"], "10.0.0.2");
        check("10.0.0.1", &["for=1.2.3.4, for=_hidden"], &[], "10.0.0.1");
        check("10.0.0.1", &["for=\"1.2.3.4, for=198.51.100.7"], &[], "198.51.100.7");
        check("10.0.0.1", &["for=1.2.3.4, proto=https"], &[], "10.0.0.1");
    }

    #[test]
    fn addresses_may_have_quotes_brackets_and_ports() {
        check("10.0.0.1", &["For=\"[2001:db8:9::7]:4711\""], &[], "2001:db8:9::7");
        check("10.0.0.1", &["for=198.51.100.7:80"], &[], "198.51.100.7");
        check("2001:db8:1::1", &[], &["2001:db8:9::7"], "2001:db8:9::7");
        check("2001:db8:1::1", &[], &["[2001:db8:9::7]:80"], "2001:db8:9::7");
        check("10.0.0.1", &[], &["::ffff:198.51.100.7"], "198.51.100.7");
    }

    #[test]
    fn headers_that_disagree_are_not_believed() {
        check("10.0.0.1", &["for=1.2.3.4"], &["198.51.100.7"], "10.0.0.1");
        check("10.0.0.1", &["for=198.51.100.7"], &["198.51.100.7"], "198.51.100.7");
    }

    #[test]
    fn networks_are_checked() {
        for text in ["10.0.0.1/8", "proxy", "", "::ffff:10.0.0.1"] {
            assert!(TrustedProxies::parse([text]).is_err(), "{text}");
        }
    }
}
