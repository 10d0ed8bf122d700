//! Reading and writing: input goes to the broker, its output for a connection goes out, as much as the kernel takes.

use std::{
    io::{self, IoSlice},
    os::fd::{AsFd as _, AsRawFd as _},
    time::Duration,
};

use mio::net::TcpStream;
use tidegate_broker::{
    Broker, Bundle, BundleReader, CONTROL_BYTES_MAX, ConnectionKey, Handed, SLICES_MAX,
};
use tidegate_bus::pipe::{Left, PipeId, ServerEnd};
use tidegate_message::Instant;
use tidegate_schedule::LinkState;
use tidegate_wire::mqtt::ReasonCode;

use super::{LEFT_BYTES, READ_BYTES, Shard, Stage, lobby::Room};
use crate::transport::ReadOutcome;

/// Reads of one connection in one turn, before others have theirs.
const READS_MAX: usize = 4;
/// Messages of a bundle that the broker is given as soon as they come.
const FEW: usize = 16;
/// Bytes of answers that wait for a client before it is read from no more.
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// Bytes of an incomplete packet that each connection may keep outside the node's budget.
const FREE_BYTES: usize = 1 << 10;
/// Writes to one connection in one turn.
const WRITES_MAX: usize = 16;

impl Shard {
    pub(super) fn read_queued(&mut self, now: Instant) {
        for _ in 0..self.queued.len() {
            let Some(slot) = self.queued.pop_front() else { return };
            if let Some(connection) = self.slots[slot].as_deref_mut() {
                connection.is_queued = false;
                self.publish_bundles(now, slot);
                self.read(now, slot);
            }
        }
    }

    pub(super) fn read(&mut self, now: Instant, slot: usize) {
        for _ in 0..READS_MAX {
            // Acknowledgements and messages were left before the packets that follow, which may end the connection.
            if !self.take_left(now, slot) {
                return;
            }
            let Some(connection) = self.slots[slot].as_deref_mut() else { return };
            if !connection.is_readable || connection.is_paused || connection.rests_until.is_some() {
                return;
            }
            // A client that does not read its answers is not read from; writable, the socket brings it back here. Input
            // behind CONNECT waits until authentication is done.
            let waits = match &connection.stage {
                Stage::Open(key) => self.broker.answer_bytes(*key) > ANSWER_BYTES_MAX,
                Stage::Waiting(..) => true,
                Stage::Opening | Stage::Exchanging(..) | Stage::Closing => false,
            };
            if waits || (!connection.transport.is_plain() && !connection.transport.is_clear()) {
                return;
            }
            // The rest of a packet goes before new input, so that the packet is whole in one place.
            let left = connection.left.len();
            let start = if left <= LEFT_BYTES { LEFT_BYTES - left } else { LEFT_BYTES };
            if left <= LEFT_BYTES {
                self.buffer[start..LEFT_BYTES].copy_from_slice(&connection.left);
            }
            let outcome = connection.transport.read(&mut self.buffer[LEFT_BYTES..]);
            if connection.learn_peer() {
                // From now on it is of its own address, and not of the balancer's.
                self.arrives(now, slot);
                continue;
            }
            let count = match outcome {
                // Below MQTT, such as a WebSocket's ping: nothing was heard of the client (MQTT-3.1.2-22).
                Ok(ReadOutcome::Bytes(0)) => continue,
                Ok(ReadOutcome::Bytes(count)) => count,
                Ok(ReadOutcome::WouldBlock) => {
                    connection.is_readable = false;
                    if connection.has_hung_up && matches!(connection.stage, Stage::Opening) {
                        // The header was peeked at and not read, so that the end behind it cannot be.
                        let text = "the connection ended within the header of the PROXY protocol";
                        let error = io::Error::new(io::ErrorKind::UnexpectedEof, text);
                        self.broke(now, slot, &error);
                    } else if connection.transport.opening_bytes() > 0 {
                        self.hold_left(now, slot);
                    }
                    return;
                }
                Ok(ReadOutcome::End) => {
                    return match connection.transport.take_refusal() {
                        Some(why) => self.turn_away(now, slot, &why),
                        None => self.drop_connection(now, slot),
                    };
                }
                Err(error) => return self.broke(now, slot, &error),
            };
            let received = self.broker.received();
            match &connection.stage {
                Stage::Open(key) => {
                    let key = *key;
                    if left <= LEFT_BYTES {
                        connection.left.clear();
                        let input = &self.buffer[start..LEFT_BYTES + count];
                        let taken = self.broker.receive(now, key, input);
                        let rest = &input[taken..];
                        if !rest.is_empty() {
                            connection.left.extend_from_slice(rest);
                        } else if connection.left.capacity() > LEFT_BYTES {
                            connection.left = Vec::new();
                        }
                    } else {
                        let read = &self.buffer[LEFT_BYTES..LEFT_BYTES + count];
                        connection.left.extend_from_slice(read);
                        self.received_left(now, slot, key);
                    }
                    self.charge_left(now, slot);
                    self.rest(now, slot, self.broker.received() - received, count);
                }
                Stage::Closing => {}
                Stage::Opening | Stage::Exchanging(..) | Stage::Waiting(..) => {
                    let read = &self.buffer[LEFT_BYTES..LEFT_BYTES + count];
                    if connection.left.len() + count > CONTROL_BYTES_MAX {
                        let (peer, listener) = (connection.peer, &connection.settings);
                        let why = "too much came before CONNACK";
                        self.visits.refused(now, None, peer, listener, &why);
                        return self.drop_connection(now, slot);
                    }
                    connection.left.extend_from_slice(read);
                    while self.opening(now, slot) {}
                    self.charge_left(now, slot);
                }
            }
            // A read more, only to find that there is nothing, is half of the cost of a message that comes alone.
            if let Some(connection) = self.slots[slot].as_deref_mut()
                && connection.transport.is_drained()
                && !connection.has_hung_up
            {
                connection.is_readable = false;
                return;
            }
        }
        // The others first.
        self.queue(slot);
    }

