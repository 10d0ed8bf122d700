//! What a setting can be, from text and back to TOML.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use tidegate_broker::{Overflow, UnknownVersion, Versions, schedule::Policy};
use tidegate_frame::privacy::{Cover, RegionError, Regions};
use tidegate_log::Durability;
use tidegate_message::{
    CameraName, FrameSize,
    quantity::{self, ByteCount, QuantityError},
};
use tidegate_sys::{bpf::Mode, datagram::Method};
use tidegate_wire::proxy;

use super::{AtRest, Origin};
use crate::{
    camera::Originals,
    ingest::{Format, Kind},
    link::Transport,
    logging::LogFormat,
    mqtt::{
        bridge::RemoteVersion,
        journal::{MqttDurability, UnknownDurability},
        listen::{ListenAddress, SocketMode, UnknownAddress, UnknownMode},
        settings::Protocol,
    },
    sink::SinkKind,
};

/// A type of setting.
pub(super) trait Value: Sized {
    /// From the text of a TOML scalar, a variable or a flag.
    fn read(text: &str) -> Result<Self, String>;

    /// As a TOML scalar, none if it is not set.
    fn show(&self) -> Option<String>;

    /// The same, where a relative path begins at `folder`.
    #[must_use]
    fn beginning_at(self, folder: &Path) -> Self {
        let _ = folder;
        self
    }
}

/// A setting that was written at `origin`: relative paths in a file begin at its folder, those of variables and flags where the program
/// runs.
pub(super) fn read_at<T: Value>(text: &str, origin: &Origin) -> Result<T, String> {
    let value = T::read(text)?;
    Ok(match origin {
        Origin::File { path, .. } => value.beginning_at(path.parent().unwrap_or(Path::new(""))),
        Origin::Variable(_) | Origin::Flag(_) => value,
    })
}

/// A setting that may be absent; the empty text unsets it.
impl<T: Value> Value for Option<T> {
    fn read(text: &str) -> Result<Self, String> {
        if text.is_empty() { Ok(None) } else { T::read(text).map(Some) }
    }

    fn show(&self) -> Option<String> {
        self.as_ref().and_then(T::show)
    }

    fn beginning_at(self, folder: &Path) -> Self {
        self.map(|value| value.beginning_at(folder))
    }
}

/// A name of a node, detector or scene: it becomes part of certificates and file names.
impl Value for CameraName {
    fn read(text: &str) -> Result<Self, String> {
        let checked = text.parse::<Self>();
        checked.map_err(|error| error.to_string().replace("camera name", "name"))
    }

    fn show(&self) -> Option<String> {
        Some(quoted(self.as_str()))
    }
}

impl Value for String {
    fn read(text: &str) -> Result<Self, String> {
        Ok(text.to_owned())
    }

    fn show(&self) -> Option<String> {
        Some(quoted(self))
    }
}

impl Value for PathBuf {
    fn read(text: &str) -> Result<Self, String> {
        if text.is_empty() { Err("a path is not empty".to_owned()) } else { Ok(text.into()) }
    }

    fn show(&self) -> Option<String> {
        Some(quoted(&self.to_string_lossy()))
    }

    fn beginning_at(self, folder: &Path) -> Self {
        folder.join(self)
    }
}

impl Value for u32 {
    fn read(text: &str) -> Result<Self, String> {
        text.parse().map_err(|_| format!("a whole number from 0 to {} is needed", Self::MAX))
    }

    fn show(&self) -> Option<String> {
        Some(self.to_string())
    }
}

impl Value for u16 {
    fn read(text: &str) -> Result<Self, String> {
        text.parse().map_err(|_| format!("a whole number from 0 to {} is needed", Self::MAX))
    }

    fn show(&self) -> Option<String> {
        Some(self.to_string())
    }
}

impl Value for bool {
    fn read(text: &str) -> Result<Self, String> {
        text.parse().map_err(|_| "true or false is needed".to_owned())
    }

    fn show(&self) -> Option<String> {
        Some(self.to_string())
    }
}

