//! `[mqtt.listener.NAME]`.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use tidegate_message::{ListenAddress, SocketMode};

use crate::{
    ByteCount,
    words::{MqttVersions, Overflow, Policy, Protocol, ProxyProtocol},
};

section! {
    /// `[mqtt.listener.NAME]`: where MQTT clients connect. Without any, one on 127.0.0.1:1883.
    MqttListenerSection by protocol: Protocol {
        /// Where: an address with a port, a name of this machine with a port, such as `localhost:1883`, for all addresses of it, or a
        /// socket of the file system, such as `unix:/run/tidegate/mqtt.sock`. Default `127.0.0.1:1883`.
        listen: ListenAddress = SocketAddr::from((Ipv4Addr::LOCALHOST, 1883)).into(); fixed,
        /// The mode, in octal, of the file of a socket in the file system. Default none: `0660`, the node's user and
        /// group.
        socket_mode: Option<SocketMode> = None; fixed,
        /// `tcp`, `tls`, `websocket` or `secure-websocket`. Default `tcp`.
        protocol: Protocol = Protocol::Tcp; fixed,
        /// Whether each connection begins with a header of the PROXY protocol, in which a load balancer says whose it is: `v1`, `v2`
        /// or `any` of both. A connection without one is refused. Only where none but the balancer can connect: any other peer could
        /// name any address. Default none: such headers are not read.
        proxy_protocol: Option<ProxyProtocol> = None,
        /// Where MQTT is with WebSocket: paths, separated by commas, or `*` for any. Default `/mqtt, /`.
        paths: String = "/mqtt, /".to_owned(),
        /// Pages of other sites that may open a WebSocket: origins such as `https://dash.example`, separated by commas, or `*` for every
        /// page. Their hosts are also names by which the listener's own pages may ask, beside addresses and `localhost`. Programs, which
        /// send no `Origin`, need none. Default none.
        origins: Option<String> = None; of WebSocket | SecureWebSocket,
        /// Certificate chain, PEM. Default none: the node's own, with TLS.
        certificate: Option<PathBuf> = None; of Tls | SecureWebSocket,
        /// Its key, PEM.
        key: Option<PathBuf> = None; of Tls | SecureWebSocket,
        /// Authorities of clients' certificates, PEM: a file, or a folder as `openssl rehash` leaves it. Default none: clients show
        /// none.
        client_ca: Option<PathBuf> = None; of Tls | SecureWebSocket,
        /// Revocation lists of those authorities, PEM; the site's own is looked at without being named. Default none.
        client_crl: Option<PathBuf> = None; of Tls | SecureWebSocket,
        /// SHA-256 fingerprints of clients' certificates that are accepted with any issuer, X.509 version 1 included: 64 hexadecimal digits
        /// each, with or without colons, separated by commas. Default none.
        client_pins: Option<String> = None; of Tls | SecureWebSocket,
        /// Certificates of which those between `certificate` and its authority are sent to clients as well, where `certificate` does not
        /// hold them, PEM: a file or a folder as for `client_ca`, which is looked into too. Default none.
        chain: Option<PathBuf> = None; of Tls | SecureWebSocket,
        /// Whether clients without a certificate are refused. Default false.
        require_certificate: bool = false; of Tls | SecureWebSocket,
        /// Connections at a time. Default 100000.
        connections_max: u32 = 100_000,
        /// Longest time to the client's CONNECT. Default `10s`.
        connect_timeout: Duration = Duration::from_secs(10),
        /// Messages that one client may publish a second; a client that sends more is read from no faster. Default 0:
        /// any.
        publish_rate_max: u32 = 0,
        /// As in `[mqtt]`, for clients of this listener; at most that. Default none.
        packet_bytes_max: Option<ByteCount> = None,
        /// As in `[mqtt]`.
        topic_levels_max: Option<u32> = None,
        /// As in `[mqtt]`.
        topic_bytes_max: Option<ByteCount> = None,
        /// As in `[mqtt]`, for clients of this listener. Default none.
        max_qos: Option<u32> = None,
        /// As in `[mqtt]`.
        retain_available: Option<bool> = None,
        /// As in `[mqtt]`.
        accept_protocol_versions: Option<MqttVersions> = None,
        /// As in `[mqtt]`.
        allow_zero_length_clientid: Option<bool> = None,
        /// As in `[mqtt]`.
        auto_id_prefix: Option<String> = None,
        /// Whether clients come in that prove nothing. Default none: as `[mqtt]` says.
        allow_anonymous: Option<bool> = None,
        /// As in `[mqtt]`, for clients of this listener. Default none.
        queue_bytes_max: Option<ByteCount> = None,
        /// As in `[mqtt]`.
        overflow_qos0: Option<Overflow> = None,
        /// As in `[mqtt]`.
        overflow: Option<Overflow> = None,
        /// As in `[mqtt]`.
        policy: Option<Policy> = None,
        /// As in `[mqtt]`.
        large_bytes: Option<ByteCount> = None,
        /// Congestion control, such as `bbr` or `cubic`. Default none: the system's.
        tcp_congestion: Option<String> = None,
    }
}
