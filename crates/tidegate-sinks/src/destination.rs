//! The interface of destinations.

use std::{error::Error, fmt, time::Duration};

use async_trait::async_trait;
use tidegate_message::Instant;

use super::record::Batch;

/// Where messages go.
#[async_trait]
pub trait Destination: Send + fmt::Debug {
    /// Takes a batch, as durably as the destination claims, and says which of its messages it refuses for good; all others are
    /// taken when it returns. The order of a topic's messages is that of the batch. It is given the time of
    /// [`SinkSettings::timeout`](super::SinkSettings::timeout) from one [`Batch::step`] to the next.
    ///
    /// # Errors
    /// [`Trouble`]: it is not known that any of it was taken, and the same batch comes again.
    ///
    /// # Cancel safety
    /// When it is dropped on its way, it is not known whether the batch was taken; the next call starts over.
    async fn deliver(&mut self, batch: &Batch) -> Result<Vec<Refusal>, Trouble>;

    /// The session that messages come from broke off and starts over: those that it does not know to be taken come again,
    /// [marked](super::Record::is_repeated) and in other batches. Called between two batches; most need not do anything.
    fn begin_anew(&mut self) {}
}

/// A message that is not taken, however often it is tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Its place in the batch, from 0; each place at most once, in order.
    pub place: usize,
    /// Why, for people and for the dead letter.
    pub reason: String,
    /// The time that it has at the destination, if another message there had the one at which it was received.
    pub at: Option<Instant>,
}

impl Refusal {
    /// The message at `place` is refused.
    pub fn new(place: usize, reason: impl Into<String>) -> Self {
        Self { place, reason: reason.into(), at: None }
    }
}

/// Why a batch was not taken as a whole, this time.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub struct Trouble {
    /// The attempt, or the destination's message.
    pub what: String,
    /// When the destination wants to be asked again, if it says so.
    pub after: Option<Duration>,
    /// The cause.
    pub source: Option<Box<dyn Error + Send + Sync>>,
}

impl Trouble {
    /// The destination's message.
    pub fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), after: None, source: None }
    }

    /// The attempt, and its error.
    pub fn of(what: impl Into<String>, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { what: what.into(), after: None, source: Some(source.into()) }
    }
}
