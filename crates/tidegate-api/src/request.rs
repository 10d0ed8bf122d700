//! A client's requests, checked.

use std::{fmt, time::Duration};

use tidegate_message::{
    AdaptationProfile, Bounds, CameraName, Code, ControllerKind, Delivery, Demand, FrameRate,
    FrameSize, Instant, WhenInfeasible,
};

use crate::error::ApiError;

/// Frames of one camera within a time range and bounds.
#[derive(Clone, Debug, PartialEq)]
pub struct SubscribeRequest {
    /// The camera.
    pub camera: CameraName,
    /// Frames captured at or after this; from now on if none.
    pub from: Option<Instant>,
    /// The epoch that `from` counts in, to resume after a frame that was received: if the camera has begun
    /// another one since, all of that one comes. None: `from` is meant by the camera's clock of now.
    pub from_epoch: Option<u64>,
    /// Frames captured before this; forever if none.
    pub to: Option<Instant>,
    /// The demand that every frame must keep.
    pub demand: Demand,
    /// Detector whose characterization table is used; the node's choice if none.
    pub detector: Option<String>,
    /// Scene class of the table; the node's choice if none.
    pub scene: Option<String>,
}

impl SubscribeRequest {
    /// Frames from now on within the two bounds, everything else at its default.
    ///
    /// # Errors
    /// [`Code::CAMERA_UNKNOWN`] if `camera` is no camera name, [`Code::BOUND_INVALID`] if a bound is out
    /// of its range.
    pub fn new(camera: &str, latency: Duration, accuracy: f64) -> Result<Self, ApiError> {
        let demand = Demand {
            bounds: Bounds::new(latency, accuracy)?,
            controller: ControllerKind::default(),
            delivery: Delivery::default(),
            when_infeasible: WhenInfeasible::default(),
            profile: AdaptationProfile::default(),
            frame_rate: None,
        };
        Ok(Self::with_demand(camera.parse()?, demand))
    }

    /// Frames from now on that keep `demand`.
    pub fn with_demand(camera: CameraName, demand: Demand) -> Self {
        Self { camera, from: None, from_epoch: None, to: None, demand, detector: None, scene: None }
    }

    /// Checks what holds between the fields.
    ///
    /// # Errors
    /// [`Code::RANGE_INVALID`] if `to` is not after `from`, [`Code::TABLE_MISSING`] if the detector or
    /// the scene has a name that no table can have.
    pub fn check(&self) -> Result<(), ApiError> {
        if let (Some(from), Some(to)) = (self.from, self.to)
            && to <= from
        {
            let message = format!("`to` ({to}) must be after `from` ({from})");
            return Err(ApiError::new(Code::RANGE_INVALID, message));
        }
        // Both are looked up among the names of files, hence the narrow alphabet of camera names.
        for (what, word) in [("detector", &self.detector), ("scene", &self.scene)] {
            if let Some(word) = word
                && word.parse::<CameraName>().is_err()
            {
                let message = format!(
                    "no table is made for {what} {word:?}: its name has 1 to 64 letters, digits, '.', '_' or '-'"
                );
                return Err(ApiError::new(Code::TABLE_MISSING, message));
            }
        }
        Ok(())
    }
}

/// Changes to the demand of a running subscription; none leaves a value as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Changes {
    /// New latency bound.
    pub latency: Option<Duration>,
    /// New accuracy bound.
    pub accuracy: Option<f64>,
    /// New controller.
    pub controller: Option<ControllerKind>,
    /// New delivery.
    pub delivery: Option<Delivery>,
    /// New policy.
    pub when_infeasible: Option<WhenInfeasible>,
    /// New family of knobs.
    pub profile: Option<AdaptationProfile>,
    /// New frame rate at most, or as many frames as the camera makes.
    pub frame_rate: Option<Option<FrameRate>>,
}

impl Changes {
    /// `demand` with these changes.
    ///
    /// # Errors
    /// [`Code::BOUND_INVALID`] if a bound would be out of its range.
    pub fn apply(&self, demand: Demand) -> Result<Demand, ApiError> {
        let latency = self.latency.unwrap_or(demand.bounds.latency());
        let accuracy = self.accuracy.unwrap_or(demand.bounds.accuracy());
        Ok(Demand {
            bounds: Bounds::new(latency, accuracy)?,
            controller: self.controller.unwrap_or(demand.controller),
            delivery: self.delivery.unwrap_or(demand.delivery),
            when_infeasible: self.when_infeasible.unwrap_or(demand.when_infeasible),
            profile: self.profile.unwrap_or(demand.profile),
            frame_rate: self.frame_rate.unwrap_or(demand.frame_rate),
        })
    }
}

/// A camera whose frames will be published.
#[derive(Clone, Debug, PartialEq)]
pub struct Registration {
    /// The camera.
    pub camera: CameraName,
    /// Size of the frames to come, if known.
    pub size: Option<FrameSize>,
    /// Frames a second to come, if known.
    pub frames_per_second: Option<f64>,
}

/// Names a subscription of one node; never used twice while the node runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SubscriptionId(pub u64);

impl fmt::Display for SubscriptionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A subscription that runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Started {
    /// Its name for the calls that change or end it.
    pub id: SubscriptionId,
    /// The demand on every frame.
    pub demand: Demand,
}

/// The result of an unsubscribe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnsubscribeStatus {
    /// The state of the transfer that served it.
    pub transfer: TransferState,
    /// Frames delivered over its life, `unchanged` markers included.
    pub delivered: u64,
    /// Frames it missed, for whatever reason.
    pub missed: u64,
}

/// The state of a transfer after a subscription ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferState {
    /// Other subscriptions still use it.
    Continues,
    /// That was the last one: the camera stops sending it.
    Stopped,
}

/// The frames whose verdicts are wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FeedbackOf {
    /// Of the transfer that serves one subscription.
    Subscription(SubscriptionId),
    /// Of every transfer of a camera.
    Camera(CameraName),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_leave_the_rest_and_check_the_whole() {
        let request = SubscribeRequest::new("cam1", Duration::from_millis(100), 0.95).unwrap();
        let changes = Changes { accuracy: Some(0.9), ..Changes::default() };
        let changed = changes.apply(request.demand).unwrap();
        assert_eq!(changed.bounds, Bounds::new(Duration::from_millis(100), 0.9).unwrap());
        assert_eq!(changed.controller, request.demand.controller);
        let changes = Changes { latency: Some(Duration::ZERO), ..Changes::default() };
        assert_eq!(changes.apply(request.demand).unwrap_err().code(), Code::BOUND_INVALID);
    }

    #[test]
    fn ranges_and_table_names_are_checked() {
        let request = SubscribeRequest::new("cam1", Duration::from_millis(100), 0.95).unwrap();
        let at = Instant::from_millis;
        for (from, to, detector, expected) in [
            (None, None, None, None),
            (Some(at(1)), Some(at(2)), Some("moving"), None),
            (Some(at(2)), Some(at(2)), None, Some(Code::RANGE_INVALID)),
            (Some(at(2)), Some(at(1)), None, Some(Code::RANGE_INVALID)),
            (None, None, Some("../../etc/passwd"), Some(Code::TABLE_MISSING)),
        ] {
            let request = SubscribeRequest {
                from,
                to,
                detector: detector.map(str::to_owned),
                ..request.clone()
            };
            assert_eq!(request.check().err().map(|error| error.code()), expected, "{request:?}");
        }
    }
}
