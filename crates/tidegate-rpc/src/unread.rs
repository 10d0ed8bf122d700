//! Peers that are gone, or read nothing of what they are sent: the kernel ends their connections.

use std::{io, time::Duration};

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

/// A silent peer is asked this often whether it is there; it is gone after three questions.
pub(crate) const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// Has the kernel end a connection whose peer is gone, or acknowledges or reads nothing of what waits for it during `unread_max`. HTTP/1.1
/// asks nothing of a silent peer, as HTTP/2 does by its pings.
///
/// # Errors
/// Those of the system: mostly that the connection is gone.
pub fn limit(socket: &TcpStream, unread_max: Duration) -> io::Result<()> {
    let socket = SockRef::from(socket);
    let probes =
        TcpKeepalive::new().with_time(KEEP_ALIVE).with_interval(KEEP_ALIVE).with_retries(2);
    socket.set_tcp_keepalive(&probes)?;
    socket.set_tcp_user_timeout(Some(unread_max))
}
