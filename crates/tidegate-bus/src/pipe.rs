//! The connection of a service: as any other one to its broker, but without a socket, and without packets around messages.
//!
//! ```text
//!  ClientEnd ── packets but PUBLISH and PUBACK · bundles · acknowledgements ──▶ ServerEnd, read by its shard
//!            ◀── packets but PUBLISH · deliveries ─────────────────────────────
//! ```
//!
//! The side of the broker is notified once for all that was left since it looked last, the client by a [`Notify`].
//!
//! Always true: bundles come out before the packets that were written after them, and acknowledgements before all of those; packets that
//! were not read are bounded ([`PACKET_BYTES_MAX`] each way), and so are deliveries that were handed out and not used up
//! ([`WAITING_BYTES_MAX`], and one turn of the shard beyond it): the rest waits in the broker, under the session's budget and overflow
//! policy. Bundles are bounded by whoever leaves them, who waits for their acknowledgement.

use std::{
    collections::VecDeque,
    fmt,
    io::{self, IoSlice},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use tidegate_broker::{Acknowledged, Bundle, Empties, Handed, Message};
use tokio::sync::Notify;

/// Bytes of packets that were written and not read, each way.
const PACKET_BYTES_MAX: usize = 64 << 10;
/// Bytes of messages that were handed out and not used up, beyond which no more are.
const WAITING_BYTES_MAX: usize = 256 << 10;

/// Names a connection from inside the program, for as long as the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PipeId(u64);

impl PipeId {
    fn next() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self(LAST.fetch_add(1, Ordering::Relaxed))
    }
}

/// Both ends of a connection. `notify` tells the side of the broker that the client has left something, and is called on the thread of the
/// client, which holds no lock of the connection meanwhile: with how many messages it left, or none where it left anything else.
pub fn pair(
    notify: impl Fn(PipeId, Option<usize>) + Send + Sync + 'static,
) -> (ClientEnd, ServerEnd) {
    let pipe = Arc::new(Pipe {
        id: PipeId::next(),
        notify: NotifyServer(Box::new(notify)),
        up: Mutex::default(),
        down: Mutex::default(),
        packets: Notify::new(),
        deliveries: Notify::new(),
        empties: Arc::default(),
    });
    (ClientEnd(pipe.clone()), ServerEnd(pipe))
}

struct NotifyServer(Box<dyn Fn(PipeId, Option<usize>) + Send + Sync>);

impl fmt::Debug for NotifyServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NotifyServer")
    }
}

#[derive(Debug)]
struct Pipe {
    id: PipeId,
    notify: NotifyServer,
    up: Mutex<Up>,
    down: Mutex<Down>,
    /// Packets came, or are taken again, or the connection has ended.
    packets: Notify,
    /// Deliveries or packets came, or the connection has ended.
    deliveries: Notify,
    /// Bundles on their way back.
    empties: Arc<Empties>,
}

/// On its way to the shard.
#[derive(Debug, Default)]
struct Up {
    packets: Vec<u8>,
    /// The client was refused room for packets.
    is_full: bool,
    bundles: Vec<Bundle>,
    /// Messages of QoS 1 that are needed no more.
    settled: Vec<Acknowledged>,
    /// And of QoS 0, to be used again.
    used: Vec<Arc<Message>>,
    /// There is room for deliveries, or for packets, where there was none.
    takes_deliveries: bool,
    takes_packets: bool,
    /// Whether the client reaches those whom messages are for, if that has changed.
    is_away: Option<bool>,
    /// Whether retained messages are asked for once more.
    repeats_retained: bool,
    /// Bytes of packets, and whether the end, were there when the shard looked: all that was left before them it has.
    seen: usize,
    has_seen_end: bool,
    /// The shard was notified, and has not looked since.
    is_notified: bool,
    /// The client has left.
    is_closed: bool,
}

