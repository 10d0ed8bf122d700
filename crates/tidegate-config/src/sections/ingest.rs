//! `[ingest.NAME]`.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use crate::{
    ByteCount,
    words::{DatagramFormat, IngestKind, ReceiveMethod, XdpMode},
};

section! {
    /// `[ingest.NAME]`: a way in other than MQTT.
    IngestSection by kind: IngestKind {
        /// Its protocol: `udp`, `coap`, `http` or `websocket`. Default `udp`.
        kind: IngestKind = IngestKind::Udp; fixed,
        /// Address and port. Default `127.0.0.1:7070`.
        listen: SocketAddr = (Ipv4Addr::LOCALHOST, 7070).into(); fixed,
        /// The format of a datagram, of `udp`: `payload`, `topic-payload` (a topic, the end of a line, a payload) or `line`
        /// (InfluxDB's line protocol). Default `payload`.
        format: DatagramFormat = DatagramFormat::Payload,
        /// The topic of what does not name one: of datagrams with `{ip}` and `{port}`, of lines with `{measurement}`, `{tags}`, `{tag:NAME}`
        /// and `{field}`. Default none: `udp/{ip}`, or `{measurement}/{tags}`.
        topic: Option<String> = None,
        /// Whether messages are retained. Default false.
        retain: bool = false,
        /// Whether TLS is spoken, of `http` and `websocket`. Default false.
        tls: bool = false; of Http | WebSocket,
        /// Certificate chain, PEM. Default none: the node's own, with TLS.
        certificate: Option<PathBuf> = None,
        /// Its key, PEM.
        key: Option<PathBuf> = None,
        /// How datagrams are received: `io-uring`, `recvmmsg`, `plain`, or `auto`, the first that the system has. Default `auto`.
        receive: ReceiveMethod = ReceiveMethod::Auto; fixed,
        /// Whether the kernel may join datagrams of one sender on the way, which is cheaper and takes 17 MB. Default true.
        receive_joined: bool = true; fixed,
        /// Bytes of datagrams that may wait to be taken; those without room are dropped and counted. Beyond the system's limit
        /// only
        /// for a process that may administer the network. Default `4MiB`.
        receive_buffer_bytes: ByteCount = ByteCount(4 << 20); fixed,
        /// The user whose rights hold for every client without a proof. Default none.
        identity: Option<String> = None; fixed,
        /// Whether a client without a proof is accepted, as anonymous, where `identity` names no user. Default none: on
        /// loopback, as long as
        /// there is no `mqtt.password_file`.
        allow_anonymous: Option<bool> = None; fixed,
        /// Pages of other sites that may send, of `http` and `websocket`: origins such as `https://dash.example`, separated by commas, or `*`
        /// for every page. Their hosts are also names by which the listener's own pages may ask, beside addresses and `localhost`. Programs,
        /// which send no `Origin`, need none. Default none.
        origins: Option<String> = None; of Http | WebSocket,
        /// Longest payload of a message. Default `64kB`.
        message_bytes_max: ByteCount = ByteCount(64_000),
        /// Longest body of a request, unpacked. Default `4MiB`.
        body_bytes_max: ByteCount = ByteCount(4 << 20),
        /// Connections at a time. Default 1024.
        connections_max: u32 = 1024,
        /// Messages that are accepted a second, of all senders together; those beyond are refused, of `udp` dropped. Default 0:
        /// any.
        rate_max: u32 = 0,
        /// Longest time that a request may take to arrive, and a connection may be silent. Default `30s`.
        request_timeout: Duration = Duration::from_secs(30),
        /// Of `udp`: the network interface at which the kernel drops datagrams that are not to be kept, before they come in. Only in builds
        /// with the feature `xdp`. Default none.
        xdp_interface: Option<String> = None; of Udp,
        /// Where: `native` (in the driver), `generic`, or `auto`, the first that the interface has. Default `auto`.
        xdp_mode: XdpMode = XdpMode::Auto; of Udp,
        /// The fields of a payload and their places, separated by semicolons: `n as u16be at 0; t at 2 length 6 decimals
        /// 1`.
        xdp_fields: Option<String> = None; of Udp,
        /// Which are kept: `t > 75.5 or t < -5`.
        xdp_keep: Option<String> = None; of Udp,
        /// Bytes of such a payload; others pass. Default none: up to the end of the last field.
        xdp_payload_bytes: Option<u16> = None; of Udp,
    }
}
