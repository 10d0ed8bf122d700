//! Where clients connect: addresses, names of this machine, and sockets of the file system.
//!
//! Always true: a file that is no socket, or a socket that somebody listens on, is never removed; a socket of ours has its mode
//! before anybody can connect to it.

use std::{
    fmt, fs, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _},
    os::{
        fd::OwnedFd,
        unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _},
    },
    path::{Path, PathBuf},
    str::FromStr,
};

use mio::{
    Interest, Registry, Token,
    event::Source,
    net::{TcpListener, TcpStream, UnixListener},
};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 4096;
/// What a socket of the file system begins with in configuration.
const UNIX: &str = "unix:";
/// Behind the name of a socket of the file system, until it is ready.
const NEW: &str = ".new";

/// Where a listener listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddress {
    /// An address; port 0 takes a free one.
    Socket(SocketAddr),
    /// All addresses that a name of this machine has, at one port.
    Name(Box<str>, u16),
    /// A socket of the file system, by its absolute path.
    Unix(PathBuf),
}

impl ListenAddress {
    /// Whether none but this machine reaches it.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Socket(address) => address.ip().is_loopback(),
            Self::Name(name, _) => is_localhost(name),
            Self::Unix(_) => true,
        }
    }

    /// Its addresses in a network, as far as they are known without asking a resolver.
    pub fn known(&self) -> Vec<SocketAddr> {
        match self {
            Self::Name(..) if !self.is_local() => Vec::new(),
            _ => self.resolve().unwrap_or_default(),
        }
    }

    /// Its addresses in a network, none for a socket of the file system.
    ///
    /// # Errors
    /// The resolver's, or that the name has none.
    pub(super) fn resolve(&self) -> io::Result<Vec<SocketAddr>> {
        match self {
            Self::Socket(address) => Ok(vec![*address]),
            // Whatever a resolver says (RFC 6761, section 6.3).
            Self::Name(name, port) if is_localhost(name) => {
                let both = [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()];
                Ok(both.map(|ip| SocketAddr::new(ip, *port)).to_vec())
            }
            Self::Name(name, port) => {
                let mut addresses: Vec<_> = (&**name, *port).to_socket_addrs()?.collect();
                addresses.sort_unstable();
                addresses.dedup();
                if addresses.is_empty() {
                    return Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
                }
                Ok(addresses)
            }
            Self::Unix(_) => Ok(Vec::new()),
        }
    }
}

fn is_localhost(name: &str) -> bool {
    name.eq_ignore_ascii_case("localhost")
}

impl From<SocketAddr> for ListenAddress {
    fn from(address: SocketAddr) -> Self {
        Self::Socket(address)
    }
}

/// As it is read.
impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(address) => write!(f, "{address}"),
            Self::Name(name, port) => write!(f, "{name}:{port}"),
            Self::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}

impl FromStr for ListenAddress {
    type Err = UnknownAddress;

    fn from_str(text: &str) -> Result<Self, UnknownAddress> {
        let unknown = || UnknownAddress(text.to_owned());
        if let Some(path) = text.strip_prefix(UNIX) {
            let path = Path::new(path);
            let is_file = path.is_absolute() && path.file_name().is_some();
            return is_file.then(|| Self::Unix(path.to_owned())).ok_or_else(unknown);
        }
        if let Ok(address) = text.parse() {
            return Ok(Self::Socket(address));
        }
        let (name, port) = text.rsplit_once(':').ok_or_else(unknown)?;
        let port = port.parse().map_err(|_| unknown())?;
        is_name(name).then(|| Self::Name(name.into(), port)).ok_or_else(unknown)
    }
}

/// Whether a host may have that name. One that ends with a number was meant as an address of IPv4.
fn is_name(text: &str) -> bool {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    let labels = text.strip_suffix('.').unwrap_or(text);
    let last = labels.rsplit('.').next().unwrap_or_default();
    labels.len() <= 253
        && labels.split('.').all(is_label)
        && !last.bytes().all(|byte| byte.is_ascii_digit())
}

