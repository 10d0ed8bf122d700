//! Messages that the server sends: which are new, which are open, and what topic aliases stand for.

use std::{borrow::Cow, collections::HashMap};

use super::{
    super::{Connect, PacketId, Publish, QoS, ReasonCode, Version},
    ClientError,
};

/// Next steps for a message that arrived.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    /// It is given out.
    pub(super) is_new: bool,
    /// It is answered now.
    pub(super) is_answered: bool,
}

#[derive(Debug, Default)]
pub(super) struct Arrivals {
    /// Of the session: messages of QoS 2 whose PUBREL has not come, and whether they were acknowledged.
    received: HashMap<PacketId, bool>,
    /// Of the connection: messages that are not answered to the end.
    open: HashMap<PacketId, QoS>,
    /// How many of them there may be; the protocol has no bound before MQTT 5.
    receive_maximum: usize,
    /// Topics by alias, the first is that of alias 1.
    aliases: Vec<Option<Box<str>>>,
    aliases_max: usize,
}

impl Arrivals {
    pub(super) fn begin(&mut self, connect: &Connect) {
        let (properties, is_v5) = (&connect.properties, connect.version == Version::V5);
        let receive_maximum = properties.receive_maximum.filter(|_| is_v5);
        self.receive_maximum =
            receive_maximum.map_or(usize::from(u16::MAX), |max| max.get().into());
        self.aliases_max = if is_v5 { properties.topic_alias_maximum.into() } else { 0 };
    }

    /// The connection has ended.
    pub(super) fn end(&mut self) {
        self.open.clear();
        self.aliases.clear();
    }

    /// The session has.
    pub(super) fn forget(&mut self) {
        self.received.clear();
    }

    /// The topic of a message, which may have come as an alias (section 3.3.2.3.4).
    pub(super) fn topic<'i>(&mut self, publish: &Publish<'i>) -> Result<Cow<'i, str>, ClientError> {
        let Some(alias) = publish.properties.topic_alias else {
            return Ok(Cow::Borrowed(publish.topic));
        };
        let (alias, maximum) = (usize::from(alias.get()), self.aliases_max);
        let unknown = || ClientError::TopicAlias { alias, maximum };
        if alias > maximum {
            return Err(unknown());
        }
        if publish.topic.is_empty() {
            let topic = self.aliases.get(alias - 1).and_then(Option::as_deref);
            return topic.map(|topic| Cow::Owned(topic.to_owned())).ok_or_else(unknown);
        }
        if self.aliases.len() < alias {
            self.aliases.resize(alias, None);
        }
        self.aliases[alias - 1] = Some(publish.topic.into());
        Ok(Cow::Borrowed(publish.topic))
    }

    /// A message of QoS 1 or 2 came.
    pub(super) fn arrive(
        &mut self,
        id: PacketId,
        qos: QoS,
        acknowledges: bool,
    ) -> Result<Arrival, ClientError> {
        if qos == QoS::AtLeastOnce && acknowledges {
            return Ok(Arrival { is_new: true, is_answered: true });
        }
        // Sent again on the same connection, as brokers before MQTT 5 may, it is one message.
        self.open.insert(id, qos);
        if self.open.len() > self.receive_maximum {
            return Err(ClientError::ReceiveMaximum { maximum: self.receive_maximum });
        }
        if qos == QoS::AtLeastOnce {
            return Ok(Arrival { is_new: true, is_answered: false });
        }
        let before = self.received.get(&id).copied();
        if before.is_none() {
            self.received.insert(id, acknowledges);
        }
        Ok(Arrival { is_new: before.is_none(), is_answered: before.unwrap_or(acknowledges) })
    }

    /// The caller acknowledges; with which quality of service it came, if it is open.
    pub(super) fn acknowledge(&mut self, id: PacketId, reason: ReasonCode) -> Option<QoS> {
        if let Some(is_acknowledged) = self.received.get_mut(&id) {
            // Once: a second answer would belong to the next message of that identifier.
            if std::mem::replace(is_acknowledged, true) {
                return None;
            }
            if reason.is_failure() {
                self.received.remove(&id);
                return self.open.remove(&id);
            }
            return self.open.get(&id).copied();
        }
        self.open.remove(&id)
    }

    /// PUBREL came.
    pub(super) fn release(&mut self, id: PacketId) {
        self.received.remove(&id);
        self.open.remove(&id);
    }
}
