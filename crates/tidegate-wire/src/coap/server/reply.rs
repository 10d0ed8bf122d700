//! Replies: piggy-backed where they can be, and within what a peer may be sent.

use std::net::SocketAddr;

use tidegate_message::Instant;

use super::{Open, ReplyTo, Representation, Server, busy};
use crate::coap::{
    Block, Code, ContentFormat, Message, MessageType, OptionList, OptionNumber, RequestError,
    discovery,
    exchange::{Outcome, State},
    observe::{Notice, Registration, block_of, etag, next_sequence},
    peer::PING_RESERVE,
    slab::Key,
};

/// Every list of options here is ascending and far below the limits.
const OPTIONS_FIT: &str = "options are ascending and short";
/// Every reply here is a block and a few options.
const MESSAGE_FITS: &str = "a reply has a code of its own and is far below the limit";

impl Server {
    /// Says what becomes of a request that was open.
    pub(super) fn conclude(&mut self, now: Instant, open: &Open, outcome: Outcome) {
        let to = &open.to;
        let state = match (to.is_confirmable, to.is_acknowledged) {
            (true, true) => State::Acknowledged,
            (true, false) => State::Done(outcome),
            (false, _) => State::Silent,
        };
        self.exchanges.set((to.peer, to.id), open.fingerprint, state);
        self.reply_outcome(now, to, &outcome);
    }

    pub(super) fn reply_outcome(&mut self, now: Instant, to: &ReplyTo, outcome: &Outcome) {
        let mut options = OptionList::new();
        for (number, value) in [
            (OptionNumber::MAX_AGE, outcome.max_age),
            (OptionNumber::BLOCK1, outcome.block1.map(Block::value)),
            (OptionNumber::SIZE1, outcome.size1),
        ] {
            if let Some(value) = value {
                options.push_number(number, value).expect(OPTIONS_FIT);
            }
        }
        self.reply(now, to, outcome.code, &options, outcome.diagnostic.as_bytes());
    }

    pub(super) fn reply_error(&mut self, now: Instant, to: &ReplyTo, error: &RequestError) {
        let text = match error {
            RequestError::Topic(why) => format!("{error}: {why}"),
            _ => error.to_string(),
        };
        self.reply(now, to, error.code(), &OptionList::new(), text.as_bytes());
    }

    /// There is no room to know a request by, and nothing has been done.
    pub(super) fn refuse_busy(&mut self, now: Instant, to: &ReplyTo) {
        self.statistics.busy += 1;
        self.reply_outcome(now, to, &busy(self.config.retry_after));
    }

    /// Answers with the links that a query asks for.
    pub(super) fn answer_discovery(&mut self, now: Instant, open: Open, query: &str) {
        let representation = Representation {
            content_format: Some(ContentFormat::LINK_FORMAT),
            payload: discovery::links(&self.config.links, query).into(),
            max_age: None,
        };
        self.answer_content(now, open, &representation);
    }