/// Why a text says nothing of where to listen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} says nothing of where to listen; write an address or a name of this machine with a port, such as 127.0.0.1:1883, [::]:1883 or \
     localhost:1883, or unix: and an absolute path, such as unix:/run/tidegate/mqtt.sock"
)]
pub struct UnknownAddress(String);

/// Who may connect to a socket of the file system, as the mode of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketMode(u32);

/// Its owner and the owner's group.
impl Default for SocketMode {
    fn default() -> Self {
        Self(0o660)
    }
}

/// As it is read.
impl fmt::Display for SocketMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}

impl FromStr for SocketMode {
    type Err = UnknownMode;

    fn from_str(text: &str) -> Result<Self, UnknownMode> {
        let is_octal =
            (3..=4).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
        let mode = is_octal.then(|| u32::from_str_radix(text, 8).ok()).flatten();
        let mode = mode.filter(|mode| *mode <= 0o777).map(Self);
        mode.ok_or_else(|| UnknownMode(text.to_owned()))
    }
}

/// Why a text is no mode of a socket.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no mode of a file; write it in octal, from 0000 to 0777, such as 0660")]
pub struct UnknownMode(String);

/// A socket that connections are accepted from.
#[derive(Debug)]
pub(super) enum Acceptor {
    /// In a network.
    Tcp(TcpListener),
    /// In the file system.
    Unix(UnixListener),
}

impl Acceptor {
    /// The next connection. One of the file system is of a stream as well: what is done with a socket of TCP works with it, apart
    /// from the addresses and options that only TCP has.
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

/// Whether another listener has that port for IPv4. One at all addresses of IPv6 takes those of IPv4 as well, unless it is told
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
    if is_beside_ipv4 {
        socket.set_only_v6(true)?;
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(TcpListener::from_std(socket.into()))
}

/// A socket of ours in the file system; it is removed with this, unless another is in its place by then.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    id: (u64, u64),
}

