//! Words of the configuration, each one type for the configuration and for the parts of the program that go by it.
//!
//! No part sees the configuration, so that a key that changes builds no part, and the configuration sees no part, so that it is read and
//! checked without one. A word of both is therefore a noun.

/// Enums that are one of a few words each.
#[macro_export]
macro_rules! words {
    ($(
        $(#[$meta:meta])+
        $name:ident {
            $($(#[$variant_meta:meta])+ $variant:ident = $word:literal,)+
        }
    )+) => {$(
        $(#[$meta])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$variant_meta])+ $variant,)+
        }

        impl $name {
            /// Each with its word.
            pub const WORDS: &[(&'static str, Self)] = &[$(($word, Self::$variant)),+];

            /// Its word.
            pub fn word(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }
        }
    )+};
}

words! {
    /// How a region of a frame is covered.
    Cover {
        /// One gray: nothing is left, not even whether something moves there.
        Fill = "fill",
        /// At most 6 x 6 grays: a person's presence can be seen, but not recognized.
        Blur = "blur",
    }

    /// The format of a datagram.
    #[derive(Default)]
    DatagramFormat {
        /// A payload.
        #[default]
        Payload = "payload",
        /// A topic, the end of a line, and a payload.
        TopicPayload = "topic-payload",
        /// Lines of InfluxDB's line protocol.
        Line = "line",
    }

    /// The worst failure that an entry of a log survives once its append, or the wait for it, has returned.
    #[derive(PartialOrd, Ord)]
    Durability {
        /// None: it goes with the process.
        Memory = "memory",
        /// The end of the process, kill -9 included: it is in the kernel's page cache.
        Page = "page",
        /// A loss of power: it is on the disk, as far as the disk tells the truth.
        Disk = "disk",
    }

    /// The protocol of an ingest listener.
    #[derive(Default)]
    IngestKind {
        /// Datagrams.
        #[default]
        Udp = "udp",
        /// CoAP over UDP.
        Coap = "coap",
        /// HTTP/1.1.
        Http = "http",
        /// WebSocket.
        WebSocket = "websocket",
    }

    /// How an original is given to who asks for it.
    #[derive(Default)]
    Originals {
        /// In full quality, and covered.
        #[default]
        Covered = "covered",
        /// As it was captured.
        Clear = "clear",
    }

    /// The policy for a message to a subscriber whose queue is full. Their order is a format: journals have their numbers.
    Overflow {
        /// The oldest waiting messages go, until it fits.
        DropOldest = "drop-oldest",
        /// The new message goes.
        DropNewest = "drop-newest",
        /// Of each topic only the newest message waits.
        Latest = "latest",
        /// The subscriber is disconnected; its session and what waits are kept, with the message that found no place. Until half of
        /// it is gone, QoS 1 and 2 messages for it are refused: their publishers get no acknowledgement of success. Of a QoS 1
        /// message of MQTT 5, whose publisher reads the reason in its acknowledgement, the other subscribers get theirs; of one that
        /// is sent again, none gets it before all have a place. Messages that cannot be refused (wills, the output of flows) are
        /// dropped for this subscriber alone and counted.
        Disconnect = "disconnect",
        /// Its publishers are not read from until half of what waits is gone. A subscriber that waits for such a publisher itself,
        /// directly or through others, is disconnected instead, since it could never acknowledge; so is one that is its own
        /// publisher. Messages for it until then are refused as under [`Overflow::Disconnect`].
        BlockPublisher = "block-publisher",
        /// Messages that find no place wait on disk and come back in order. Where the session has as many as may wait, its identity
        /// has its share of the disk (`mqtt.identity_share`), or the disk takes nothing, its own oldest go, one for one: no
        /// publisher and no other session is refused anything for it. To a part of this program it is
        /// [`Overflow::SpillDisconnect`], since parts lose nothing that was acknowledged.
        Spill = "spill",
        /// Messages that find no place wait on disk and come back in order. Where the disk takes nothing, QoS 0 messages that find
        /// no place are dropped, and for the others [`Overflow::Disconnect`] holds.
        SpillDisconnect = "spill-disconnect",
    }

    /// The protocol of an MQTT listener.
    #[derive(Default)]
    Protocol {
        /// MQTT over TCP.
        #[default]
        Tcp = "tcp",
        /// MQTT over TLS.
        Tls = "tls",
        /// MQTT over WebSocket (MQTT 5, section 6).
        WebSocket = "websocket",
        /// MQTT over WebSocket over TLS.
        SecureWebSocket = "secure-websocket",
    }

    /// Which versions of the header of the PROXY protocol are read.
    ProxyProtocol {
        /// Version 1, a line of text.
        V1 = "v1",
        /// Version 2, in binary.
        V2 = "v2",
        /// Either.
        Any = "any",
    }

    /// Which version of MQTT is spoken with the remote of a bridge.
    #[derive(Default)]
    RemoteVersion {
        /// MQTT 5, or 3.1.1 where the remote does not take that.
        #[default]
        Auto = "auto",
        /// MQTT 3.1.1, with the bridge bit where the remote takes it.
        V4 = "3.1.1",
        /// MQTT 5.
        V5 = "5",
    }

    /// How the packets of a camera come that is asked by RTSP.
    #[derive(Default)]
    RtspTransport {
        /// Over the connection by which it is asked.
        #[default]
        Tcp = "tcp",
        /// By UDP, to ports of this machine; not where the connection is encrypted.
        Udp = "udp",
    }

    /// The transport of a link.
    #[derive(Default)]
    Transport {
        /// QUIC, and TCP where QUIC does not get through: the first to connect, after a head start for QUIC.
        #[default]
        Auto = "auto",
        /// QUIC over UDP.
        Quic = "quic",
        /// TLS over TCP.
        Tcp = "tcp",
    }
}

impl IngestKind {
    /// Whether its listener takes datagrams.
    pub fn is_of_datagrams(self) -> bool {
        matches!(self, Self::Udp | Self::Coap)
    }
}

impl Overflow {
    /// Its number, which journals have: those stay.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// The policy of that number, if there is one.
    pub fn of_number(number: u8) -> Option<Self> {
        Self::WORDS.iter().map(|(_, overflow)| *overflow).find(|it| it.number() == number)
    }

    /// Whether what waits may be dropped.
    pub fn drops(self) -> bool {
        matches!(self, Self::DropOldest | Self::DropNewest | Self::Latest)
    }

    /// Whether waiting messages may go to disk.
    pub fn spills(self) -> bool {
        matches!(self, Self::Spill | Self::SpillDisconnect)
    }

    /// Whether what waits may be dropped once neither memory nor disk has room for it.
    pub fn yields(self) -> bool {
        self.drops() || self == Self::Spill
    }

    /// Whether waiting messages keep their memory, even if others need it.
    pub fn is_firm(self) -> bool {
        !self.drops() && !self.spills()
    }

    /// The policy as it holds for a session that is a part's, or a client's.
    #[must_use]
    pub fn for_part(self, is_part: bool) -> Self {
        if is_part && self == Self::Spill { Self::SpillDisconnect } else { self }
    }
}

impl Protocol {
    /// Whether TLS is below it.
    pub fn is_secure(self) -> bool {
        matches!(self, Self::Tls | Self::SecureWebSocket)
    }

    /// Whether WebSocket is below it.
    pub fn is_websocket(self) -> bool {
        matches!(self, Self::WebSocket | Self::SecureWebSocket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_have_the_numbers_that_journals_have() {
        let numbers = Overflow::WORDS.iter().map(|(word, overflow)| (*word, overflow.number()));
        let expected = [
            ("drop-oldest", 0),
            ("drop-newest", 1),
            ("latest", 2),
            ("disconnect", 3),
            ("block-publisher", 4),
            ("spill", 5),
            ("spill-disconnect", 6),
        ];
        assert_eq!(numbers.collect::<Vec<_>>(), expected);
        assert_eq!(Overflow::of_number(6), Some(Overflow::SpillDisconnect));
        assert_eq!(Overflow::of_number(7), None);
    }
}