    /// Answers a reader with the block that it asks for, and makes it follow if it asks for that.
    pub(super) fn answer_content(
        &mut self,
        now: Instant,
        open: Open,
        representation: &Representation,
    ) {
        let payload = &representation.payload;
        let is_text = || str::from_utf8(payload).is_ok();
        let Some(format) = negotiate(representation.content_format, open.accept, is_text) else {
            let outcome = Outcome::new(Code::NOT_ACCEPTABLE, "the value is not of that format");
            return self.conclude(now, &open, outcome);
        };
        let size_exponent = self.config.size_exponent;
        let wanted = open.block2.unwrap_or(Block { number: 0, more: false, size_exponent });
        let Some((block, end)) = block_of(payload.len(), wanted, size_exponent) else {
            let outcome = Outcome::new(Code::BAD_REQUEST, "the value has no such block");
            return self.conclude(now, &open, outcome);
        };
        let to = open.to;
        let registration = Registration {
            peer: to.peer,
            token: to.token,
            accept: open.accept,
            size_exponent: block.size_exponent,
        };
        let followed = open.follow.as_deref();
        let sequence =
            followed.and_then(|path| self.follow(now, path, &registration, representation));
        let max_age = representation.max_age.map(|age| age.as_secs().min(u64::from(u32::MAX)));
        let content = Content {
            sequence,
            format,
            max_age: max_age.map(|age| age as u32),
            block: (block.more || open.block2.is_some()).then_some(block),
            etag: || etag(payload),
            bytes: payload.len(),
        };
        let options = content.options();
        // A copy is asked again, but for one that is acknowledged: two answers to one token would be one too many.
        let exchange = (to.peer, to.id);
        let part = payload.slice(block.offset().min(end)..end);
        let is_piggybacked = self.reply(now, &to, Code::CONTENT, &options, &part);
        match (to.is_confirmable, is_piggybacked) {
            (true, true) => self.exchanges.forget(exchange, open.fingerprint),
            (true, false) => {
                self.exchanges.set(exchange, open.fingerprint, State::Acknowledged);
            }
            (false, _) => self.exchanges.set(exchange, open.fingerprint, State::Silent),
        }
    }

    /// Adds a peer to those who follow a path; returns the number of the reply, or none if there is no room.
    fn follow(
        &mut self,
        now: Instant,
        path: &str,
        registration: &Registration,
        representation: &Representation,
    ) -> Option<u32> {
        let before = self.unfollow(registration.peer, registration.token);
        let peer = &self.peers[registration.peer];
        if self.observers.len() >= self.config.observers_max
            || peer.observers.len() >= self.config.observers_per_peer_max
        {
            return None;
        }
        let sequence = next_sequence(now, before);
        let notice = || Notice::new(representation, self.config.size_exponent);
        let (key, is_first) = self.observers.add(now, path, registration, sequence, notice);
        self.peers[registration.peer].observers.push(key);
        self.reschedule(registration.peer);
        if is_first {
            let path = path.to_owned();
            self.events.push_back(super::Event::Followed { path });
        }
        Some(sequence)
    }

    /// Replies now if that is possible, else when the peer has shown where it is; returns whether the reply is in the acknowledgement.
    pub(super) fn reply(
        &mut self,
        now: Instant,
        to: &ReplyTo,
        code: Code,
        options: &OptionList,
        payload: &[u8],
    ) -> bool {
        if to.no_response >> (code.class() - 1) & 1 == 1 {
            if !to.is_acknowledged {
                self.send_acknowledgement(to);
            }
            return true;
        }
        let is_piggybacked = to.is_confirmable && !to.is_acknowledged;
        let message_type = match (to.is_confirmable, is_piggybacked) {
            (true, true) => MessageType::Acknowledgement,
            (true, false) => MessageType::Confirmable,
            (false, _) => MessageType::NonConfirmable,
        };
        let mut message = Message {
            message_type,
            code,
            id: to.id,
            token: to.token,
            options: options.as_options(),
            payload,
        };
        if message_type == MessageType::NonConfirmable {
            message.id = self.peers[to.peer].next_id();
        }
        if message_type != MessageType::Confirmable {
            if self.send_message(to.peer, &message) {
                return is_piggybacked;
            }
            if code.class() >= 4 {
                // Without its words for people it is no longer than what it answers.
                message.payload = &[];
                self.send_message(to.peer, &message);
                return is_piggybacked;
            }
            self.send_acknowledgement(to);
        }
        if is_piggybacked {
            message.message_type = MessageType::Confirmable;
        }
        let waiting = &mut self.peers[to.peer].waiting;
        // A peer that asks for more than this without showing where it is asks again.
        if waiting.len() < self.config.open_per_peer_max {
            let mut datagram = Vec::new();
            message.encode(&mut datagram).expect(MESSAGE_FITS);
            waiting.push_back(datagram);
            self.pump(now, to.peer);
        }
        false
    }