impl SocketFile {
    /// Listens at a path of the file system, in the place of a socket that nobody listens on any more.
    ///
    /// # Errors
    /// The system's, or that something else has the path.
    pub(super) fn listen(path: &Path, mode: SocketMode) -> io::Result<(UnixListener, Self)> {
        make_way(path)?;
        let mut new = path.as_os_str().to_owned();
        new.push(NEW);
        let new = PathBuf::from(new);
        // Of a start that was killed in the middle of this.
        if fs::symlink_metadata(&new).is_ok_and(|found| found.file_type().is_socket()) {
            fs::remove_file(&new)?;
        }
        let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        socket.bind(&socket2::SockAddr::unix(&new)?)?;
        // Until it listens, nobody is connected.
        let ready = || {
            fs::set_permissions(&new, fs::Permissions::from_mode(mode.0))?;
            socket.listen(BACKLOG)?;
            let found = fs::symlink_metadata(&new)?;
            fs::rename(&new, path)?;
            Ok(Self { path: path.to_owned(), id: (found.dev(), found.ino()) })
        };
        match ready() {
            Ok(file) => {
                let socket = std::os::unix::net::UnixListener::from(OwnedFd::from(socket));
                Ok((UnixListener::from_std(socket), file))
            }
            Err(error) => {
                // It is ours, and of no use.
                let _ = fs::remove_file(&new);
                Err(error)
            }
        }
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

/// Looks whether a socket can be put at that path: there is nothing, or a socket that nobody listens on.
fn make_way(path: &Path) -> io::Result<()> {
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if !found.file_type().is_socket() {
        let text = "there is something that is no socket, which is not removed; name another path";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
    }
    let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None)?;
    // A listener whose queue is full would be waited for.
    socket.set_nonblocking(true)?;
    match socket.connect(&socket2::SockAddr::unix(path)?) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Ok(()) | Err(_) => {
            let text = "another process listens there, or it cannot be seen whether one does; \
                        end that process, or name another path";
            Err(io::Error::new(io::ErrorKind::AddrInUse, text))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_shown() {
        let name = |name: &str, port| Some(ListenAddress::Name(name.into(), port));
        for (text, expected) in [
            ("127.0.0.1:1883", Some(ListenAddress::Socket(([127, 0, 0, 1], 1883).into()))),
            ("[::]:0", Some(ListenAddress::Socket((Ipv6Addr::UNSPECIFIED, 0).into()))),
            ("localhost:1883", name("localhost", 1883)),
            ("broker-1.site_7.example.:8883", name("broker-1.site_7.example.", 8883)),
            ("unix:/run/a b.sock", Some(ListenAddress::Unix("/run/a b.sock".into()))),
            ("", None),
            ("1883", None),
            (":1883", None),
            ("localhost", None),
            ("localhost:", None),
            ("localhost:65536", None),
            ("300.1.1.1:1883", None),
            ("127.1:1883", None),
            ("::1:1883", None),
            ("[::1]", None),
            ("a..b:1", None),
            ("a b:1", None),
            ("unix:", None),
            ("unix:mqtt.sock", None),
            ("unix:/", None),
            ("unix:/run/..", None),
        ] {
            let found = text.parse::<ListenAddress>();
            assert_eq!(found.clone().ok(), expected, "{text}");
            if let Ok(address) = found {
                assert_eq!(address.to_string(), text);
            }
        }
        for (text, is_local) in [
            ("127.0.0.2:1", true),
            ("[::1]:1", true),
            ("LocalHost:1", true),
            ("unix:/a", true),
            ("0.0.0.0:1", false),
            ("localhost.example:1", false),
        ] {
            assert_eq!(text.parse::<ListenAddress>().unwrap().is_local(), is_local, "{text}");
        }
        for (text, expected) in [
            ("0660", Some("0660")),
            ("666", Some("0666")),
            ("0000", Some("0000")),
            ("0778", None),
            ("1777", None),
            ("+660", None),
            ("0o660", None),
            ("60", None),
            ("", None),
        ] {
            let found = text.parse::<SocketMode>().ok().map(|mode| mode.to_string());
            assert_eq!(found.as_deref(), expected, "{text}");
        }
    }

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
        let addresses = localhost.resolve().unwrap();
        let sockets = listen(&addresses, &addresses).unwrap();
        assert!(sockets.iter().all(|(_, at)| at.ip().is_loopback()));
        assert!(sockets.iter().all(|(_, at)| at.port() == sockets[0].1.port()));
        // What this machine has not is left out, unless there is nothing else.
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
        assert!(none.resolve().is_err());
    }

    #[test]
    fn a_stale_socket_is_replaced_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mqtt.sock");
        let mode = SocketMode(0o640);
        let (first, file) = SocketFile::listen(&path, mode).unwrap();
        let found = fs::symlink_metadata(&path).unwrap();
        assert_eq!(found.permissions().mode() & 0o777, 0o640);
        assert!(std::os::unix::net::UnixStream::connect(&path).is_ok());
        // While somebody listens there, it is theirs.
        let error = SocketFile::listen(&path, mode).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        assert!(std::os::unix::net::UnixStream::connect(&path).is_ok());
        // As a process that was killed leaves it, with a start that was killed as well.
        drop(first);
        fs::hard_link(&path, folder.path().join("mqtt.sock.new")).unwrap();
        let (_second, newer) = SocketFile::listen(&path, SocketMode::default()).unwrap();
        let found = fs::symlink_metadata(&path).unwrap();
        assert_eq!(found.permissions().mode() & 0o777, 0o660);
        // Who comes to its end removes its own.
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
        // One of datagrams is somebody's.
        let datagrams = folder.path().join("log.sock");
        let _socket = std::os::unix::net::UnixDatagram::bind(&datagrams).unwrap();
        let error = SocketFile::listen(&datagrams, mode).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        let nowhere = folder.path().join("no/such/mqtt.sock");
        assert!(SocketFile::listen(&nowhere, mode).is_err());
    }
}
