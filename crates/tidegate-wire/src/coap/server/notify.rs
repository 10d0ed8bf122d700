//! Notifications: each observer is sent the newest state, as fast as its peer and the path to it allow.

use std::time::Duration;

use tidegate_message::Instant;

use super::{
    Event, Representation, Server,
    reply::{Content, negotiate},
};
use crate::coap::{
    Block, Code, Message, MessageType, OptionList, Token,
    observe::{CHECKS_AFTER, Notice, block_of, next_sequence},
    slab::Key,
};

/// Most notifications in a row that are not confirmable.
const UNCONFIRMED_MAX: u32 = 16;
/// A topic without news for so long is at rest: the next notification is confirmable, and so is a last one.
const SETTLES_AFTER: Duration = Duration::from_secs(2);

/// The next message to an observer.
pub(super) enum Next {
    /// Its newest state.
    Notify(Vec<u8>),
    /// That it follows no longer, since the topic's values are not of the format that it accepts.
    End(Vec<u8>),
}

impl Server {
    pub(super) fn notify_all(&mut self, now: Instant, path: &str, representation: &Representation) {
        let notice = || Notice::new(representation, self.config.size_exponent);
        let Some(resource) = self.observers.set(path, notice) else { return };
        let mut peers = std::mem::take(&mut self.scratch_peers);
        for at in 0.. {
            let Some(key) = self.observers.of_resource(resource, at) else { break };
            let observer = self.observers.get_mut(key).expect("it is in the list");
            if std::mem::replace(&mut observer.is_behind, true) {
                self.statistics.superseded += 1;
                continue;
            }
            self.peers[observer.peer].behind.push_back(key);
            peers.push(observer.peer);
        }
        // Only now, since sending may shorten the list.
        for peer in peers.drain(..) {
            self.pump(now, peer);
        }
        self.scratch_peers = peers;
    }

    pub(super) fn end_all(&mut self, now: Instant, path: &str) {
        let Some(resource) = self.observers.find(path) else { return };
        while let Some(key) = self.observers.of_resource(resource, 0) {
            let Some(observer) = self.observers.get(key) else { return };
            let (peer, token) = (observer.peer, observer.token);
            self.drop_observer(key);
            let datagram = end_message(token, Code::NOT_FOUND);
            self.peers[peer].waiting.push_back(datagram);
            self.pump(now, peer);
        }
    }

    /// Ends the observation of a peer under a token; returns the number that was said last.
    pub(super) fn unfollow(&mut self, peer: Key, token: Token) -> Option<u32> {
        let mut keys = self.peers[peer].observers.iter().copied();
        let key = keys.find(|key| self.observers.get(*key).is_some_and(|it| it.token == token))?;
        let sequence = self.observers.get(key).map(|observer| observer.sequence);
        self.drop_observer(key);
        sequence
    }

    pub(super) fn drop_observer(&mut self, key: Key) {
        let Some((observer, unfollowed)) = self.observers.remove(key) else { return };
        let peer = &mut self.peers[observer.peer];
        peer.observers.retain(|it| *it != key);
        peer.behind.retain(|it| *it != key);
        self.reschedule(observer.peer);
        if let Some(path) = unfollowed {
            self.events.push_back(Event::Unfollowed { path });
        }
    }

    /// The next of a peer's observers to notify now, and whether that is to be confirmed.
    pub(super) fn next_observer(&mut self, now: Instant, peer: Key) -> Option<(Key, bool)> {
        let of_peer = &self.peers[peer];
        if let Some(&key) = of_peer.behind.front() {
            let observer = self.observers.get(key)?;
            let confirms = of_peer.round_trip.is_none()
                || !of_peer.is_validated
                || observer.unconfirmed >= UNCONFIRMED_MAX
                || now.since(observer.notified) >= SETTLES_AFTER;
            return (confirms || now >= of_peer.next_notification).then_some((key, confirms));
        }
        let settles =
            |key: &&Key| self.observers.get(**key).is_some_and(|observer| observer.settles <= now);
        of_peer.observers.iter().find(settles).map(|key| (*key, true))
    }

    /// The message that tells an observer its newest state.
    pub(super) fn notification(
        &self,
        now: Instant,
        key: Key,
        confirms: bool,
    ) -> Option<(Next, u32)> {
        let observer = self.observers.get(key)?;
        let notice = self.observers.latest(observer);
        let Some(format) = negotiate(notice.content_format, observer.accept, || notice.is_text)
        else {
            return Some((Next::End(end_message(observer.token, Code::NOT_ACCEPTABLE)), 0));
        };
        let size_exponent = observer.size_exponent;
        let wanted = Block { number: 0, more: false, size_exponent };
        let (block, end) = block_of(notice.bytes, wanted, size_exponent)?;
        let sequence = next_sequence(now, Some(observer.sequence));
        let max_age = notice.max_age.map(|age| age.as_secs().min(u64::from(u32::MAX)) as u32);
        let content = Content {
            sequence: Some(sequence),
            format,
            max_age,
            block: block.more.then_some(block),
            etag: || notice.etag,
            bytes: notice.bytes,
        };
        let options = content.options();
        let message_type = match confirms {
            true => MessageType::Confirmable,
            false => MessageType::NonConfirmable,
        };
        let message = Message {
            message_type,
            code: Code::CONTENT,
            id: 0,
            token: observer.token,
            options: options.as_options(),
            payload: &notice.first[..end.min(notice.first.len())],
        };
        let mut datagram = Vec::with_capacity(32 + end);
        message.encode(&mut datagram).expect("a block and a few options fit");
        Some((Next::Notify(datagram), sequence))
    }

    /// An observer has been sent its newest state in the message `id`.
    pub(super) fn notified(
        &mut self,
        now: Instant,
        key: Key,
        sequence: u32,
        id: u16,
        confirms: bool,
    ) {
        self.statistics.notified += 1;
        let Some(observer) = self.observers.get_mut(key) else { return };
        observer.sequence = sequence;
        observer.notified = now;
        observer.is_behind = false;
        observer.settles = now + if confirms { CHECKS_AFTER } else { SETTLES_AFTER };
        if !confirms {
            observer.last_id = Some(id);
            observer.unconfirmed += 1;
        }
        let peer = &mut self.peers[observer.peer];
        peer.behind.retain(|it| *it != key);
    }
}

/// The last message of an observation. It is sent as a response that travels by itself.
fn end_message(token: Token, code: Code) -> Vec<u8> {
    let options = OptionList::new();
    let message = Message {
        message_type: MessageType::Confirmable,
        code,
        id: 0,
        token,
        options: options.as_options(),
        payload: &[],
    };
    let mut datagram = Vec::new();
    message.encode(&mut datagram).expect("it has a code and a token");
    datagram
}
