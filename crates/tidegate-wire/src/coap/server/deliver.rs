//! Transmission to each peer: one confirmable message at a time (NSTART), sent again until it is acknowledged (RFC 7252
//! sections 4.2 and 4.7, RFC 7641 section 4.5).

use std::{net::SocketAddr, time::Duration};

use tidegate_message::Instant;

use super::{Server, Timer, notify::Next};
use crate::coap::{
    Message, MessageType,
    peer::{InFlight, PING_RESERVE, Purpose},
    slab::Key,
    transmission::Backoff,
};

/// Without a measured round trip, notifications that are not confirmable leave once in so long (RFC 7641, 4.5.1).
const UNMEASURED_PACE: Duration = Duration::from_secs(3);
/// A shorter round trip is taken for this.
const PACE_MIN: Duration = Duration::from_millis(1);

impl Server {
    /// Sends what may leave to a peer now.
    pub(super) fn pump(&mut self, now: Instant, peer: Key) {
        while self.peers[peer].in_flight.is_none() {
            let waiting = !self.peers[peer].waiting.is_empty();
            let goes_on = match waiting {
                true => self.send_waiting(now, peer),
                false => self.send_notification(now, peer),
            };
            if !goes_on {
                break;
            }
        }
        self.reschedule(peer);
    }

    /// Sends the first of the responses that wait, or a ping if the peer may not be sent as much; returns whether to
    /// continue.
    fn send_waiting(&mut self, now: Instant, peer: Key) -> bool {
        let Some(mut datagram) = self.peers[peer].waiting.pop_front() else { return false };
        let id = self.stamp(peer, &mut datagram);
        if !self.send(peer, &datagram, PING_RESERVE) {
            self.peers[peer].waiting.push_front(datagram);
            self.ping(now, peer);
            return false;
        }
        if is_confirmable(&datagram) {
            self.fly(now, peer, id, Purpose::Response, datagram);
        }
        true
    }

    /// Notifies one observer; returns whether to continue.
    fn send_notification(&mut self, now: Instant, peer: Key) -> bool {
        let Some((key, confirms)) = self.next_observer(now, peer) else { return false };
        let Some((next, sequence)) = self.notification(now, key, confirms) else {
            // Its peer's list is a moment behind; it must not hold up the others.
            self.drop_observer(key);
            return true;
        };
        let mut datagram = match next {
            Next::Notify(datagram) => datagram,
            Next::End(datagram) => {
                self.drop_observer(key);
                self.peers[peer].waiting.push_back(datagram);
                return true;
            }
        };
        let id = self.stamp(peer, &mut datagram);
        if !self.send(peer, &datagram, PING_RESERVE) {
            self.ping(now, peer);
            return false;
        }
        self.notified(now, key, sequence, id, confirms);
        let of_peer = &mut self.peers[peer];
        let pace = of_peer.round_trip.map_or(UNMEASURED_PACE, |time| time.max(PACE_MIN));
        of_peer.next_notification = now + pace;
        if confirms {
            self.fly(now, peer, id, Purpose::Notification(key), datagram);
        }
        true
    }

    /// Asks a peer to show where it is. If it may not be sent even that, time passes as if the ping had been lost.
    fn ping(&mut self, now: Instant, peer: Key) {
        let id = self.peers[peer].next_id();
        let mut datagram = Vec::new();
        let message = Message::empty(MessageType::Confirmable, id);
        message.encode(&mut datagram).expect("a ping is four bytes");
        self.send(peer, &datagram, 0);
        self.fly(now, peer, id, Purpose::Ping, datagram);
    }

    /// Gives a message its identifier, when it leaves.
    fn stamp(&mut self, peer: Key, datagram: &mut [u8]) -> u16 {
        let id = self.peers[peer].next_id();
        datagram[2..4].copy_from_slice(&id.to_be_bytes());
        id
    }

    fn fly(&mut self, now: Instant, peer: Key, id: u16, purpose: Purpose, datagram: Vec<u8>) {
        let backoff = Backoff::begin(now, &self.config.transmission, &mut self.random);
        self.peers[peer].in_flight = Some(InFlight { id, purpose, datagram, backoff });
    }

    /// An acknowledgement arrived.
    pub(super) fn acknowledged(&mut self, now: Instant, address: SocketAddr, id: u16) {
        let Some((peer, in_flight)) = self.land(now, address, id) else { return };
        if let Purpose::Notification(key) = in_flight.purpose
            && let Some(observer) = self.observers.get_mut(key)
        {
            observer.unconfirmed = 0;
        }
        self.pump(now, peer);
    }

    /// A reset arrived: the answer to a ping, or from an observer that has forgotten its observation.
    pub(super) fn rejected(&mut self, now: Instant, address: SocketAddr, id: u16) {
        if let Some((peer, in_flight)) = self.land(now, address, id) {
            if let Purpose::Notification(key) = in_flight.purpose {
                self.drop_observer(key);
            }
            return self.pump(now, peer);
        }
        let Some(peer) = self.peers.find(address) else { return };
        let is_it = |key: &&Key| self.observers.get(**key).is_some_and(|it| it.last_id == Some(id));
        let found = self.peers[peer].observers.iter().find(is_it).copied();
        if let Some(key) = found {
            self.drop_observer(key);
            self.pump(now, peer);
        }
    }

