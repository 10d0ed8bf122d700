//! `[privacy]`.

use tidegate_message::{Confidential, Regions, command};

use crate::words::{Cover, Originals};

section! {
    /// `[privacy]`: the private parts of its cameras' frames. It is covered before a frame leaves the camera's node; its log
    /// keeps the frames as they were captured.
    PrivacySection: fixed {
        /// Regions that become one gray, as `LEFT,TOP,RIGHT,BOTTOM` in fractions of width and height, several with `;` between:
        /// `0,0,0.25,0.4; 0.5,0.5,1,1`. Default none.
        fill: Regions = Regions::default(),
        /// Regions of which at most 6 x 6 grays are left: a person's presence can be seen, but not recognized.
        /// Default none.
        blur: Regions = Regions::default(),
        /// Objects to cover wherever they are found: `face`, `person`, or `command` for a program of yours that speaks the
        /// detector protocol. Detectors overlook: only regions are certain. While it fails, frames are covered whole. Default
        /// none.
        detector: Option<String> = None
            => "face, person, or command with privacy.detector_command" if |it, _| it.names_detector(),
        /// That program and its arguments. Default none.
        detector_command: Option<Confidential> = None,
        /// How what is found is covered: `fill` or `blur`. Default `blur`.
        detected: Cover = Cover::Blur,
        /// How a frame that was delivered is given when its original is asked for: `covered`, or `clear` as it was captured.
        /// Default `covered`.
        originals: Originals = Originals::Covered,
    }
}

impl PrivacySection {
    /// Whether what is to find what is covered is one that this can be left to: not one that learns a background and finds what moves.
    fn names_detector(&self) -> bool {
        match (self.detector.as_deref(), self.detector_command.as_ref()) {
            (None, None) | (Some("face" | "person"), None) => true,
            (Some("command"), Some(command)) => command::split(command.expose()).is_some(),
            _ => false,
        }
    }
}