    /// Acknowledges a confirmable request that has not been acknowledged.
    pub(super) fn send_acknowledgement(&mut self, to: &ReplyTo) {
        if to.is_confirmable {
            let message = Message::empty(MessageType::Acknowledgement, to.id);
            self.send_message(to.peer, &message);
        }
    }

    /// Says to a stranger that there is no room.
    pub(super) fn send_busy(&mut self, address: SocketAddr, request: &Message<'_>) {
        let mut options = OptionList::new();
        let max_age = busy(self.config.retry_after).max_age.unwrap_or(1).min(255);
        options.push_number(OptionNumber::MAX_AGE, max_age).expect(OPTIONS_FIT);
        let message = Message {
            message_type: MessageType::Acknowledgement,
            code: Code::SERVICE_UNAVAILABLE,
            options: options.as_options(),
            payload: &[],
            ..*request
        };
        self.scratch.clear();
        message.encode(&mut self.scratch).expect(MESSAGE_FITS);
        self.outbox.push(address, &self.scratch);
    }

    pub(super) fn send_reset(&mut self, address: SocketAddr, id: u16) {
        self.scratch.clear();
        Message::empty(MessageType::Reset, id).encode(&mut self.scratch).expect(MESSAGE_FITS);
        self.outbox.push(address, &self.scratch);
    }

    /// Sends a message, if the peer may be sent as much.
    pub(super) fn send_message(&mut self, peer: Key, message: &Message<'_>) -> bool {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        message.encode(&mut scratch).expect(MESSAGE_FITS);
        // A new observer is to be pinged before long.
        let follows = message.options.first(OptionNumber::OBSERVE).is_some();
        let sent = self.send(peer, &scratch, if follows { PING_RESERVE } else { 0 });
        self.scratch = scratch;
        sent
    }

    pub(super) fn send(&mut self, peer: Key, datagram: &[u8], reserve: u64) -> bool {
        let peer = &mut self.peers[peer];
        let may = peer.charge(datagram.len(), reserve);
        if may {
            self.outbox.push(peer.address, datagram);
        }
        may
    }
}

/// The options of a value.
pub(super) struct Content<F> {
    pub(super) sequence: Option<u32>,
    pub(super) format: Option<ContentFormat>,
    pub(super) max_age: Option<u32>,
    /// Where it is sent in blocks.
    pub(super) block: Option<Block>,
    pub(super) etag: F,
    pub(super) bytes: usize,
}

impl<F: FnOnce() -> [u8; 8]> Content<F> {
    pub(super) fn options(self) -> OptionList {
        let mut options = OptionList::new();
        if self.block.is_some_and(|block| block.more || block.number > 0) {
            options.push(OptionNumber::ETAG, &(self.etag)()).expect(OPTIONS_FIT);
        }
        let size = self.block.map(|_| u32::try_from(self.bytes).unwrap_or(u32::MAX));
        for (number, value) in [
            (OptionNumber::OBSERVE, self.sequence),
            (OptionNumber::CONTENT_FORMAT, self.format.map(|format| u32::from(format.0))),
            (OptionNumber::MAX_AGE, self.max_age),
            (OptionNumber::BLOCK2, self.block.map(Block::value)),
            (OptionNumber::SIZE2, size),
        ] {
            if let Some(value) = value {
                options.push_number(number, value).expect(OPTIONS_FIT);
            }
        }
        options
    }
}

/// The format to say, none if none is known; or none at all if it is not what the peer accepts. A value of unknown format is
/// given as bytes, and as text if it is UTF-8.
pub(super) fn negotiate(
    format: Option<ContentFormat>,
    accept: Option<ContentFormat>,
    is_text: impl FnOnce() -> bool,
) -> Option<Option<ContentFormat>> {
    match (format, accept) {
        (_, None) => Some(format),
        (Some(format), Some(accept)) => (format == accept).then_some(Some(format)),
        (None, Some(ContentFormat::OCTET_STREAM)) => Some(accept),
        (None, Some(ContentFormat::TEXT)) => is_text().then_some(accept),
        (None, Some(_)) => None,
    }
}
