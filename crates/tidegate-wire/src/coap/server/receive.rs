//! Requests: copies are known, blocks are put together, and what is whole is handed to the shell.

use std::net::SocketAddr;

use bytes::Bytes;
use tidegate_message::Instant;

use super::{Event, Open, Publish, Read, ReplyTo, RequestKey, Server, Timer, busy};
use crate::coap::{
    Block, Code, ContentFormat, Message, MessageType, Method,
    assembly::{Assembly, check_length},
    exchange::{Begin, Outcome, State, fingerprint},
    request::{DISCOVERY, Request},
    slab::Key,
};

impl Server {
    pub(super) fn receive(
        &mut self,
        now: Instant,
        address: SocketAddr,
        message: &Message<'_>,
        datagram: &Bytes,
    ) {
        let is_confirmable = message.message_type == MessageType::Confirmable;
        let span = self.config.transmission.transmit_span();
        let trusts = !self.config.validates_peers;
        let Some(peer) = self.peers.admit(now, address, span, trusts, &mut self.random) else {
            self.statistics.busy += 1;
            if is_confirmable {
                self.send_busy(address, message);
            }
            return;
        };
        self.peers[peer].heard(now, datagram.len());
        let mut to = ReplyTo {
            peer,
            id: message.id,
            token: message.token,
            is_confirmable,
            is_acknowledged: false,
            no_response: 0,
        };
        let request = match Request::parse(message, &self.config) {
            Ok(request) => request,
            Err(error) => {
                self.statistics.refused += 1;
                return self.reply_error(now, &to, &error);
            }
        };
        to.no_response = request.no_response;
        let fingerprint = fingerprint(datagram);
        match self.exchanges.begin(now, (peer, to.id), fingerprint, is_confirmable) {
            Begin::New | Begin::Unremembered => {}
            Begin::Again(state) => return self.again(now, &to, state),
            Begin::Full => return self.refuse_busy(now, &to),
        }
        if let Err(outcome) = self.proceed(now, to, fingerprint, request, message, datagram) {
            let state = match is_confirmable {
                true => State::Done(outcome),
                false => State::Silent,
            };
            self.exchanges.set((peer, to.id), fingerprint, state);
            self.reply_outcome(now, &to, &outcome);
        }
    }

    /// A copy of a request that has been received.
    fn again(&mut self, now: Instant, to: &ReplyTo, state: State) {
        self.statistics.duplicates += 1;
        match state {
            State::Pending | State::Silent => {}
            State::Acknowledged => self.send_acknowledgement(to),
            State::Done(outcome) => self.reply_outcome(now, to, &outcome),
        }
    }

    /// Does what is asked, or says what to reply at once.
    fn proceed(
        &mut self,
        now: Instant,
        to: ReplyTo,
        fingerprint: u32,
        request: Request,
        message: &Message<'_>,
        datagram: &Bytes,
    ) -> Result<(), Outcome> {
        let open = Open {
            to,
            fingerprint,
            method: request.method,
            follow: None,
            accept: request.accept,
            block1: request.block1,
            block2: request.block2,
            held_bytes: 0,
            received: now,
            due: now,
        };
        match (request.path == DISCOVERY, request.method) {
            (true, Method::Get) => {
                self.answer_discovery(now, open, &request.query);
                Ok(())
            }
            (true, _) => Err(Outcome::new(Code::METHOD_NOT_ALLOWED, "")),
            (false, Method::Get) => self.read(now, open, request),
            (false, _) => {
                let block1 = open.block1;
                let Some(payload) = self.assemble(now, to.peer, &request, message, datagram)?
                else {
                    return Err(Outcome { block1, ..Outcome::new(Code::CONTINUE, "") });
                };
                self.publish(now, open, request, payload)
            }
        }
    }

    /// Asks the shell for a value.
    fn read(&mut self, now: Instant, mut open: Open, request: Request) -> Result<(), Outcome> {
        let peer = open.to.peer;
        if request.observe == Some(false) {
            self.unfollow(peer, open.to.token);
        }
        // Only the first block of a value can be followed (RFC 7959, 2.6).
        let is_first = request.block2.is_none_or(|block| block.number == 0);
        let follows = request.observe == Some(true) && is_first;
        open.follow = follows.then(|| request.path.clone());
        let key = self.open(now, open)?;
        self.events.push_back(Event::Read(Read {
            request: key,
            peer: self.peers[peer].address,
            path: request.path,
            query: request.query,
            follows,
        }));
        Ok(())
    }

    /// Hands a value to the shell.
    fn publish(
        &mut self,
        now: Instant,
        mut open: Open,
        request: Request,
        payload: Bytes,
    ) -> Result<(), Outcome> {
        let peer = open.to.peer;
        open.held_bytes = payload.len();
        let key = self.open(now, open)?;
        self.events.push_back(Event::Publish(Publish {
            request: key,
            peer: self.peers[peer].address,
            method: request.method,
            path: request.path,
            query: request.query,
            content_format: request.content_format,
            payload,
        }));
        Ok(())
    }