impl Value for f64 {
    fn read(text: &str) -> Result<Self, String> {
        let number: Option<Self> = text.parse().ok();
        number.filter(|number| number.is_finite()).ok_or_else(|| "a number is needed".to_owned())
    }

    fn show(&self) -> Option<String> {
        Some(format!("{self:?}"))
    }
}

impl Value for SocketAddr {
    fn read(text: &str) -> Result<Self, String> {
        text.parse().map_err(|_| "an address with a port is needed, such as 127.0.0.1:7080".into())
    }

    fn show(&self) -> Option<String> {
        Some(quoted(&self.to_string()))
    }
}

impl Value for ListenAddress {
    fn read(text: &str) -> Result<Self, String> {
        text.parse().map_err(|error: UnknownAddress| error.to_string())
    }

    fn show(&self) -> Option<String> {
        Some(quoted(&self.to_string()))
    }
}

impl Value for SocketMode {
    fn read(text: &str) -> Result<Self, String> {
        text.parse().map_err(|error: UnknownMode| error.to_string())
    }

    fn show(&self) -> Option<String> {
        Some(quoted(&self.to_string()))
    }
}

impl Value for Duration {
    fn read(text: &str) -> Result<Self, String> {
        quantity::duration(text).map_err(|error| error.to_string())
    }

    fn show(&self) -> Option<String> {
        Some(quoted(&quantity::show_duration(*self)))
    }
}

impl Value for ByteCount {
    fn read(text: &str) -> Result<Self, String> {
        text.parse().map_err(|error: QuantityError| error.to_string())
    }

    fn show(&self) -> Option<String> {
        Some(quoted(&self.to_string()))
    }
}

impl Value for Versions {
    fn read(text: &str) -> Result<Self, String> {
        text.parse().map_err(|error: UnknownVersion| error.to_string())
    }

    fn show(&self) -> Option<String> {
        Some(quoted(&self.to_string()))
    }
}

impl Value for MqttDurability {
    fn read(text: &str) -> Result<Self, String> {
        text.parse().map_err(|error: UnknownDurability| error.to_string())
    }

    fn show(&self) -> Option<String> {
        Some(quoted(self.word()))
    }
}

impl Value for FrameSize {
    fn read(text: &str) -> Result<Self, String> {
        text.parse().map_err(|error: tidegate_message::FrameSizeError| error.to_string())
    }

    fn show(&self) -> Option<String> {
        Some(quoted(&self.to_string()))
    }
}

impl Value for Regions {
    fn read(text: &str) -> Result<Self, String> {
        text.parse().map_err(|error: RegionError| error.to_string())
    }

    fn show(&self) -> Option<String> {
        Some(quoted(&self.to_string()))
    }
}

impl Value for Cover {
    fn read(text: &str) -> Result<Self, String> {
        match text {
            "fill" => Ok(Self::Fill),
            "blur" => Ok(Self::Blur),
            _ => Err("choose one of: fill blur".to_owned()),
        }
    }

    fn show(&self) -> Option<String> {
        let word = match self {
            Self::Fill => "fill",
            Self::Blur => "blur",
        };
        Some(quoted(word))
    }
}

impl Value for LogFormat {
    fn read(text: &str) -> Result<Self, String> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err("choose one of: text json".to_owned()),
        }
    }

    fn show(&self) -> Option<String> {
        let word = match self {
            Self::Text => "text",
            Self::Json => "json",
        };
        Some(quoted(word))
    }
}

impl Value for Originals {
    fn read(text: &str) -> Result<Self, String> {
        match text {
            "covered" => Ok(Self::Covered),
            "clear" => Ok(Self::Clear),
            _ => Err("choose one of: covered clear".to_owned()),
        }
    }

    fn show(&self) -> Option<String> {
        let word = match self {
            Self::Covered => "covered",
            Self::Clear => "clear",
        };
        Some(quoted(word))
    }
}

impl Value for Transport {
    fn read(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "quic" => Ok(Self::Quic),
            "tcp" => Ok(Self::Tcp),
            _ => Err("choose one of: auto quic tcp".to_owned()),
        }
    }

    fn show(&self) -> Option<String> {
        let word = match self {
            Self::Auto => "auto",
            Self::Quic => "quic",
            Self::Tcp => "tcp",
        };
        Some(quoted(word))
    }
}

