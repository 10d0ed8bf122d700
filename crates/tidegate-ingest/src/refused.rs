//! Why something is not taken, and how each protocol says so.

use std::{sync::atomic::AtomicU64, time::Duration};

use hyper::StatusCode;
use tidegate_api::ApiError;
use tidegate_device::line::Unmapped;
use tidegate_message::{Code, TopicError};
use tidegate_wire::mqtt::ReasonCode;

use super::{counters::Counters, publisher::Unanswered};

/// Why something is not taken.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refused {
    /// It was not authenticated, or has no right.
    #[error(transparent)]
    Access(#[from] ApiError),
    #[error("{topic:?} is not a topic")]
    Topic { topic: String, source: TopicError },
    #[error("{what} has more than {bytes_max} bytes; send less at once")]
    TooLarge { what: &'static str, bytes_max: usize },
    #[error("more than {max} messages come at once; send less at once")]
    TooMany { max: usize },
    #[error("more comes than is taken a second; continue after {after:?}")]
    Rate { after: Duration },
    #[error("the queue here is full; try again")]
    Full,
    #[error("the expected bytes did not come in time")]
    Slow,
    #[error("it was interrupted")]
    Broken,
    /// It is malformed; the text says what would be right.
    #[error("{0}")]
    Invalid(String),
    /// A form that is not taken; which are.
    #[error("{0}")]
    Form(String),
    /// Another protocol is spoken here.
    #[error("{0}")]
    Upgrade(&'static str),
    #[error(transparent)]
    Line(#[from] Unmapped),
    #[error(transparent)]
    Unanswered(#[from] Unanswered),
    #[error("the broker refuses it: {0}")]
    Broker(ReasonCode),
}

impl Refused {
    /// The refusal in the broker's answer to a message, if it is one.
    pub(super) fn of_reason(reason: ReasonCode) -> Result<(), Self> {
        if reason.0 < 0x80 { Ok(()) } else { Err(Self::Broker(reason)) }
    }

    /// Its stable code.
    pub(super) fn code(&self) -> Code {
        match self {
            Self::Access(error) => error.code(),
            Self::TooLarge { .. }
            | Self::TooMany { .. }
            | Self::Line(Unmapped::TooLarge { .. }) => Code::INGEST_TOO_LARGE,
            Self::Rate { .. } | Self::Full => Code::LIMIT_REACHED,
            Self::Broker(ReasonCode::NOT_AUTHORIZED) => Code::ACTION_DENIED,
            Self::Broker(_) => Code::LIMIT_REACHED,
            Self::Unanswered(_) => Code::LINK_DOWN,
            Self::Topic { .. }
            | Self::Slow
            | Self::Broken
            | Self::Invalid(_)
            | Self::Form(_)
            | Self::Upgrade(_)
            | Self::Line(_) => Code::INGEST_INVALID,
        }
    }

    /// Its status of HTTP.
    pub(super) fn status(&self) -> StatusCode {
        match self {
            Self::Slow => StatusCode::REQUEST_TIMEOUT,
            Self::Form(_) => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::Upgrade(_) => StatusCode::UPGRADE_REQUIRED,
            Self::Rate { .. } => StatusCode::TOO_MANY_REQUESTS,
            _ => match self.code() {
                Code::IDENTITY_REFUSED | Code::IDENTITY_REVOKED => StatusCode::UNAUTHORIZED,
                Code::ACTION_DENIED => StatusCode::FORBIDDEN,
                Code::INGEST_INVALID => StatusCode::BAD_REQUEST,
                Code::INGEST_TOO_LARGE => StatusCode::PAYLOAD_TOO_LARGE,
                Code::LIMIT_REACHED | Code::LINK_DOWN => StatusCode::SERVICE_UNAVAILABLE,
                _ => StatusCode::INTERNAL_SERVER_ERROR,
            },
        }
    }

    /// When to try again, if that helps.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Rate { after } => Some(*after),
            _ if self.status() == StatusCode::SERVICE_UNAVAILABLE => Some(Duration::from_secs(1)),
            _ => None,
        }
    }

    /// Where it is counted.
    pub(super) fn counter<'a>(&self, counters: &'a Counters) -> &'a AtomicU64 {
        match self {
            Self::Slow => &counters.timed_out,
            Self::Rate { .. } => &counters.limited,
            _ => match self.code() {
                Code::IDENTITY_REFUSED | Code::IDENTITY_REVOKED | Code::ACTION_DENIED => {
                    &counters.denied
                }
                Code::INGEST_TOO_LARGE => &counters.too_large,
                Code::INGEST_INVALID => &counters.invalid,
                _ => &counters.refused,
            },
        }
    }
}
