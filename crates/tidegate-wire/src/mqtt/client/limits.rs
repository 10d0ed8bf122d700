//! Limits that a server states.

use std::num::NonZeroU16;

use super::{
    super::{Connack, PACKET_BYTES_MAX, QoS, ReasonCode, SubscribeFilter},
    Publication, PublishError, SubscribeError,
};

/// Limits of a server, by the properties of its CONNACK (section 3.2.2.3); before MQTT 5 it says nothing and all is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Messages of QoS 1 and 2 that may be unacknowledged. 65,535 if the server does not say.
    pub receive_maximum: usize,
    /// Largest packet in bytes.
    pub packet_bytes_max: usize,
    /// Highest quality of service.
    pub qos_max: QoS,
    /// Whether messages may be retained.
    pub retains: bool,
    /// Highest topic alias; 0 for none.
    pub topic_alias_max: u16,
    /// Whether filters may have wildcards.
    pub has_wildcards: bool,
    /// Whether subscriptions may have identifiers.
    pub has_subscription_ids: bool,
    /// Whether subscriptions may be shared.
    pub shares: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self::of(&Connack::default())
    }
}

impl Limits {
    /// The limits that a CONNACK states.
    pub fn of(connack: &Connack) -> Self {
        let said = &connack.properties;
        let packet_bytes_max = said.maximum_packet_size.unwrap_or(u32::MAX).min(PACKET_BYTES_MAX);
        Self {
            receive_maximum: said.receive_maximum.map_or(u16::MAX, NonZeroU16::get).into(),
            packet_bytes_max: packet_bytes_max as usize,
            qos_max: said.maximum_qos.unwrap_or(QoS::ExactlyOnce),
            retains: said.retain_available.unwrap_or(true),
            topic_alias_max: said.topic_alias_maximum,
            has_wildcards: said.wildcard_available.unwrap_or(true),
            has_subscription_ids: said.subscription_ids_available.unwrap_or(true),
            shares: said.shared_available.unwrap_or(true),
        }
    }

    /// Whether a message may be sent, its length aside.
    #[inline]
    pub(super) fn check(&self, message: &Publication<'_>) -> Result<(), PublishError> {
        let topic = message.topic.as_bytes();
        // Without a branch for each byte, so that it runs on vectors.
        let odd = |bad, byte: &u8| bad | (*byte == 0) | (*byte == b'+') | (*byte == b'#');
        if topic.is_empty() || topic.len() > usize::from(u16::MAX) || topic.iter().fold(false, odd)
        {
            return Err(PublishError::Topic { topic: message.topic.to_owned() });
        }
        if message.qos > self.qos_max {
            return Err(PublishError::QoS { qos: message.qos, maximum: self.qos_max });
        }
        if message.retain && !self.retains {
            return Err(PublishError::Retain);
        }
        match message.topic_alias {
            Some(alias) if alias.get() > self.topic_alias_max => {
                Err(PublishError::TopicAlias { alias, maximum: self.topic_alias_max })
            }
            _ => Ok(()),
        }
    }

    pub(super) fn check_filters(
        &self,
        filters: &[SubscribeFilter],
        subscription_id: Option<u32>,
    ) -> Result<(), SubscribeError> {
        if subscription_id.is_some() && !self.has_subscription_ids {
            return Err(SubscribeError::SubscriptionId);
        }
        for SubscribeFilter { filter, .. } in filters {
            if !self.has_wildcards && filter.contains(['+', '#']) {
                return Err(SubscribeError::Wildcard { filter: filter.clone() });
            }
            if !self.shares && filter.starts_with("$share/") {
                return Err(SubscribeError::Shared { filter: filter.clone() });
            }
        }
        Ok(())
    }

    /// Why a message that an earlier connection sent may not be sent on this one.
    pub(super) fn rules_out(&self, qos: QoS, packet: &[u8]) -> Option<ReasonCode> {
        const RETAIN: u8 = 1;
        if packet.len() > self.packet_bytes_max {
            Some(ReasonCode::PACKET_TOO_LARGE)
        } else if qos > self.qos_max {
            Some(ReasonCode::QOS_NOT_SUPPORTED)
        } else if !self.retains && packet.first().is_some_and(|first| first & RETAIN != 0) {
            Some(ReasonCode::RETAIN_NOT_SUPPORTED)
        } else {
            None
        }
    }
}