impl Value for Durability {
    fn read(text: &str) -> Result<Self, String> {
        match text {
            "memory" => Ok(Self::Memory),
            "page" => Ok(Self::Page),
            "disk" => Ok(Self::Disk),
            _ => Err("choose one of: memory page disk".to_owned()),
        }
    }

    fn show(&self) -> Option<String> {
        let word = match self {
            Self::Memory => "memory",
            Self::Page => "page",
            Self::Disk => "disk",
        };
        Some(quoted(word))
    }
}

impl Value for AtRest {
    fn read(text: &str) -> Result<Self, String> {
        match text {
            "clear" => Ok(Self::Clear),
            "sealed" => Ok(Self::Sealed),
            _ => Err("choose one of: clear sealed".to_owned()),
        }
    }

    fn show(&self) -> Option<String> {
        Some(quoted(if *self == Self::Clear { "clear" } else { "sealed" }))
    }
}

impl Value for proxy::Accepted {
    fn read(text: &str) -> Result<Self, String> {
        match text {
            "v1" => Ok(Self::V1),
            "v2" => Ok(Self::V2),
            "any" => Ok(Self::Any),
            _ => Err(format!("{text:?} is no version of the PROXY protocol; choose v1, v2 or any")),
        }
    }

    fn show(&self) -> Option<String> {
        let word = match self {
            Self::V1 => "v1",
            Self::V2 => "v2",
            Self::Any => "any",
        };
        Some(quoted(word))
    }
}

impl Value for Protocol {
    fn read(text: &str) -> Result<Self, String> {
        text.parse()
    }

    fn show(&self) -> Option<String> {
        Some(quoted(self.word()))
    }
}

impl Value for RemoteVersion {
    fn read(text: &str) -> Result<Self, String> {
        text.parse()
    }

    fn show(&self) -> Option<String> {
        Some(quoted(self.word()))
    }
}

impl Value for SinkKind {
    fn read(text: &str) -> Result<Self, String> {
        text.parse()
    }

    fn show(&self) -> Option<String> {
        Some(quoted(self.word()))
    }
}

impl Value for Kind {
    fn read(text: &str) -> Result<Self, String> {
        text.parse()
    }

    fn show(&self) -> Option<String> {
        Some(quoted(self.word()))
    }
}

impl Value for Format {
    fn read(text: &str) -> Result<Self, String> {
        text.parse()
    }

    fn show(&self) -> Option<String> {
        Some(quoted(self.word()))
    }
}

impl Value for Method {
    fn read(text: &str) -> Result<Self, String> {
        text.parse().map_err(|error: tidegate_sys::datagram::UnknownMethod| error.to_string())
    }

    fn show(&self) -> Option<String> {
        Some(quoted(self.word()))
    }
}

impl Value for Mode {
    fn read(text: &str) -> Result<Self, String> {
        text.parse().map_err(|error: tidegate_sys::bpf::UnknownMode| error.to_string())
    }

    fn show(&self) -> Option<String> {
        Some(quoted(self.word()))
    }
}

impl Value for Overflow {
    fn read(text: &str) -> Result<Self, String> {
        text.parse().map_err(|error: tidegate_broker::config::UnknownOverflow| error.to_string())
    }

    fn show(&self) -> Option<String> {
        Some(quoted(self.word()))
    }
}

/// The word alone: the numbers of a policy have keys of their own.
impl Value for Policy {
    fn read(text: &str) -> Result<Self, String> {
        text.parse()
            .map_err(|error: tidegate_broker::schedule::UnknownPolicyError| error.to_string())
    }

    fn show(&self) -> Option<String> {
        Some(quoted(self.as_str()))
    }
}

fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

/// A name as a part of a table's key: quoted if it holds anything but letters, digits, `_` and `-` of ASCII.
pub(super) fn key(name: &str) -> String {
    let is_bare = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    if !name.is_empty() && name.bytes().all(is_bare) { name.to_owned() } else { quoted(name) }
}