    /// The connection of a part of this program.
    pub(super) fn inside_end(&self, id: PipeId) -> Option<&ServerEnd> {
        let slot = *self.inside.get(&id)?;
        self.slots[slot].as_deref()?.transport.as_inside()
    }

    /// A part of this program has left something.
    pub(super) fn look_inside(&mut self, now: Instant, id: PipeId) {
        // One that is gone learns of it by its own end.
        let Some(&slot) = self.inside.get(&id) else { return };
        self.read(now, slot);
    }

    /// Takes what a part of this program has left, but for packets; whether those may be read.
    fn take_left(&mut self, now: Instant, slot: usize) -> bool {
        let Some(connection) = self.slots[slot].as_deref_mut() else { return false };
        let Some(end) = connection.transport.as_inside() else { return true };
        let left = end.look(&mut self.settled, &mut self.used);
        let Left { bundles, takes_deliveries, takes_packets, is_away, repeats_retained, has_input } =
            left;
        self.broker.reuse(&mut self.used);
        let empties = end.empties();
        connection.is_readable |= has_input;
        if let Stage::Open(key) = connection.stage {
            self.broker.acknowledge_deliveries(now, key, &self.settled);
            if takes_deliveries {
                self.broker.hold_up_deliveries(key, false);
            }
            if let Some(is_away) = is_away {
                self.broker.set_away(key, is_away);
            }
            if repeats_retained {
                self.broker.repeat_retained(now, key);
            }
        }
        self.settled.clear();
        if takes_packets {
            self.write_again(now, slot);
        }
        let Some(connection) = self.slots[slot].as_deref_mut() else { return false };
        let Stage::Open(_) = connection.stage else { return true };
        if !bundles.is_empty() {
            // Few messages do not wait behind many of others.
            let few = bundles.iter().map(Bundle::len).sum::<usize>() <= FEW;
            let goes_at_once = few && connection.bundles.is_empty();
            let bundles = bundles.into_iter();
            connection.bundles.extend(bundles.map(|it| BundleReader::new(it, empties.clone())));
            if goes_at_once {
                self.publish_bundles(now, slot);
            } else {
                self.queue(slot);
            }
        }
        self.slots[slot].as_deref().is_some_and(|connection| connection.bundles.is_empty())
    }

