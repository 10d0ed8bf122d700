//! `[link]`.

use std::{
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use tidegate_message::{Confidential, host::host_and_port};

use super::{millis, seconds};
use crate::{ByteCount, words::Transport};

section! {
    /// `[link]`: between nodes.
    LinkSection: fixed {
        /// Where camera nodes connect, UDP and TCP. Default `127.0.0.1:7443`.
        listen: SocketAddr = (Ipv4Addr::LOCALHOST, 7443).into(),
        /// The edge node that a camera node dials, as host and port. Default `127.0.0.1:7443`.
        edge: Confidential = "127.0.0.1:7443".into()
            => "a host and a port, such as edge.local:7443" if |it, _| host_and_port(it.edge.expose()).is_some(),
        /// `auto`, `quic` or `tcp`. Default `auto`: TCP only where QUIC does not get through.
        transport: Transport = Transport::Auto,
        /// With `auto`, how long QUIC is tried before TCP is tried as well. Default `300ms`: more than three round trips of
        /// the slowest path on which QUIC is wanted.
        quic_head_start: Duration = Duration::from_millis(300)
            => "from 10ms to 10s" if |it, _| (millis(10)..=seconds(10)).contains(&it.quic_head_start),
        /// Longest queue a link may build at its bottleneck, in time. Default `10ms`: a tenth of the
        /// usual latency bound.
        queue_allowed: Duration = Duration::from_millis(10)
            => "from 1ms to 1s" if |it, _| (millis(1)..=seconds(1)).contains(&it.queue_allowed),
        /// A peer that is silent this long is taken for gone. Default `3s`.
        idle_timeout: Duration = Duration::from_secs(3)
            => "from 1s to 5min" if |it, _| (seconds(1)..=seconds(300)).contains(&it.idle_timeout),
        /// Longest time to connect and authenticate. Default `3s`.
        connect_timeout: Duration = Duration::from_secs(3)
            => "from 100ms to 1min" if |it, _| (millis(100)..=seconds(60)).contains(&it.connect_timeout),
        /// Tries in a row to reach the edge node before a camera node gives up; 0 never gives up. Default 0.
        max_reconnects: u32 = 0,
        /// Longest wait between two tries; the first is a twentieth of it. Default `5s`.
        reconnect_backoff_max: Duration = Duration::from_secs(5)
            => "from 100ms to 10min"
                if |it, _| (millis(100)..=seconds(600)).contains(&it.reconnect_backoff_max),
        /// Congestion control of TCP links, such as `bbr` or `cubic`. Default none: the system's.
        tcp_congestion: Option<String> = None,
        /// Whether an edge node's cameras share one medium, such as the Wi-Fi of its access point: each then gets a share of
        /// it. `false` where each has a link of its own. Default true.
        shared_medium: bool = true,
        /// Part of that medium that batches of uplinks to this node may use together while cameras send, 0.001 to 0.2. Default
        /// 0.1.
        sensor_share: f64 = 0.1
            => "from 0.001 to 0.2" if |it, _| (0.001..=0.2).contains(&it.sensor_share),
        /// Bytes that this node keeps of all uplinks that it serves: the state of their codecs, and batches that wait for its
        /// broker.
        /// Default `2GiB`.
        uplink_bytes_max: ByteCount = ByteCount(2 << 30)
            => "at least 1MiB" if |it, _| it.uplink_bytes_max.0 >= 1 << 20,
    }
}
