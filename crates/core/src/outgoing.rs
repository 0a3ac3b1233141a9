//! Which addresses the server and the agent may send requests to if a user chose the URL: public ones, and those on an allow
//! list. `rondel-outgoing` resolves each host name once; this module checks the resulting addresses.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// The setting of the server and of the agent that holds the allow list.
pub const SETTING: &str = "outgoing_allow";

/// The purpose of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressKind {
    /// For the public internet.
    Public,
    /// For this host itself.
    Loopback,
    /// For private networks.
    Private,
    /// For the local link of a host.
    LinkLocal,
    /// For the metadata service of a cloud, which gives machines their secrets.
    Metadata,
    /// For many hosts at once.
    Multicast,
    /// For carrier-grade NAT: shared by the customers of a provider.
    Shared,
    /// `0.0.0.0/8` and `::`: many systems treat them as the loopback address.
    Unspecified,
    /// For documentation, for benchmarks, for translation between IPv4 and IPv6, or not assigned.
    Reserved,
}

impl fmt::Display for AddressKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Public => "a public address",
            Self::Loopback => "a loopback address",
            Self::Private => "a private address",
            Self::LinkLocal => "a link-local address",
            Self::Metadata => "a cloud's metadata address",
            Self::Multicast => "a multicast address",
            Self::Shared => "a provider's shared address",
            Self::Unspecified => "an unspecified address",
            Self::Reserved => "a reserved address",
        })
    }
}

const fn v4(a: u8, b: u8, c: u8, d: u8, prefix: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), prefix)
}

/// A network by the first groups of its IPv6 address; the other groups are zero.
const fn v6(groups: [u16; 3], prefix: u8) -> Ipv6Net {
    Ipv6Net::new_assert(Ipv6Addr::new(groups[0], groups[1], groups[2], 0, 0, 0, 0, 0), prefix)
}

/// Metadata services of clouds: AWS, Azure, Google and most others at 169.254.169.254.
const METADATA: [IpAddr; 9] = [
    IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254)),
    IpAddr::V4(Ipv4Addr::new(169, 254, 170, 2)),
    IpAddr::V4(Ipv4Addr::new(169, 254, 170, 23)),
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23)),
    IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)),
];

/// IPv4 networks that are not public, by IANA's registry of special-purpose addresses.
const SPECIAL_V4: [(Ipv4Net, AddressKind); 15] = [
    (v4(0, 0, 0, 0, 8), AddressKind::Unspecified),
    (v4(10, 0, 0, 0, 8), AddressKind::Private),
    (v4(100, 64, 0, 0, 10), AddressKind::Shared),
    (v4(127, 0, 0, 0, 8), AddressKind::Loopback),
    (v4(169, 254, 0, 0, 16), AddressKind::LinkLocal),
    (v4(172, 16, 0, 0, 12), AddressKind::Private),
    (v4(192, 0, 0, 0, 24), AddressKind::Reserved),
    (v4(192, 0, 2, 0, 24), AddressKind::Reserved),
    (v4(192, 88, 99, 0, 24), AddressKind::Reserved),
    (v4(192, 168, 0, 0, 16), AddressKind::Private),
    (v4(198, 18, 0, 0, 15), AddressKind::Reserved),
    (v4(198, 51, 100, 0, 24), AddressKind::Reserved),
    (v4(203, 0, 113, 0, 24), AddressKind::Reserved),
    (v4(224, 0, 0, 0, 4), AddressKind::Multicast),
    (v4(240, 0, 0, 0, 4), AddressKind::Reserved),
];

/// IPv6 networks that are not public; outside of these, only `2000::/3` is public.
const SPECIAL_V6: [(Ipv6Net, AddressKind); 8] = [
    (v6([0xfc00, 0, 0], 7), AddressKind::Private),
    (v6([0xfec0, 0, 0], 10), AddressKind::Private),
    (v6([0xfe80, 0, 0], 10), AddressKind::LinkLocal),
    (v6([0xff00, 0, 0], 8), AddressKind::Multicast),
    // Teredo, ORCHID, benchmarks.
    (v6([0x2001, 0, 0], 23), AddressKind::Reserved),
    (v6([0x2001, 0xdb8, 0], 32), AddressKind::Reserved),
    // 6to4: embeds an IPv4 address of any kind, reached through a relay.
    (v6([0x2002, 0, 0], 16), AddressKind::Reserved),
    (v6([0x3fff, 0, 0], 20), AddressKind::Reserved),
];
const GLOBAL_V6: Ipv6Net = v6([0x2000, 0, 0], 3);
/// The NAT64 prefix, under which hosts without IPv4 reach IPv4 addresses. The embedded IPv4 address is checked instead.
const NAT64: Ipv6Net = v6([0x64, 0xff9b, 0], 96);