    /// Publishes what a part of this program handed over, about as much as one read gives.
    pub(super) fn publish_bundles(&mut self, now: Instant, slot: usize) {
        let Some(connection) = self.slots[slot].as_deref_mut() else { return };
        let Stage::Open(key) = connection.stage else { return };
        if connection.is_paused || connection.rests_until.is_some() {
            return;
        }
        if connection.bundles.is_empty() {
            return;
        }
        let received = self.broker.received();
        let mut bytes = 0;
        while let Some(bundle) = connection.bundles.front_mut()
            && bytes < READ_BYTES
        {
            match self.broker.receive_bundle(now, key, bundle, READ_BYTES - bytes) {
                Some(taken) => bytes += taken,
                None => connection.bundles.clear(),
            }
            connection.bundles.pop_front_if(|bundle| bundle.is_empty());
        }
        let goes_on = !connection.bundles.is_empty();
        self.broker.end_publications(now, key);
        self.rest(now, slot, self.broker.received() - received, bytes);
        if goes_on {
            // The others first.
            self.queue(slot);
        }
    }

    /// Lets a publisher that sends faster than its listener or its identity may wait for what it sent too early.
    fn rest(&mut self, now: Instant, slot: usize, messages: u64, bytes: usize) {
        let id = self.id(slot);
        let Some(connection) = self.slots[slot].as_deref_mut() else { return };
        let by_listener = connection.settings.publish_rate_max.map(|rate| {
            let second = Duration::from_secs(1);
            let earned = connection.earned_at.max(now - second);
            let nanos = messages.saturating_mul(1_000_000_000) / u64::from(rate.get());
            connection.earned_at = earned + Duration::from_nanos(nanos);
            connection.earned_at
        });
        let by_identity = connection
            .lease
            .as_ref()
            .and_then(|lease| lease.meter().spend(now, messages, bytes as u64));
        let until = by_listener.max(by_identity).filter(|until| *until > now);
        if let Some(until) = until {
            connection.rests_until = Some(until);
            if let Stage::Open(key) = connection.stage {
                self.broker.rests_until(key, until);
            }
            self.resting.insert((until, slot), id);
        }
    }

    /// Holds what is left of a packet within the node's budget, or ends the connection.
    pub(super) fn charge_left(&mut self, now: Instant, slot: usize) {
        let Some(connection) = self.slots[slot].as_deref_mut() else { return };
        let bytes = connection.left.capacity();
        let Stage::Open(key) = connection.stage else { return self.hold_left(now, slot) };
        if bytes <= FREE_BYTES {
            connection.left_charge = None;
            return;
        }
        if connection.left_charge.as_ref().is_some_and(|charge| charge.bytes() == bytes as u64) {
            return;
        }
        connection.left_charge = None;
        connection.left_charge = self.broker.charge_partial(key, bytes as u64);
        if connection.left_charge.is_some() {
            return;
        }
        tracing::debug!(
            peer = connection.peer.map(tracing::field::display),
            bytes,
            "no memory for a packet that is not whole"
        );
        connection.left = Vec::new();
        let text = "the server has no memory for packets that are not whole";
        self.broker.end(key, ReasonCode::QUOTA_EXCEEDED, text);
    }

    /// Holds the input of a connection that is not open within the limit for strangers, or ends a connection.
    fn hold_left(&mut self, now: Instant, slot: usize) {
        loop {
            let Some(connection) = self.slots[slot].as_deref() else { return };
            if matches!(connection.stage, Stage::Open(_) | Stage::Closing) {
                return;
            }
            let bytes = connection.left.capacity()
                + connection.connect_bytes
                + connection.transport.opening_bytes();
            let bytes = if bytes <= FREE_BYTES { 0 } else { bytes };
            match self.lobby.hold(slot, connection.address(), bytes) {
                Room::Held => return,
                Room::After(gone) => {
                    let peer = self.slots[gone].as_deref().and_then(|connection| connection.peer);
                    tracing::debug!(
                        peer = peer.map(tracing::field::display),
                        "no memory for a CONNECT that is not accepted"
                    );
                    self.drop_connection(now, gone);
                }
            }
        }
    }

