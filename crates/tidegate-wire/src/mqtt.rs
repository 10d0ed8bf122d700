//! MQTT 3.1, 3.1.1 and 5.0 control packets, to and from bytes.

mod packet;
mod reason;

pub use packet::{
    Ack, Auth, Connack, ConnackProperties, Connect, ConnectProperties, Disconnect, Packet,
    PacketId, Publish, PublishProperties, QoS, RetainHandling, Suback, Subscribe, SubscribeFilter,
    Unsubscribe, UserProperties, Version, Will,
};
pub use reason::ReasonCode;
