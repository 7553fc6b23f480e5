//! Which addresses are not public, and what a grant of them takes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use belljar_core::IpNet;

/// Why an address is not simply public.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The host itself.
    Loopback,
    /// No address; systems take it for the host itself.
    Unspecified,
    /// Where clouds serve credentials to their machines; with it all of 169.254.0.0/16.
    Metadata,
    /// Of a company's or home's own network.
    Private,
    /// Of one cable.
    LinkLocal,
    /// Shared by a carrier's customers.
    Carrier,
    /// Of many hosts, or all of a network.
    Multicast,
    /// In books only.
    Documentation,
    /// For measurements.
    Benchmarking,
    /// Not assigned, or for protocols.
    Reserved,
    /// Leads to an address of version four that is written inside it.
    Translated,
}

impl Kind {
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Loopback => "the host's own loopback",
            Self::Unspecified => "no address of a host",
            Self::Metadata => "an address at which clouds serve credentials",
            Self::Private => "a private address",
            Self::LinkLocal => "a link-local address",
            Self::Carrier => "an address inside a carrier's network",
            Self::Multicast => "an address of many hosts",
            Self::Documentation => "an address for documentation",
            Self::Benchmarking => "an address for benchmarks",
            Self::Reserved => "a reserved address",
            Self::Translated => "an address that is translated to another",
        }
    }

    /// What it takes to be let through.
    pub(super) fn grant(self) -> Grant {
        match self {
            Self::Loopback | Self::Unspecified => Grant::Nothing,
            Self::Metadata => Grant::ItsOwnAddress,
            _ => Grant::PrivateOrNet,
        }
    }
}

/// What it takes for an address that is not public to be let through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Grant {
    /// It never is.
    Nothing,
    /// A rule about this address alone.
    ItsOwnAddress,
    /// A rule that says `private`, or one about addresses of this kind.
    PrivateOrNet,
}

/// A block of addresses that are not public.
pub(super) type Block = (IpNet, Kind);

const fn v4(a: u8, b: u8, c: u8, d: u8, prefix: u8, kind: Kind) -> Block {
    match IpNet::new(IpAddr::V4(Ipv4Addr::new(a, b, c, d)), prefix) {
        Some(net) => (net, kind),
        None => panic!("bits beyond the prefix"),
    }
}

const fn v6(head: [u16; 4], tail: [u16; 4], prefix: u8, kind: Kind) -> Block {
    let [a, b, c, d] = head;
    let [e, f, g, h] = tail;
    match IpNet::new(IpAddr::V6(Ipv6Addr::new(a, b, c, d, e, f, g, h)), prefix) {
        Some(net) => (net, kind),
        None => panic!("bits beyond the prefix"),
    }
}

const ZERO: [u16; 4] = [0; 4];