/// The address that a packet would go to: for an IPv4-mapped or a NAT64 address, the IPv4 address in it.
fn effective_address(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) if NAT64.contains(&v6) => {
            let [.., a, b, c, d] = v6.octets();
            IpAddr::V4(Ipv4Addr::new(a, b, c, d))
        }
        canonical => canonical,
    }
}

/// The purpose of this address.
#[must_use]
pub fn kind(address: IpAddr) -> AddressKind {
    let address = effective_address(address);
    if METADATA.contains(&address) {
        return AddressKind::Metadata;
    }
    match address {
        IpAddr::V4(v4) => {
            let special_network = SPECIAL_V4.iter().find(|(network, _)| network.contains(&v4));
            special_network.map_or(AddressKind::Public, |(_, kind)| *kind)
        }
        IpAddr::V6(Ipv6Addr::LOCALHOST) => AddressKind::Loopback,
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => AddressKind::Unspecified,
        IpAddr::V6(v6) => {
            let special_kind = SPECIAL_V6.iter().find(|(network, _)| network.contains(&v6)).map(|(_, kind)| *kind);
            let default_kind = if GLOBAL_V6.contains(&v6) { AddressKind::Public } else { AddressKind::Reserved };
            special_kind.unwrap_or(default_kind)
        }
    }
}

/// The setting that names the networks of executors that speak XXL-JOB's protocol.
pub const XXL_SETTING: &str = "xxl_networks";

/// An address that requests must not go to. The error text names the setting that would allow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{address} is {kind}, which the setting {setting} does not name")]
pub struct AddressRefused {
    pub address: IpAddr,
    pub kind: AddressKind,
    /// The setting that can allow the address.
    pub setting: &'static str,
}

/// Addresses that are allowed in addition to the public ones.
///
/// ```
/// use rondel_core::outgoing::AllowedAddresses;
///
/// let allowed = AllowedAddresses::parse(["10.1.0.0/16"]).unwrap();
/// assert!(allowed.check([10, 1, 2, 3].into()).is_ok() && allowed.check([1, 1, 1, 1].into()).is_ok());
/// assert!(allowed.check([10, 2, 0, 1].into()).is_err() && allowed.check([127, 0, 0, 1].into()).is_err());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowedAddresses {
    networks: Vec<IpNet>,
    /// Whether public addresses must be named too.
    allows_only_named: bool,
}

impl AllowedAddresses {
    /// Allows this host's own addresses, for installations on one machine.
    #[must_use]
    pub fn loopback() -> Self {
        let networks = vec![IpNet::V4(v4(127, 0, 0, 0, 8)), IpNet::V6(Ipv6Net::from(Ipv6Addr::LOCALHOST))];
        Self { networks, allows_only_named: false }
    }

    /// Allows only the named networks, so that public addresses must be named too: for executors that a server dials.
    #[must_use]
    pub fn without_public(self) -> Self {
        Self { allows_only_named: true, ..self }
    }

    /// Whether no network is named.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.networks.is_empty()
    }

    /// Reads networks such as `10.1.0.0/16`, and single addresses.
    ///
    /// # Errors
    /// A sentence about the first text that is neither.
    pub fn parse<T: AsRef<str>>(texts: impl IntoIterator<Item = T>) -> Result<Self, String> {
        let networks = texts.into_iter().map(|text| parse_network(text.as_ref())).collect::<Result<_, _>>()?;
        Ok(Self { networks, allows_only_named: false })
    }

    /// Whether requests may go to an address. A cloud's metadata address must be listed explicitly: a network that contains it does not allow
    /// it.
    ///
    /// # Errors
    /// [`AddressRefused`].
    pub fn check(&self, address: IpAddr) -> Result<(), AddressRefused> {
        let kind = kind(address);
        let (canonical_address, effective) = (address.to_canonical(), effective_address(address));
        let allows = |network: &IpNet| {
            let is_single = network.prefix_len() == network.max_prefix_len();
            (network.contains(&canonical_address) || network.contains(&effective))
                && (kind != AddressKind::Metadata || is_single)
        };
        if (kind == AddressKind::Public && !self.allows_only_named) || self.networks.iter().any(allows) {
            return Ok(());
        }
        let setting = if self.allows_only_named { XXL_SETTING } else { SETTING };
        Err(AddressRefused { address: canonical_address, kind, setting })
    }
}

