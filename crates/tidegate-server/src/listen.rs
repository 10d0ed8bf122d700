//! Where clients connect: addresses, names of this machine, and sockets of the file system.
//!
//! Always true: a file that is no socket, or a socket in use, is never removed; a socket of ours has its mode before a client
//! can connect to it.

use std::{
    fs, io,
    net::{SocketAddr, ToSocketAddrs as _},
    os::{
        fd::OwnedFd,
        unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _},
    },
    path::{Path, PathBuf},
};

use mio::{
    Interest, Registry, Token,
    event::Source,
    net::{TcpListener, TcpStream, UnixListener},
};
pub use tidegate_message::{ListenAddress, SocketMode};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 4096;

/// The addresses of a listener in a network, none for a socket of the file system.
///
/// # Errors
/// The resolver's, or that the name has none.
pub(super) fn resolve(listen: &ListenAddress) -> io::Result<Vec<SocketAddr>> {
    match listen {
        ListenAddress::Name(name, port) if !listen.is_local() => {
            let mut addresses: Vec<_> = (&**name, *port).to_socket_addrs()?.collect();
            addresses.sort_unstable();
            addresses.dedup();
            if addresses.is_empty() {
                return Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
            }
            Ok(addresses)
        }
        known => Ok(known.known()),
    }
}

/// A socket that connections are accepted from.
#[derive(Debug)]
pub(super) enum Acceptor {
    /// In a network.
    Tcp(TcpListener),
    /// In the file system.
    Unix(UnixListener),
}

impl Acceptor {
    /// The next connection. One of the file system is of a stream as well: operations on a socket of TCP work with it, apart from
    /// the addresses and options that only TCP has.
    ///
    /// # Errors
    /// The system's, also that there is none now.
    pub(super) fn accept(&self) -> io::Result<TcpStream> {
        match self {
            Self::Tcp(socket) => socket.accept().map(|(stream, _)| stream),
            Self::Unix(socket) => {
                socket.accept().map(|(stream, _)| TcpStream::from(OwnedFd::from(stream)))
            }
        }
    }
}

impl Source for Acceptor {
    fn register(
        &mut self,
        registry: &Registry,
        token: Token,
        interests: Interest,
    ) -> io::Result<()> {
        match self {
            Self::Tcp(socket) => socket.register(registry, token, interests),
            Self::Unix(socket) => socket.register(registry, token, interests),
        }
    }

    fn reregister(
        &mut self,
        registry: &Registry,
        token: Token,
        interests: Interest,
    ) -> io::Result<()> {
        match self {
            Self::Tcp(socket) => socket.reregister(registry, token, interests),
            Self::Unix(socket) => socket.reregister(registry, token, interests),
        }
    }

    fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        match self {
            Self::Tcp(socket) => socket.deregister(registry),
            Self::Unix(socket) => socket.deregister(registry),
        }
    }
}

/// Listens at some addresses of one listener, of which those that this machine has not are left out if it has another; each with
/// where it is. `all` are the addresses of all listeners.
///
/// # Errors
/// The address, and what the system said.
pub(super) fn listen(
    addresses: &[SocketAddr],
    all: &[SocketAddr],
) -> Result<Vec<(TcpListener, SocketAddr)>, (SocketAddr, io::Error)> {
    let mut sockets: Vec<(TcpListener, SocketAddr)> = Vec::new();
    let mut absent = None;
    for asked in addresses {
        let mut address = *asked;
        if let (0, Some((_, first))) = (address.port(), sockets.first()) {
            // One port for all addresses of a name.
            address.set_port(first.port());
        }
        let is_beside_ipv4 = is_beside_ipv4(*asked, all);
        match listen_at(address, is_beside_ipv4).and_then(|socket| {
            let at = socket.local_addr()?;
            Ok((socket, at))
        }) {
            Ok(listening) => sockets.push(listening),
            Err(error) if addresses.len() > 1 && is_absent(&error) => {
                tracing::debug!(%error, %address, "this machine does not have an address of that name");
                absent = Some((address, error));
            }
            Err(error) => return Err((address, error)),
        }
    }
    match absent {
        Some(failed) if sockets.is_empty() => Err(failed),
        _ => Ok(sockets),
    }
}

/// Whether an address, or its family, is not this machine's.
fn is_absent(error: &io::Error) -> bool {
    const EAFNOSUPPORT: i32 = 97;
    error.kind() == io::ErrorKind::AddrNotAvailable || error.raw_os_error() == Some(EAFNOSUPPORT)
}

/// Whether another listener has that port for IPv4. One at all addresses of IPv6 takes those of IPv4 as well, unless it is set
/// to leave them to the other.
fn is_beside_ipv4(address: SocketAddr, all: &[SocketAddr]) -> bool {
    address.is_ipv6()
        && address.port() != 0
        && all.iter().any(|other| other.is_ipv4() && other.port() == address.port())
}

