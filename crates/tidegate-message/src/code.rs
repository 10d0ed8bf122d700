//! Stable error codes.

use std::fmt;

/// A stable name for a kind of failure, such as `frames.bound.infeasible`.
///
/// Codes are part of the interface: scripts and dashboards match on them, texts may change. One table
/// in the shell maps each to a gRPC status and a CLI exit status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Code(&'static str);

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)+) => {
        impl Code {
            $($(#[$doc])* pub const $name: Self = Self($text);)+
            /// Every code, in order of declaration.
            pub const ALL: &[Self] = &[$(Self::$name,)+];
        }
    };
}

codes! {
    /// A latency or accuracy bound outside its range.
    BOUND_INVALID = "frames.bound.invalid";
    /// No knob setting keeps both bounds at the capacity there is.
    BOUND_INFEASIBLE = "frames.bound.infeasible";
    /// No camera of that name is registered.
    CAMERA_UNKNOWN = "frames.camera.unknown";
    /// The camera is registered but its node cannot be reached now.
    CAMERA_OFFLINE = "frames.camera.offline";
    /// Another live node already holds that camera name.
    CAMERA_TAKEN = "frames.camera.taken";
    /// Another node serves the camera; the error names it.
    CAMERA_ELSEWHERE = "frames.camera.elsewhere";
    /// The frame is no JPEG that can be carried.
    FRAME_INVALID = "frames.frame.invalid";
    /// The frame is larger than the limit.
    FRAME_TOO_LARGE = "frames.frame.too_large";
    /// The frame's timestamp is not later than the last, or lies in the future.
    FRAME_TIMESTAMP = "frames.frame.timestamp";
    /// The frame is no longer, or was never, in the log.
    FRAME_MISSING = "frames.frame.missing";
    /// The time range is empty or reversed.
    RANGE_INVALID = "frames.range.invalid";
    /// No subscription of that id.
    SUBSCRIPTION_UNKNOWN = "frames.subscription.unknown";
    /// A characterization table cannot be read.
    TABLE_INVALID = "frames.table.invalid";
    /// No table fits the camera, detector and profile.
    TABLE_MISSING = "frames.table.missing";
    /// The controller failed and was replaced by `fixed`.
    CONTROLLER_FAILED = "frames.controller.failed";
    /// The detector worker failed or answered nonsense.
    DETECTOR_FAILED = "vision.detector.failed";
    /// No detector worker runs now.
    DETECTOR_UNAVAILABLE = "vision.detector.unavailable";
    /// The image cannot be used: it is cut off, damaged or has no pixels.
    IMAGE_INVALID = "vision.image.invalid";
    /// The bytes are not an image of a kind that is taken.
    IMAGE_TYPE = "vision.image.type";
    /// The image has more bytes or pixels than are taken.
    IMAGE_TOO_LARGE = "vision.image.too_large";
    /// No model of that name is there.
    MODEL_UNKNOWN = "vision.model.unknown";
    /// The model cannot be loaded, or cannot be used in that way.
    MODEL_REFUSED = "vision.model.refused";
    /// A request for detection that has no image, or is not in a form that is known.
    DETECT_INVALID = "vision.request.invalid";
    /// The peer's certificate or identity is not accepted.
    IDENTITY_REFUSED = "auth.identity.refused";
    /// The authority has taken the certificate back.
    IDENTITY_REVOKED = "auth.identity.revoked";
    /// The identity may not do this.
    ACTION_DENIED = "auth.action.denied";
    /// The node is a member of no fabric: none is configured, or it has left.
    FABRIC_OFF = "fabric.off";
    /// The fabric has no member of that name or identity.
    MEMBER_UNKNOWN = "fabric.member.unknown";
    /// The member is here, so that it cannot be forgotten.
    MEMBER_HERE = "fabric.member.here";
    /// The peer broke the link protocol.
    LINK_PROTOCOL = "link.protocol";
    /// Input at a listener other than MQTT makes no message.
    INGEST_INVALID = "ingest.message.invalid";
    /// It is larger than the listener takes.
    INGEST_TOO_LARGE = "ingest.message.too_large";
    /// A request of HTTP is malformed: its query, its headers or its body.
    REQUEST_INVALID = "request.invalid";
    /// The path of a request of HTTP is none of this node.
    PATH_UNKNOWN = "request.path.unknown";
    /// The link is down.
    LINK_DOWN = "link.down";
    /// A configuration file, flag or variable is wrong.
    CONFIG_INVALID = "config.invalid";
    /// A file could not be read or written.
    STORAGE_FAILED = "storage.failed";
    /// The disk has no room for more.
    STORAGE_FULL = "storage.full";
    /// A limit of memory, subscriptions or connections is reached.
    LIMIT_REACHED = "limit.reached";
    /// A broken invariant of ours.
    INTERNAL = "internal";
}

impl Code {
    /// The code as text.
    pub const fn as_str(self) -> &'static str {
        self.0
    }

    /// The code of that text, if there is one.
    pub fn named(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|code| code.0 == text)
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_unique_and_found_by_text() {
        for code in Code::ALL {
            assert_eq!(Code::named(code.as_str()), Some(*code));
        }
        assert_eq!(Code::named("no.such"), None);
    }
}