    /// Takes the message that an acknowledgement or a reset is about; its peer is where it says.
    fn land(&mut self, now: Instant, address: SocketAddr, id: u16) -> Option<(Key, InFlight)> {
        let key = self.peers.find(address)?;
        let peer = &mut self.peers[key];
        let in_flight = peer.in_flight.take_if(|in_flight| in_flight.id == id)?;
        peer.heard(now, 0);
        peer.is_validated = true;
        if in_flight.backoff.retransmissions == 0 {
            let sent_at = in_flight.backoff.sent_at;
            peer.measured(now.since(sent_at));
            let pace = peer.round_trip.unwrap_or(UNMEASURED_PACE).max(PACE_MIN);
            peer.next_notification = peer.next_notification.min(sent_at + pace);
        }
        Some((key, in_flight))
    }

    /// A peer's time has come: to send again, to give up, to take unfinished payloads away, to tell what waited.
    pub(super) fn peer_timeout(&mut self, now: Instant, peer: Key) {
        if self.peers.get(peer).is_none() {
            return;
        }
        self.peers[peer].due = None;
        while let Some(at) =
            self.peers[peer].assemblies.iter().position(|assembly| assembly.expires <= now)
        {
            self.abandon(peer, at);
        }
        let is_due = |in_flight: &mut InFlight| in_flight.backoff.due <= now;
        if let Some(in_flight) = self.peers[peer].in_flight.take_if(is_due) {
            self.retransmit(now, peer, in_flight);
        }
        self.pump(now, peer);
    }

    fn retransmit(&mut self, now: Instant, peer: Key, mut in_flight: InFlight) {
        if !in_flight.backoff.expire(now, &self.config.transmission) {
            return self.give_up(peer);
        }
        if let Purpose::Notification(key) = in_flight.purpose {
            let Some(observer) = self.observers.get(key) else { return };
            // A newer state takes the place of the one that did not get through, and keeps its waiting times (RFC 7641,
            // 4.5.2).
            if observer.is_behind
                && let Some((Next::Notify(mut datagram), sequence)) =
                    self.notification(now, key, true)
            {
                in_flight.id = self.stamp(peer, &mut datagram);
                in_flight.datagram = datagram;
                self.notified(now, key, sequence, in_flight.id, true);
            }
        }
        let reserve = if in_flight.purpose == Purpose::Ping { 0 } else { PING_RESERVE };
        if !self.send(peer, &in_flight.datagram, reserve) && reserve > 0 {
            return self.hold(now, peer, in_flight);
        }
        self.statistics.retransmitted += 1;
        self.peers[peer].in_flight = Some(in_flight);
    }

    /// Puts back what a peer may not be sent again before it has shown where it is, and asks for that.
    fn hold(&mut self, now: Instant, peer: Key, in_flight: InFlight) {
        match in_flight.purpose {
            Purpose::Notification(key) => {
                if let Some(observer) = self.observers.get_mut(key)
                    && !std::mem::replace(&mut observer.is_behind, true)
                {
                    self.peers[peer].behind.push_front(key);
                }
            }
            Purpose::Response => self.peers[peer].waiting.push_front(in_flight.datagram),
            Purpose::Ping => {}
        }
        self.ping(now, peer);
    }

    /// A peer is gone: nothing more is for it.
    fn give_up(&mut self, peer: Key) {
        self.statistics.timed_out += 1;
        self.peers[peer].waiting.clear();
        while let Some(&key) = self.peers[peer].observers.last() {
            self.drop_observer(key);
        }
    }

    /// Sets a peer's timer to what is due next.
    pub(super) fn reschedule(&mut self, key: Key) {
        let peer = &self.peers[key];
        let of_assemblies = peer.assemblies.iter().map(|assembly| assembly.expires);
        let of_message = peer.in_flight.as_ref().map(|in_flight| in_flight.backoff.due);
        let of_behind = peer.behind.front().map(|_| peer.next_notification);
        let of_settling = || {
            let due = |key: &Key| self.observers.get(*key).map(|observer| observer.settles);
            peer.observers.iter().filter_map(due).min()
        };
        // The message under way comes before all that could leave after it.
        let of_sending = of_message.or(of_behind).or_else(of_settling);
        let due = of_assemblies.chain(of_sending).min();
        if due != peer.due {
            if let Some(old) = peer.due {
                self.timers.remove(&(old, Timer::Peer(key)));
            }
            self.timers.extend(due.map(|due| (due, Timer::Peer(key))));
            self.peers[key].due = due;
        }
    }
}

fn is_confirmable(datagram: &[u8]) -> bool {
    datagram[0] >> 4 & 0b11 == MessageType::Confirmable as u8
}
