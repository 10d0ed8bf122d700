//! Applies knob settings to the frames of one camera.

use tidegate_message::FrameSize;

use super::{FrameError, FrameLimits, KnobSetting, inspect};

/// Applies knob settings to the frames of one camera; keeps its buffers from frame to frame.
pub struct Transcoder {
    limits: FrameLimits,
    own: TransferState,
}

/// What one transfer has seen and sent: the reference of its differencing and its background.
///
/// A camera with several transfers keeps one of these for each and shares the [`Transcoder`].
#[derive(Debug, Default)]
pub struct TransferState {}

/// What came of a frame.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Applied {
    /// The output holds a JPEG image.
    Encoded {
        /// Its width and height.
        size: FrameSize,
    },
    /// Differencing holds the frame back; the output is empty.
    Unchanged {
        /// The fraction of the 1/8 image that changed since the last frame sent, 0 to 1.
        changed: f32,
    },
}

impl Transcoder {
    /// A transcoder that refuses frames over `limits`.
    pub fn new(limits: FrameLimits) -> Self {
        Self { limits, own: TransferState::default() }
    }

    /// Applies `setting` to `jpeg` and puts the result in `out`, whose content is replaced.
    ///
    /// # Errors
    /// [`FrameError`] if the frame cannot be carried; `out` is empty then.
    pub fn apply(
        &mut self,
        jpeg: &[u8],
        setting: &KnobSetting,
        out: &mut Vec<u8>,
    ) -> Result<Applied, FrameError> {
        let mut own = std::mem::take(&mut self.own);
        let applied = self.apply_for(&mut own, jpeg, setting, out);
        self.own = own;
        applied
    }

    /// As [`apply`](Self::apply), for one of several transfers of the camera.
    ///
    /// # Errors
    /// As [`apply`](Self::apply).
    pub fn apply_for(
        &mut self,
        _transfer: &mut TransferState,
        jpeg: &[u8],
        setting: &KnobSetting,
        out: &mut Vec<u8>,
    ) -> Result<Applied, FrameError> {
        out.clear();
        let info = inspect(jpeg, &self.limits)?;
        if !setting.is_original() {
            return Err(FrameError::Unsupported { what: "knobs other than original" });
        }
        out.extend_from_slice(jpeg);
        Ok(Applied::Encoded { size: info.size })
    }

    /// Says that the frame last encoded by [`apply`](Self::apply) was sent: differencing compares with it
    /// from now on. A frame that the link dropped is not said to be sent.
    pub fn sent(&mut self) {
        self.own.sent();
    }
}

impl TransferState {
    /// A transfer that has sent nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Says that the frame last encoded for this transfer was sent.
    pub fn sent(&mut self) {}
}
