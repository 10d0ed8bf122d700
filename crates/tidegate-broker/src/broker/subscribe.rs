//! Subscriptions (MQTT 5, sections 3.8 to 3.11).

use std::{collections::HashSet, sync::Arc, time::Duration};

use tidegate_journal::Record;
use tidegate_message::{Action, Instant, Target, TopicError};
use tidegate_wire::mqtt::{
    Packet, QoS, ReasonCode, RetainHandling, Suback, Subscribe, SubscribeFilter, Unsubscribe,
    Version,
};

use super::{
    Broker, Denied, Output,
    conversation::{Conversation, ConversationRef},
    publish::Fault,
};
use crate::{
    connection::{Asked, Filters},
    scans::RetainedScan,
    session_state::SessionKey,
    slab::Key,
    subscription::{FILTERS_OWN_BYTES, SubscriptionOptions, filter_bytes},
    timers::Timer,
};

/// Filters of a packet that are taken in one turn, about a millisecond, and the least time to the next: a packet may have as many as a
/// session may have subscriptions, and no other client waits for all of them.
pub(super) const FILTERS_STEP: usize = 256;
const FILTERS_PAUSE: Duration = Duration::from_millis(1);

impl Broker {
    pub(super) fn subscribe(
        &mut self,
        now: Instant,
        key: Key,
        packet: Subscribe,
    ) -> Result<(), Fault> {
        self.check_filters(key, packet.filters.iter().map(|asked| &*asked.filter), true)?;
        self.begin_filters(now, key, Asked::Subscribe(packet))
    }

    pub(super) fn unsubscribe(
        &mut self,
        now: Instant,
        key: Key,
        packet: Unsubscribe,
    ) -> Result<(), Fault> {
        self.check_filters(key, packet.filters.iter().map(String::as_str), false)?;
        self.begin_filters(now, key, Asked::Unsubscribe(packet))
    }

    /// Takes the filters of a packet. Where they are many, others have their turn in between, and the connection is not read from.
    fn begin_filters(&mut self, now: Instant, key: Key, asked: Asked) -> Result<(), Fault> {
        let mut filters = Filters {
            asked,
            reasons: Vec::new(),
            invalid: None,
            left_groups: HashSet::new(),
            at: None,
        };
        if self.some_filters(now, key, &mut filters) {
            return self.end_filters(now, key, filters);
        }
        let session = self.met(key).session_key;
        self.wait_with_filters(now, key, filters);
        self.pause(self.session_key(session));
        Ok(())
    }