/// On its way to the client.
#[derive(Debug, Default)]
struct Down {
    packets: Vec<u8>,
    /// The shard was refused room for packets.
    is_full: bool,
    handed: VecDeque<Handed>,
    /// Bytes of those, and of what was taken and not used up.
    handed_bytes: usize,
    /// The shard knows that there is no room for more of them.
    is_handed_full: bool,
    /// The shard has ended the connection.
    is_closed: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pipe {
    /// Leaves something other than messages for the shard, which is notified unless it is about to look anyway.
    fn leave(&self, put: impl FnOnce(&mut Up)) {
        self.leave_messages(None, put);
    }

    fn leave_messages(&self, messages: Option<usize>, put: impl FnOnce(&mut Up)) {
        let mut up = lock(&self.up);
        put(&mut up);
        let is_first = !std::mem::replace(&mut up.is_notified, true);
        drop(up);
        if is_first {
            (self.notify.0)(self.id, messages);
        }
    }

    fn close_down(&self) {
        lock(&self.down).is_closed = true;
        self.packets.notify_one();
        self.deliveries.notify_one();
    }
}

/// The shard has ended the connection, and all that it said was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed;

/// The end of the part of the program. The connection ends when it is dropped.
#[derive(Debug)]
pub struct ClientEnd(Arc<Pipe>);

impl Drop for ClientEnd {
    fn drop(&mut self) {
        self.0.leave(|up| up.is_closed = true);
    }
}

impl ClientEnd {
    /// Writes packets, as much of them as there is room for; how many bytes that was. [`ClientEnd::packets`] says when there is more.
    pub fn write(&self, bytes: &[u8]) -> usize {
        let mut count = 0;
        self.0.leave(|up| {
            count = bytes.len().min(PACKET_BYTES_MAX.saturating_sub(up.packets.len()));
            up.packets.extend_from_slice(&bytes[..count]);
            up.is_full = count < bytes.len();
        });
        count
    }

    /// Appends the packets that came to `out`; whether there were any.
    ///
    /// # Errors
    /// [`Closed`].
    pub fn read(&self, out: &mut Vec<u8>) -> Result<bool, Closed> {
        let mut down = lock(&self.0.down);
        if down.packets.is_empty() {
            return if down.is_closed { Err(Closed) } else { Ok(false) };
        }
        if out.is_empty() {
            std::mem::swap(out, &mut down.packets);
        } else {
            out.append(&mut down.packets);
        }
        let was_full = std::mem::take(&mut down.is_full);
        drop(down);
        if was_full {
            self.0.leave(|up| up.takes_packets = true);
        }
        Ok(true)
    }

    /// Waits until there may be packets to read, or room for those to write, or the end.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn packets(&self) {
        self.0.packets.notified().await;
    }

    /// Waits until there may be deliveries, or packets, or the end.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn deliveries(&self) {
        self.0.deliveries.notified().await;
    }

    /// Takes all deliveries that wait into `taken`, which is empty; those that were taken before, `used_bytes` of them, are used up.
    /// How many bytes they have.
    pub fn take(&self, taken: &mut VecDeque<Handed>, used_bytes: usize) -> usize {
        let mut down = lock(&self.0.down);
        down.handed_bytes -= used_bytes;
        let mut bytes = 0;
        if !down.handed.is_empty() {
            // The one's room for the other's.
            std::mem::swap(&mut down.handed, taken);
            bytes = down.handed_bytes;
        }
        let has_room = down.is_handed_full && down.handed_bytes < WAITING_BYTES_MAX / 2;
        if has_room {
            down.is_handed_full = false;
        }
        drop(down);
        if has_room {
            self.0.leave(|up| up.takes_deliveries = true);
        }
        bytes
    }

    /// Messages of QoS 1 are needed no more; moves them out of `settled`.
    pub fn settle(&self, settled: &mut Vec<Acknowledged>) {
        if !settled.is_empty() {
            self.0.leave(|up| up.settled.append(settled));
        }
    }

    /// Messages of QoS 0 are needed no more; moves them out of `used`, so that the shard uses their memory again.
    pub fn give_back(&self, used: &mut Vec<Arc<Message>>) {
        self.0.leave(|up| up.used.append(used));
    }

    /// Tells the shard whether the client reaches nobody to hand messages to.
    pub fn set_away(&self, is_away: bool) {
        self.0.leave(|up| up.is_away = Some(is_away));
    }

    /// Has the shard send a peer all retained messages of its subscriptions once more.
    pub fn repeat_retained(&self) {
        self.0.leave(|up| up.repeats_retained = true);
    }

    /// Has the shard publish messages, after all that was left before. After CONNACK only.
    pub fn hand_over(&self, bundle: Bundle) {
        self.0.leave_messages(Some(bundle.len()), |up| up.bundles.push(bundle));
    }

    /// Bundles that are no longer in use.
    pub fn empties(&self) -> &Empties {
        &self.0.empties
    }
}

