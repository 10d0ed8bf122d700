//! Hands a thread's messages to this node's broker and waits for it: messages of QoS 0 in bundles, one acknowledgement
//! for many.
//!
//! Always true: messages that the broker has not taken are bounded, [`BUNDLES_MAX`] of at most [`BUNDLE_MESSAGES`] messages and
//! about [`BUNDLE_BYTES`] (one message may be longer): a caller with more waits for it. Each message is counted once, as published
//! when the
//! broker has taken it or as lost with a connection.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use tidegate_bus::{
    Attachment, Bundle, BundledPublication, BusError, OPEN_MAX, Publisher, SessionConfig, part_id,
};
use tidegate_wire::mqtt::{PacketId, QoS};

use super::{Context, IngestSettings};

/// Bytes and messages after which a bundle is closed.
const BUNDLE_BYTES: usize = 64 << 10;
const BUNDLE_MESSAGES: usize = 2 << 10;
/// Bundles that the broker has not taken.
const BUNDLES_MAX: usize = 16;
const _: () = assert!(BUNDLES_MAX * BUNDLE_MESSAGES <= OPEN_MAX as usize);
/// Longest wait for it to take something, before the thread looks around.
const WAIT: Duration = Duration::from_millis(100);
/// Longest wait for it to take what there is when a listener stops.
const GRACE: Duration = Duration::from_secs(1);

/// The messages to hand over, and the connection.
#[derive(Debug, Default)]
pub(super) struct HandOver {
    publisher: Option<Publisher>,
    /// The bundle that grows, and those that were closed before, in order.
    growing: Parcel,
    closed: VecDeque<Parcel>,
    waiting_bytes: usize,
    /// Bundles that were handed over and not acknowledged, in order.
    under_way: VecDeque<UnderWay>,
    outcome: Outcome,
}

/// The outcome of messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Outcome {
    /// Those that the broker has taken, and the bytes of their payloads.
    pub(super) published: u64,
    pub(super) published_bytes: u64,
    /// Those that it may not have: its connection ended.
    pub(super) lost: u64,
}

#[derive(Debug, Default)]
struct Parcel {
    bundle: Bundle,
    payload_bytes: u64,
}

#[derive(Clone, Copy, Debug)]
struct UnderWay {
    /// Messages that were ever handed over, up to its last.
    end: u64,
    messages: u64,
    payload_bytes: u64,
}

impl HandOver {
    /// One more message, with user properties, encoded. Its topic is one.
    #[inline]
    pub(super) fn push(&mut self, topic: &str, payload: &[u8], retain: bool, user: &[u8]) {
        let publication = BundledPublication {
            topic: topic.as_bytes(),
            payload,
            forwarded: user,
            qos: QoS::AtMostOnce,
            retain,
            message_expiry: None,
            group: &[],
            // It gets one when it is handed over.
            id: PacketId::MIN,
        };
        let Parcel { bundle, payload_bytes } = &mut self.growing;
        bundle.push(&publication, |_| {});
        *payload_bytes += payload.len() as u64;
        self.waiting_bytes += topic.len() + user.len() + payload.len();
        if bundle.bytes() >= BUNDLE_BYTES || bundle.len() >= BUNDLE_MESSAGES {
            self.close();
        }
    }

    /// Bytes that wait to be handed over.
    #[inline]
    pub(super) fn waiting_bytes(&self) -> usize {
        self.waiting_bytes
    }

