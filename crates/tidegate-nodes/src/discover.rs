//! Nodes of the local networks: each names itself by multicast, and hears of others.
//!
//! ```text
//!  each interface ── Announcement ──▶ group ──▶ Members::handle_found, and an answer to one that is new
//! ```
//!
//! Anyone in the network can name any node: the word is a candidate to dial, at the address that it came from, and certificates decide. TTL 1
//! keeps it in its network.
//!
//! Always true: this node names itself at most once in [`GAP`], however many others come; a network that is gone, or that is there
//! later, is noticed within [`EVERY`].

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4},
    sync::Arc,
    time::Duration,
};

use socket2::{Domain, Protocol, Socket, Type};
use tidegate_message::LogLimiter;
use tidegate_process::clock;
use tidegate_sys::net::own_addresses;
use tidegate_wire::{Announcement, NodeId};
use tokio::{
    net::UdpSocket,
    sync::{Notify, mpsc},
};
use tokio_util::task::AbortOnDropHandle;

/// A node names itself so often; others forget it after four times that.
const EVERY: Duration = Duration::from_secs(15);
/// Shortest wait between two times that it does.
const GAP: Duration = Duration::from_secs(1);
/// Nodes that were heard of and that the driver has not taken yet. Of more the newest are left out, and named again.
const HEARD_MAX: usize = 64;
/// Interfaces by which a node names itself.
const INTERFACES_MAX: usize = 64;
/// Longest datagram that is read; announcements of later versions may have more behind it.
const DATAGRAM_BYTES_MAX: usize = 512;

/// Where a node names itself and hears of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiscoverSettings {
    /// The multicast group, and the UDP port.
    pub group: SocketAddrV4,
    /// Where this node takes links: at one address, or at each interface's.
    pub listen: SocketAddr,
}

/// A node that was named, and the address of its links.
pub(crate) type Heard = (NodeId, SocketAddr);

/// This node names itself and hears of others until this is dropped.
#[derive(Debug)]
pub(crate) struct Discovery {
    heard: mpsc::Receiver<Heard>,
    soon: Arc<Notify>,
    _task: AbortOnDropHandle<()>,
}

impl Discovery {
    pub(crate) fn start(settings: DiscoverSettings, me: NodeId) -> Self {
        let (to_driver, heard) = mpsc::channel(HEARD_MAX);
        let soon = Arc::new(Notify::new());
        let task = Task { settings, me, to_driver, soon: soon.clone(), sockets: BTreeMap::new() };
        Self { heard, soon, _task: AbortOnDropHandle::new(tokio::spawn(task.run())) }
    }

    /// The next node that is named, this one aside.
    ///
    /// # Cancel safety
    /// None is lost.
    pub(crate) async fn next(&mut self) -> Heard {
        match self.heard.recv().await {
            Some(heard) => heard,
            None => std::future::pending().await,
        }
    }

    /// This node is to be named soon: another one may not have heard of it.
    pub(crate) fn announce_soon(&self) {
        self.soon.notify_one();
    }
}

struct Task {
    settings: DiscoverSettings,
    me: NodeId,
    to_driver: mpsc::Sender<Heard>,
    soon: Arc<Notify>,
    /// By the address of an interface, one that sends by it.
    sockets: BTreeMap<Ipv4Addr, UdpSocket>,
}

impl Task {
    async fn run(mut self) {
        let failures = LogLimiter::default();
        loop {
            // Another program may hold the port and not share it.
            let failed = match receiver(self.settings.group) {
                Ok(hears) => self.work(&hears).await,
                Err(error) => error,
            };
            if let Some(times) = failures.add(clock::now(), 1) {
                let group = self.settings.group;
                tracing::warn!(%group, error = %failed, times, "nodes of the local network are not heard of; it is tried again");
            }
            self.sockets.clear();
            tokio::select! {
                () = tokio::time::sleep(EVERY) => {}
                () = self.to_driver.closed() => return,
            }
        }
    }

    /// Works until the socket fails, or for ever.
    async fn work(&mut self, hears: &UdpSocket) -> io::Error {
        let mut joined = BTreeSet::new();
        let mut bytes = [0; DATAGRAM_BYTES_MAX];
        loop {
            self.join(hears, &mut joined);
            self.announce().await;
            let named_at = tokio::time::Instant::now();
            let again = tokio::time::sleep_until(named_at + EVERY);
            let mut again = std::pin::pin!(again);
            let mut is_asked = false;
            loop {
                let gap = tokio::time::sleep_until(named_at + GAP);
                tokio::select! {
                    received = hears.recv_from(&mut bytes) => match received {
                        Ok((length, from)) => self.heard(&bytes[..length], from.ip()),
                        Err(error) => return error,
                    },
                    () = self.soon.notified(), if !is_asked => is_asked = true,
                    () = gap, if is_asked => break,
                    () = &mut again => break,
                    () = self.to_driver.closed() => return std::future::pending().await,
                }
            }
        }
    }