/// The end of the shard. The connection ends when it is dropped.
#[derive(Debug)]
pub struct ServerEnd(Arc<Pipe>);

impl Drop for ServerEnd {
    fn drop(&mut self) {
        self.0.close_down();
    }
}

/// Things that a client has left for its shard, packets aside.
#[derive(Debug, Default)]
pub struct Left {
    /// Messages that it publishes.
    pub bundles: Vec<Bundle>,
    /// There is room for deliveries where there was none.
    pub takes_deliveries: bool,
    /// The same for packets.
    pub takes_packets: bool,
    /// Whether the client reaches nobody to hand messages to, if that has changed.
    pub is_away: Option<bool>,
    /// Whether retained messages are asked for once more.
    pub repeats_retained: bool,
    /// There are packets to read, or the end.
    pub has_input: bool,
}

impl ServerEnd {
    /// The name of the connection.
    pub fn id(&self) -> PipeId {
        self.0.id
    }

    /// Messages that the client has left; none where it has left anything else that is to be done.
    pub fn messages(&self) -> Option<usize> {
        let up = lock(&self.0.up);
        let has_more = !up.packets.is_empty()
            || up.is_closed
            || up.takes_deliveries
            || up.takes_packets
            || up.is_away.is_some()
            || up.repeats_retained;
        (!has_more).then(|| up.bundles.iter().map(Bundle::len).sum())
    }

    /// Where its bundles go back.
    pub fn empties(&self) -> Arc<Empties> {
        self.0.empties.clone()
    }

    /// All that the client has left since the last time; its acknowledgements go into `settled`, and the messages that it has given back
    /// into `used`, which are empty. Packets that were written
    /// after that are read after the next time.
    pub fn look(&self, settled: &mut Vec<Acknowledged>, used: &mut Vec<Arc<Message>>) -> Left {
        let mut up = lock(&self.0.up);
        up.is_notified = false;
        (up.seen, up.has_seen_end) = (up.packets.len(), up.is_closed);
        std::mem::swap(&mut up.settled, settled);
        std::mem::swap(&mut up.used, used);
        Left {
            bundles: std::mem::take(&mut up.bundles),
            takes_deliveries: std::mem::take(&mut up.takes_deliveries),
            takes_packets: std::mem::take(&mut up.takes_packets),
            is_away: up.is_away.take(),
            repeats_retained: std::mem::take(&mut up.repeats_retained),
            has_input: up.seen > 0 || up.has_seen_end,
        }
    }

    /// Hands messages out; false if no more are to come until [`Left::takes_deliveries`].
    pub fn put(&self, handed: &mut Vec<Handed>) -> bool {
        let bytes = handed.iter().map(Handed::bytes).sum::<usize>();
        let mut down = lock(&self.0.down);
        let is_first = down.handed.is_empty();
        down.handed_bytes += bytes;
        down.handed.extend(handed.drain(..));
        down.is_handed_full = down.handed_bytes >= WAITING_BYTES_MAX;
        let has_room = !down.is_handed_full;
        drop(down);
        if is_first {
            self.0.deliveries.notify_one();
        }
        has_room
    }

    /// Nothing more is written.
    pub fn shut_down(&self) {
        self.0.close_down();
    }