    /// Whether it is time to hand over what there is.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        !self.closed.is_empty()
    }

    /// Whether there is nothing to hand over.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting_bytes == 0
    }

    fn close(&mut self) {
        let growing = &self.growing.bundle;
        let publisher = self.publisher.as_ref();
        let bundle = publisher.map_or_else(|| growing.like(), |publisher| publisher.empty(growing));
        let parcel = std::mem::replace(&mut self.growing, Parcel { bundle, payload_bytes: 0 });
        self.closed.push_back(parcel);
    }

    /// Hands over what there is; false if the broker has taken nothing for a while, and it is to be tried again. A connection that
    /// has ended is opened again.
    ///
    /// # Errors
    /// There is no connection, and what there was to hand over is lost.
    pub(super) fn flush(
        &mut self,
        context: &Context,
        settings: &IngestSettings,
    ) -> Result<bool, BusError> {
        if !self.growing.bundle.is_empty() {
            self.close();
        }
        // One that ends at once, and again, is none.
        let mut last = None;
        for _ in 0..2 {
            if self.publisher.is_none() {
                match attach(context, settings) {
                    Ok(publisher) => self.publisher = Some(publisher),
                    Err(error) => {
                        self.give_up();
                        return Err(error);
                    }
                }
            }
            match self.try_flush() {
                Ok(is_flushed) => return Ok(is_flushed),
                Err(error) => {
                    tracing::warn!(ingest = %settings.name, %error, "the connection to the broker broke");
                    last = Some(error);
                    self.end();
                }
            }
        }
        self.give_up();
        Err(last.unwrap_or(BusError::Closed))
    }

    fn try_flush(&mut self) -> Result<bool, BusError> {
        self.read(false)?;
        while let Some(parcel) = self.closed.pop_front() {
            if self.under_way.len() >= BUNDLES_MAX {
                let read = self.read(true);
                if read.is_err() || self.under_way.len() >= BUNDLES_MAX {
                    self.closed.push_front(parcel);
                    return read.map(|()| false);
                }
            }
            let publisher = self.publisher.as_mut().expect("it is flushed to");
            let Parcel { bundle, payload_bytes } = parcel;
            let messages = bundle.len() as u64;
            self.waiting_bytes -= bundle.bytes();
            let end = publisher.publish(bundle).end;
            self.under_way.push_back(UnderWay { end, messages, payload_bytes });
        }
        Ok(true)
    }

    /// Takes the acknowledgements that have come, if `waits` after some time for the first.
    fn read(&mut self, waits: bool) -> Result<(), BusError> {
        let Some(publisher) = &mut self.publisher else { return Ok(()) };
        if waits {
            publisher.answered_within(WAIT)?;
        }
        // A datagram has no answer.
        let read = loop {
            match publisher.next_answer() {
                Ok(Some(_)) => {}
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        let taken = publisher.first();
        while let Some(all) = self.under_way.pop_front_if(|all| all.end <= taken) {
            self.outcome.published += all.messages;
            self.outcome.published_bytes += all.payload_bytes;
        }
        read
    }

    /// Looks what the broker has taken, and whether the connection still is.
    pub(super) fn settle(&mut self) {
        if !self.under_way.is_empty() && self.read(false).is_err() {
            self.end();
        }
    }

    /// Hands over what there is and waits until the broker has taken it, for some time; then all else is lost.
    pub(super) fn finish(&mut self) {
        let until = Instant::now() + GRACE;
        if !self.growing.bundle.is_empty() {
            self.close();
        }
        while self.publisher.is_some()
            && (!self.is_empty() || !self.under_way.is_empty())
            && Instant::now() < until
        {
            if self.go_on().is_err() {
                break;
            }
        }
        self.end();
        self.give_up();
    }

    /// Hands over what the broker takes, and waits for some time for an answer that is owed.
    fn go_on(&mut self) -> Result<(), BusError> {
        self.try_flush()?;
        if self.under_way.is_empty() { Ok(()) } else { self.read(true) }
    }

    /// The outcome of messages since the last call.
    pub(super) fn take_outcome(&mut self) -> Outcome {
        std::mem::take(&mut self.outcome)
    }

    /// The connection has ended.
    fn end(&mut self) {
        let open = self.publisher.take().map_or(0, |publisher| publisher.open());
        let under_way: u64 = self.under_way.drain(..).map(|all| all.messages).sum();
        self.outcome.published += under_way - open;
        self.outcome.lost += open;
    }

    /// Messages that could not be handed over are lost.
    fn give_up(&mut self) {
        self.outcome.lost +=
            self.closed.drain(..).map(|parcel| parcel.bundle.len() as u64).sum::<u64>();
        self.waiting_bytes = 0;
    }
}

/// As whom the listener is.
fn attach(context: &Context, settings: &IngestSettings) -> Result<Publisher, BusError> {
    let client_id = part_id("ingest", &settings.name);
    let identity = settings.identity.clone().expect("a listener for datagrams has one");
    let session = SessionConfig {
        ends_at_refusal: true,
        acknowledges_through: true,
        ..settings.session.clone()
    };
    let attachment = Attachment { session, ..Attachment::new(identity, client_id) };
    context.bus.attach_blocking(attachment).map(|attached| attached.publisher)
}
