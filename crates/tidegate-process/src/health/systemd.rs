//! Notifications to systemd, by sd_notify(3): ready, alive, reloading, stopping.

use std::{
    env, io,
    os::{
        linux::net::SocketAddrExt,
        unix::{
            ffi::OsStrExt,
            net::{SocketAddr, UnixDatagram},
        },
    },
    time::Duration,
};

use tidegate_sys::clock::monotonic_nanos;

/// The service manager that started this process, if one did that wants to hear of it.
#[derive(Debug)]
pub struct Manager {
    socket: Option<(UnixDatagram, SocketAddr)>,
    watchdog: Option<Duration>,
}

impl Manager {
    /// By `NOTIFY_SOCKET`, `WATCHDOG_USEC` and `WATCHDOG_PID`.
    ///
    /// # Errors
    /// There is such a socket and it cannot be used.
    pub fn from_environment() -> io::Result<Self> {
        let Some(name) = env::var_os("NOTIFY_SOCKET") else {
            return Ok(Self { socket: None, watchdog: None });
        };
        let address = match name.as_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(&name)?,
        };
        let number = |name: &str| env::var(name).ok()?.parse::<u64>().ok();
        let own = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let watchdog = number("WATCHDOG_USEC").filter(|usec| own && *usec > 0);
        let socket = UnixDatagram::unbound()?;
        // It is said again; nothing waits for a manager that does not read.
        socket.set_nonblocking(true)?;
        Ok(Self { socket: Some((socket, address)), watchdog: watchdog.map(Duration::from_micros) })
    }

    /// The time within which the manager must hear that the node is alive; none if it does not want to.
    pub fn watchdog(&self) -> Option<Duration> {
        self.watchdog
    }

    /// The node serves.
    pub fn ready(&self) {
        self.say("READY=1\nSTATUS=serving");
    }

    /// The node is alive.
    pub fn alive(&self) {
        self.say("WATCHDOG=1");
    }

    /// The node reads its configuration again; [`Manager::ready`] says that it has.
    pub fn reloading(&self) {
        let micros = monotonic_nanos() / 1000;
        self.say(&format!(
            "RELOADING=1\nMONOTONIC_USEC={micros}\nSTATUS=reading the configuration"
        ));
    }

    /// The node stops.
    pub fn stopping(&self) {
        self.say("STOPPING=1\nSTATUS=stopping");
    }

    fn say(&self, text: &str) {
        let Some((socket, address)) = &self.socket else { return };
        if let Err(error) = socket.send_to_addr(text.as_bytes(), address) {
            tracing::warn!(%error, "the service manager cannot be notified of the node's state");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_arrives_as_datagrams() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let manager_end = UnixDatagram::bind(&path).unwrap();
        let socket = UnixDatagram::unbound().unwrap();
        let address = SocketAddr::from_pathname(&path).unwrap();
        let manager = Manager { socket: Some((socket, address)), watchdog: None };
        let mut buffer = [0; 200];
        let mut heard = || {
            let bytes = manager_end.recv(&mut buffer).unwrap();
            String::from_utf8(buffer[..bytes].to_vec()).unwrap()
        };
        manager.ready();
        assert_eq!(heard(), "READY=1\nSTATUS=serving");
        manager.alive();
        assert_eq!(heard(), "WATCHDOG=1");
        manager.reloading();
        assert!(heard().starts_with("RELOADING=1\nMONOTONIC_USEC="));
        manager.stopping();
        assert!(heard().starts_with("STOPPING=1"));
        // A manager that is gone is no fault of the node.
        drop(manager_end);
        manager.ready();
    }
}