/// The first block that holds an address counts.
const BLOCKS: [Block; 44] = [
    v4(168, 63, 129, 16, 32, Kind::Metadata),
    v4(100, 100, 100, 200, 32, Kind::Metadata),
    v4(192, 0, 0, 192, 32, Kind::Metadata),
    v4(169, 254, 0, 0, 16, Kind::Metadata),
    v4(0, 0, 0, 0, 8, Kind::Unspecified),
    v4(10, 0, 0, 0, 8, Kind::Private),
    v4(100, 64, 0, 0, 10, Kind::Carrier),
    v4(127, 0, 0, 0, 8, Kind::Loopback),
    v4(172, 16, 0, 0, 12, Kind::Private),
    v4(192, 0, 0, 0, 24, Kind::Reserved),
    v4(192, 0, 2, 0, 24, Kind::Documentation),
    v4(192, 31, 196, 0, 24, Kind::Reserved),
    v4(192, 52, 193, 0, 24, Kind::Reserved),
    v4(192, 88, 99, 0, 24, Kind::Translated),
    v4(192, 168, 0, 0, 16, Kind::Private),
    v4(192, 175, 48, 0, 24, Kind::Reserved),
    v4(198, 18, 0, 0, 15, Kind::Benchmarking),
    v4(198, 51, 100, 0, 24, Kind::Documentation),
    v4(203, 0, 113, 0, 24, Kind::Documentation),
    v4(224, 0, 0, 0, 4, Kind::Multicast),
    v4(255, 255, 255, 255, 32, Kind::Multicast),
    v4(240, 0, 0, 0, 4, Kind::Reserved),
    v6(ZERO, [0, 0, 0, 0], 128, Kind::Unspecified),
    v6(ZERO, [0, 0, 0, 1], 128, Kind::Loopback),
    v6(ZERO, [0, 0, 0, 0], 96, Kind::Translated),
    v6(ZERO, [0, 0xffff, 0, 0], 96, Kind::Translated),
    v6(ZERO, [0xffff, 0, 0, 0], 96, Kind::Translated),
    v6([0x64, 0xff9b, 0, 0], ZERO, 96, Kind::Translated),
    v6([0x64, 0xff9b, 1, 0], ZERO, 48, Kind::Translated),
    v6([0x2001, 0, 0, 0], ZERO, 32, Kind::Translated),
    v6([0x2002, 0, 0, 0], ZERO, 16, Kind::Translated),
    v6([0xfd00, 0xec2, 0, 0], [0, 0, 0, 0x254], 128, Kind::Metadata),
    v6([0xfd00, 0x42, 0, 0], [0, 0, 0, 0x42], 128, Kind::Metadata),
    v6([0xfd20, 0xce, 0, 0], [0, 0, 0, 0x254], 128, Kind::Metadata),
    v6([0xfe80, 0, 0, 0], [0, 0, 0xa9fe, 0xa9fe], 128, Kind::Metadata),
    v6([0xfc00, 0, 0, 0], ZERO, 7, Kind::Private),
    v6([0xfe80, 0, 0, 0], ZERO, 10, Kind::LinkLocal),
    v6([0xfec0, 0, 0, 0], ZERO, 10, Kind::Private),
    v6([0xff00, 0, 0, 0], ZERO, 8, Kind::Multicast),
    v6([0x2001, 2, 0, 0], ZERO, 48, Kind::Benchmarking),
    v6([0x2001, 0xdb8, 0, 0], ZERO, 32, Kind::Documentation),
    v6([0x3fff, 0, 0, 0], ZERO, 20, Kind::Documentation),
    v6([0x2001, 0, 0, 0], ZERO, 23, Kind::Reserved),
    v6([0x2620, 0x4f, 0x8000, 0], ZERO, 48, Kind::Reserved),
];

/// The part of version six from which public addresses are given out.
const GIVEN_OUT: Ipv6Addr = Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0);

/// The block of addresses that are not public in which this one lies, if it lies in one.
pub(super) fn block(address: IpAddr) -> Option<Block> {
    if let Some(block) = BLOCKS.iter().find(|(net, _)| net.contains(address)) {
        return Some(*block);
    }
    let public =
        IpNet::new(GIVEN_OUT.into(), 3).is_some_and(|net| net.contains(address)) || address.is_ipv4();
    (!public).then_some((IpNet::one(address), Kind::Reserved))
}

