//! Connections begin, take over and end (MQTT 5, sections 3.1, 3.2, 3.14 and 4.1).

use std::{sync::Arc, time::Duration};

use tidegate_message::{Action, Identity, IdentityKind, Instant, Target};
use tidegate_schedule::Schedule;
use tidegate_wire::mqtt::{
    Connack, ConnackProperties, Connect, Disconnect, PACKET_BYTES_MAX, Packet, QoS, ReasonCode,
    Version,
};

use super::{
    Broker, ConnectionKey, Output, mark_dirty, parts, publish::Publisher, runs,
    subscribe::FILTERS_STEP,
};
use crate::{
    admission::Draft,
    config::SessionConfig,
    connection::{AliasesOut, Authentication, Connection, Ended, Resend, WillMessage},
    inflight::{Awaits, Inflight},
    message::{Body, MessageRef},
    outbox::Outbox,
    queue::{Queue, Queued},
    session::{Began, Session},
    session_state::SessionState,
    slab::Key,
    timers::Timer,
};

/// Told to a client whose session another connection at this node takes.
pub(super) const OTHER_CONNECTION: &str = "another connection uses this client identifier";

/// A client that has shown who it is.
#[derive(Debug)]
pub struct ConnectRequest {
    /// Its CONNECT.
    pub connect: Connect,
    /// Its identity; the client name in it is replaced where this server assigns one.
    pub identity: Identity,
    /// The settings of its listener and user.
    pub config: Arc<SessionConfig>,
    /// The last step of an authentication exchange, to be sent with CONNACK.
    pub authentication_data: Option<Vec<u8>>,
}

/// Why a connection was not accepted, and the CONNACK that says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Why.
    pub reason: ReasonCode,
    /// The CONNACK to send before closing; empty where the client accepts no packet of its size.
    pub connack: Vec<u8>,
}

impl Refused {
    /// The refusal of a client of that version.
    pub fn new(version: Version, reason: ReasonCode, text: &str) -> Self {
        let properties = ConnackProperties {
            reason_string: (!text.is_empty()).then(|| text.to_owned()),
            ..ConnackProperties::default()
        };
        let packet = Connack { session_present: false, reason, properties };
        let mut connack = Vec::new();
        Packet::Connack(Box::new(packet))
            .encode(version, &mut connack)
            .expect("our reasons are short texts");
        Self { reason, connack }
    }

    /// The same for a client that takes packets of at most `bytes_max` bytes (MQTT-3.1.2-24, MQTT-3.2.2-19).
    pub fn within(version: Version, reason: ReasonCode, text: &str, bytes_max: usize) -> Self {
        let mut refused = Self::new(version, reason, text);
        if refused.connack.len() > bytes_max {
            refused = Self::new(version, reason, "");
        }
        if refused.connack.len() > bytes_max {
            refused.connack.clear();
        }
        refused
    }
}

