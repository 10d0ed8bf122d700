//! Where the parts of a demonstration run: namespaces where there are any, else ports of loopback.

use std::{
    net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket},
    thread,
};

use tidegate_api::ApiError;
use tidegate_message::Code;
use tidegate_netlab::Lab;

use super::{failed, lab_failed};

/// Runs it inside the node's namespace, if there are namespaces.
pub(super) fn within<R: Send>(
    lab: Option<&Lab>,
    node: &str,
    work: impl FnOnce() -> Result<R, ApiError> + Send,
) -> Result<R, ApiError> {
    match lab {
        Some(lab) => lab.within(node, work).map_err(lab_failed)?,
        None => work(),
    }
}

/// The result of a thread; its panic is that of the caller.
pub(super) fn joined<R>(ended: thread::Result<R>) -> R {
    ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

pub(super) fn loopback(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// An address on loopback that is free for UDP and TCP.
pub(super) fn free() -> Result<SocketAddr, ApiError> {
    let none = |error| failed("no port is free", error);
    for _ in 0..16 {
        let udp = UdpSocket::bind(loopback(0)).map_err(none)?;
        let address = udp.local_addr().map_err(none)?;
        if TcpListener::bind(address).is_ok() {
            return Ok(address);
        }
    }
    Err(ApiError::new(Code::INTERNAL, "no port is free for UDP and TCP"))
}