    fn heard(&self, bytes: &[u8], from: IpAddr) {
        let Some(Announcement { node, port }) = Announcement::decode(bytes) else { return };
        if node != self.me {
            // Of more than wait already one is left out, and named again.
            let _ = self.to_driver.try_send((node, (from, port).into()));
        }
    }

    /// Joins the group at each interface that is there, and forgets those that are gone.
    fn join(&mut self, hears: &UdpSocket, joined: &mut BTreeSet<Ipv4Addr>) {
        let own = match interfaces(self.settings.listen) {
            Ok(own) => own,
            Err(error) => {
                tracing::debug!(%error, "the system does not say which interfaces it has");
                return;
            }
        };
        for gone in joined.difference(&own) {
            // The interface may be gone, and its membership with it.
            let _ = hears.leave_multicast_v4(*self.settings.group.ip(), *gone);
        }
        joined.retain(|one| own.contains(one));
        self.sockets.retain(|one, _| own.contains(one));
        for one in own {
            if !joined.contains(&one) {
                match hears.join_multicast_v4(*self.settings.group.ip(), one) {
                    Ok(()) => drop(joined.insert(one)),
                    Err(error) => {
                        tracing::debug!(interface = %one, %error, "an interface takes no multicast");
                    }
                }
            }
            if let Entry::Vacant(free) = self.sockets.entry(one) {
                match sender(one) {
                    Ok(socket) => drop(free.insert(socket)),
                    Err(error) => {
                        tracing::debug!(interface = %one, %error, "an interface sends no multicast");
                    }
                }
            }
        }
    }

    async fn announce(&self) {
        let announcement = Announcement { node: self.me, port: self.settings.listen.port() };
        let bytes = announcement.encode();
        for (interface, socket) in &self.sockets {
            if let Err(error) = socket.send_to(&bytes, self.settings.group).await {
                tracing::debug!(%interface, %error, "this node was not named to a network");
            }
        }
    }
}

/// The interfaces by which links come to that address.
fn interfaces(listen: SocketAddr) -> io::Result<BTreeSet<Ipv4Addr>> {
    let v4 = |address: IpAddr| match address {
        IpAddr::V4(v4) => Some(v4),
        IpAddr::V6(v6) => v6.to_ipv4_mapped(),
    };
    if !listen.ip().is_unspecified() {
        return Ok(v4(listen.ip()).into_iter().collect());
    }
    Ok(own_addresses()?.into_iter().filter_map(v4).take(INTERFACES_MAX).collect())
}

/// A socket that hears what comes to the group, beside those of other nodes of this machine.
fn receiver(group: SocketAddrV4) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    // Bound to the group itself, it takes nothing that is sent to this machine alone.
    socket.bind(&SocketAddr::from(group).into())?;
    UdpSocket::from_std(socket.into())
}

fn sender(interface: Ipv4Addr) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_multicast_if_v4(&interface)?;
    socket.set_multicast_ttl_v4(1)?;
    socket.set_nonblocking(true)?;
    // Others dial the address that a datagram comes from.
    socket.bind(&SocketAddr::from((interface, 0)).into())?;
    UdpSocket::from_std(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A group of this process's own.
    fn settings(port: u16) -> DiscoverSettings {
        let own = std::process::id().to_be_bytes();
        let group = SocketAddrV4::new(Ipv4Addr::new(239, 255, own[2], own[3]), 7444);
        DiscoverSettings { group, listen: (Ipv4Addr::LOCALHOST, port).into() }
    }

    #[tokio::test]
    async fn nodes_of_a_network_hear_of_each_other_whichever_is_there_first() {
        let mut one = Discovery::start(settings(7001), NodeId([1; 32]));
        let mut two = Discovery::start(settings(7002), NodeId([2; 32]));
        let two_is = (NodeId([2; 32]), (Ipv4Addr::LOCALHOST, 7002).into());
        assert_eq!(one.next().await, two_is);
        // As the driver does where a node is news.
        one.announce_soon();
        let one_is = (NodeId([1; 32]), (Ipv4Addr::LOCALHOST, 7001).into());
        assert_eq!(two.next().await, one_is);
        // Others may write to the group.
        let stranger = sender(Ipv4Addr::LOCALHOST).expect("a socket");
        stranger.send_to(b"hello", settings(0).group).await.expect("it is sent");
        one.announce_soon();
        assert_eq!(two.next().await, one_is);
    }

    #[test]
    fn interfaces_are_those_by_which_links_come() {
        let at =
            |text: &str| interfaces(text.parse().expect("an address")).expect("the system knows");
        assert_eq!(at("127.0.0.1:1"), BTreeSet::from([Ipv4Addr::LOCALHOST]));
        assert_eq!(at("[::1]:1"), BTreeSet::new(), "it takes no links by IPv4");
        assert!(!at("0.0.0.0:1").contains(&Ipv4Addr::LOCALHOST), "no other machine is there");
        assert_eq!(at("[::]:1"), at("0.0.0.0:1"));
    }
}