impl Broker {
    /// Accepts a connection and answers it; its session is taken over or made.
    ///
    /// # Errors
    /// [`Refused`], which the shell sends before it closes.
    pub fn connect(
        &mut self,
        now: Instant,
        request: ConnectRequest,
    ) -> Result<ConnectionKey, Refused> {
        let ConnectRequest { mut connect, mut identity, config, authentication_data } = request;
        let version = connect.version;
        let packet_bytes_max = connect.properties.maximum_packet_size.unwrap_or(PACKET_BYTES_MAX);
        let refuse = |reason, text: &str| {
            Err(Refused::within(version, reason, text, packet_bytes_max as usize))
        };
        let shared = self.shared.clone();
        let limits = shared.config();
        let mut properties = ConnackProperties::default();
        if !config.versions.has(version) {
            return refuse(ReasonCode::UNSUPPORTED_PROTOCOL_VERSION, "");
        }
        if connect.client_id.is_empty() {
            // MQTT-3.1.3-8 of 3.1.1; 3.1 always wants a name.
            if version == Version::V3 || (version == Version::V4 && !connect.clean_start) {
                return refuse(ReasonCode::CLIENT_IDENTIFIER_NOT_VALID, "");
            }
            if !config.allow_zero_length_client_id {
                let text = "a client identifier is needed here";
                return refuse(ReasonCode::CLIENT_IDENTIFIER_NOT_VALID, text);
            }
            connect.client_id = self.assign_client_id(&config.auto_id_prefix);
            identity.client = connect.client_id.as_str().into();
            properties.assigned_client_id = Some(connect.client_id.clone());
        }
        let is_assigned = properties.assigned_client_id.is_some();
        let is_part = parts::is_part_id(&connect.client_id);
        if is_part && !config.is_local {
            if let Some(count) = self.named_as_part.add(now, 1) {
                let client = connect.client_id.escape_debug();
                tracing::info!(%client, user = %identity.name, kind = identity.kind.word(), address = identity.address.map(tracing::field::display), count,
                    "CONNECT refused: client identifiers that begin with $node/ are those of this node's own parts; count since the last such line");
            }
            let text = "client identifiers that begin with $node/ are this server's own: choose another one";
            return refuse(ReasonCode::CLIENT_IDENTIFIER_NOT_VALID, text);
        }
        let former =
            self.by_client.get(&*connect.client_id).and_then(|key| self.sessions.get(*key));
        // Messages that wait for one user are not for another, even with the same client identifier.
        let is_other = former.is_some_and(|session| !session.is_of(&identity));
        let is_proved =
            former.is_some_and(|session| session.identity.kind != IdentityKind::Anonymous);
        // The name of a part is its own, whoever left a session under it before such names were refused.
        if is_other && is_proved && !is_part {
            // Nor is it another's to end. The log alone names the owner: the client may be anyone.
            let owner = former.map_or(&identity, |session| &session.identity);
            if let Some(count) = self.others_sessions.add(now, 1) {
                let client = connect.client_id.escape_debug();
                tracing::info!(%client, user = %identity.name, kind = identity.kind.word(), address = identity.address.map(tracing::field::display),
                    owner = %owner.name, owner_kind = owner.kind.word(), count,
                    "CONNECT refused: the session of this client identifier is another's; `tidegate sessions end` ends it; count since the last such line");
            }
            let text = "this client identifier is that of another user's session";
            return refuse(ReasonCode::CLIENT_IDENTIFIER_NOT_VALID, text);
        }
        let account = shared.account_of(&identity);
        let will = match connect.will.take() {
            None => None,
            Some(will) => {
                let checked = config.check_topic_name(&will.topic);
                if let Err(error) =
                    checked.and_then(|()| config.check_topic_characters(&will.topic))
                {
                    return refuse(ReasonCode::TOPIC_NAME_INVALID, &error.to_string());
                }
                if will.qos > config.max_qos() {
                    // MQTT-3.2.2-12
                    let text = "the will has a higher QoS than there is here";
                    return refuse(ReasonCode::QOS_NOT_SUPPORTED, text);
                }
                if will.retain && !config.retains() {
                    // MQTT-3.2.2-13
                    let text = "the will is to be retained, and nothing is here";
                    return refuse(ReasonCode::RETAIN_NOT_SUPPORTED, text);
                }
                let topic = Arc::from(&*will.topic);
                let message = MessageRef {
                    forwarded: &will.forwarded,
                    qos: will.qos,
                    retain: will.retain,
                    ..MessageRef::new(&topic, Body::Read(&will.payload), now)
                };
                let former = self.by_client.get(&*connect.client_id);
                let former = former.and_then(|key| self.sessions.get(*key));
                let drains = former.is_some_and(|session| session.has_backlog());
                let held = self.hold_in(account.as_ref(), &message).or_else(|| {
                    // Its own backlog may be what fills the memory, so it must come in; its will is its connection's own
                    // until that is published.
                    let charge = shared.budget().charge(0).filter(|_| drains)?;
                    Some(message.hold_charged(charge))
                });
                let Some(message) = held else {
                    return refuse(ReasonCode::QUOTA_EXCEEDED, "no memory is left for the will");
                };
                let delay = Duration::from_secs(u64::from(will.delay));
                Some(Box::new(WillMessage { message, delay, expiry: will.message_expiry }))
            }
        };
        // A part of this node that is configured comes back, however long what it carries to is away.
        let expiry_max = if config.is_local { Duration::MAX } else { limits.session_expiry_max };
        let expiry = session_expiry(&connect, expiry_max, &mut properties);
        let keep_alive_max = if config.is_local { 0 } else { limits.keep_alive_max };
        let keep_alive = match (connect.keep_alive, keep_alive_max) {
            (asked, 0) => asked,
            (asked, max) if asked == 0 || asked > max => {
                if version != Version::V5 {
                    // It cannot learn ours, and would time out before its own; as Mosquitto does it.
                    return refuse(ReasonCode::CLIENT_IDENTIFIER_NOT_VALID, "");
                }
                properties.server_keep_alive = Some(max);
                max
            }
            (asked, _) => asked,
        };
        let asked = &connect.properties;
        properties.receive_maximum = std::num::NonZeroU16::new(limits.receive_maximum);
        properties.topic_alias_maximum = limits.topic_alias_max;
        properties.maximum_qos = (config.max_qos() < QoS::ExactlyOnce).then_some(config.max_qos());
        properties.retain_available = (!config.retains()).then_some(false);
        properties.maximum_packet_size =
            (config.packet_bytes_max < PACKET_BYTES_MAX).then_some(config.packet_bytes_max);
        properties.authentication_method = asked.authentication_method.clone();
        properties.authentication_data = authentication_data;
        let mut connack =
            Connack { session_present: false, reason: ReasonCode::SUCCESS, properties };
        let mut encoded = Vec::new();
        let accepted = Packet::Connack(Box::new(connack.clone()));
        accepted.encode(version, &mut encoded).expect("our CONNACK is short");
        if encoded.len() > packet_bytes_max as usize {
            // A client that cannot receive our limits (MQTT-3.1.2-24) could not keep them.
            return refuse(ReasonCode::PACKET_TOO_LARGE, "");
        }
        let client_id: Arc<str> = connect.client_id.as_str().into();
        let written = self.keeper.as_ref().and_then(|keeper| keeper.last);
        let mut session_present = false;
        if let Some(&former) = self.by_client.get(&client_id) {
            let clean_start = connect.clean_start || is_other;
            self.take_over(now, former, clean_start, OTHER_CONNECTION);
            // It may have ended with its connection.
            session_present = self.by_client.contains_key(&client_id);
            if session_present && clean_start {
                self.end_session(now, former);
                session_present = false;
            }
        }
        let session = match self.by_client.get(&client_id) {
            Some(&key) => key,
            None if expiry != Some(Duration::ZERO)
                && account.as_ref().is_some_and(|account| !shared.may_leave_session(account)) =>
            {
                account.iter().for_each(|account| shared.note_over_share(account));
                let text = "as many sessions wait for this identity to come back as its share allows (mqtt.identity_share)";
                return refuse(ReasonCode::QUOTA_EXCEEDED, text);
            }
            None if !shared.begin_session() => {
                return refuse(
                    ReasonCode::QUOTA_EXCEEDED,
                    "the server has as many sessions as it may",
                );
            }
            None => self.begin_session(&client_id, identity.clone(), config.clone(), version),
        };
        let connection = Connection {
            session: Some(session),
            version,
            will,
            keep_alive,
            last_heard: now,
            silence_at: None,
            packet_bytes_max,
            received_bytes_max: config.packet_bytes_max,
            max_qos: config.max_qos(),
            retains: config.retains(),
            reach: config.reach(),
            receive_maximum: asked
                .receive_maximum
                .map_or(u16::MAX, u16::from)
                .min(config.inflight_max.unwrap_or(limits.inflight_max)),
            problem_information: asked.request_problem_information.unwrap_or(true),
            authentication_method: asked.authentication_method.clone(),
            authentication: Authentication::Done,
            keeps_retain: connect.bridge,
            aliases_in: Default::default(),
            aliases_out: AliasesOut::new(asked.topic_alias_maximum.min(limits.topic_alias_out_max)),
            outbox: Outbox::new(config.hands_out),
            schedule: Schedule::new(config.policy.clone()),
            link: Default::default(),
            is_dirty: false,
            is_blocked: false,
            output_charge: None,
            stall: None,
            is_closing: false,
            ended: None,
            wakes_at: None,
            query: None,
            timed: None,
            recent: Vec::new(),
            drains: false,
            receiving: None,
            filters: None,
            resend: Default::default(),
            owed: 0,
            opens_after: None,
            unacknowledged: 0,
            inflight_bytes_max: config.inflight_bytes_max.unwrap_or(limits.inflight_bytes_max),
            acknowledges_through: config.acknowledges_through && config.ends_at_refusal,
            through: None,
            denied: None,
        };
        let key = self.connections.insert(connection);
        self.statistics.connects += 1;
        self.shared.begin_connection();
        self.watch_silence(key);
        let connection = self.connections.get_mut(key).expect("just entered");
        connack.session_present = session_present;
        Packet::Connack(Box::new(connack))
            .encode(version, connection.outbox.control(&mut self.buffers))
            .expect("our CONNACK is short");
        self.statistics.packets_sent += 1;
        let session = self.sessions.get_mut(session).expect("found or made");
        session.version = version;
        let is_own =
            is_part || is_assigned || config.is_peer || identity.kind == IdentityKind::Internal;
        session.began = (!is_own).then_some(Began { at: now, is_clean: connect.clean_start });
        if session.set_identity(identity) {
            // Routes remember what the former user was allowed to have.
            self.shared.count_change();
        }
        if session.state.set_peer(&config) {
            self.shared.count_change();
        }
        session.config = config;
        session.before_grace = None;
        session.state.set_overflow(session.config.overflow);
        session.window = (connection.receive_maximum, connection.inflight_bytes_max);
        session.set_left_behind(false);
        session.expiry = expiry;
        session.connection = Some(key);
        let session_key = connection.session.expect("just given");
        self.timers.cancel(session.ends_at.take(), Timer::SessionEnd(session_key));
        self.timers.cancel(session.idles_at.take(), Timer::Idle(session_key));
        session.away_since = None;
        session.is_gone = false;
        if session.set_idle(false) && session.is_full {
            self.shared.note_full(&session.state);
        }
        let will_at = session.will.take().map(|(_, at)| at); // MQTT-3.1.3-9
        self.timers.cancel(will_at, Timer::Will(session_key));
        session.state.is_away.store(false, std::sync::atomic::Ordering::Relaxed);
        session.state.connected.store(true, std::sync::atomic::Ordering::Relaxed);
        if !session.retained.is_empty() {
            // Messages of QoS 0 by routes of before may have found no connection.
            self.shared.count_change();
            session.retained.connected_from = self.shared.generations().routes;
        }
        if session.config.is_peer {
            // Of what was retained some of QoS 0 may not have left the process before, and what a subscription was owed.
            session.owe_retained(now);
            session.retained.made_up = session.missed_of_peer();
        }
        session.note_behind(&shared);
        let again = |id| Resend { id, is_repeated: true, after: None };
        connection.resend = session.inflight.entries().map(|entry| again(entry.id)).collect();
        mark_dirty(key, connection, &mut self.dirty);
        if session.blocked_by > 0 {
            self.outputs.push_back(Output::Pause(key));
        }
        self.set_account(session_key);
        self.write_opened(now, session_key);
        self.open_after_disk(key, session_key, written);
        self.begin_queries(now, key);
        self.announce_connected(session_key);
        Ok(key)
    }

