//! Messages of a service to the broker.

use std::{collections::VecDeque, ops::Range, sync::Arc, time::Duration};

use tidegate_broker::Bundle;
use tidegate_wire::mqtt::{Ack, PacketId, PublishHead, QoS, ReasonCode, Version, client::Limits};

use crate::{BusError, PublishError, block, exchanges::Exchanges, line::Line};

/// Messages that were published and not answered, beyond which no more are taken.
pub const OPEN_MAX: u64 = 32 << 10;
/// And their bytes.
pub const OPEN_BYTES_MAX: usize = 4 << 20;

/// The broker's answer to messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Their numbers, by [`Publisher::publish`] and [`Publisher::push`]: one, or with
    /// [`acknowledges_through`](tidegate_broker::SessionConfig::acknowledges_through) all that were not answered before.
    pub numbers: Range<u64>,
    /// Success, that nothing subscribes, or why it was not taken; of many the worst.
    pub reason: ReasonCode,
    /// More for people; of many the topic of the first that was not taken.
    pub text: Option<String>,
}

/// Publishes messages, which are numbered from 0 on. They go in batches: of [`Publisher::push`], or whole [`Bundle`]s.
#[derive(Debug)]
pub struct Publisher {
    line: Arc<Line>,
    limits: Limits,
    exchanges: Exchanges,
    /// The batch that grows.
    batch: Bundle,
    /// Batches that are not answered, in order: number behind their last message, and their bytes.
    under_way: VecDeque<(u64, usize)>,
    under_way_bytes: usize,
}

impl Publisher {
    pub(crate) fn new(line: Arc<Line>, is_through: bool) -> Self {
        Self {
            limits: line.limits(),
            line,
            exchanges: Exchanges::new(is_through),
            batch: Bundle::default(),
            under_way: VecDeque::new(),
            under_way_bytes: 0,
        }
    }

    /// Puts a message into the batch that goes with the next [`Publisher::flush`]; its number. QoS 2 is taken as 1.
    ///
    /// # Errors
    /// [`PublishError`]: there is no room, or the broker does not take such a message.
    pub fn push(&mut self, message: &crate::Publication<'_>) -> Result<u64, PublishError> {
        if !self.has_room() {
            let unacknowledged = self.open() as usize;
            return Err(PublishError::NoRoom { unacknowledged });
        }
        self.check(message)?;
        let number = self.exchanges.begun();
        let publication = tidegate_broker::Publication {
            topic: message.topic.as_bytes(),
            payload: message.payload,
            forwarded: message.forwarded,
            qos: message.qos,
            retain: message.retain,
            message_expiry: message.message_expiry,
            group: &[],
            id: self.exchanges.begin(),
        };
        self.batch.push(&publication, |_| {});
        Ok(number)
    }

    /// Publishes one message and waits until the broker has taken it; answers to earlier ones are passed over.
    ///
    /// # Errors
    /// [`BusError::Message`]: the broker does not take it; [`BusError::Publish`]: it cannot be published; the end of the connection.
    ///
    /// # Cancel safety
    /// Not cancel safe: the message is published, and its answer lost.
    pub async fn send(&mut self, message: &crate::Publication<'_>) -> Result<Answer, BusError> {
        let number = self.push(message)?;
        self.flush();
        loop {
            match self.next_answer()? {
                Some(answer) if !answer.numbers.contains(&number) => {}
                Some(Answer { reason, .. }) if reason.is_failure() => {
                    return Err(BusError::Message { topic: message.topic.to_owned(), reason });
                }
                Some(answer) => return Ok(answer),
                None => self.answered().await?,
            }
        }
    }

    fn check(&self, message: &crate::Publication<'_>) -> Result<(), PublishError> {
        if tidegate_message::check_topic_name(message.topic, usize::MAX).is_err() {
            return Err(PublishError::Topic { topic: message.topic.to_owned() });
        }
        if message.retain && !self.limits.retains {
            return Err(PublishError::Retain);
        }
        let head = PublishHead {
            dup: false,
            qos: QoS::AtLeastOnce,
            retain: message.retain,
            topic: message.topic,
            packet_id: Some(PacketId::MIN),
            topic_alias: None,
            message_expiry: message.message_expiry,
            subscription_ids: &[],
            forwarded: message.forwarded,
            payload_bytes: message.payload.len(),
        };
        let (packet_bytes, maximum) =
            (head.packet_bytes(Version::V5), self.limits.packet_bytes_max);
        if packet_bytes > maximum {
            return Err(PublishError::TooLarge { packet_bytes, maximum });
        }
        Ok(())
    }