/// A network such as `10.1.0.0/16`, or a single address.
pub(crate) fn parse_network(text: &str) -> Result<IpNet, String> {
    let network_error = || format!("{text:?} is neither a network such as 10.1.0.0/16 nor an address");
    let network = match IpAddr::from_str(text) {
        Ok(address) => IpNet::from(address),
        Err(_) => IpNet::from_str(text).map_err(|_| network_error())?,
    };
    if network.addr() != network.network() {
        return Err(format!("{text:?} names an address in a network; the network is {}", network.trunc()));
    }
    if network.addr().to_canonical() != network.addr() {
        return Err(format!("{text:?} is IPv4 written as IPv6; write it as IPv4"));
    }
    Ok(network)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_address_has_its_kind() {
        use AddressKind::{LinkLocal, Loopback, Metadata, Multicast, Private, Public, Reserved, Shared, Unspecified};
        for (text, expected) in [
            ("1.1.1.1", Public),
            ("9.255.255.255", Public),
            ("11.0.0.0", Public),
            ("172.15.255.255", Public),
            ("172.32.0.0", Public),
            ("192.167.255.255", Public),
            ("223.255.255.255", Public),
            ("100.63.255.255", Public),
            ("100.128.0.0", Public),
            ("0.0.0.0", Unspecified),
            ("0.255.255.255", Unspecified),
            ("10.0.0.0", Private),
            ("10.255.255.255", Private),
            ("172.16.0.0", Private),
            ("172.31.255.255", Private),
            ("192.168.255.255", Private),
            ("100.64.0.1", Shared),
            ("100.127.255.255", Shared),
            ("127.0.0.1", Loopback),
            ("127.255.255.254", Loopback),
            ("169.254.0.1", LinkLocal),
            ("169.254.169.254", Metadata),
            ("169.254.170.2", Metadata),
            ("100.100.100.200", Metadata),
            ("168.63.129.16", Metadata),
            ("192.0.0.192", Metadata),
            ("192.0.0.1", Reserved),
            ("192.0.2.1", Reserved),
            ("198.19.255.255", Reserved),
            ("203.0.113.9", Reserved),
            ("224.0.0.1", Multicast),
            ("239.255.255.255", Multicast),
            ("240.0.0.1", Reserved),
            ("255.255.255.255", Reserved),
            ("2606:4700:4700::1111", Public),
            ("2a00:1450::1", Public),
            ("::", Unspecified),
            ("::1", Loopback),
            ("::2", Reserved),
            ("::127.0.0.1", Reserved),
            ("::ffff:127.0.0.1", Loopback),
            ("::ffff:10.0.0.1", Private),
            ("::ffff:169.254.169.254", Metadata),
            ("::ffff:1.1.1.1", Public),
            ("64:ff9b::1.1.1.1", Public),
            ("64:ff9b::127.0.0.1", Loopback),
            ("64:ff9b::a9fe:a9fe", Metadata),
            ("64:ff9b:1::1.1.1.1", Reserved),
            ("100::1", Reserved),
            ("2001::1", Reserved),
            ("2001:db8::1", Reserved),
            ("2002:7f00:1::", Reserved),
            ("3fff::1", Reserved),
            ("4000::1", Reserved),
            ("5f00::1", Reserved),
            ("fc00::1", Private),
            ("fd12:3456::1", Private),
            ("fd00:ec2::254", Metadata),
            ("fe80::1", LinkLocal),
            ("fec0::1", Private),
            ("ff02::1", Multicast),
        ] {
            assert_eq!(kind(text.parse().unwrap()), expected, "{text}");
        }
    }

    #[test]
    fn the_allow_list_opens_only_the_addresses_that_it_names() {
        let allowed = AllowedAddresses::parse(["10.1.0.0/16", "192.168.0.7", "fd12::/16", "0.0.0.0/0"]).unwrap();
        for good in ["10.1.255.255", "192.168.0.7", "::ffff:10.1.0.1", "64:ff9b::10.1.0.1", "fd12::1", "127.0.0.1"] {
            assert_eq!(allowed.check(good.parse().unwrap()), Ok(()), "{good}");
        }
        for bad in ["fd13::1", "::1", "169.254.169.254", "168.63.129.16", "::ffff:169.254.169.254"] {
            assert!(allowed.check(bad.parse().unwrap()).is_err(), "{bad}");
        }
        let metadata = AllowedAddresses::parse(["169.254.169.254"]).unwrap();
        assert_eq!(metadata.check([169, 254, 169, 254].into()), Ok(()));
        assert!(metadata.check([169, 254, 169, 253].into()).is_err());
        assert!(AllowedAddresses::loopback().check([127, 1, 2, 3].into()).is_ok());
        assert!(AllowedAddresses::loopback().check(Ipv6Addr::LOCALHOST.into()).is_ok());
    }

    #[test]
    fn a_refusal_names_the_address_and_the_setting() {
        let refused = AllowedAddresses::default().check("::ffff:10.0.0.1".parse().unwrap()).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "10.0.0.1 is a private address, which the setting outgoing_allow does not name"
        );
    }

    #[test]
    fn a_list_that_stands_alone_opens_no_public_address() {
        let allowed = AllowedAddresses::parse(["10.1.0.0/16", "1.1.1.0/24"]).unwrap().without_public();
        for good in ["10.1.2.3", "1.1.1.1"] {
            assert_eq!(allowed.check(good.parse().unwrap()), Ok(()), "{good}");
        }
        let refused = allowed.check([8, 8, 8, 8].into()).unwrap_err().to_string();
        assert_eq!(refused, "8.8.8.8 is a public address, which the setting xxl_networks does not name");
        assert!(allowed.check([169, 254, 169, 254].into()).is_err());
    }

    #[test]
    fn a_text_that_is_not_a_network_is_refused() {
        for (text, words) in [
            ("", "neither a network such as"),
            ("localhost", "neither a network such as"),
            ("10.0.0.0/33", "neither a network such as"),
            ("10.1.2.3/16", "the network is 10.1.0.0/16"),
            ("::ffff:10.0.0.0/104", "write it as IPv4"),
        ] {
            let sentence = AllowedAddresses::parse([text]).unwrap_err();
            assert!(sentence.contains(words), "{text}: {sentence}");
        }
    }

    fn mapped(address: Ipv4Addr) -> Ipv6Addr {
        address.to_ipv6_mapped()
    }

    fn translated(address: Ipv4Addr) -> Ipv6Addr {
        let [a, b, c, d] = address.octets().map(u16::from);
        Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, (a << 8) | b, (c << 8) | d)
    }

    proptest! {
        /// No address that the standard library classifies as special is public here.
        #[test]
        fn a_special_address_is_never_public(bits in any::<u32>(), near in 0_usize..SPECIAL_V4.len()) {
            // Any address, and one near the edge of a special network.
            let edge = u32::from(SPECIAL_V4[near].0.broadcast()).wrapping_add(bits % 5).wrapping_sub(2);
            for address in [Ipv4Addr::from(bits), Ipv4Addr::from(edge)] {
                let special = address.is_loopback()
                    || address.is_private()
                    || address.is_link_local()
                    || address.is_multicast()
                    || address.is_broadcast()
                    || address.is_documentation()
                    || address.is_unspecified();
                let found = kind(address.into());
                prop_assert!(!special || found != AddressKind::Public, "{}", address);
                prop_assert_eq!(kind(mapped(address).into()), found);
                prop_assert_eq!(kind(translated(address).into()), found);
            }
        }

        #[test]
        fn only_global_unicast_is_public_in_ipv6(bits in any::<u128>()) {
            let address = Ipv6Addr::from(bits);
            if kind(address.into()) == AddressKind::Public && address.to_ipv4_mapped().is_none() && !NAT64.contains(&address) {
                prop_assert_eq!(bits >> 125, 1);
                prop_assert!(!address.is_multicast() && !address.is_unique_local() && !address.is_unicast_link_local());
            }
        }

        /// A list allows exactly the public addresses and those in its networks.
        #[test]
        fn a_list_opens_no_more_than_it_names(network in any::<u32>(), prefix in 0_u8..=32, address in any::<u32>(), inside in any::<bool>()) {
            let network = Ipv4Net::new(Ipv4Addr::from(network), prefix).unwrap().trunc();
            let mask = u32::from(network.hostmask());
            let address = Ipv4Addr::from(if inside { u32::from(network.network()) | (address & mask) } else { address });
            let allowed = AllowedAddresses::parse([network.to_string()]).unwrap();
            let found = kind(address.into());
            let named = network.contains(&address) && (found != AddressKind::Metadata || prefix == 32);
            prop_assert_eq!(allowed.check(address.into()).is_ok(), found == AddressKind::Public || named);
        }
    }
}