fn listen_at(address: SocketAddr, is_beside_ipv4: bool) -> io::Result<TcpListener> {
    let domain = socket2::Domain::for_address(address);
    let socket = socket2::Socket::new(domain, socket2::Type::STREAM, Some(socket2::Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    if address.is_ipv6() {
        // Said either way: a system may have another default (net.ipv6.bindv6only).
        socket.set_only_v6(is_beside_ipv4)?;
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(TcpListener::from_std(socket.into()))
}

/// Looks whether a start could listen there, without listening: a name has addresses, an address is of this machine, and a socket of the
/// file system has its folder, where nothing else is in its place. Ports and sockets that a running process has are no part of it.
///
/// # Errors
/// The first problem.
pub fn look(listen: &ListenAddress) -> io::Result<()> {
    if let ListenAddress::Unix(path) = listen {
        let folder = path.parent().unwrap_or(Path::new("/"));
        let found = fs::metadata(folder).map_err(|error| {
            let text = format!("the folder {} cannot be looked into: {error}", folder.display());
            io::Error::new(error.kind(), text)
        })?;
        if !found.is_dir() {
            let text = format!("{} is no folder", folder.display());
            return Err(io::Error::new(io::ErrorKind::NotADirectory, text));
        }
        return socket_at(path).map(drop);
    }
    let mut absent = None;
    let addresses = resolve(listen)?;
    for address in &addresses {
        let domain = socket2::Domain::for_address(*address);
        let socket = socket2::Socket::new(domain, socket2::Type::DGRAM, None);
        // A free port, so that none that listens is in the way.
        let bound = socket.and_then(|it| it.bind(&SocketAddr::new(address.ip(), 0).into()));
        match bound {
            Ok(()) => return Ok(()),
            Err(error) => absent = Some(error),
        }
    }
    absent.map_or(Ok(()), Err)
}

/// A socket of ours in the file system; it is removed with this, unless another is in its place by then.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    id: (u64, u64),
}

impl SocketFile {
    /// Listens at a path of the file system, in the place of a socket that is not in use any more.
    ///
    /// # Errors
    /// The system's, or that something else has the path.
    pub(super) fn listen(path: &Path, mode: SocketMode) -> io::Result<(UnixListener, Self)> {
        let stale = socket_at(path)?.then(|| {
            let mut stale = path.as_os_str().to_owned();
            stale.push(format!(".{}.old", std::process::id()));
            PathBuf::from(stale)
        });
        if let Some(stale) = &stale {
            if is_in_use(path)? {
                let text = "another process listens there, or it cannot be seen whether one does; \
                            end that process, or name another path";
                return Err(io::Error::new(io::ErrorKind::AddrInUse, text));
            }
            // Of a process that was killed. It is kept until the new one is there: a listener knows its file by a number, which the system
            // gives out again.
            unless_gone(fs::rename(path, stale))?;
        }
        let bind = || {
            let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None)?;
            socket.set_nonblocking(true)?;
            // Under its own name, so that it may be as long as the system lets it be.
            socket.bind(&socket2::SockAddr::unix(path)?)?;
            Ok::<_, io::Error>(socket)
        };
        let bound = bind();
        if let Some(stale) = &stale {
            unless_gone(fs::remove_file(stale))?;
        }
        let socket = bound?;
        let found = fs::symlink_metadata(path)?;
        let file = Self { path: path.to_owned(), id: (found.dev(), found.ino()) };
        // Until it listens, there is no connection.
        fs::set_permissions(path, fs::Permissions::from_mode(mode.bits()))?;
        socket.listen(BACKLOG)?;
        let socket = std::os::unix::net::UnixListener::from(OwnedFd::from(socket));
        Ok((UnixListener::from_std(socket), file))
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let is_ours = fs::symlink_metadata(&self.path)
            .is_ok_and(|found| (found.dev(), found.ino()) == self.id);
        if !is_ours {
            return;
        }
        if let Err(error) = fs::remove_file(&self.path) {
            // The next start takes its place.
            tracing::warn!(%error, path = %self.path.display(), "the socket cannot be removed");
        }
    }
}

/// No error where the file is gone already.
fn unless_gone(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// Whether a socket is at that path; an error where something else is.
fn socket_at(path: &Path) -> io::Result<bool> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => Ok(true),
        Ok(_) => {
            let text =
                "there is something that is not a socket, which is not removed; name another path";
            Err(io::Error::new(io::ErrorKind::AlreadyExists, text))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether a process listens at the socket that is there.
fn is_in_use(path: &Path) -> io::Result<bool> {
    let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None)?;
    // A listener whose queue is full would be waited for.
    socket.set_nonblocking(true)?;
    match socket.connect(&socket2::SockAddr::unix(path)?) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Ok(()) | Err(_) => Ok(true),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    #[test]
    fn one_port_has_two_listeners_of_two_families() {
        let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        let (_v4, at) = listen(&[any], &[any]).expect("a socket").remove(0);
        let v6 = SocketAddr::from((Ipv6Addr::UNSPECIFIED, at.port()));
        let v4 = SocketAddr::from((Ipv4Addr::UNSPECIFIED, at.port()));
        assert!(is_beside_ipv4(v6, &[v6, v4]) && !is_beside_ipv4(v4, &[v6, v4]));
        assert!(!is_beside_ipv4(v6, &[v6]));
        match listen(&[v6], &[v4, v6]) {
            Ok(_) => {}
            Err((_, error)) if is_absent(&error) => println!("skipped: no IPv6 here"),
            Err((_, error)) => panic!("{error}"),
        }
    }

    #[test]
    fn a_name_is_listened_on_at_all_of_its_addresses_and_one_port() {
        let localhost: ListenAddress = "localhost:0".parse().unwrap();
        let addresses = resolve(&localhost).unwrap();
        let sockets = listen(&addresses, &addresses).unwrap();
        assert!(sockets.iter().all(|(_, at)| at.ip().is_loopback()));
        assert!(sockets.iter().all(|(_, at)| at.port() == sockets[0].1.port()));
        // An address that this machine has not is left out, unless there is no other.
        let absent = SocketAddr::from(([192, 0, 2, 1], 0));
        let here = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let sockets = listen(&[absent, here], &[absent, here]).unwrap();
        assert_eq!(sockets.len(), 1);
        assert_eq!(listen(&[absent], &[absent]).unwrap_err().0, absent);
        assert!(listen(&[absent, absent], &[absent]).is_err());
        // One that is taken is an error all the same.
        let taken = sockets[0].1;
        assert_eq!(listen(&[taken, here], &[]).unwrap_err().0, taken);
        let none: ListenAddress = "no-such-host.invalid:1883".parse().unwrap();
        assert!(resolve(&none).is_err());
    }

    #[test]
    fn a_stale_socket_is_replaced_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mqtt.sock");
        let mode: SocketMode = "0640".parse().unwrap();
        let (first, file) = SocketFile::listen(&path, mode).unwrap();
        let found = fs::symlink_metadata(&path).unwrap();
        assert_eq!(found.permissions().mode() & 0o777, 0o640);
        assert!(std::os::unix::net::UnixStream::connect(&path).is_ok());
        // While another process listens there, it is that one's.
        let error = SocketFile::listen(&path, mode).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        assert!(std::os::unix::net::UnixStream::connect(&path).is_ok());
        // As a process that was killed leaves it.
        drop(first);
        let (_second, newer) = SocketFile::listen(&path, SocketMode::default()).unwrap();
        let found = fs::symlink_metadata(&path).unwrap();
        assert_eq!(found.permissions().mode() & 0o777, 0o660);
        // A listener removes its own file when it ends.
        drop(file);
        assert!(std::os::unix::net::UnixStream::connect(&path).is_ok());
        drop(newer);
        assert!(!path.exists());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left");

        fs::write(&path, "precious").unwrap();
        let link = folder.path().join("link.sock");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        for path in [&path, &link, &folder.path().to_owned()] {
            let error = SocketFile::listen(path, mode).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::AlreadyExists, "{}", path.display());
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
        // A datagram socket belongs to another program.
        let datagrams = folder.path().join("log.sock");
        let _socket = std::os::unix::net::UnixDatagram::bind(&datagrams).unwrap();
        let error = SocketFile::listen(&datagrams, mode).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        let nowhere = folder.path().join("no/such/mqtt.sock");
        assert!(SocketFile::listen(&nowhere, mode).is_err());
    }

    #[test]
    fn a_path_may_be_as_long_as_the_systems() {
        let folder = tempfile::tempdir().unwrap();
        for bytes in [103, 104, 107] {
            let begin = folder.path().join("").display().to_string();
            let path = format!("{begin}{}", "s".repeat(bytes - begin.len()));
            let ListenAddress::Unix(path) = format!("unix:{path}").parse().unwrap() else {
                panic!("it is a path");
            };
            for _second_life in 0..2 {
                let (socket, file) = SocketFile::listen(&path, SocketMode::default()).unwrap();
                assert!(std::os::unix::net::UnixStream::connect(&path).is_ok(), "{bytes}");
                // As a process that was killed leaves it.
                std::mem::forget(file);
                drop(socket);
            }
        }
    }

    #[test]
    fn a_look_finds_what_a_start_would_and_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().display();
        fs::write(folder.path().join("file"), "precious").unwrap();
        let _in_use = SocketFile::listen(&folder.path().join("mqtt.sock"), SocketMode::default());
        for (text, is_right) in [
            (format!("unix:{place}/new.sock"), true),
            (format!("unix:{place}/mqtt.sock"), true),
            (format!("unix:{place}/file"), false),
            (format!("unix:{place}/no/such.sock"), false),
            (format!("unix:{place}/file/such.sock"), false),
            ("127.0.0.1:1883".to_owned(), true),
            ("localhost:1883".to_owned(), true),
            ("192.0.2.1:1883".to_owned(), false),
            ("no-such-host.invalid:1883".to_owned(), false),
        ] {
            let listen: ListenAddress = text.parse().unwrap();
            let found = look(&listen);
            assert_eq!(found.is_ok(), is_right, "{text}: {found:?}");
        }
        assert!(!folder.path().join("new.sock").exists());
    }
}
