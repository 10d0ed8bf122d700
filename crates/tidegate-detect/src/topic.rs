//! Topics of a section.

use std::str::FromStr;

use tidegate_message::{CameraName, check_topic_name};

use crate::pattern::CameraPattern;

/// A topic in which `{camera}` stands for the name of the camera and `{detector}` for that of the section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicTemplate(String);

const CAMERA: &str = "{camera}";
const DETECTOR: &str = "{detector}";

impl TopicTemplate {
    /// The topic of a camera's messages.
    pub fn of(&self, detector: &str, camera: &CameraName) -> String {
        self.0.replace(DETECTOR, detector).replace(CAMERA, camera.as_str())
    }
}

impl TopicTemplate {
    /// The topics of cameras of that pattern, with its stars.
    pub(crate) fn pattern(&self, detector: &str, cameras: &CameraPattern) -> String {
        self.0.replace(DETECTOR, detector).replace(CAMERA, cameras.as_str())
    }
}

impl Default for TopicTemplate {
    fn default() -> Self {
        Self(format!("detections/{CAMERA}/{DETECTOR}"))
    }
}

impl FromStr for TopicTemplate {
    type Err = TopicError;

    fn from_str(text: &str) -> Result<Self, TopicError> {
        let wrong = || TopicError { text: text.to_owned() };
        let plain = text.replace(CAMERA, "c").replace(DETECTOR, "d");
        let is_topic = check_topic_name(&plain, usize::MAX).is_ok() && !plain.contains(['{', '}']);
        // Without the camera, states of two would be one.
        let is_fine = is_topic && text.contains(CAMERA) && !text.starts_with('$');
        is_fine.then(|| Self(text.to_owned())).ok_or_else(wrong)
    }
}

/// A text that is no topic of a section.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is no topic for detections: it is a topic without '+' and '#' that does not begin with '$' and holds {{camera}}, which stands \
     for the camera; {{detector}} stands for the section"
)]
pub struct TopicError {
    /// The text.
    pub text: String,
}

/// The level of originals below the topic of a camera.
pub(crate) const ORIGINAL: &str = "original";
/// The level below it that says whether the camera is watched.
pub(crate) const AVAILABILITY: &str = "availability";

/// A label as one level of a topic, which no other label and nothing else has: characters that do not fit are escaped as in a URL, and so is
/// the first of a label that is a level with another meaning.
pub(crate) fn level(label: &str) -> String {
    let is_taken = [ORIGINAL, AVAILABILITY].contains(&label);
    let mut level = String::with_capacity(label.len());
    for (at, c) in label.char_indices() {
        let fits = !(c.is_control() || c.is_whitespace() || "/+#%".contains(c));
        if fits && !(is_taken && at == 0) {
            level.push(c);
            continue;
        }
        for byte in c.encode_utf8(&mut [0; 4]).bytes() {
            level.push_str(&format!("%{byte:02x}"));
        }
    }
    level
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_hold_the_camera_and_no_wildcard() {
        let camera: CameraName = "yard-1".parse().unwrap();
        for (text, expected) in [
            ("detections/{camera}/{detector}", "detections/yard-1/people"),
            ("site/{camera}", "site/yard-1"),
            ("{detector}.{camera}", "people.yard-1"),
        ] {
            let topic: TopicTemplate = text.parse().unwrap();
            assert_eq!(topic.of("people", &camera), expected);
        }
        let usual = TopicTemplate::default().of("people", &camera);
        assert_eq!(usual, "detections/yard-1/people");
        for wrong in ["", "a/b", "a/{camera}/#", "+/{camera}", "{cam}/{camera}", "$SYS/{camera}"] {
            let error = wrong.parse::<TopicTemplate>().unwrap_err().to_string();
            assert!(error.contains("no topic for detections"), "{error}");
        }
    }

    #[test]
    fn each_label_has_a_level_of_its_own() {
        let mut levels: Vec<String> = Vec::new();
        for (label, expected) in [
            ("person", "person"),
            ("traffic light/#1", "traffic%20light%2f%231"),
            ("traffic_light__1", "traffic_light__1"),
            ("100%", "100%25"),
            ("a b", "a%20b"),
            ("a%20b", "a%2520b"),
            ("\u{2028}", "%e2%80%a8"),
            ("größe", "größe"),
            ("original", "%6friginal"),
            ("%6friginal", "%256friginal"),
            ("availability", "%61vailability"),
            ("originals", "originals"),
        ] {
            assert_eq!(level(label), expected);
            let topic = format!("detections/{expected}");
            assert!(check_topic_name(&topic, usize::MAX).is_ok(), "{topic}");
            assert!(!levels.contains(&topic) && ![ORIGINAL, AVAILABILITY].contains(&expected));
            levels.push(topic);
        }
    }
}
