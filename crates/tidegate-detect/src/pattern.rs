//! Which cameras a section means.

use std::{fmt, str::FromStr};

use tidegate_message::CameraName;

/// The name of a camera, or names in which `*` stands for any letters, none included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CameraPattern(String);

impl CameraPattern {
    /// The one camera that it names; none if it holds a `*`.
    pub fn exact(&self) -> Option<CameraName> {
        self.0.parse().ok()
    }

    /// Whether it means that camera, which may be the substream of another. One that means a camera does not mean its substream, which shows
    /// the same once more; one for substreams alone does, such as `*-sub`.
    pub fn means(&self, camera: &CameraName, substream_of: Option<&CameraName>) -> bool {
        self.matches(camera) && !substream_of.is_some_and(|main| self.matches(main))
    }

    /// Whether it is the name of that camera.
    pub fn matches(&self, camera: &CameraName) -> bool {
        let mut parts = self.0.split('*');
        let first = parts.next().unwrap_or_default();
        let Some(mut rest) = camera.as_str().strip_prefix(first) else { return false };
        let Some(last) = parts.next_back() else { return rest.is_empty() };
        for part in parts {
            // The first place leaves most for the parts behind it.
            let Some(at) = rest.find(part) else { return false };
            rest = &rest[at + part.len()..];
        }
        rest.ends_with(last)
    }
}

impl CameraPattern {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// Whether there is a topic that both patterns mean: texts in which `*` stands for any letters of one level.
pub(crate) fn topics_meet(a: &str, b: &str) -> bool {
    let (mut a, mut b) = (a.split('/'), b.split('/'));
    loop {
        match (a.next(), b.next()) {
            (None, None) => return true,
            (Some(a), Some(b)) if words_meet(a.as_bytes(), b.as_bytes()) => {}
            _ => return false,
        }
    }
}

/// The same of one level.
fn words_meet(a: &[u8], b: &[u8]) -> bool {
    // Whether the rest of `a` and each rest of `b` meet, from the ends on.
    let mut behind = vec![false; b.len() + 1];
    for i in (0..=a.len()).rev() {
        let mut row = vec![false; b.len() + 1];
        for j in (0..=b.len()).rev() {
            row[j] = match (a.get(i), b.get(j)) {
                (None, None) => true,
                // A star stands for nothing, or for the other's next letter and more.
                (Some(b'*'), other) => behind[j] || (other.is_some() && row[j + 1]),
                (mine, Some(b'*')) => row[j + 1] || (mine.is_some() && behind[j]),
                (Some(mine), Some(other)) => mine == other && behind[j + 1],
                _ => false,
            };
        }
        behind = row;
    }
    behind[0]
}

impl FromStr for CameraPattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        // A name could have a letter in place of each star.
        let is_fine = text.replace('*', "x").parse::<CameraName>().is_ok();
        if is_fine { Ok(Self(text.to_owned())) } else { Err(PatternError(text.to_owned())) }
    }
}

impl fmt::Display for CameraPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Neither a name nor a pattern of names.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} names no camera; a name has 1 to 64 letters, digits, '.', '_' or '-', and '*' stands for any of them"
)]
pub struct PatternError(String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_that_means_a_camera_does_not_mean_its_substream() {
        let (camera, substream): (CameraName, CameraName) =
            ("hall".parse().unwrap(), "hall-sub".parse().unwrap());
        for (pattern, of_camera, of_substream) in [
            ("*", true, false),
            ("hall*", true, false),
            ("*-sub", false, true),
            ("hall-*", false, true),
        ] {
            let pattern: CameraPattern = pattern.parse().unwrap();
            let meant = (pattern.means(&camera, None), pattern.means(&substream, Some(&camera)));
            assert_eq!(meant, (of_camera, of_substream), "{pattern:?}");
        }
    }

    #[test]
    fn stars_stand_for_any_letters() {
        for (pattern, camera, expected) in [
            ("cam1", "cam1", true),
            ("cam1", "cam10", false),
            ("*", "cam1", true),
            ("yard-*", "yard-2", true),
            ("yard-*", "yard-", true),
            ("yard-*", "backyard-2", false),
            ("*-door", "front-door", true),
            ("*-door", "front-door-2", false),
            ("a*b*c", "abc", true),
            ("a*b*c", "axxbxbyc", true),
            ("a*b*c", "acb", false),
            ("ab*ba", "aba", false), // the parts do not share letters
            ("**", "x", true),
        ] {
            let parsed: CameraPattern = pattern.parse().unwrap();
            assert_eq!(parsed.matches(&camera.parse().unwrap()), expected, "{pattern} {camera}");
            assert_eq!(parsed.exact().is_some(), !pattern.contains('*'), "{pattern}");
        }
        for wrong in ["", "a b", "a/*", "+", "#"] {
            let error = wrong.parse::<CameraPattern>().unwrap_err().to_string();
            assert!(error.contains("names no camera"), "{error}");
        }
    }

    #[test]
    fn patterns_of_topics_meet_where_one_topic_is_of_both() {
        for (a, b, expected) in [
            ("a/b", "a/b", true),
            ("a/b", "a/c", false),
            ("a/b", "a/b/c", false),
            ("a/*", "a/b", true),
            ("a/*", "a/b/c", false),
            ("a/yard-*", "a/*-door", true),
            ("a/yard-*", "a/hall-*", false),
            ("a/x*y", "a/x*z", false),
            ("a*b*c/d", "ab*c/*", true),
            ("*/x", "cam1/*", true),
            ("ab*ba", "aba", false), // the parts do not share letters
            ("**", "", true),
        ] {
            assert_eq!(topics_meet(a, b), expected, "{a} {b}");
            assert_eq!(topics_meet(b, a), expected, "{b} {a}");
        }
    }
}