    /// Has the broker publish the batch of [`Publisher::push`].
    pub fn flush(&mut self) {
        if !self.batch.is_empty() {
            let next = self.empty(&self.batch);
            let batch = std::mem::replace(&mut self.batch, next);
            self.hand_over(batch);
        }
    }

    /// Has the broker publish messages; their numbers. A topic that there cannot be ends the connection. To be called if there
    /// [is room](Publisher::has_room), for at most as many messages as [`OPEN_MAX`].
    pub fn publish(&mut self, mut batch: Bundle) -> Range<u64> {
        self.flush();
        let first = self.exchanges.begun();
        batch.number(|| self.exchanges.begin());
        if !batch.is_empty() {
            self.hand_over(batch);
        }
        first..self.exchanges.begun()
    }

    fn hand_over(&mut self, batch: Bundle) {
        self.under_way.push_back((self.exchanges.begun(), batch.bytes()));
        self.under_way_bytes += batch.bytes();
        self.line.hand_over(batch);
    }

    /// A batch to put messages into: one that the broker no longer uses, or another with room for about as many as `like` has had.
    pub fn empty(&self, like: &Bundle) -> Bundle {
        self.line.empties().take(like)
    }

    /// Lets go of memory that is kept for batches to come.
    pub fn forget_empties(&self) {
        self.line.empties().forget();
    }

    /// Whether further messages are taken: of those that are not answered there are not too many.
    pub fn has_room(&self) -> bool {
        self.open() < OPEN_MAX && self.under_way_bytes + self.batch.bytes() < OPEN_BYTES_MAX
    }

    /// Messages from the first on that is not answered.
    pub fn open(&self) -> u64 {
        self.exchanges.open()
    }

    /// Messages that were ever published.
    pub fn begun(&self) -> u64 {
        self.exchanges.begun()
    }

    /// The number of the first message that is not answered.
    pub fn first(&self) -> u64 {
        self.exchanges.first()
    }

    /// The next answer that has come; none for now.
    ///
    /// # Errors
    /// [`BusError`]: the connection has ended, and messages without an answer may have been published.
    pub fn next_answer(&mut self) -> Result<Option<Answer>, BusError> {
        let Some(Ack { packet_id, reason, reason_string: text, .. }) =
            self.line.turn(|packets| packets.ack())?
        else {
            return Ok(None);
        };
        let numbers = self.exchanges.end(packet_id)?;
        let first = self.exchanges.first();
        while let Some((_, bytes)) = self.under_way.pop_front_if(|(end, _)| *end <= first) {
            self.under_way_bytes -= bytes;
        }
        Ok(Some(Answer { numbers, reason, text }))
    }

    /// Waits for an answer, or the end of the connection.
    ///
    /// # Errors
    /// [`BusError`]: the connection has ended, and there is no answer before that.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn answered(&self) -> Result<(), BusError> {
        while self.line.turn(|packets| packets.has_ack().then_some(()))?.is_none() {
            self.line.packets().await;
        }
        Ok(())
    }

    /// The same on a thread that has no tasks, for no longer than that.
    ///
    /// # Errors
    /// As [`Publisher::answered`].
    pub fn answered_within(&self, limit: Duration) -> Result<(), BusError> {
        block::on(limit, self.answered()).unwrap_or(Ok(()))
    }

    /// Publishes what was pushed, then leaves, with that reason: nothing of either half is heard behind it. The broker publishes the
    /// service's will, if it has one, unless the reason is success.
    ///
    /// # Errors
    /// [`BusError::Encode`].
    pub fn detach(&mut self, reason: ReasonCode) -> Result<(), BusError> {
        self.flush();
        self.line.disconnect(reason)
    }
}
