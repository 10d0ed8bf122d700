//! Requests, events and verdicts: the same types on both sides, defined and checked in `tidegate-client`.

pub use tidegate_client::{
    ApiError, CameraInfo, Changes, ClockOffset, EndReason, EndSessions, Event, FeedbackOf, Frame,
    Infeasible, KnobsChanged, Missed, MissedWhy, Original, Outcome, Registration,
    ReloadedConfiguration, ServerInfo, SessionInfo, SessionOwner, SessionsPage, Stages, Started,
    SubscribeRequest, SubscriptionId, TransferState, Unchanged, UnsubscribeStatus, Verdict,
};
