//! Between the generated messages and the types of this crate: the one place where what came over the
//! wire is checked.
//!
//! A request that breaks a bound is refused with the code of that bound. An answer that lacks what the
//! protocol promises is `link.protocol`: the peer is another program than it claims.

mod camera;
mod event;
mod fabric;
mod request;

use std::{sync::Arc, time::Duration};

use tidegate_message::{
    AdaptationProfile, BoundsError, Code, ControllerKind, Delivery, WhenInfeasible,
};

use crate::{error::ApiError, proto};

/// Nanoseconds of a duration; the largest number for anything over 292 years.
fn nanos(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

/// The duration of an answer; a negative one, which no clock can mean, is zero.
fn duration(nanos: i64) -> Duration {
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(0))
}

/// The latency of a request; its range is checked with the accuracy.
fn latency(nanos: i64) -> Result<Duration, ApiError> {
    let checked = u64::try_from(nanos).map(Duration::from_nanos);
    checked.map_err(|_| BoundsError::Latency { millis: nanos as f64 / 1e6 }.into())
}

fn lacks(message: &str, field: &str) -> ApiError {
    let text = format!("the peer's {message} lacks `{field}`: it speaks another protocol version");
    ApiError::new(Code::LINK_PROTOCOL, text)
}

/// None is the enum's 0: the default of a request, "no change" of an update.
trait Choice: Sized + Copy + 'static {
    fn of(number: i32) -> Result<Option<Self>, ApiError>;
}

macro_rules! choice {
    ($native:ident, $wire:ident { $($variant:ident),+ }) => {
        impl From<$native> for proto::$wire {
            fn from(choice: $native) -> Self {
                match choice { $($native::$variant => Self::$variant,)+ }
            }
        }

        impl Choice for $native {
            fn of(number: i32) -> Result<Option<Self>, ApiError> {
                match proto::$wire::try_from(number) {
                    Ok(proto::$wire::Unspecified) => Ok(None),
                    $(Ok(proto::$wire::$variant) => Ok(Some(Self::$variant)),)+
                    Err(_) => {
                        let known = Self::ALL.iter().map(|choice| choice.as_str());
                        let message = format!(
                            "{} {number} is not known here; choose one of: {}",
                            stringify!($wire),
                            known.collect::<Vec<_>>().join(" ")
                        );
                        Err(ApiError::new(Code::BOUND_INVALID, message))
                    }
                }
            }
        }
    };
}

choice!(ControllerKind, Controller { Budget, MezPi, Aimd, Fixed });
choice!(Delivery, Delivery { Latest, Every });
choice!(WhenInfeasible, WhenInfeasible { KeepLatency, KeepAccuracy, Pause });
choice!(AdaptationProfile, Profile { Jpeg, Mez });

/// Texts of events are shared on the node and owned by a message.
fn text(shared: &Arc<str>) -> String {
    shared.as_ref().to_owned()
}
