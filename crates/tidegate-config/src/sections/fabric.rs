//! `[fabric]`.

use std::net::{Ipv4Addr, SocketAddr};

use tidegate_message::{CameraName, Confidential, GeoPoint, host::host_and_port};

use crate::words::Join;

/// Addresses that a member advertises at most: as many as its record holds on the link.
const ADDRESSES_MAX: usize = 8;
/// Addresses that are dialled to meet the others, at most.
const SEEDS_MAX: usize = 64;
/// Names of members that may be listed.
const MEMBERS_MAX: usize = 10_000;

section! {
    /// `[fabric]`: many nodes of one site as one; see the chapter on many nodes.
    FabricSection {
        /// Whether this node is a member. Other members reach it by its link (`link.listen`). Default false.
        enabled: bool = false; fixed,
        /// Links of members, host and port each, separated by commas, at most 64: this node dials them until it has met one, and again whenever
        /// it is alone. Default none: it waits to be dialled, or found by `discover`.
        seeds: Confidential = Confidential::default(); fixed
            => "at most 64 hosts and ports, separated by commas, such as core.example:7443, 10.0.0.7:7443"
                if |it, _| are_addresses(it.seeds.expose(), SEEDS_MAX),
        /// Where other members dial this node, host and port each, separated by commas, at most 8. Default none: `link.listen`, where that is
        /// one address that others reach; of a node that others cannot dial, nothing: it dials them.
        advertise: String = String::new(); fixed
            => "at most 8 hosts and ports, separated by commas, such as drone7.example:7443"
                if |it, _| are_addresses(&it.advertise, ADDRESSES_MAX),
        /// The name of the member that relays for this node: this node exchanges messages with that one alone, and so with all others. For a node
        /// that some members do not reach, as two behind NAT do not reach each other. Default none: it exchanges messages with each member.
        via: Option<CameraName> = None; fixed,
        /// Where applications that ask another member find this node's API, host and port each, separated by commas, at most 8. Default none:
        /// `node.api_listen`, where that is one address that others reach.
        api_advertise: String = String::new(); fixed
            => "at most 8 hosts and ports, separated by commas, such as drone7.example:7080"
                if |it, _| are_addresses(&it.api_advertise, ADDRESSES_MAX),
        /// Where this node is: latitude and longitude in degrees, such as `52.3731, 4.8922`. Default none.
        position: Option<GeoPoint> = None,
        /// Whether it moves: then it owns nothing by its place. Default false.
        mobile: bool = false,
        /// The zone of this node, a name: nodes of one zone fail together, such as those of one power supply, and copies go to distinct zones first.
        /// Default none: a zone of its own.
        zone: Option<CameraName> = None,
        /// Its share of what members own, in hundredths of that of a usual one, 1 to 10000. Default 100.
        weight: u32 = 100
            => "from 1 to 10000" if |it, _| (1..=10_000).contains(&it.weight),
        /// Members that have a copy of what members own, 1 to 7; the same at all members. Default 3: what two of them have is found without the
        /// third.
        replicas: u32 = 3; fixed
            => "from 1 to 7" if |it, _| (1..=7).contains(&it.replicas),
        /// The nodes that may be members: `certificate` for each that has a node's certificate of this site, `listed` for those of `members` alone.
        /// Default `certificate`.
        join: Join = Join::Certificate; fixed,
        /// With `join = "listed"`, the names of the nodes that may be members, separated by commas, at most 10000. Default none.
        members: String = String::new(); fixed
            => "names of nodes, separated by commas, such as core, mast-1" if |it, _| are_names(&it.members)
            => "named where fabric.join is \"listed\", and not where it is \"certificate\""
                if |it, _| (it.join == Join::Listed) != it.members.is_empty(),
        /// Whether this node names its link to the local networks by multicast, and dials members that do. Such a word is believed no more than a
        /// seed: certificates decide. Default false.
        discover: bool = false; fixed,
        /// The multicast group and UDP port of `discover`, of IPv4; nodes that are to find each other have the same. Default `239.255.74.43:7444`.
        discover_group: SocketAddr = (Ipv4Addr::new(239, 255, 74, 43), 7444).into(); fixed
            => "a multicast address of IPv4 and a port, such as 239.255.74.43:7444"
                if |it, _| it.discover_group.is_ipv4()
                    && it.discover_group.ip().is_multicast()
                    && it.discover_group.port() > 0,
        /// The topics that travel at once and before all else from member to member: filters, separated by commas. Default none.
        critical: String = String::new(); fixed,
    }
}

impl FabricSection {
    /// Each address of `seeds`.
    pub fn seeds(&self) -> impl Iterator<Item = &str> {
        parts(self.seeds.expose())
    }

    /// Each address of `advertise`.
    pub fn advertised(&self) -> impl Iterator<Item = &str> {
        parts(&self.advertise)
    }

    /// Each address of `api_advertise`.
    pub fn api_advertised(&self) -> impl Iterator<Item = &str> {
        parts(&self.api_advertise)
    }

    /// Each name of `members`.
    pub fn member_names(&self) -> impl Iterator<Item = &str> {
        parts(&self.members)
    }
}

/// The parts of a text between commas; an empty text has none.
fn parts(text: &str) -> impl Iterator<Item = &str> {
    let text = text.trim();
    (!text.is_empty()).then(|| text.split(',').map(str::trim)).into_iter().flatten()
}

fn are_addresses(text: &str, most: usize) -> bool {
    parts(text).count() <= most && parts(text).all(|part| host_and_port(part).is_some())
}

fn are_names(text: &str) -> bool {
    parts(text).count() <= MEMBERS_MAX && parts(text).all(|part| part.parse::<CameraName>().is_ok())
}
