//! The bounds that a viewer asks for, in the query of its request or in a message.

use std::time::Duration;

use axum::extract::{Query, rejection::QueryRejection};
use serde::Deserialize;
use tidegate_api::{ApiError, Changes, SubscribeRequest};
use tidegate_message::{Code, FrameRate};
use tidegate_rpc::Failure;

/// Bounds of a viewer that names none: half a second is live to a person, and of each frame a detector would find nine tenths.
const LATENCY: Duration = Duration::from_millis(500);
const ACCURACY: f64 = 0.9;

/// Names and values in the order of a query.
pub(crate) type Pairs = Vec<(String, String)>;

/// Bounds, each left out where the usual one, or the one before, is to be kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Wish {
    /// Longest time from capture to the viewer, in milliseconds.
    latency_ms: Option<f64>,
    /// Lowest normalized F1, 0 to 1.
    accuracy: Option<f64>,
    /// Frames a second at most; 0 stands for as many as there are.
    fps: Option<f64>,
}

impl Wish {
    /// The wish in a query, and whether `flag` is asked for by a 1.
    ///
    /// # Errors
    /// [`Code::REQUEST_INVALID`], naming what is wrong.
    pub(crate) fn with(
        query: Result<Query<Pairs>, QueryRejection>,
        flag: &str,
    ) -> Result<(Self, bool), Failure> {
        let Query(pairs) = query.map_err(|rejection| Failure::invalid(rejection.body_text()))?;
        let (mut wish, mut is_asked) = (Self::default(), false);
        for (name, value) in &pairs {
            let number = || {
                value.parse::<f64>().map_err(|_| {
                    Failure::invalid(format!("{name}={} is no number", value.escape_debug()))
                })
            };
            match name.as_str() {
                "latency_ms" => wish.latency_ms = Some(number()?),
                "accuracy" => wish.accuracy = Some(number()?),
                "fps" => wish.fps = Some(number()?),
                name if name == flag => match value.as_str() {
                    "0" => is_asked = false,
                    "1" => is_asked = true,
                    other => {
                        let text = format!("{flag}={} is neither 0 nor 1", other.escape_debug());
                        return Err(Failure::invalid(text));
                    }
                },
                other => {
                    let text = format!(
                        "the query may have latency_ms, accuracy, fps and {flag}, and not {}",
                        other.escape_debug()
                    );
                    return Err(Failure::invalid(text));
                }
            }
        }
        Ok((wish, is_asked))
    }

    /// A subscription with it.
    ///
    /// # Errors
    /// As of [`SubscribeRequest::new`].
    pub(crate) fn subscribe(self, camera: &str) -> Result<SubscribeRequest, ApiError> {
        let changes = self.changes()?;
        let latency = changes.latency.unwrap_or(LATENCY);
        let mut request =
            SubscribeRequest::new(camera, latency, changes.accuracy.unwrap_or(ACCURACY))?;
        request.demand.frame_rate = changes.frame_rate.flatten();
        Ok(request)
    }

    /// A running subscription's changes to it.
    ///
    /// # Errors
    /// [`Code::BOUND_INVALID`].
    pub(crate) fn changes(self) -> Result<Changes, ApiError> {
        let latency = self.latency_ms.map(|millis| {
            Duration::try_from_secs_f64(millis / 1e3).map_err(|_| {
                let text = format!("latency bound {millis} ms is outside 1 ms to 60000 ms");
                ApiError::new(Code::BOUND_INVALID, text)
            })
        });
        let rate = |fps: f64| match fps {
            0.0 => Ok(None),
            fps => FrameRate::new(fps).map(Some),
        };
        let frame_rate = self.fps.map(rate).transpose()?;
        Ok(Changes {
            latency: latency.transpose()?,
            accuracy: self.accuracy,
            frame_rate,
            ..Changes::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(query: &str) -> Result<Wish, Failure> {
        let uri = format!("https://node/x?{query}").parse().unwrap();
        Wish::with(Query::try_from_uri(&uri), "boxes").map(|(wish, _)| wish)
    }

    #[test]
    fn a_query_has_bounds_or_is_refused_with_the_reason() {
        let usual = wish("").unwrap().subscribe("cam1").unwrap();
        assert_eq!((usual.demand.bounds.latency(), usual.demand.frame_rate), (LATENCY, None));
        let asked =
            wish("latency_ms=100&accuracy=0.95&fps=5&boxes=1").unwrap().subscribe("cam1").unwrap();
        assert_eq!(asked.demand.bounds.latency(), Duration::from_millis(100));
        assert_eq!(asked.demand.bounds.accuracy(), 0.95);
        assert_eq!(asked.demand.frame_rate, FrameRate::new(5.0).ok());
        assert_eq!(wish("fps=0").unwrap().subscribe("cam1").unwrap().demand.frame_rate, None);
        for (query, code) in [
            ("latency_ms=0", Code::BOUND_INVALID),
            ("latency_ms=-1", Code::BOUND_INVALID),
            ("latency_ms=NaN", Code::BOUND_INVALID),
            ("latency_ms=1e300", Code::BOUND_INVALID),
            ("accuracy=1.5", Code::BOUND_INVALID),
            ("fps=-2", Code::BOUND_INVALID),
            ("fps=inf", Code::BOUND_INVALID),
            ("latency=100", Code::REQUEST_INVALID),
            ("fps=five", Code::REQUEST_INVALID),
            ("boxes=yes", Code::REQUEST_INVALID),
        ] {
            let refused = wish(query)
                .and_then(|wish| wish.subscribe("cam1").map_err(Failure::new))
                .expect_err(query);
            assert_eq!(refused.error().code(), code, "{query}");
        }
        let unknown = wish("").unwrap().subscribe("no such").unwrap_err();
        assert_eq!(unknown.code(), Code::CAMERA_UNKNOWN);
    }
}