    /// Writes packets.
    ///
    /// # Errors
    /// `WouldBlock` if there is no room; [`Left::takes_packets`] says when there is.
    pub fn write_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut down = lock(&self.0.down);
        let (is_first, mut count) = (down.packets.is_empty(), 0);
        for slice in slices {
            let room = PACKET_BYTES_MAX.saturating_sub(down.packets.len());
            let part = &slice[..slice.len().min(room)];
            down.packets.extend_from_slice(part);
            count += part.len();
            if part.len() < slice.len() {
                down.is_full = true;
                break;
            }
        }
        let is_blocked = count == 0 && down.is_full;
        drop(down);
        if is_first && count > 0 {
            self.0.packets.notify_one();
            self.0.deliveries.notify_one();
        }
        if is_blocked { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(count) }
    }

    /// Reads packets; none at the end.
    ///
    /// # Errors
    /// `WouldBlock` if there are none for now.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut up = lock(&self.0.up);
        if up.seen == 0 {
            let has_ended = up.has_seen_end && up.packets.is_empty();
            return if has_ended { Ok(0) } else { Err(io::ErrorKind::WouldBlock.into()) };
        }
        let count = up.seen.min(buffer.len());
        buffer[..count].copy_from_slice(&up.packets[..count]);
        up.packets.drain(..count);
        up.seen -= count;
        let was_full = up.is_full && up.packets.is_empty();
        if was_full {
            up.is_full = false;
        }
        drop(up);
        if was_full {
            self.0.packets.notify_one();
            self.0.deliveries.notify_one();
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use tidegate_broker::{Body, Budget, Delivery, MessageRef};
    use tidegate_message::Instant;
    use tidegate_wire::mqtt::{PacketId, QoS};

    use super::*;

    fn delivery(payload: &[u8]) -> Handed {
        let topic = "t".into();
        let message = MessageRef::new(&topic, Body::Read(payload), Instant::from_nanos(0));
        let message = message.hold(&Budget::new(1 << 30)).expect("there is room");
        let (qos, packet_id) = (QoS::AtMostOnce, None);
        let (retain, is_repeated, group) = (false, false, None);
        Handed::One(Delivery { message, qos, retain, packet_id, is_repeated, group })
    }

    /// Both ends, and how often the side of the broker was notified since that was looked at last.
    fn counted() -> (ClientEnd, ServerEnd, impl Fn() -> u64) {
        let count = Arc::new(AtomicU64::new(0));
        let notified = count.clone();
        let (client, server) = pair(move |_, _| _ = notified.fetch_add(1, Ordering::Relaxed));
        (client, server, move || count.swap(0, Ordering::Relaxed))
    }

    fn ends() -> (ClientEnd, ServerEnd) {
        pair(|_, _| {})
    }

    fn look(end: &ServerEnd) -> (Vec<Acknowledged>, Left) {
        let mut settled = Vec::new();
        let left = end.look(&mut settled, &mut Vec::new());
        (settled, left)
    }

    #[test]
    fn unused_deliveries_are_bounded_and_the_shard_learns_of_room() {
        let (client, server) = ends();
        let (mut taken, mut used) = (VecDeque::new(), 0);
        assert_eq!(client.take(&mut taken, used), 0);
        for round in 0..3 {
            let (mut count, mut number) = (0, 0_u32);
            loop {
                count += 1;
                let payload = [&number.to_le_bytes()[..], &[0; 9_995]].concat();
                number += 1;
                if !server.put(&mut vec![delivery(&payload)]) {
                    break;
                }
            }
            assert_eq!(count, WAITING_BYTES_MAX.div_ceil(10_000), "round {round}");
            used = client.take(&mut taken, used);
            assert!(!look(&server).1.takes_deliveries, "all but the last may still be in use");
            for (number, handed) in taken.drain(..).enumerate() {
                let Handed::One(delivery) = handed else { panic!("message {number} was put") };
                let payload = delivery.message.payload.to_contiguous();
                assert_eq!(payload[..4], (number as u32).to_le_bytes());
            }
            used = client.take(&mut taken, used);
            assert_eq!((taken.len(), used), (0, 0));
            assert!(look(&server).1.takes_deliveries);
        }
    }

    #[test]
    fn a_shard_is_notified_once_for_all_that_was_left_since_it_looked() {
        let (client, server, notified) = counted();
        client.settle(&mut Vec::new());
        assert_eq!(notified(), 0);
        let id = |number: u16| PacketId::new(number).expect("not zero");
        let settle = |numbers: &[u16]| {
            let mut settled = Vec::new();
            numbers.iter().for_each(|number| Acknowledged::push(&mut settled, id(*number)));
            client.settle(&mut settled);
        };
        settle(&[3, 1]);
        client.hand_over(Bundle::default());
        settle(&[2]);
        assert_eq!(client.write(b"packet"), 6);
        assert_eq!(notified(), 1);
        let said = |settled: &[(u16, u16)]| -> Vec<Acknowledged> {
            let all = settled.iter();
            all.map(|(first, count)| Acknowledged { first: id(*first), count: *count }).collect()
        };
        let (settled, left) = look(&server);
        assert_eq!(settled, said(&[(3, 1), (1, 1), (2, 1)]));
        assert_eq!((left.bundles.len(), left.has_input, left.takes_packets), (1, true, false));
        // Those that follow each other are one.
        settle(&[5, 6, 7, 9]);
        assert_eq!((look(&server).0, notified()), (said(&[(5, 3), (9, 1)]), 1));
        let mut buffer = [0; 4];
        assert_eq!(server.read(&mut buffer).expect("packets"), 4);
        assert_eq!(&buffer, b"pack");
        // A packet that comes behind an acknowledgement is not read before the shard has that.
        settle(&[10]);
        assert_eq!(client.write(b"farewell"), 8);
        assert_eq!(server.read(&mut buffer).expect("packets"), 2);
        let blocked = server.read(&mut buffer).expect_err("it was written after the shard looked");
        assert_eq!(blocked.kind(), io::ErrorKind::WouldBlock);
        assert_eq!((look(&server).0, notified()), (said(&[(10, 1)]), 1));
        assert_eq!(server.read(&mut buffer).expect("packets"), 4);
        drop(client);
        assert_eq!(notified(), 1);
        assert!(look(&server).1.has_input);
        assert_eq!(server.read(&mut buffer).expect("packets before the end"), 4);
        assert_eq!(server.read(&mut buffer).expect("the end"), 0);
    }

    #[test]
    fn packets_that_are_not_read_are_bounded_each_way() {
        let (client, server) = ends();
        let packets = vec![7; PACKET_BYTES_MAX + 10];
        assert_eq!(client.write(&packets), PACKET_BYTES_MAX);
        assert_eq!(client.write(&packets), 0);
        let mut buffer = vec![0; PACKET_BYTES_MAX];
        look(&server);
        assert_eq!(server.read(&mut buffer).expect("packets"), PACKET_BYTES_MAX);
        let blocked = server.read(&mut buffer).expect_err("nothing for now");
        assert_eq!(blocked.kind(), io::ErrorKind::WouldBlock);

        let slices = [IoSlice::new(&packets[..20]), IoSlice::new(&packets)];
        assert_eq!(server.write_vectored(&slices).expect("there is room"), PACKET_BYTES_MAX);
        let blocked = server.write_vectored(&slices).expect_err("there is no room");
        assert_eq!(blocked.kind(), io::ErrorKind::WouldBlock);
        look(&server);
        let mut out = Vec::new();
        assert_eq!(client.read(&mut out), Ok(true));
        assert_eq!(out.len(), PACKET_BYTES_MAX);
        assert!(look(&server).1.takes_packets);
        // The last packets are read before the end.
        assert_eq!(server.write_vectored(&slices[..1]).expect("there is room"), 20);
        drop(server);
        assert_eq!((client.read(&mut out), client.read(&mut out)), (Ok(true), Err(Closed)));
    }
}
