//! `[vision]`.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use super::{millis, seconds};
use crate::ByteCount;

/// Largest image that the programs which look at images are given, in bytes.
const IMAGE_BYTES_MOST: u64 = 64 << 20;

section! {
    /// `[vision]`: detection for clients, an image in and boxes back, on the API and on plain listeners.
    VisionSection: fixed {
        /// Whether images are looked at for clients of the API. Default true.
        enabled: bool = true,
        /// A plain listener for HTTP and WebSocket, such as `[::]:8008`, for programs that know no login: every client has the rights of
        /// `user`. Default none.
        listen: Option<SocketAddr> = None
            => "with vision.user, whose rights its clients have, and vision.enabled"
                if |it, _| it.listen.is_none() || (it.user.is_some() && it.enabled),
        /// The same for the persistent protocol over TCP, such as `[::]:8011`. Default none.
        tcp_listen: Option<SocketAddr> = None
            => "with vision.user, whose rights its clients have, and vision.enabled"
                if |it, _| it.tcp_listen.is_none() || (it.user.is_some() && it.enabled),
        /// The user whose rights hold for every client of the plain listeners. Default none.
        user: Option<String> = None
            => "a name" if |it, _| it.user.as_ref().is_none_or(|user| !user.is_empty()),
        /// Pages of other sites that may ask `listen`: origins such as `https://dash.example`, separated by commas, or `*` for every page. Their
        /// hosts are also names by which the listener's own pages may ask, beside addresses and `localhost`. Programs, which send no
        /// `Origin`, need none. Default none.
        origins: Option<String> = None,
        /// Whether TLS is spoken at `listen` (https, wss). Default false.
        tls: bool = false,
        /// Certificate chain, PEM. Default none: the node's own, with TLS.
        certificate: Option<PathBuf> = None,
        /// Its key, PEM.
        key: Option<PathBuf> = None,
        /// Connections of each plain listener at a time, half of them at most from one address. Default 4096.
        connections_max: u32 = 4096
            => "from 2 to 65536" if |it, _| (2..=65_536).contains(&it.connections_max),
        /// Largest encoded image. Default `16MiB`.
        image_bytes_max: ByteCount = ByteCount(16 << 20)
            => "from 1KiB to 64MiB" if |it, _| (1 << 10..=IMAGE_BYTES_MOST).contains(&it.image_bytes_max.0),
        /// Bytes of requests that may be held at a time, of all clients together; one client has at most three quarters of what others leave.
        /// Default `256MiB`.
        held_bytes_max: ByteCount = ByteCount(256 << 20)
            => "at least four times vision.image_bytes_max, and at most 64GiB"
                if |it, _| (it.image_bytes_max.0.saturating_mul(4)..=64 << 30).contains(&it.held_bytes_max.0),
        /// Images of one WebSocket that may be under way before its answers are there. Default 8.
        window: u32 = 8
            => "from 1 to 64" if |it, _| (1..=64).contains(&it.window),
        /// WebSockets that may be open. Default 4096.
        sockets_max: u32 = 4096
            => "from 1 to 65536" if |it, _| (1..=65_536).contains(&it.sockets_max),
        /// Longest silence in the middle of a request. Default `30s`.
        request_timeout: Duration = seconds(30)
            => "from 100ms to 1h" if |it, _| (millis(100)..=seconds(3600)).contains(&it.request_timeout),
        /// Longest silence of a WebSocket, or of a connection of the persistent protocol, between two images. Default `5min`.
        idle_timeout: Duration = seconds(300)
            => "from 1s to 7d" if |it, _| (seconds(1)..=seconds(7 * 86_400)).contains(&it.idle_timeout),
        /// The model that answers at the paper's path `/detector/detect/`: `frontal_face` takes a tenth of the time of `face`, or one of yours.
        /// Default `face`.
        face_model: String = "face".to_owned()
            => "a name" if |it, _| !it.face_model.is_empty(),
    }
}
