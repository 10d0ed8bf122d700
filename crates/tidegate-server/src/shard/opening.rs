//! From an accepted socket to a session: TLS, WebSocket, CONNECT, who it is, and which shard is its home.

use std::{
    collections::VecDeque,
    fmt,
    io::{self, IoSlice},
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use mio::net::TcpStream;
use tidegate_broker::{CONTROL_BYTES_MAX, ConnectRequest, Refused, WRITE_BYTES_MAX};
use tidegate_bus::pipe::ServerEnd;
use tidegate_identity::auth::checks::{Turn, checks};
use tidegate_message::{Identity, IdentityKind, Instant, Proof, Refusal};
use tidegate_process::descriptors::{self, Descriptor, Front};
use tidegate_wire::mqtt::{Connect, DecodeError, FixedHeader, Packet, ReasonCode, Version};

use super::authentication::{SCRAM, reason_of};
use super::{Connection, Listener, Shard, ShardCommand, Stage, packet_bytes_max, visits::Visitor};
use crate::{listen::ListenAddress, settings::ListenerSettings, transport::Transport};

/// Bytes that the kernel may hold unsent before it stops asking for more.
const UNSENT_BYTES: u32 = WRITE_BYTES_MAX as u32;
/// A CONNECT may have so many bytes, however small the packets are that a listener takes.
const CONNECT_BYTES: usize = 4 << 10;

impl Shard {
    pub(super) fn accept(&mut self, now: Instant, at: usize) {
        let shards = self.parts.inboxes.len();
        loop {
            let Some((socket, listener)) = self.parts.listeners.get(at) else { return };
            let accepted = socket.accept();
            let listener = listener.clone();
            let socket = match accepted {
                Ok(socket) => socket,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    // Out of descriptors or memory: those that wait are taken when there are some again.
                    tracing::warn!(%error, listener = %listener.settings().name, "connections cannot be accepted now");
                    self.accepts_at = Some(now + Duration::from_millis(100));
                    return;
                }
            };
            let count = listener.connections.fetch_add(1, Ordering::Relaxed);
            let settings = listener.settings();
            if count >= settings.connections_max {
                listener.connections.fetch_sub(1, Ordering::Relaxed);
                let why = format!("{count} connections are there, and no more are allowed");
                let peer = socket.peer_addr().ok();
                self.visits.refused(now, None, peer, &settings, &why);
                continue;
            }
            let descriptor = descriptors::take(Front::Mqtt).or_else(|| {
                // The connection that has taken longest gives way.
                let oldest =
                    self.arrivals.oldest().copied().filter(|id| self.connection(*id).is_some());
                self.drop_connection(now, oldest?.slot);
                descriptors::take(Front::Mqtt)
            });
            let Some(descriptor) = descriptor else {
                listener.connections.fetch_sub(1, Ordering::Relaxed);
                tracing::debug!(listener = %settings.name, "connection refused: the descriptors for MQTT are all in use");
                continue;
            };
            let shard = self.turn % shards;
            self.turn = self.turn.wrapping_add(1);
            if shard == self.parts.shard {
                self.open(now, socket, listener, Some(descriptor));
            } else {
                self.parts.inboxes[shard].put([ShardCommand::Accepted(
                    socket,
                    listener,
                    Some(descriptor),
                )]);
            }
        }
    }

    /// Takes up an accepted connection, which counts at its listener.
    pub(super) fn open(
        &mut self,
        now: Instant,
        socket: TcpStream,
        listener: Arc<Listener>,
        descriptor: Option<Descriptor>,
    ) {
        let settings = listener.settings();
        let options = socket2::SockRef::from(&socket);
        let set = || {
            options.set_tcp_nodelay(true)?;
            options.set_tcp_notsent_lowat(UNSENT_BYTES)?;
            match &settings.tcp_congestion {
                Some(name) => options.set_tcp_congestion(name.as_bytes()),
                None => Ok(()),
            }
        };
        if !matches!(settings.listen, ListenAddress::Unix(_))
            && let Err(error) = set()
        {
            tracing::warn!(%error, listener = %settings.name, "socket options cannot be set");
        }
        let peer = socket.peer_addr().ok();
        let websocket = settings
            .protocol
            .is_websocket()
            .then(|| (settings.paths.clone(), settings.origins.clone()));
        let transport = Transport::new(socket, settings.tls.clone(), websocket);
        let transport = match (transport, settings.proxy_protocol) {
            (Ok(transport), None) => transport,
            (Ok(transport), Some(accepted)) => transport.behind_proxy(accepted),
            (Err(error), _) => {
                listener.connections.fetch_sub(1, Ordering::Relaxed);
                tracing::warn!(%error, listener = %settings.name, "TLS cannot be begun");
                return;
            }
        };
        self.begin(now, transport, listener, settings, (peer, descriptor));
    }

    /// Takes up the connection of a part of this program, which counts at its listener and has written its CONNECT.
    pub(super) fn attach(&mut self, now: Instant, end: ServerEnd, listener: Arc<Listener>) {
        let settings = listener.settings();
        let slot = self.begin(now, Transport::inside(end), listener, settings, (None, None));
        if let Some(slot) = slot {
            self.read(now, slot);
        }
    }

    /// Gives a connection its slot, and a time until which its CONNECT is to come.
    fn begin(
        &mut self,
        now: Instant,
        transport: Transport,
        listener: Arc<Listener>,
        settings: Arc<ListenerSettings>,
        (peer, descriptor): (Option<SocketAddr>, Option<Descriptor>),
    ) -> Option<usize> {
        let timeout = settings.connect_timeout;
        let known = settings.known.clone();
        let connection = Connection {
            transport,
            listener,
            settings,
            peer,
            stage: Stage::Opening,
            left: Vec::new(),
            left_charge: None,
            connect_bytes: 0,
            arrival: None,
            _descriptor: descriptor,
            bundles: VecDeque::new(),
            is_readable: false,
            has_hung_up: false,
            is_queued: false,
            is_paused: false,
            is_ending: false,
            scram: None,
            generation: 0,
            is_anonymous: true,
            known,
            earned_at: now,
            rests_until: None,
            lease: None,
            expires_at: None,
            visitor: None,
        };
        let slot = self.place(Box::new(connection))?;
        let id = self.id(slot);
        self.arrives(now, slot);
        let at = self.openings.partition_point(|(at, _)| *at <= now + timeout);
        self.openings.insert(at, (now + timeout, id));
        Some(slot)
    }

    /// Counts a connection among those of its address that are being let in.
    pub(super) fn arrives(&mut self, now: Instant, slot: usize) {
        let id = self.id(slot);
        let Some(connection) = self.slots[slot].as_deref_mut() else { return };
        if let Some(number) = connection.arrival.take() {
            self.arrivals.end(number);
        }
        if connection.listener.is_local {
            return;
        }
        let Some(peer) = connection.address() else { return };
        connection.arrival = Some(self.arrivals.next());
        if let Some(gone) = self.arrivals.begin(peer, id)
            && self.connection(gone).is_some()
        {
            tracing::debug!(newcomer = %peer, "the connection that took longest to send CONNECT gives way");
            self.drop_connection(now, gone.slot);
        }
    }

    /// Handles input before a connection is open; false if more is needed or the connection is gone.
    pub(super) fn opening(&mut self, now: Instant, slot: usize) -> bool {
        let Some(connection) = self.slots[slot].as_deref_mut() else { return false };
        if !matches!(connection.stage, Stage::Opening | Stage::Exchanging(..)) {
            return false;
        }
        // Its identity is not known yet: the usual limit applies. A small one is for what comes after CONNACK, which tells
        // it.
        let usual = connection.settings.sessions.usual.packet_bytes_max as usize;
        let max = usual.clamp(CONNECT_BYTES, CONTROL_BYTES_MAX);
        let header = match FixedHeader::decode(&connection.left, max) {
            // MQTT-3.1.0-1; another protocol may never send as many bytes as it seems to say.
            Ok(Some(header))
                if header.packet_type() != 1 && matches!(connection.stage, Stage::Opening) =>
            {
                let why = match speaks_http(&connection.left) {
                    true => {
                        "it speaks HTTP, and here is MQTT; a listener for WebSocket has protocol = \"websocket\""
                    }
                    false => "the first packet is not a CONNECT",
                };
                self.turn_away(now, slot, why);
                return false;
            }
            Ok(Some(header)) if connection.left.len() >= header.packet_bytes() => header,
            Ok(_) => return false,
            Err(error) => {
                self.reject(now, slot, &error);
                return false;
            }
        };
        let body = &connection.left[header.header_bytes..header.packet_bytes()];
        match std::mem::replace(&mut connection.stage, Stage::Opening) {
            Stage::Opening => {
                let connect = match Packet::decode(Version::V5, header.first, body) {
                    Ok(Packet::Connect(connect)) => connect,
                    Ok(_) => unreachable!("the type was looked at"),
                    Err(error) => {
                        self.reject(now, slot, &error);
                        return false;
                    }
                };
                connection.connect_bytes = header.packet_bytes();
                connection.left.drain(..header.packet_bytes());
                if connection.left.is_empty() {
                    connection.left = Vec::new();
                }
                self.introduced(now, slot, connect);
            }
            Stage::Exchanging(connect, scram) => {
                let auth = match Packet::decode(Version::V5, header.first, body) {
                    Ok(Packet::Auth(auth)) => auth,
                    Ok(Packet::Disconnect(_)) => {
                        self.drop_connection(now, slot);
                        return false;
                    }
                    // MQTT-3.1.2-30
                    Ok(_) => {
                        self.refuse(now, slot, &connect, ReasonCode::PROTOCOL_ERROR);
                        return false;
                    }
                    Err(error) => {
                        self.reject(now, slot, &error);
                        return false;
                    }
                };
                connection.left.drain(..header.packet_bytes());
                self.exchanged(now, slot, connect, scram, &auth);
            }
            other => {
                connection.stage = other;
                return false;
            }
        }
        true
    }

    /// Ends a connection that was refused in another language than MQTT, or that speaks another one. The rest of it is read, so that the peer
    /// does not lose the answer.
    pub(super) fn turn_away(&mut self, now: Instant, slot: usize, why: &str) {
        if let Some(connection) = self.slots[slot].as_deref() {
            self.visits.refused(now, None, connection.peer, &connection.settings, &why);
        }
        self.begin_closing(now, slot);
    }

    /// A CONNECT that cannot be read. A client that speaks another version gets that reason (MQTT-3.1.2-2).
    fn reject(&mut self, now: Instant, slot: usize, error: &DecodeError) {
        if let Some(connection) = self.slots[slot].as_deref() {
            self.visits.refused(now, None, connection.peer, &connection.settings, error);
        }
        if let DecodeError::UnsupportedVersion { layout, .. } = error {
            let connack = Refused::new(*layout, error.reason(), "").connack;
            self.say_and_close(now, slot, &connack);
        } else {
            self.drop_connection(now, slot);
        }
    }

    pub(super) fn refuse(
        &mut self,
        now: Instant,
        slot: usize,
        connect: &Connect,
        reason: ReasonCode,
    ) {
        self.refuse_because(now, slot, connect, reason, &reason);
    }

    /// The same, with more for the log than for the client.
    fn refuse_because(
        &mut self,
        now: Instant,
        slot: usize,
        connect: &Connect,
        reason: ReasonCode,
        why: &dyn fmt::Display,
    ) {
        if let Some(connection) = self.slots[slot].as_deref() {
            let user = connect.username.as_deref();
            let claimed = Some((&*connect.client_id, user, connect.version));
            self.visits.refused(now, claimed, connection.peer, &connection.settings, why);
        }
        let most = packet_bytes_max(connect);
        let connack = Refused::within(connect.version, reason, "", most).connack;
        self.say_and_close(now, slot, &connack);
    }

    /// CONNECT came: authenticates its client.
    fn introduced(&mut self, now: Instant, slot: usize, mut connect: Box<Connect>) {
        let id = self.id(slot);
        let connection = self.slots[slot].as_deref_mut().expect("it just spoke");
        if let Some(number) = connection.arrival.take() {
            self.arrivals.end(number);
        }
        connection.settings = connection.listener.settings();
        connection.generation = self.parts.authenticator.generation();
        if let Some(method) = &connect.properties.authentication_method {
            if method != SCRAM {
                self.refuse(now, slot, &connect, ReasonCode::BAD_AUTHENTICATION_METHOD);
                return;
            }
            return self.begin_scram(now, slot, connect);
        }
        if let Some(identity) = &connection.settings.identity {
            let identity =
                Identity { client: connect.client_id.as_str().into(), ..identity.clone() };
            return self.answered(now, slot, connect, Ok(identity), None);
        }
        let proof = Proof {
            username: connect.username.clone(),
            password: connect.password.take().map(Into::into),
            certificate: connection.transport.certificate(&connection.settings.site),
            client: connect.client_id.clone(),
            address: connection.address(),
            ..Proof::default()
        };
        let proves_nothing =
            proof.username.is_none() && proof.password.is_none() && proof.certificate.is_none();
        if proves_nothing && !connection.settings.anonymous {
            let refusal = Refusal::ProofRequired;
            self.parts.authenticator.refused(&proof.client, proof.address, refusal);
            let refusal = Err(refusal);
            return self.answered(now, slot, connect, refusal, None);
        }
        if !self.parts.authenticator.is_slow(&proof) {
            let answer = self.parts.authenticator.authenticate(&proof);
            return self.answered(now, slot, connect, answer, None);
        }
        if let Some(answer) = self.parts.authenticator.recall(&proof) {
            return self.answered(now, slot, connect, answer, None);
        }
        let until = now + connection.settings.connect_timeout;
        let (authenticator, inbox) =
            (self.parts.authenticator.clone(), self.parts.inboxes[self.parts.shard].clone());
        let (address, user) = (proof.address, proof.username.clone().unwrap_or_default());
        let ask = move |turn| {
            let answer = match turn {
                Turn::Check => Some(authenticator.authenticate(&proof)),
                Turn::Busy => None,
            };
            inbox.put([ShardCommand::Answered(id, answer)]);
        };
        match checks().push(address, &user, until, ask) {
            Ok(waiting) => connection.stage = Stage::Waiting(connect, waiting),
            Err(error) => {
                tracing::warn!(%error, "the threads that check passwords could not be started");
                self.refuse(now, slot, &connect, ReasonCode::SERVER_BUSY);
            }
        }
    }

    /// A peer whose login waits to be checked sends no more: it disconnected, and nothing is computed for it, unless it had more to
    /// say. `has_reset` says that nothing can be sent to it either.
    pub(super) fn leave_line(&mut self, now: Instant, slot: usize, has_reset: bool) {
        let Some(connection) = self.slots[slot].as_deref_mut() else { return };
        if !matches!(connection.stage, Stage::Waiting(..)) {
            return;
        }
        // A client may publish behind its CONNECT and leave (section 3.1.4); that counts if it may come in.
        let may_have_said_more = !connection.left.is_empty()
            || connection.transport.is_plain()
                && connection
                    .transport
                    .socket()
                    .is_some_and(|socket| socket.peek(&mut [0]).is_ok_and(|count| count > 0));
        if has_reset || !may_have_said_more {
            tracing::debug!(
                peer = connection.peer.map(tracing::field::display),
                "hung up before its login was checked"
            );
            self.drop_connection(now, slot);
        }
    }

    /// Authentication is done.
    pub(super) fn answered(
        &mut self,
        now: Instant,
        slot: usize,
        connect: Box<Connect>,
        answer: Result<Identity, Refusal>,
        data: Option<Vec<u8>>,
    ) {
        let identity = match answer {
            Ok(identity) => identity,
            Err(refusal) => {
                return self.refuse_because(now, slot, &connect, reason_of(refusal), &refusal);
            }
        };
        let Some(connection) = self.slots[slot].as_deref_mut() else { return };
        connection.is_anonymous = identity.kind == IdentityKind::Anonymous;
        // A name without proof is ignored.
        if connection.is_anonymous && !connection.settings.anonymous {
            let (client, address) = (&connect.client_id, connection.address());
            self.parts.authenticator.refused(client, address, Refusal::ProofRequired);
            let refusal = Refusal::ProofRequired;
            return self.refuse_because(now, slot, &connect, reason_of(refusal), &refusal);
        }
        match self.parts.authenticator.enter(&identity) {
            Ok(lease) => connection.lease = lease,
            Err(refusal) => {
                self.parts.authenticator.refused(&connect.client_id, connection.address(), refusal);
                return self.refuse_because(now, slot, &connect, reason_of(refusal), &refusal);
            }
        }
        connection.expires_at = identity.until;
        let home = if connect.client_id.is_empty() {
            self.parts.shard
        } else {
            self.parts.shared.shard_of(&connect.client_id)
        };
        let config = connection.settings.sessions.session_of(&identity, &connect);
        let request =
            ConnectRequest { connect: *connect, identity, config, authentication_data: data };
        if home == self.parts.shard {
            self.welcome(now, slot, request);
        } else if let Some(connection) = self.displace(slot) {
            self.parts.inboxes[home].put([ShardCommand::Welcome(connection, Box::new(request))]);
        }
    }

    /// The client's session is here.
    pub(super) fn welcome(&mut self, now: Instant, slot: usize, request: ConnectRequest) {
        if self.stops.is_some() {
            return self.refuse(now, slot, &request.connect, ReasonCode::SERVER_SHUTTING_DOWN);
        }
        let connection = self.slots[slot].as_deref_mut().expect("it was just answered");
        let is_shut = connection.is_anonymous && !connection.listener.settings().anonymous;
        if is_shut || connection.generation != self.parts.authenticator.generation() {
            // Its proof was checked by rules that are no more; the next time by the current ones.
            return self.refuse(now, slot, &request.connect, ReasonCode::SERVER_BUSY);
        }
        // Its certificate may have been revoked, or its authority taken out, between the handshake and here.
        let refusal = match (connection.is_revoked(), connection.is_unknown()) {
            (true, _) => Some(Refusal::Revoked),
            (false, true) => Some(Refusal::BadCertificate),
            (false, false) => None,
        };
        if let Some(refusal) = refusal {
            self.parts.authenticator.refused(
                &request.connect.client_id,
                connection.address(),
                refusal,
            );
            return self.refuse_because(now, slot, &request.connect, reason_of(refusal), &refusal);
        }
        let visitor = Visitor::new(&request.connect, &request.identity);
        let version = request.connect.version;
        match self.broker.connect(now, request) {
            Err(refused) => {
                if let Some(connection) = self.slots[slot].as_deref() {
                    let claimed = Some((visitor.client(), Some(visitor.user()), version));
                    let (peer, listener) = (connection.peer, &connection.settings);
                    self.visits.refused(now, claimed, peer, listener, &refused.reason);
                }
                self.say_and_close(now, slot, &refused.connack);
            }
            Ok(key) => {
                let at = key.slot as usize;
                if self.by_key.len() <= at {
                    self.by_key.resize(at + 1, usize::MAX);
                }
                self.by_key[at] = slot;
                let connection = self.slots[slot].as_deref_mut().expect("it was just answered");
                connection.stage = Stage::Open(key);
                connection.connect_bytes = 0;
                connection.is_readable = true;
                self.lobby.release(slot);
                if !connection.listener.is_local {
                    let (peer, listener) = (connection.peer, &connection.settings);
                    self.visits.connected(now, &visitor, peer, listener);
                    connection.visitor = Some(Box::new(visitor));
                }
                if let Some(at) = connection.expires_at {
                    self.expiring.insert((at, slot), key);
                }
                // Input behind CONNECT.
                self.received_left(now, slot, key);
                self.charge_left(now, slot);
                self.queue(slot);
            }
        }
    }

    /// Sends bytes before the connection is open.
    pub(super) fn say(&mut self, now: Instant, slot: usize, bytes: &[u8]) {
        let Some(connection) = self.slots[slot].as_deref_mut() else { return };
        // A few bytes into an empty buffer of the kernel; a peer that does not take them is not worth waiting for.
        if let Err(error) = connection.transport.write(&[IoSlice::new(bytes)]) {
            self.broke(now, slot, &error);
        }
    }
}

/// Whether bytes begin as a request of HTTP does.
fn speaks_http(bytes: &[u8]) -> bool {
    const METHODS: [&[u8]; 7] =
        [b"GET ", b"HEAD ", b"POST ", b"PUT ", b"DELETE ", b"OPTIONS ", b"CONNECT "];
    METHODS.iter().any(|method| {
        let seen = bytes.len().min(method.len());
        bytes[..seen] == method[..seen]
    })
}
