//! Values of settings, from text and back to TOML.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use tidegate_message::{
    CameraName, Confidential, FrameSize, GeoPoint, ListenAddress, Regions, Secret, SocketMode,
    confidential::HIDDEN,
    quantity::{self, ByteCount, QuantityError},
};

use super::Origin;
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

/// It is printed without what may be secret, so that what is printed cannot be mistaken for what was written.
impl Value for Confidential {
    fn read(text: &str) -> Result<Self, String> {
        if text.contains(HIDDEN) { Err(was_hidden()) } else { Ok(text.into()) }
    }

    fn show(&self) -> Option<String> {
        Some(quoted(&self.to_string()))
    }
}

/// A text all of which may be a secret.
impl Value for Secret {
    fn read(text: &str) -> Result<Self, String> {
        if text == HIDDEN { Err(was_hidden()) } else { Ok(text.into()) }
    }

    fn show(&self) -> Option<String> {
        Some(quoted(HIDDEN))
    }
}

/// Why a printed text is not read.
fn was_hidden() -> String {
    format!("{HIDDEN} stands where a secret was hidden when it was printed; write the text itself")
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
        text.parse().map_err(|error: tidegate_message::UnknownAddress| error.to_string())
    }

    fn show(&self) -> Option<String> {
        Some(quoted(&self.to_string()))
    }
}

impl Value for SocketMode {
    fn read(text: &str) -> Result<Self, String> {
        text.parse().map_err(|error: tidegate_message::UnknownMode| error.to_string())
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

impl Value for FrameSize {
    fn read(text: &str) -> Result<Self, String> {
        text.parse().map_err(|error: tidegate_message::FrameSizeError| error.to_string())
    }

    fn show(&self) -> Option<String> {
        Some(quoted(&self.to_string()))
    }
}

impl Value for GeoPoint {
    fn read(text: &str) -> Result<Self, String> {
        text.parse().map_err(|error: tidegate_message::GeoPointError| error.to_string())
    }

    fn show(&self) -> Option<String> {
        Some(quoted(&self.to_string()))
    }
}

impl Value for Regions {
    fn read(text: &str) -> Result<Self, String> {
        text.parse().map_err(|error: tidegate_message::RegionError| error.to_string())
    }

    fn show(&self) -> Option<String> {
        Some(quoted(&self.to_string()))
    }
}

pub(super) fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

/// A name as a part of a table's key: quoted if it holds anything but letters, digits, `_` and `-` of ASCII.
pub(super) fn key(name: &str) -> String {
    let is_bare = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    if !name.is_empty() && name.bytes().all(is_bare) { name.to_owned() } else { quoted(name) }
}