    /// The whole payload, once its last block is there.
    fn assemble(
        &mut self,
        now: Instant,
        peer: Key,
        request: &Request,
        message: &Message<'_>,
        datagram: &Bytes,
    ) -> Result<Option<Bytes>, Outcome> {
        let bytes_max = self.config.payload_bytes_max;
        let too_large = Outcome {
            size1: Some(u32::try_from(bytes_max).unwrap_or(u32::MAX)),
            block1: request.block1,
            ..Outcome::new(Code::REQUEST_ENTITY_TOO_LARGE, "")
        };
        let payload = message.payload;
        let Some(block) = request.block1 else {
            let fits = payload.len() <= bytes_max;
            return fits.then(|| Some(datagram.slice_ref(payload))).ok_or(too_large);
        };
        let of_block = |outcome| Outcome { block1: Some(block), ..outcome };
        check_length(block, payload.len()).map_err(of_block)?;
        let at = self.peers[peer]
            .assemblies
            .iter()
            .position(|assembly| assembly.is_of(request.method, &request.path));
        let claimed = request.size1.map_or(0, |size| size as usize);
        if block.offset() + payload.len() > bytes_max || claimed > bytes_max {
            if let Some(at) = at {
                self.abandon(peer, at);
            }
            return Err(too_large);
        }
        let at = match at {
            Some(at) if block.number > 0 => at,
            None if block.number > 0 => {
                let text = "the blocks before this one are not here; begin again";
                return Err(of_block(Outcome::new(Code::REQUEST_ENTITY_INCOMPLETE, text)));
            }
            before => {
                if let Some(at) = before {
                    self.abandon(peer, at);
                }
                if !block.more {
                    return Ok(Some(datagram.slice_ref(payload)));
                }
                let (path, format) = (request.path.clone(), request.content_format);
                self.begin_assembly(peer, Assembly::new(request.method, path, format, now))
            }
        };
        let taken = self.take_block(now, peer, at, block, request.content_format, payload);
        if let Err(outcome) = taken {
            self.abandon(peer, at);
            return Err(of_block(outcome));
        }
        if block.more {
            self.reschedule(peer);
            return Ok(None);
        }
        let assembly = self.peers[peer].assemblies.remove(at);
        self.held_bytes -= assembly.held_bytes();
        self.reschedule(peer);
        Ok(Some(Bytes::from(assembly.into_bytes())))
    }

    /// Adds a payload whose blocks are to come, in the place of the oldest one if the peer has as many as it may.
    fn begin_assembly(&mut self, peer: Key, assembly: Assembly) -> usize {
        if self.peers[peer].assemblies.len() >= self.config.assemblies_per_peer_max.max(1) {
            self.abandon(peer, 0);
        }
        let assemblies = &mut self.peers[peer].assemblies;
        assemblies.push(assembly);
        assemblies.len() - 1
    }

    fn take_block(
        &mut self,
        now: Instant,
        peer: Key,
        at: usize,
        block: Block,
        content_format: Option<ContentFormat>,
        payload: &[u8],
    ) -> Result<(), Outcome> {
        let assembly = &mut self.peers[peer].assemblies[at];
        let others = self.held_bytes - assembly.held_bytes();
        if others + assembly.grown_bytes(payload.len()) > self.config.held_bytes_max {
            self.statistics.busy += 1;
            return Err(busy(self.config.retry_after));
        }
        let taken = assembly.take(block, content_format, payload);
        assembly.expires = now + self.config.assembly_timeout;
        self.held_bytes = others + assembly.held_bytes();
        taken
    }

    /// Takes away a payload whose next block does not come or does not fit.
    pub(super) fn abandon(&mut self, peer: Key, at: usize) {
        let assembly = self.peers[peer].assemblies.remove(at);
        self.held_bytes -= assembly.held_bytes();
        self.statistics.abandoned += 1;
        self.reschedule(peer);
    }

    /// Keeps a request until the shell answers it, if there is room.
    fn open(&mut self, now: Instant, open: Open) -> Result<RequestKey, Outcome> {
        let Open { to, held_bytes, block1, .. } = open;
        let peer = &self.peers[to.peer];
        let is_full = self.open.len() >= self.config.open_max
            || peer.open + peer.waiting.len() >= self.config.open_per_peer_max
            || self.held_bytes + held_bytes > self.config.held_bytes_max;
        if is_full {
            self.statistics.busy += 1;
            return Err(Outcome { block1, ..busy(self.config.retry_after) });
        }
        self.peers[to.peer].open += 1;
        self.held_bytes += held_bytes;
        let wait = match to.is_confirmable {
            true => self.config.separate_after.min(self.config.answer_timeout),
            false => self.config.answer_timeout,
        };
        let due = now + wait;
        let key = self.open.insert(Open { due, ..open });
        self.timers.insert((due, Timer::Open(key)));
        Ok(RequestKey(key.to_bits()))
    }

    /// A request is the shell's no longer.
    pub(super) fn close(&mut self, key: Key) -> Option<Open> {
        let open = self.open.remove(key)?;
        self.timers.remove(&(open.due, Timer::Open(key)));
        self.held_bytes -= open.held_bytes;
        self.peers[open.to.peer].open -= 1;
        Some(open)
    }

    /// The shell takes its time.
    pub(super) fn open_timeout(&mut self, now: Instant, key: Key) {
        let Some(open) = self.open.get_mut(key) else { return };
        let last = open.received + self.config.answer_timeout;
        if now < last {
            let (to, fingerprint) = (open.to, open.fingerprint);
            open.to.is_acknowledged = true;
            open.due = last;
            self.timers.insert((last, Timer::Open(key)));
            self.exchanges.set((to.peer, to.id), fingerprint, State::Acknowledged);
            self.send_acknowledgement(&to);
            return;
        }
        self.statistics.unanswered += 1;
        if let Some(open) = self.close(key) {
            // Not 5.03, which says that nothing has been done.
            let outcome = Outcome::new(Code::GATEWAY_TIMEOUT, "there was no answer in time");
            let outcome = Outcome { block1: open.block1, ..outcome };
            self.conclude(now, &open, outcome);
        }
    }
}