/// The address, and those of version four to which some router could translate it.
pub(super) fn readings(address: IpAddr) -> Vec<IpAddr> {
    let mut readings = vec![address];
    let IpAddr::V6(v6) = address else { return readings };
    let octets = v6.octets();
    let inner = |[a, b, c, d]: [usize; 4]| IpAddr::from([octets[a], octets[b], octets[c], octets[d]]);
    const LAST: [usize; 4] = [12, 13, 14, 15];
    match v6.segments() {
        [0, 0, 0, 0, 0, 0, _, _] if v6.is_unspecified() || v6.is_loopback() => {}
        [0, 0, 0, 0, 0, 0 | 0xffff, _, _]
        | [0, 0, 0, 0, 0xffff, 0, _, _]
        | [0x64, 0xff9b, 0, 0, 0, 0, _, _] => {
            readings.push(inner(LAST));
        }
        // A site chooses how long its prefix is, and so where the address lies; where zeros are, it does not.
        [0x64, 0xff9b, 1, ..] => {
            let places = [[6, 7, 9, 10], [7, 9, 10, 11], [9, 10, 11, 12], LAST].map(inner);
            let nowhere = |address: &IpAddr| matches!(address, IpAddr::V4(v4) if v4.octets()[0] == 0);
            readings.extend(places.into_iter().filter(|address| !nowhere(address)));
        }
        [0x2002, ..] => readings.push(inner([2, 3, 4, 5])),
        [0x2001, 0, ..] => {
            readings.push(inner([4, 5, 6, 7]));
            readings.push(IpAddr::from([!octets[12], !octets[13], !octets[14], !octets[15]]));
        }
        // ISATAP: the address of version four is the end of one in any network.
        [_, _, _, _, 0 | 0x200, 0x5efe, _, _] => readings.push(inner(LAST)),
        _ => {}
    }
    readings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(address: &str) -> Vec<Option<Kind>> {
        readings(address.parse().unwrap())
            .into_iter()
            .map(|address| block(address).map(|(_, kind)| kind))
            .collect()
    }

    #[test]
    fn addresses_and_what_they_are() {
        use Kind::*;
        for (address, expected) in [
            ("8.8.8.8", vec![None]),
            ("1.1.1.1", vec![None]),
            ("2606:4700::1111", vec![None]),
            ("127.0.0.1", vec![Some(Loopback)]),
            ("127.255.0.1", vec![Some(Loopback)]),
            ("0.0.0.0", vec![Some(Unspecified)]),
            ("0.1.2.3", vec![Some(Unspecified)]),
            ("10.0.0.1", vec![Some(Private)]),
            ("172.16.0.1", vec![Some(Private)]),
            ("172.31.255.255", vec![Some(Private)]),
            ("172.32.0.0", vec![None]),
            ("192.168.1.1", vec![Some(Private)]),
            ("100.64.0.1", vec![Some(Carrier)]),
            ("100.127.255.255", vec![Some(Carrier)]),
            ("100.128.0.0", vec![None]),
            ("169.254.169.254", vec![Some(Metadata)]),
            ("169.254.170.2", vec![Some(Metadata)]),
            ("168.63.129.16", vec![Some(Metadata)]),
            ("168.63.129.17", vec![None]),
            ("100.100.100.200", vec![Some(Metadata)]),
            ("192.0.0.192", vec![Some(Metadata)]),
            ("192.0.2.1", vec![Some(Documentation)]),
            ("198.18.0.1", vec![Some(Benchmarking)]),
            ("224.0.0.1", vec![Some(Multicast)]),
            ("239.255.255.250", vec![Some(Multicast)]),
            ("255.255.255.255", vec![Some(Multicast)]),
            ("240.0.0.1", vec![Some(Reserved)]),
            ("::", vec![Some(Unspecified)]),
            ("::1", vec![Some(Loopback)]),
            ("::127.0.0.1", vec![Some(Translated), Some(Loopback)]),
            ("::ffff:127.0.0.1", vec![Some(Translated), Some(Loopback)]),
            ("::ffff:8.8.8.8", vec![Some(Translated), None]),
            ("::ffff:0:169.254.169.254", vec![Some(Translated), Some(Metadata)]),
            ("64:ff9b::10.0.0.1", vec![Some(Translated), Some(Private)]),
            (
                "64:ff9b:1:a9fe:a9:fe00::",
                vec![Some(Translated), Some(Metadata), Some(Reserved), Some(Metadata)],
            ),
            ("64:ff9b:1::127.0.0.1", vec![Some(Translated), Some(Loopback)]),
            ("2002:7f00:1::", vec![Some(Translated), Some(Loopback)]),
            ("2001::5601:203", vec![Some(Translated), Some(Unspecified), Some(Metadata)]),
            ("2001:0:808:808::80ff:fffe", vec![Some(Translated), None, Some(Loopback)]),
            ("2a00::5efe:10.0.0.1", vec![None, Some(Private)]),
            ("fd00:ec2::254", vec![Some(Metadata)]),
            ("fd00::1", vec![Some(Private)]),
            ("fe80::1", vec![Some(LinkLocal)]),
            ("fe80::a9fe:a9fe", vec![Some(Metadata)]),
            ("ff02::1", vec![Some(Multicast)]),
            ("2001:db8::1", vec![Some(Documentation)]),
            ("2001:2::1", vec![Some(Benchmarking)]),
            ("2001:20::1", vec![Some(Reserved)]),
            ("100::1", vec![Some(Reserved)]),
            ("5f00::1", vec![Some(Reserved)]),
            ("4000::1", vec![Some(Reserved)]),
        ] {
            assert_eq!(kinds(address), expected, "{address}");
        }
    }
}
