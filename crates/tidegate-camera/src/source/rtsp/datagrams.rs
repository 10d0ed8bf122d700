//! Packets of a camera by UDP (RFC 2326, section 10.12; RFC 3550): two ports of ours, and the order of what comes.
//!
//! Always true: packets of other machines than the camera are left out; a packet comes once, and after those before it, unless they
//! have not come within [`HELD_FOR`]: then they are lost.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    net::{IpAddr, SocketAddr},
    os::fd::AsFd as _,
    time::Duration,
};

use bytes::Bytes;
use tidegate_sys::datagram::set_receive_buffer;
use tokio::{
    net::UdpSocket,
    time::{Instant as Moment, sleep_until},
};

use super::packet::Received;

/// How long a packet waits for those before it.
const HELD_FOR: Duration = Duration::from_millis(60);
/// Packets that wait at most.
const HELD_MAX: usize = 256;
/// A packet that far behind is of a sender that has begun again.
const BEHIND_MAX: u16 = 1_000;
/// Room for a key picture that comes at once.
const RECEIVE_BYTES: usize = 2 << 20;
/// Ports that are tried in a row.
const TRIES: usize = 32;
const DATAGRAM_BYTES_MAX: usize = 65_535;

/// Two ports that a camera sends to.
#[derive(Debug)]
pub(super) struct Datagrams {
    pictures: UdpSocket,
    reports: UdpSocket,
    /// The camera's address.
    from: IpAddr,
    /// The camera's ports for pictures and for reports.
    to: Option<(u16, u16)>,
    order: Order,
    buffer: Vec<u8>,
}

