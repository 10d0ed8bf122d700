//! Requests and their plain answers.

use tidegate_message::{Bounds, Code, Demand, FrameRate, Instant};

use super::{Choice, lacks, latency, nanos};
use crate::{
    ApiError, Changes, FeedbackOf, Original, Registration, Started, SubscribeRequest,
    SubscriptionId, TransferState, UnsubscribeStatus, proto,
};

impl From<Demand> for proto::Demand {
    fn from(demand: Demand) -> Self {
        Self {
            latency_nanos: nanos(demand.bounds.latency()),
            accuracy: demand.bounds.accuracy(),
            controller: proto::Controller::from(demand.controller).into(),
            delivery: proto::Delivery::from(demand.delivery).into(),
            when_infeasible: proto::WhenInfeasible::from(demand.when_infeasible).into(),
            profile: proto::Profile::from(demand.profile).into(),
            frames_per_second: demand.frame_rate.map_or(0.0, FrameRate::frames_per_second),
        }
    }
}

impl TryFrom<proto::Demand> for Demand {
    type Error = ApiError;

    fn try_from(demand: proto::Demand) -> Result<Self, ApiError> {
        Ok(Self {
            bounds: Bounds::new(latency(demand.latency_nanos)?, demand.accuracy)?,
            controller: Choice::of(demand.controller)?.unwrap_or_default(),
            delivery: Choice::of(demand.delivery)?.unwrap_or_default(),
            when_infeasible: Choice::of(demand.when_infeasible)?.unwrap_or_default(),
            profile: Choice::of(demand.profile)?.unwrap_or_default(),
            frame_rate: frame_rate(demand.frames_per_second)?,
        })
    }
}

/// The most frames a second, 0 being as many as the camera makes.
fn frame_rate(frames_per_second: f64) -> Result<Option<FrameRate>, ApiError> {
    match frames_per_second {
        0.0 => Ok(None),
        rate => Ok(Some(FrameRate::new(rate)?)),
    }
}

impl From<Changes> for proto::DemandChanges {
    fn from(changes: Changes) -> Self {
        Self {
            latency_nanos: changes.latency.map(nanos),
            accuracy: changes.accuracy,
            controller: changes.controller.map_or(0, |it| proto::Controller::from(it).into()),
            delivery: changes.delivery.map_or(0, |it| proto::Delivery::from(it).into()),
            when_infeasible: changes
                .when_infeasible
                .map_or(0, |it| proto::WhenInfeasible::from(it).into()),
            profile: changes.profile.map_or(0, |it| proto::Profile::from(it).into()),
            frames_per_second: changes
                .frame_rate
                .map(|rate| rate.map_or(0.0, FrameRate::frames_per_second)),
        }
    }
}

/// Checks each bound that is given; together with those that stay they are checked on application.
impl TryFrom<proto::DemandChanges> for Changes {
    type Error = ApiError;

    fn try_from(changes: proto::DemandChanges) -> Result<Self, ApiError> {
        let checked = Self {
            latency: changes.latency_nanos.map(latency).transpose()?,
            accuracy: changes.accuracy,
            controller: Choice::of(changes.controller)?,
            delivery: Choice::of(changes.delivery)?,
            when_infeasible: Choice::of(changes.when_infeasible)?,
            profile: Choice::of(changes.profile)?,
            frame_rate: changes.frames_per_second.map(frame_rate).transpose()?,
        };
        let latency = checked.latency.unwrap_or(Bounds::LATENCY_MAX);
        Bounds::new(latency, checked.accuracy.unwrap_or(0.0))?;
        Ok(checked)
    }
}

impl From<SubscribeRequest> for proto::SubscribeRequest {
    fn from(request: SubscribeRequest) -> Self {
        Self {
            camera: request.camera.to_string(),
            from: request.from.map(Instant::as_nanos),
            from_epoch: request.from_epoch,
            to: request.to.map(Instant::as_nanos),
            demand: Some(request.demand.into()),
            detector: request.detector.unwrap_or_default(),
            scene: request.scene.unwrap_or_default(),
        }
    }
}

impl TryFrom<proto::SubscribeRequest> for SubscribeRequest {
    type Error = ApiError;