    fn wait_with_filters(&mut self, now: Instant, key: Key, mut filters: Filters) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let at = now + FILTERS_PAUSE;
        filters.at = Some(at);
        connection.filters = Some(Box::new(filters));
        self.timers.set(at, Timer::Filters(key));
    }

    /// The work of [`Timer::Filters`].
    pub(super) fn more_filters(&mut self, now: Instant, key: Key) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let Some(mut filters) = connection.filters.take() else { return };
        let session = connection.session.expect("one that has parted from it has none");
        let is_closing = connection.is_closing;
        if !is_closing && !self.some_filters(now, key, &mut filters) {
            return self.wait_with_filters(now, key, *filters);
        }
        if is_closing {
            self.leave_groups(now, session, &filters.left_groups);
        } else if let Err(fault) = self.end_filters(now, key, *filters) {
            self.end_by(key, &fault);
        }
        self.resume(self.session_key(session));
    }

    /// Takes some of the filters; whether those were the last.
    fn some_filters(&mut self, now: Instant, key: Key, filters: &mut Filters) -> bool {
        let Filters { asked, reasons, invalid, left_groups, .. } = filters;
        let from = reasons.len();
        match asked {
            Asked::Subscribe(packet) => {
                let id = packet.subscription_id.unwrap_or(0);
                for asked in packet.filters.iter().skip(from).take(FILTERS_STEP) {
                    let taken = self.subscribe_one(now, key, asked, id);
                    reasons.push(taken.unwrap_or_else(|error| {
                        tracing::debug!(connection = key.slot, filter = %asked.filter, %error, "filter refused");
                        invalid.get_or_insert(error);
                        ReasonCode::TOPIC_FILTER_INVALID
                    }));
                }
                reasons.len() == packet.filters.len()
            }
            Asked::Unsubscribe(packet) => {
                for filter in packet.filters.iter().skip(from).take(FILTERS_STEP) {
                    reasons.push(self.unsubscribe_one(key, filter, left_groups));
                }
                reasons.len() == packet.filters.len()
            }
        }
    }

    /// Answers the packet.
    fn end_filters(&mut self, now: Instant, key: Key, filters: Filters) -> Result<(), Fault> {
        let Filters { asked, mut reasons, invalid, left_groups, .. } = filters;
        let session_key = self.met(key).session_key;
        self.leave_groups(now, session_key, &left_groups);
        if self.met(key).session.number > 0 {
            // Records of others came between those of its filters.
            self.depend_on_all();
        }
        let connection = self.met(key).connection;
        let packet = match asked {
            Asked::Unsubscribe(packet) => packet,
            Asked::Subscribe(packet) => {
                if connection.version == Version::V3 {
                    grant_all(&packet, &mut reasons)?;
                }
                // MQTT-3.1.2-29
                let reason_string =
                    invalid.filter(|_| connection.problem_information).map(|e| e.to_string());
                let user_properties = Vec::new();
                let packet_id = packet.packet_id;
                let suback = Suback { packet_id, reason_string, user_properties, reasons };
                self.hold_suback(now, key, &packet.filters, suback);
                self.begin_queries(now, key);
                return Ok(());
            }
        };
        let (packet_id, user_properties) = (packet.packet_id, Vec::new());
        let answer = Suback { packet_id, reason_string: None, user_properties, reasons };
        self.promise(key, |version, out| {
            Packet::Unsuback(answer).encode(version, out).expect("a byte for each filter received");
        });
        Ok(())
    }

    /// Messages of shared subscriptions that a session has left go to other members where they have not begun; those that have continue
    /// here (MQTT-3.10.4-3).
    pub(super) fn leave_groups(&mut self, now: Instant, key: Key, groups: &HashSet<String>) {
        if groups.is_empty() {
            return;
        }
        let Some(session) = self.sessions.get_mut(key) else { return };
        let left = session.queue.take_groups(|name| groups.contains(name));
        if !left.is_empty() {
            self.hand_on_of(now, key, left);
        }
    }

    pub(super) fn give_suback(&mut self, key: Key, answer: Suback) {
        let connection = self.connections.get(key).expect("the caller looked");
        let packet_bytes_max = connection.packet_bytes_max as usize;
        self.promise(key, |version, out| {
            let start = out.len();
            let mut encode = |answer| {
                out.truncate(start);
                let encoded = Packet::Suback(answer).encode(version, out);
                encoded.expect("a byte for each filter received, and a short text");
                out.len() - start
            };
            if answer.reason_string.is_some() && encode(answer.clone()) <= packet_bytes_max {
                return;
            }
            encode(Suback { reason_string: None, ..answer }); // MQTT-3.9.2-1
        });
    }

    /// Whether texts are filters, in a packet of a client. An invalid filter makes the packet malformed and ends the connection, as for
    /// Mosquitto: SUBACK's and DISCONNECT's 0x8F is for a filter that is correctly formed and not accepted (3.9.3, 3.14.2.1), such as one
    /// over our limits, and UNSUBACK has no reason for it but the one of 3.11.3 that is worded alike (MQTT-4.7.1-1, MQTT-4.7.1-2,
    /// MQTT-4.7.3-1, MQTT-4.8.2-1, MQTT-4.8.2-2; 4.13.1).
    fn check_filters<'a>(
        &self,
        key: Key,
        mut filters: impl Iterator<Item = &'a str>,
        are_new: bool,
    ) -> Result<(), Fault> {
        let config = &self.met(key).session.config;
        filters.try_for_each(|filter| {
            let checked = config.check_topic_filter(filter).and_then(|_| {
                // A client that has one from before may end it.
                if are_new { config.check_topic_characters(filter) } else { Ok(()) }
            });
            match checked {
                Err(error) if !error.is_limit() => {
                    let text = format!("no topic filter: {error}");
                    Err(Fault::new(ReasonCode::MALFORMED_PACKET, text))
                }
                _ => Ok(()),
            }
        })
    }

    fn subscribe_one(
        &mut self,
        now: Instant,
        key: Key,
        asked: &SubscribeFilter,
        id: u32,
    ) -> Result<ReasonCode, TopicError> {
        let ConversationRef { connection, session_key, session } = self.met(key);
        let own = self.session_key(session_key);
        let version = connection.version;
        let keeps_retain = connection.keeps_retain;
        let limits = self.shared.config();
        let filter = &*asked.filter;
        let inner = session.config.check_topic_filter(filter)?;
        let is_shared = inner.len() < filter.len();
        let decision = self.shared.authorize().decide(
            &session.identity,
            Action::Subscribe,
            Target::Filter(inner),
        );
        if !decision.allow {
            let (action, target) = (Action::Subscribe, filter.to_owned());
            let denied = Denied { action, target, rule: decision.rule.to_string() };
            self.outputs.push_back(Output::Denied(key, Box::new(denied)));
            return Ok(ReasonCode::NOT_AUTHORIZED);
        }
        let is_known = session.subscriptions.contains_key(filter);
        if !is_known && session.subscriptions.len() >= limits.subscriptions_max {
            return Ok(ReasonCode::QUOTA_EXCEEDED);
        }
        let bytes = if is_known { 0 } else { filter_bytes(filter) };
        let mut charge = None;
        if !is_known && session.filter_bytes + bytes > FILTERS_OWN_BYTES {
            let account = session.account.clone();
            charge = self.charge_in(account.as_ref(), bytes);
            if charge.is_none() {
                return Ok(ReasonCode::QUOTA_EXCEEDED);
            }
        }
        let session = self.met(key).session;
        let options = SubscriptionOptions {
            qos: asked.maximum_qos.min(session.config.max_qos()),
            no_local: asked.no_local || keeps_retain,
            retain_as_published: asked.retain_as_published || keeps_retain,
            is_written: session.number > 0,
            id,
        };
        let number = session.number;
        // A client that asks again for what its session has is granted it whatever the disk has room for: it comes to take what waits.
        let is_same = session.subscriptions.get(filter) == Some(&options);
        if !is_same && !self.write_subscribed(number, filter, options) {
            // A subscription that is acknowledged holds after a restart.
            return Ok(ReasonCode::QUOTA_EXCEEDED);
        }
        let Conversation { session, .. } =
            Conversation::of(&mut self.connections, &mut self.sessions, key);
        let filter = match session.subscriptions.get_key_value(filter) {
            Some((text, _)) => text.clone(),
            None => Arc::from(filter),
        };
        if session.subscriptions.insert(filter.clone(), options).is_none() {
            session.filter_bytes += bytes;
            match (&mut session.filter_charge, charge) {
                (Some(all), Some(charge)) => all.absorb(charge),
                (all, Some(charge)) => *all = Some(charge),
                (_, None) => {}
            }
        }
        let missed = session.missed();
        let mut routes = self.shared.routes_mut();
        let routed_from = self.shared.generations().routes;
        let is_new = routes.insert(&filter, own, options, &session.state);
        drop(routes);
        let wanted = match asked.retain_handling {
            RetainHandling::Send => true,
            RetainHandling::SendIfNew => is_new,
            RetainHandling::DoNotSend => false,
        };
        if wanted && !is_shared && self.shared.retains_any() {
            // Asked for again, they are sent again, once.
            let scan = RetainedScan::new(&filter, options, now, routed_from, missed);
            session.retained.begin(scan);
        }
        debug_assert!(version == Version::V5 || id == 0);
        Ok(match options.qos {
            QoS::AtMostOnce => ReasonCode::SUCCESS,
            QoS::AtLeastOnce => ReasonCode::GRANTED_QOS_1,
            QoS::ExactlyOnce => ReasonCode::GRANTED_QOS_2,
        })
    }

    /// Writes a subscription, if its session is written down; false if there is no room for it, or was none for the session.
    fn write_subscribed(
        &mut self,
        session: u64,
        filter: &str,
        options: SubscriptionOptions,
    ) -> bool {
        let Some(keeper) = self.keeper.as_mut().filter(|_| session > 0) else { return true };
        let (filter, options) = (filter.into(), options.into());
        let record = Record::Subscribed { session, filter, options };
        !keeper.lacking.is_relied_on() && keeper.append(&record).is_some()
    }

    /// Ends one subscription; notes its shared subscription if that has other members.
    fn unsubscribe_one(
        &mut self,
        key: Key,
        filter: &str,
        left_groups: &mut HashSet<String>,
    ) -> ReasonCode {
        let Conversation { session_key, session, .. } =
            Conversation::of(&mut self.connections, &mut self.sessions, key);
        let own = SessionKey::new(self.shard as u8, session_key);
        if session.subscriptions.remove(filter).is_none() {
            return ReasonCode::NO_SUBSCRIPTION_EXISTED;
        }
        session.filter_bytes -= filter_bytes(filter);
        let beyond = session.filter_bytes.saturating_sub(FILTERS_OWN_BYTES);
        if let Some(charge) = &mut session.filter_charge {
            charge.shrink_to(beyond);
        }
        let mut routes = self.shared.routes_mut();
        routes.remove(filter, own);
        if routes.has_group(filter) {
            left_groups.insert(filter.to_owned());
        }
        drop(routes);
        session.retained.end(filter);
        let number = session.number;
        self.write(number, || Record::Unsubscribed { session: number, filter: filter.into() });
        ReasonCode::SUCCESS
    }
}

/// The answer to a client of MQTT 3.1 about its filters. Its SUBACK has no failure: a client that may not subscribe is answered as if
/// it might (3.1, section 3.8: "it must therefore make a positive acknowledgement"), and for want of room its connection ends.
fn grant_all(packet: &Subscribe, reasons: &mut [ReasonCode]) -> Result<(), Fault> {
    for (asked, reason) in packet.filters.iter().zip(reasons) {
        if *reason == ReasonCode::NOT_AUTHORIZED {
            *reason = ReasonCode(asked.maximum_qos as u8);
        } else if reason.is_failure() {
            let text = format!("{reason}, for which MQTT 3.1 has no answer");
            return Err(Fault::new(*reason, text));
        }
    }
    Ok(())
}