impl Datagrams {
    /// Two ports in a row, the first of them even, at our end of the connection to a camera.
    ///
    /// # Errors
    /// The system's.
    pub(super) async fn bind(own: IpAddr, from: IpAddr) -> io::Result<Self> {
        let mut failed = io::Error::from(io::ErrorKind::AddrInUse);
        for _ in 0..TRIES {
            let first = UdpSocket::bind((own, 0)).await?;
            let port = first.local_addr()?.port();
            // An even port and the one behind it are a pair.
            let beside = port ^ 1;
            match UdpSocket::bind((own, beside)).await {
                Ok(second) => {
                    let is_even = port % 2 == 0;
                    let (pictures, reports) =
                        if is_even { (first, second) } else { (second, first) };
                    set_receive_buffer(pictures.as_fd(), RECEIVE_BYTES)?;
                    let buffer = vec![0; DATAGRAM_BYTES_MAX];
                    let (order, to) = (Order::default(), None);
                    return Ok(Self { pictures, reports, from, to, order, buffer });
                }
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    /// Our ports, as SETUP names them.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn ports(&self) -> io::Result<(u16, u16)> {
        Ok((self.pictures.local_addr()?.port(), self.reports.local_addr()?.port()))
    }

    /// The camera's ports, as its answer to SETUP names them.
    pub(super) fn sent_from(&mut self, ports: (u16, u16)) {
        self.to = Some(ports);
    }

    /// Sends a packet from each port, which opens the way for those of the camera through firewalls on our side.
    pub(super) async fn open_way(&self) {
        let Some((pictures, reports)) = self.to else { return };
        // An empty packet of RTP, and a report of a receiver that has heard no one.
        let rtp = [0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let rtcp = [0x80, 201, 0, 1, 0, 0, 0, 0];
        // A courtesy: a camera that cannot be sent to may send nevertheless.
        let _ = self.pictures.send_to(&rtp, SocketAddr::new(self.from, pictures)).await;
        let _ = self.reports.send_to(&rtcp, SocketAddr::new(self.from, reports)).await;
    }

    /// The next packet, those of pictures in their order.
    ///
    /// # Cancel safety
    /// Cancel safe: no packet is lost.
    pub(super) async fn receive(&mut self) -> io::Result<Received> {
        loop {
            if let Some(packet) = self.order.next() {
                return Ok(Received::Pictures(packet));
            }
            let due = self.order.due();
            let (socket, is_picture) = tokio::select! {
                ready = self.pictures.readable() => (ready.map(|()| &self.pictures), true),
                ready = self.reports.readable() => (ready.map(|()| &self.reports), false),
                () = sleep_until(due.unwrap_or_else(Moment::now)), if due.is_some() => {
                    self.order.give_up(Moment::now());
                    continue;
                }
            };
            let (length, from) = match socket?.try_recv_from(&mut self.buffer) {
                Ok(came) => came,
                // Nothing yet, or the camera's port is closed: it may be opened again.
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionRefused
                    ) =>
                {
                    continue;
                }
                Err(error) => return Err(error),
            };
            if from.ip().to_canonical() != self.from.to_canonical() {
                continue;
            }
            let bytes = Bytes::copy_from_slice(&self.buffer[..length]);
            if !is_picture {
                return Ok(Received::Report(bytes));
            }
            self.order.take(Moment::now(), bytes);
        }
    }
}

/// Puts packets in their order.
#[derive(Debug, Default)]
struct Order {
    /// The number of the packet that is to come.
    expected: Option<u16>,
    /// Packets that came before their time, by how far they are ahead.
    held: BTreeMap<u16, Bytes>,
    /// When the gap before the first of the held ones is given up: each gap has its own time, from when it is the first.
    due: Option<Moment>,
    ready: VecDeque<Bytes>,
}

impl Order {
    fn take(&mut self, now: Moment, packet: Bytes) {
        // Of other than RTP nothing is known, and nothing is held.
        let Some(&[_, _, high, low]) = packet.first_chunk() else { return };
        let number = u16::from_be_bytes([high, low]);
        let ahead = self.expected.map_or(0, |expected| number.wrapping_sub(expected));
        match ahead {
            0 => {
                self.expected = Some(number);
                self.pass(now, packet);
            }
            // Late or for the second time.
            _ if ahead > u16::MAX - BEHIND_MAX => {}
            _ if ahead > u16::MAX / 2 => {
                self.held.clear();
                self.due = None;
                self.expected = Some(number);
                self.pass(now, packet);
            }
            _ => {
                self.held.insert(ahead, packet);
                self.due.get_or_insert(now + HELD_FOR);
                if self.held.len() > HELD_MAX {
                    self.skip(now);
                }
            }
        }
    }

    /// Hands on the packet that is expected, and those that waited for it.
    fn pass(&mut self, now: Moment, packet: Bytes) {
        self.ready.push_back(packet);
        self.advance(1);
        let mut is_closed = false;
        while let Some(packet) = self.held.remove(&0) {
            self.ready.push_back(packet);
            self.advance(1);
            is_closed = true;
        }
        if is_closed {
            self.next_gap(now);
        }
    }

    /// The first gap is closed or given up; the time of another one behind it begins.
    fn next_gap(&mut self, now: Moment) {
        self.due = (!self.held.is_empty()).then(|| now + HELD_FOR);
    }

    fn advance(&mut self, by: u16) {
        self.expected = self.expected.map(|expected| expected.wrapping_add(by));
        let held = std::mem::take(&mut self.held);
        self.held = held.into_iter().map(|(ahead, packet)| (ahead - by, packet)).collect();
    }

    /// The packets before the first that is held are lost.
    fn skip(&mut self, now: Moment) {
        if let Some((&ahead, _)) = self.held.first_key_value() {
            self.advance(ahead);
            if let Some(packet) = self.held.remove(&0) {
                self.pass(now, packet);
            }
        }
        self.next_gap(now);
    }

    fn give_up(&mut self, now: Moment) {
        if self.due.take_if(|due| *due <= now).is_some() {
            self.skip(now);
        }
    }

    fn next(&mut self) -> Option<Bytes> {
        self.ready.pop_front()
    }

    const fn due(&self) -> Option<Moment> {
        self.due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(number: u16) -> Bytes {
        let [high, low] = number.to_be_bytes();
        Bytes::copy_from_slice(&[0x80, 96, high, low, 0, 0, 0, 0, 0, 0, 0, 0])
    }

    /// The numbers of the packets that are ready.
    fn ready(order: &mut Order) -> Vec<u16> {
        let numbers = std::iter::from_fn(|| order.next());
        numbers.map(|packet| u16::from_be_bytes([packet[2], packet[3]])).collect()
    }

    #[test]
    fn packets_come_in_order_and_once() {
        let now = Moment::now();
        let mut order = Order::default();
        for number in [65_534, 0, 65_535, 0, 65_535, 3, 2, 1, 1] {
            order.take(now, packet(number));
        }
        assert_eq!(ready(&mut order), [65_534, 65_535, 0, 1, 2, 3]);
        assert_eq!(order.due(), None, "nothing is waited for");
        order.take(now, Bytes::from_static(b"no"));
        assert_eq!(ready(&mut order), [0; 0]);
        // A sender that begins again.
        order.take(now, packet(40_000));
        assert_eq!(ready(&mut order), [40_000]);
    }

    #[test]
    fn a_lost_packet_is_waited_for_and_then_given_up() {
        let now = Moment::now();
        let mut order = Order::default();
        for number in [1, 3, 4, 6] {
            order.take(now, packet(number));
        }
        assert_eq!(ready(&mut order), [1]);
        assert_eq!(order.due(), Some(now + HELD_FOR));
        order.give_up(now);
        assert_eq!(ready(&mut order), [0; 0], "not yet");
        order.give_up(now + HELD_FOR);
        assert_eq!(ready(&mut order), [3, 4]);
        assert_eq!(order.due(), Some(now + 2 * HELD_FOR), "5 has its own time");
        order.take(now, packet(2));
        order.take(now, packet(5));
        assert_eq!(ready(&mut order), [5, 6], "2 is too late");
        order.take(now, packet(8));
        for number in (9..).take(HELD_MAX) {
            order.take(now, packet(number));
        }
        assert_eq!(ready(&mut order).len(), HELD_MAX + 1, "no more are held");
    }

    #[test]
    fn a_gap_behind_one_that_has_closed_has_its_whole_time() {
        let begin = Moment::now();
        let at = |millis| begin + Duration::from_millis(millis);
        let mut order = Order::default();
        for number in [1, 4, 6] {
            order.take(begin, packet(number));
        }
        order.take(at(40), packet(2));
        assert_eq!(order.due(), Some(begin + HELD_FOR), "3 is waited for since then");
        order.take(at(50), packet(3));
        assert_eq!(ready(&mut order), [1, 2, 3, 4]);
        assert_eq!(order.due(), Some(at(50) + HELD_FOR), "5 has its own time");
        order.give_up(begin + HELD_FOR);
        order.take(at(80), packet(5));
        assert_eq!(ready(&mut order), [5, 6], "it came in time");
        assert_eq!(order.due(), None);
        // A gap that is given up for want of room.
        order.take(at(90), packet(8));
        order.take(at(90), packet(1_000));
        for number in (10..).take(HELD_MAX - 1) {
            order.take(at(100), packet(number));
        }
        assert_eq!(ready(&mut order), [8]);
        assert_eq!(order.due(), Some(at(100) + HELD_FOR), "9 has its own time");
        // A sender that begins again leaves no gap.
        order.take(at(110), packet(40_000));
        assert_eq!((ready(&mut order), order.due()), (vec![40_000], None));
    }

    #[tokio::test]
    async fn only_packets_of_the_camera_are_taken() {
        let own = IpAddr::from([127, 0, 0, 1]);
        let camera = IpAddr::from([127, 0, 0, 2]);
        let mut datagrams = Datagrams::bind(own, camera).await.unwrap();
        let (pictures, reports) = datagrams.ports().unwrap();
        assert_eq!((pictures % 2, reports), (0, pictures + 1));
        let other = UdpSocket::bind("127.0.0.3:0").await.unwrap();
        let sender = UdpSocket::bind("127.0.0.2:0").await.unwrap();
        other.send_to(&packet(1), (own, pictures)).await.unwrap();
        sender.send_to(&packet(7), (own, pictures)).await.unwrap();
        let Received::Pictures(first) = datagrams.receive().await.unwrap() else { panic!("one") };
        assert_eq!(first, packet(7));
        sender.send_to(b"report", (own, reports)).await.unwrap();
        assert!(matches!(datagrams.receive().await.unwrap(), Received::Report(_)));
        datagrams.sent_from((sender.local_addr().unwrap().port(), 9));
        datagrams.open_way().await;
        let mut buffer = [0; 64];
        let (length, from) = sender.recv_from(&mut buffer).await.unwrap();
        assert_eq!((length, from.port()), (12, pictures));
    }
}
