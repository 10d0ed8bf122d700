//! A camera's name and its content.

use std::{fmt, str::FromStr, sync::Arc};

/// The name of a camera: 1 to 64 characters of `a-z A-Z 0-9 . _ -`, not starting with a dot or dash.
///
/// Names double as certificate names and folder names, hence the narrow alphabet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CameraName(Arc<str>);

impl CameraName {
    /// Longest name, in characters.
    pub const CHARS_MAX: usize = 64;

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for CameraName {
    type Err = CameraNameError;

    fn from_str(text: &str) -> Result<Self, CameraNameError> {
        if text.is_empty() || text.len() > Self::CHARS_MAX {
            return Err(CameraNameError::Length { chars: text.chars().count() });
        }
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        match text.chars().find(|&c| !allowed(c)) {
            Some(character) => Err(CameraNameError::Character { character }),
            None if text.starts_with(['.', '-']) => Err(CameraNameError::Start),
            None => Ok(Self(text.into())),
        }
    }
}

impl fmt::Display for CameraName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why a text is no camera name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CameraNameError {
    /// Empty or too long.
    #[error("a camera name has 1 to {} characters, this one has {chars}", CameraName::CHARS_MAX)]
    Length {
        /// How many it has.
        chars: usize,
    },
    /// A character outside the alphabet.
    #[error("a camera name is made of letters, digits, '.', '_' and '-', not {character:?}")]
    Character {
        /// The first such character.
        character: char,
    },
    /// A leading dot or dash.
    #[error("a camera name does not start with '.' or '-'")]
    Start,
}

/// Width and height of an image in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrameSize {
    /// Pixels from left to right.
    pub width: u16,
    /// Pixels from top to bottom.
    pub height: u16,
}

impl FrameSize {
    /// That of the same image after a quarter turn.
    pub const fn turned(self) -> Self {
        Self { width: self.height, height: self.width }
    }
}

impl fmt::Display for FrameSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.width, self.height)
    }
}

impl FromStr for FrameSize {
    type Err = FrameSizeError;

    fn from_str(text: &str) -> Result<Self, FrameSizeError> {
        let parse = |text: &str| text.parse::<u16>().ok().filter(|&pixels| pixels > 0);
        let (width, height) = text.split_once('x').ok_or(FrameSizeError)?;
        match (parse(width), parse(height)) {
            (Some(width), Some(height)) => Ok(Self { width, height }),
            _ => Err(FrameSizeError),
        }
    }
}

/// A text that is no frame size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a frame size is written WIDTHxHEIGHT in pixels, 1 to 65535 each, such as 1920x1080")]
pub struct FrameSizeError;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn camera_names_are_checked() {
        for (text, valid) in [
            ("cam1", true),
            ("north-gate.2", true),
            ("", false),
            ("../etc", false),
            ("-rf", false),
            ("a b", false),
            (&"x".repeat(65), false),
        ] {
            assert_eq!(text.parse::<CameraName>().is_ok(), valid, "{text:?}");
        }
    }

    #[test]
    fn frame_sizes_round_trip() {
        let size: FrameSize = "1920x1080".parse().unwrap();
        assert_eq!(size.to_string(), "1920x1080");
        for bad in ["1920", "0x5", "70000x2", "x", "axb"] {
            assert_eq!(bad.parse::<FrameSize>(), Err(FrameSizeError), "{bad}");
        }
    }
}