    pub(super) fn received_left(&mut self, now: Instant, slot: usize, key: ConnectionKey) {
        let Some(connection) = self.slots[slot].as_deref_mut() else { return };
        if connection.left.is_empty() {
            return;
        }
        let taken = self.broker.receive(now, key, &connection.left);
        connection.left.drain(..taken);
        if connection.left.is_empty() {
            connection.left = Vec::new();
        }
    }

    /// Writes what a connection has to send, as much as it takes.
    pub(super) fn flush(&mut self, now: Instant, slot: usize, key: ConnectionKey) {
        let Some(connection) = self.slots.get_mut(slot).and_then(Option::as_deref_mut) else {
            return;
        };
        if !matches!(connection.stage, Stage::Open(open) if open == key) {
            return;
        }
        if let Some(end) = connection.transport.as_inside() {
            hand_out(now, &mut self.broker, key, end, &mut self.handed);
        }
        for _ in 0..WRITES_MAX {
            if !connection.transport.is_clear() {
                match connection.transport.flush() {
                    Ok(true) => {}
                    Ok(false) => return self.broker.transmitted(now, key, 0, true),
                    Err(error) => return self.broke(now, slot, &error),
                }
            }
            // Inside the program nothing is on its way.
            if self.broker.wants_link(now, key)
                && let Some(socket) = connection.transport.socket()
            {
                self.broker.set_link(now, key, link_state(socket));
            }
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let count = self.broker.transmit(now, key, &mut slices);
            if count == 0 {
                // It may not have been read from, for want of room for answers; the kernel says nothing new of it.
                if connection.is_readable {
                    self.queue(slot);
                }
                return;
            }
            match connection.transport.write(&slices[..count]) {
                Ok((written, more)) => {
                    self.broker.transmitted(now, key, written, !more);
                    if !more {
                        return;
                    }
                }
                Err(error) => return self.broke(now, slot, &error),
            }
        }
        // The others first.
        self.broker.writable(key);
    }

    pub(super) fn write_again(&mut self, now: Instant, slot: usize) {
        let Some(connection) = self.slots.get_mut(slot).and_then(Option::as_deref_mut) else {
            return;
        };
        match connection.transport.flush() {
            Ok(false) => {}
            Ok(true) => {
                let is_readable = connection.is_readable;
                match connection.stage {
                    Stage::Open(key) => {
                        self.broker.writable(key);
                        self.end_if_flushed(now, slot, key);
                    }
                    Stage::Closing => connection.transport.end(),
                    _ => {}
                }
                // It may not have been read from, for want of room for answers.
                if is_readable {
                    self.queue(slot);
                }
            }
            Err(error) => self.broke(now, slot, &error),
        }
    }
}

/// Hands a part of this program the messages that wait for it, if they go out as they are.
fn hand_out(
    now: Instant,
    broker: &mut Broker,
    key: ConnectionKey,
    end: &ServerEnd,
    handed: &mut Vec<Handed>,
) {
    for _ in 0..WRITES_MAX {
        broker.take_deliveries(now, key, handed);
        if handed.is_empty() {
            return;
        }
        if !end.put(handed) {
            return broker.hold_up_deliveries(key, true);
        }
    }
    // The others first.
    broker.writable(key);
}

/// The kernel's state of a connection.
fn link_state(socket: &TcpStream) -> LinkState {
    match tidegate_sys::net::tcp_info(socket.as_fd()) {
        Ok(info) => LinkState {
            rtt: info.rtt,
            rtt_min: info.rtt_min,
            delivery_rate: info.delivery_rate,
            unsent_bytes: u64::from(info.unsent_bytes),
            in_flight_bytes: u64::from(info.in_flight) * u64::from(info.segment_bytes),
            busy: info.busy,
            receiver_limited: info.receiver_limited,
            buffer_limited: info.buffer_limited,
        },
        Err(error) => {
            tracing::debug!(%error, socket = socket.as_raw_fd(), "the kernel tells nothing of a connection");
            LinkState::default()
        }
    }
}
