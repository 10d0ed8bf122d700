//! CONNECT, SUBSCRIBE and their answers, as far as a load needs them.

use tidegate_wire::mqtt::{
    Connect, ConnectProperties, EncodeError, Packet, PacketId, ReasonCode, RetainHandling,
    Subscribe, SubscribeFilter, Version,
};

use crate::{
    layout::{self, Role},
    packet::Malformed,
    spec::Spec,
};

/// Appends CONNECT: a clean session, no will.
pub(crate) fn connect(spec: &Spec, role: Role, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    let connect = Connect {
        version: spec.version,
        bridge: false,
        clean_start: true,
        keep_alive: spec.keep_alive,
        client_id: role.client_id(&spec.client_prefix),
        will: None,
        username: spec.username.clone(),
        password: spec.password.clone().map(String::into_bytes),
        properties: ConnectProperties::default(),
    };
    Packet::Connect(Box::new(connect)).encode(spec.version, out)
}

/// Appends SUBSCRIBE.
pub(crate) fn subscribe(spec: &Spec, role: Role, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    let filter = |filter| SubscribeFilter {
        filter,
        maximum_qos: spec.subscribe_qos,
        no_local: false,
        retain_as_published: false,
        retain_handling: RetainHandling::DoNotSend,
    };
    let subscribe = Subscribe {
        packet_id: PacketId::MIN,
        subscription_id: None,
        user_properties: Vec::new(),
        filters: layout::filters(spec, role).into_iter().map(filter).collect(),
    };
    Packet::Subscribe(subscribe).encode(spec.version, out)
}

/// What CONNACK says to a load: the broker's Receive Maximum, or why it refuses.
pub(crate) fn connack(version: Version, body: &[u8]) -> Result<Result<u16, ReasonCode>, Malformed> {
    let Ok(Packet::Connack(connack)) = Packet::decode(version, 0x20, body) else {
        return Err(Malformed);
    };
    let maximum = connack.properties.receive_maximum.map_or(u16::MAX, u16::from);
    Ok(if connack.reason.is_failure() { Err(connack.reason) } else { Ok(maximum) })
}

/// The first reason of SUBACK that is a failure.
pub(crate) fn refused(version: Version, body: &[u8]) -> Result<Option<ReasonCode>, Malformed> {
    let Ok(Packet::Suback(suback)) = Packet::decode(version, 0x90, body) else {
        return Err(Malformed);
    };
    Ok(suback.reasons.into_iter().find(|reason| reason.is_failure()))
}