    fn try_from(request: proto::SubscribeRequest) -> Result<Self, ApiError> {
        let demand = request.demand.ok_or_else(|| {
            let message =
                "a subscription names its bounds: fill `demand` with latency and accuracy";
            ApiError::new(Code::BOUND_INVALID, message)
        })?;
        let given = |word: String| Some(word).filter(|word| !word.is_empty());
        let checked = Self {
            camera: request.camera.parse()?,
            from: request.from.map(Instant::from_nanos),
            from_epoch: request.from_epoch,
            to: request.to.map(Instant::from_nanos),
            demand: demand.try_into()?,
            detector: given(request.detector),
            scene: given(request.scene),
        };
        checked.check()?;
        Ok(checked)
    }
}

impl From<Started> for proto::Started {
    fn from(started: Started) -> Self {
        Self { subscription_id: started.id.0, demand: Some(started.demand.into()) }
    }
}

impl TryFrom<proto::Started> for Started {
    type Error = ApiError;

    fn try_from(started: proto::Started) -> Result<Self, ApiError> {
        let demand = started.demand.ok_or_else(|| lacks("Started", "demand"))?.try_into()?;
        Ok(Self { id: SubscriptionId(started.subscription_id), demand })
    }
}

impl From<UnsubscribeStatus> for proto::UnsubscribeResponse {
    fn from(status: UnsubscribeStatus) -> Self {
        use proto::unsubscribe_response::Transfer;
        let transfer = match status.transfer {
            TransferState::Continues => Transfer::Continues,
            TransferState::Stopped => Transfer::Stopped,
        };
        Self { transfer: transfer.into(), delivered: status.delivered, missed: status.missed }
    }
}

impl TryFrom<proto::UnsubscribeResponse> for UnsubscribeStatus {
    type Error = ApiError;

    fn try_from(status: proto::UnsubscribeResponse) -> Result<Self, ApiError> {
        use proto::unsubscribe_response::Transfer;
        let transfer = match status.transfer() {
            Transfer::Continues => TransferState::Continues,
            Transfer::Stopped => TransferState::Stopped,
            Transfer::Unspecified => return Err(lacks("UnsubscribeResponse", "transfer")),
        };
        Ok(Self { transfer, delivered: status.delivered, missed: status.missed })
    }
}

impl From<Registration> for proto::RegisterRequest {
    fn from(registration: Registration) -> Self {
        Self {
            camera: registration.camera.to_string(),
            size: registration.size.map(Into::into),
            frames_per_second: registration.frames_per_second.unwrap_or(0.0),
        }
    }
}

impl TryFrom<proto::RegisterRequest> for Registration {
    type Error = ApiError;

    fn try_from(request: proto::RegisterRequest) -> Result<Self, ApiError> {
        let rate = request.frames_per_second;
        if !(0.0..=1000.0).contains(&rate) {
            let message = format!("{rate} frames a second is outside 0 (not known) to 1000");
            return Err(ApiError::new(Code::FRAME_INVALID, message));
        }
        Ok(Self {
            camera: request.camera.parse()?,
            size: request.size.map(TryInto::try_into).transpose()?,
            frames_per_second: Some(rate).filter(|&rate| rate > 0.0),
        })
    }
}

impl From<Original> for proto::FetchOriginalResponse {
    fn from(original: Original) -> Self {
        Self { captured_at: original.captured_at.as_nanos(), jpeg: original.jpeg }
    }
}

impl From<proto::FetchOriginalResponse> for Original {
    fn from(answer: proto::FetchOriginalResponse) -> Self {
        Self { captured_at: Instant::from_nanos(answer.captured_at), jpeg: answer.jpeg }
    }
}

impl From<FeedbackOf> for proto::FeedbackRequest {
    fn from(of: FeedbackOf) -> Self {
        use proto::feedback_request::Of;
        Self {
            of: Some(match of {
                FeedbackOf::Subscription(id) => Of::SubscriptionId(id.0),
                FeedbackOf::Camera(name) => Of::Camera(name.to_string()),
            }),
        }
    }
}

impl TryFrom<proto::FeedbackRequest> for FeedbackOf {
    type Error = ApiError;

    fn try_from(request: proto::FeedbackRequest) -> Result<Self, ApiError> {
        use proto::feedback_request::Of;
        match request.of {
            Some(Of::SubscriptionId(id)) => Ok(Self::Subscription(SubscriptionId(id))),
            Some(Of::Camera(name)) => Ok(Self::Camera(name.parse()?)),
            None => {
                let message = "feedback is of a subscription or of a camera: fill one of the two";
                Err(ApiError::new(Code::SUBSCRIPTION_UNKNOWN, message))
            }
        }
    }
}