    /// The connection is gone: closed by the peer, or by the shell after [`Output::Close`].
    pub fn closed(&mut self, now: Instant, key: ConnectionKey) {
        self.let_go(now, key, false);
        if let Some(mut connection) = self.connections.remove(key) {
            self.shared.end_connection();
            connection.outbox.clear(&mut self.buffers);
            self.timers.cancel(connection.silence_at, Timer::Silence(key));
            self.timers.cancel(connection.wakes_at, Timer::Wake(key));
        }
    }

    /// A client's DISCONNECT.
    pub(super) fn leave(&mut self, now: Instant, key: Key, packet: &Disconnect) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        if let (Some(session), Some(seconds)) = (connection.session, packet.session_expiry) {
            let session = self.sessions.get_mut(session).expect("a connection's session is there");
            // Section 3.14.2.2.2: an expiry of 0 stays 0.
            if session.expiry == Some(Duration::ZERO) && seconds > 0 {
                let text = "the session's expiry cannot be raised from 0";
                return self.disconnect(key, ReasonCode::PROTOCOL_ERROR, Some(text));
            }
            session.expiry = bounded(seconds, self.shared.config().session_expiry_max);
        }
        if packet.reason == ReasonCode::SUCCESS {
            connection.will = None; // MQTT-3.14.4-3: by no other reason
        }
        connection.is_closing = true;
        connection.ended =
            Some(Box::new(Ended { is_by_client: true, reason: packet.reason, text: None }));
        if connection.opens_after.take().is_some() {
            connection.outbox.clear(&mut self.buffers);
        }
        self.let_go(now, key, false);
        self.outputs.push_back(Output::Close(key));
    }

    /// Another connection comes for the session of this one.
    pub(super) fn take_over(&mut self, now: Instant, session: Key, clean_start: bool, text: &str) {
        let connection = self.sessions.get(session).and_then(|session| session.connection);
        if let Some(key) = connection {
            self.disconnect(key, ReasonCode::SESSION_TAKEN_OVER, Some(text));
            self.let_go(now, key, !clean_start);
        }
    }

    /// Parts a connection from its session, which lasts as long as it may.
    fn let_go(&mut self, now: Instant, key: Key, resumed: bool) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let Some(session_key) = connection.session.take() else { return };
        let will = connection.will.take();
        connection.receiving = None;
        let (filters, query) = (connection.filters.take(), connection.query.take());
        if let Some(filters) = filters {
            self.timers.cancel(filters.at, Timer::Filters(key));
            self.leave_groups(now, session_key, &filters.left_groups);
            let session = self.sessions.get_mut(session_key).expect("its connection was there");
            session.blocked_by = session.blocked_by.saturating_sub(1);
        }
        let session = self.sessions.get_mut(session_key).expect("a connection's session is there");
        if let Some(query) = query {
            // It is the connection's own, and no message of anybody.
            session.inflight.end(query.id, Awaits::Puback);
        }
        session.connection = None;
        session.window = (0, 0);
        session.note_room();
        session.state.connected.store(false, std::sync::atomic::Ordering::Relaxed);
        if !session.is_kept() {
            if let Some(will) = will {
                self.publish_will(now, session_key, &will);
            }
            self.end_session(now, session_key);
            return;
        }
        session.away_since = Some(now);
        runs::part(session, self.shared.budget());
        session.inflight.keep_resendable();
        session.set_left_behind(true);
        session.count_in_share();
        if let Some(expiry) = session.expiry {
            let at = now + expiry;
            session.ends_at = Some(at);
            self.timers.set(at, Timer::SessionEnd(session_key));
        }
        match will {
            // Also where another connection takes the session over: a delay of 0 has passed when this connection ends, and only a
            // longer one leaves time to resume the session in (MQTT-3.1.2-8, and the comment behind MQTT-3.1.4-3). MQTT 3.1.1 has no
            // delay, and only DISCONNECT takes its will away (its MQTT-3.1.2-8).
            Some(will) if will.delay.is_zero() => self.publish_will(now, session_key, &will),
            // A client that resumes its session in time cancels the will (MQTT-3.1.3-9).
            Some(will) if !resumed => {
                let at = now + will.delay;
                session.will = Some((will, at));
                self.timers.set(at, Timer::Will(session_key));
            }
            _ => {}
        }
        self.announce_left(session_key);
        if self.sessions.get(session_key).is_some_and(|session| session.is_gone) {
            return self.begin_grace(now, session_key);
        }
        self.write_closed(session_key);
        self.watch_idle(session_key);
    }

    /// Publishes a will by the rules and through the operators that hold for what its owner publishes.
    pub(super) fn publish_will(&mut self, now: Instant, session: Key, will: &WillMessage) {
        let own = self.session_key(session);
        let Some(session) = self.sessions.get(session) else { return };
        let publisher = Publisher { session: own, reach: session.config.reach() };
        let identity = session.identity.clone();
        let message = &will.message;
        let target = Target::Topic(&message.topic);
        let authorize = self.shared.authorize();
        // Looked at before the rules are, so that what is decided by them is never older.
        let rules = authorize.generation();
        let may = authorize.decide(&identity, Action::Publish, target);
        // As for what a client publishes: `$SYS` is the server's own (section 4.7.2).
        let is_own = identity.kind == IdentityKind::Internal;
        // One of an earlier process may have been accepted by other settings.
        let is_topic = session.config.check_topic_characters(&message.topic).is_ok();
        if !is_topic || !may.allow || (!is_own && self.shared.is_servers(&message.topic)) {
            tracing::debug!(client = %identity.client, topic = %message.topic, rule = %may.rule, "will not allowed");
            self.statistics.refused += 1;
            return;
        }
        if is_own {
            self.shared.note_own(&message.topic);
        }
        let draft = Draft {
            expires: will.expiry.map(|seconds| now + Duration::from_secs(u64::from(seconds))),
            ..message.borrowed().into()
        };
        if !self.admit_will(now, &identity, publisher, draft, rules) {
            self.statistics.refused += 1;
        }
    }

    pub(super) fn begin_session(
        &mut self,
        client_id: &Arc<str>,
        identity: Identity,
        config: Arc<SessionConfig>,
        version: Version,
    ) -> Key {
        let key = self.insert_session(client_id, identity, config, version);
        self.by_client.insert(client_id.clone(), key);
        key
    }

    /// Enters a session without a connection.
    pub(super) fn insert_session(
        &mut self,
        client_id: &Arc<str>,
        identity: Identity,
        config: Arc<SessionConfig>,
        version: Version,
    ) -> Key {
        let identity = Arc::new(identity);
        let state = SessionState::new(&config, identity.clone());
        let account = self.shared.account_of(&identity);
        self.sessions.insert(Session {
            number: 0,
            began: None,
            client_id: client_id.clone(),
            identity,
            allowed_by: None,
            account,
            is_left_behind: false,
            config,
            version,
            expiry: Some(Duration::ZERO),
            connection: None,
            subscriptions: Default::default(),
            filter_bytes: 0,
            filter_charge: None,
            retained: Default::default(),
            queue: Queue::default(),
            inflight: Inflight::default(),
            received: Vec::new(),
            state: Arc::new(state),
            will: None,
            ends_at: None,
            away_since: None,
            idles_at: None,
            is_idle: false,
            gives_way: false,
            lapses_at: None,
            dropped: Default::default(),
            is_full: false,
            is_losing: false,
            window: (0, 0),
            cannot_spill: false,
            noted_gives: 0,
            is_gone: false,
            before_grace: None,
            blocks: Vec::new(),
            blocked_by: 0,
            will_is_written: false,
        })
    }

    /// Forgets a session that has no connection; its will, if it still waits, is published (MQTT-3.1.2-8).
    pub(super) fn end_session(&mut self, now: Instant, key: Key) {
        let will = self.sessions.get_mut(key).and_then(|session| session.will.take());
        if let Some((will, at)) = will {
            self.timers.cancel(Some(at), Timer::Will(key));
            self.publish_will(now, key, &will);
        }
        self.write_will_ended(now, key);
        let session_key = self.session_key(key);
        let Some(mut session) = self.sessions.remove(key) else { return };
        self.announce_ended(&session);
        self.timers.cancel(session.ends_at, Timer::SessionEnd(key));
        self.timers.cancel(session.lapses_at, Timer::Lapse(key));
        self.timers.cancel(session.idles_at, Timer::Idle(key));
        self.by_client.remove(&session.client_id);
        self.shared.end_session();
        self.shared.forget_full(&session.state);
        // Other shards look for their routes in between: 100,000 filters take a tenth of a second.
        let filters: Vec<&Arc<str>> = session.subscriptions.keys().collect();
        for some in filters.chunks(FILTERS_STEP) {
            let mut routes = self.shared.routes_mut();
            some.iter().for_each(|filter| _ = routes.remove(filter, session_key));
        }
        session.set_left_behind(false);
        let left = self.left_behind(session.inflight, session.queue);
        self.hand_on_ended(now, session.number, left);
        self.release(session.blocks, session_key);
    }

    /// Ends the sessions of clients that `which` is true of, and their connections; their waiting messages are dropped. Parts
    /// of this program keep theirs while they are configured. How many there were.
    pub fn end_sessions(&mut self, now: Instant, which: &dyn Fn(&str, &Identity) -> bool) -> usize {
        let is_meant = |session: &Session| {
            !session.is_remainder()
                && (session.identity.kind != IdentityKind::Internal || session.is_gone)
                && which(&session.client_id, &session.identity)
        };
        let meant = self.sessions.iter().filter(|(_, session)| is_meant(session));
        let keys: Vec<Key> = meant.map(|(key, _)| key).collect();
        for key in &keys {
            let session = self.sessions.get(*key).expect("found above");
            if let Some(connection) = session.connection {
                let text = "the session was ended by an administrator";
                self.disconnect(connection, ReasonCode::ADMINISTRATIVE_ACTION, Some(text));
                self.let_go(now, connection, false);
            }
            // It may have ended with its connection.
            self.end_session(now, *key);
        }
        keys.len()
    }

    /// The messages left by an ended session that other sessions may have: those that came by shared subscriptions
    /// and were not begun with QoS 2 (MQTT-4.8.2-5). The rest is counted as dropped.
    fn left_behind(&mut self, inflight: Inflight, queue: Queue) -> Vec<Queued> {
        let mut left = Vec::new();
        let mut lost = 0;
        for entry in inflight.into_entries() {
            match (entry.awaits, &entry.kept) {
                (Awaits::Pubcomp, _) => {}
                (Awaits::Puback, Some(queued)) if queued.group.is_some() => {
                    left.extend(entry.kept.map(|queued| *queued));
                }
                _ => lost += entry.len() as u64,
            }
        }
        for queued in queue.into_waiting() {
            if queued.group.is_some() { left.push(queued) } else { lost += 1 }
        }
        self.statistics.dropped.session_ended += lost;
        left
    }

    fn assign_client_id(&mut self, prefix: &str) -> String {
        loop {
            self.assigned += 1;
            let name = format!("{prefix}{:016x}-{:x}-{}", self.seed, self.shard, self.assigned);
            if self.shared.shard_of(&name) == self.shard {
                return name;
            }
        }
    }
}

/// How long the session outlives its connection, and whether the client has to learn that it is shorter than it asked.
fn session_expiry(
    connect: &Connect,
    max: Duration,
    properties: &mut ConnackProperties,
) -> Option<Duration> {
    if connect.version != Version::V5 {
        return if connect.clean_start { Some(Duration::ZERO) } else { forever(max) };
    }
    let asked = connect.properties.session_expiry.unwrap_or(0);
    let given = bounded(asked, max);
    if given != unbounded(asked) {
        let seconds =
            given.map_or(u32::MAX, |given| u32::try_from(given.as_secs()).unwrap_or(u32::MAX));
        properties.session_expiry = Some(seconds);
    }
    given
}

fn unbounded(seconds: u32) -> Option<Duration> {
    (seconds != u32::MAX).then(|| Duration::from_secs(u64::from(seconds)))
}

fn forever(max: Duration) -> Option<Duration> {
    (max != Duration::MAX).then_some(max)
}

fn bounded(seconds: u32, max: Duration) -> Option<Duration> {
    match unbounded(seconds) {
        Some(asked) => Some(asked.min(max)),
        None => forever(max),
    }
}
