//! Where a listener listens: an address, a name of this machine, or a socket of the file system.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::{Path, PathBuf},
    str::FromStr,
};

/// Prefix of the path of a socket of the file system.
const UNIX: &str = "unix:";
/// Bytes of the path of such a socket at most: Linux has 108 for it, with a zero behind it (unix(7)).
const PATH_BYTES_MAX: usize = 107;

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
            Self::Socket(address) => vec![*address],
            // `localhost` is the loopback, whatever a resolver answers (RFC 6761, section 6.3).
            Self::Name(name, port) if is_localhost(name) => {
                let both = [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()];
                both.map(|ip| SocketAddr::new(ip, *port)).to_vec()
            }
            Self::Name(..) | Self::Unix(_) => Vec::new(),
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
        let unknown = || UnknownAddress::Form(text.to_owned());
        if let Some(path) = text.strip_prefix(UNIX) {
            if path.len() > PATH_BYTES_MAX {
                return Err(UnknownAddress::Long { path: path.to_owned(), bytes: path.len() });
            }
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
pub enum UnknownAddress {
    /// It has none of the forms.
    #[error(
        "{0:?} is not an address to listen on; write an address or a name of this machine with a port, such as 127.0.0.1:1883, [::]:1883 or \
         localhost:1883, or unix: and an absolute path, such as unix:/run/tidegate/mqtt.sock"
    )]
    Form(String),
    /// The path of a socket has no room in its address.
    #[error(
        "{path:?} has {bytes} bytes, and the path of a socket has {PATH_BYTES_MAX} at most on this system; choose a shorter one, such as \
         /run/tidegate/mqtt.sock"
    )]
    Long {
        /// The path.
        path: String,
        /// Its length.
        bytes: usize,
    },
}

/// The mode of a socket in the file system: who may connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketMode(u32);

impl SocketMode {
    /// Its bits.
    pub fn bits(self) -> u32 {
        self.0
    }
}

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
#[error("{0:?} is not a file mode; write it in octal, from 0000 to 0777, such as 0660")]
pub struct UnknownMode(String);

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
        for (bytes, is_right) in [(103, true), (104, true), (107, true), (108, false), (109, false)]
        {
            let text = format!("unix:/{}", "a".repeat(bytes - 1));
            let found = text.parse::<ListenAddress>();
            assert_eq!(found.is_ok(), is_right, "{bytes}");
            let lengths = format!("has {bytes} bytes, and the path of a socket has 107 at most");
            assert!(found.err().is_none_or(|error| error.to_string().contains(&lengths)));
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
}
