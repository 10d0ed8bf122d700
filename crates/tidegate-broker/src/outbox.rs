//! Bytes on their way into one connection.
//!
//! ```text
//!  what a begun packet still lacks ▶ acknowledgements ▶ small packets, copied ▶ one large packet, by reference
//! ```
//!
//! Always true: a packet that was begun is finished before another begins; acknowledgements overtake everything that has
//! not begun.

use std::{io::IoSlice, sync::Arc};

use tidegate_wire::mqtt::{PacketId, QoS};

use crate::{accounts::Account, bundle::Run, message::Message};

/// Buffers that are used again; a connection holds one only while something waits in it.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    free: Vec<Vec<u8>>,
    free_bytes: usize,
}

/// Bytes of buffers that are kept for the next use.
const KEPT_BYTES: usize = 2 << 20;
/// And of the largest of them: a client that waits with a few bytes is not to be charged for many.
const LARGEST_BYTES: usize = 128 << 10;

/// A buffer's first size.
pub(crate) const FIRST_BYTES: usize = 4 << 10;

impl Buffers {
    fn take(&mut self) -> Vec<u8> {
        let Some(buffer) = self.free.pop() else { return Vec::with_capacity(FIRST_BYTES) };
        self.free_bytes -= buffer.capacity();
        buffer
    }

    fn put(&mut self, mut buffer: Vec<u8>) {
        let bytes = buffer.capacity();
        if bytes <= LARGEST_BYTES && self.free_bytes + bytes <= KEPT_BYTES {
            self.free_bytes += bytes;
            buffer.clear();
            self.free.push(buffer);
        }
    }
}

/// Most slices that are handed out at once.
pub const SLICES_MAX: usize = 8;

#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// Acknowledgements and other answers.
    control: Vec<u8>,
    control_sent: usize,
    /// Small packets.
    data: Vec<u8>,
    data_sent: usize,
    /// End of the packet in `data` that `data_sent` lies in, or `data_sent` itself between two.
    boundary: usize,
    sending: Option<Sending>,
    /// Bytes that ever left.
    written: u64,
    /// Messages that go out as they are, and their bytes; none where all go in packets.
    handed: Option<Vec<Handed>>,
    handed_bytes: usize,
    /// Whether no more of them are taken for now.
    is_held_up: bool,
}

/// A delivery to a part of this process.
#[derive(Clone, Debug)]
pub enum Handed {
    /// A message.
    One(Delivery),
    /// Messages of one bundle, for the first time.
    Run(Run),
}

impl Handed {
    /// Bytes of topics, properties and payloads.
    pub fn bytes(&self) -> usize {
        match self {
            Self::One(delivery) => delivery.bytes(),
            Self::Run(run) => run.bytes(),
        }
    }
}

/// A message as it is handed out to a part of this process.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// The message.
    pub message: Arc<Message>,
    /// The lower one of its quality of service and the subscription's.
    pub qos: QoS,
    /// Whether it was retained, or, where the subscription keeps that flag, published to be.
    pub retain: bool,
    /// The identifier to acknowledge it by; none for QoS 0.
    pub packet_id: Option<PacketId>,
    /// Whether it may have been handed out before.
    pub is_repeated: bool,
    /// The shared subscription that it came by, as `$share/NAME/FILTER`.
    pub group: Option<Arc<str>>,
}

impl Delivery {
    /// Bytes of its topic, properties and payload.
    pub fn bytes(&self) -> usize {
        let Message { topic, forwarded, payload, .. } = &*self.message;
        topic.len() + forwarded.len() + payload.len()
    }
}

/// A packet whose payload goes by reference.
#[derive(Debug)]
struct Sending {
    head: Vec<u8>,
    message: Leaving,
    sent: usize,
    bytes: usize,
}

/// A message that leaves by reference, and in whose share it counts until it has; none where it counts as what is kept for the client.
#[derive(Debug)]
pub(crate) struct Leaving {
    message: Arc<Message>,
    account: Option<Arc<Account>>,
}

impl Leaving {
    pub(crate) fn new(message: Arc<Message>, account: Option<Arc<Account>>) -> Self {
        if let Some(account) = &account {
            message.hold_for(account);
        }
        Self { message, account }
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        if let Some(account) = &self.account {
            self.message.release_for(account);
        }
    }
}

impl Outbox {
    /// For messages in packets, or as they are.
    pub(crate) fn new(hands_out: bool) -> Self {
        Self { handed: hands_out.then(Vec::new), ..Self::default() }
    }

    /// Whether messages go out as they are.
    #[inline]
    pub(crate) fn hands_out(&self) -> bool {
        self.handed.is_some()
    }

    /// Whether it takes no messages for now.
    #[inline]
    pub(crate) fn is_held_up(&self) -> bool {
        self.is_held_up
    }

    /// Takes no messages from now on, or takes them again.
    pub(crate) fn hold_up(&mut self, is_held_up: bool) {
        self.is_held_up = is_held_up;
    }

    /// Appends messages, where they go out as they are.
    pub(crate) fn hand(&mut self, handed: Handed) {
        self.handed_bytes += handed.bytes();
        self.handed.get_or_insert_default().push(handed);
    }

    /// Moves what was appended so behind `out`.
    pub(crate) fn take_handed(&mut self, out: &mut Vec<Handed>) {
        self.handed_bytes = 0;
        self.handed.iter_mut().for_each(|handed| out.append(handed));
    }

    /// Bytes of memory that it takes.
    pub(crate) fn capacity(&self) -> usize {
        let head = self.sending.as_ref().map_or(0, |sending| sending.head.capacity());
        self.control.capacity() + self.data.capacity() + head
    }

    /// Bytes of small packets that wait, and of messages that go out as they are.
    pub(crate) fn data_bytes(&self) -> usize {
        self.data.len() - self.data_sent + self.handed_bytes
    }

    /// Bytes of answers that wait.
    pub(crate) fn control_bytes(&self) -> usize {
        self.control.len() - self.control_sent
    }

    /// Whether a packet goes by reference now.
    pub(crate) fn is_sending(&self) -> bool {
        self.sending.is_some()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.sending.is_none() && self.data_bytes() == 0 && self.control_bytes() == 0
    }

    /// Bytes that left since the connection began.
    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    /// Bytes that must leave before a packet that is appended now has left.
    pub(crate) fn ahead(&self) -> u64 {
        let sending = self.sending.as_ref().map_or(0, |sending| sending.bytes - sending.sent);
        (self.data.len() - self.data_sent + self.control_bytes() + sending) as u64
    }

    /// Where answers are appended, whole packets only.
    #[inline]
    pub(crate) fn control(&mut self, buffers: &mut Buffers) -> &mut Vec<u8> {
        if self.control.capacity() == 0 {
            self.control = buffers.take();
        }
        &mut self.control
    }

    /// Where small packets are appended, whole packets only.
    #[inline]
    pub(crate) fn data(&mut self, buffers: &mut Buffers) -> &mut Vec<u8> {
        if self.data.capacity() == 0 {
            self.data = buffers.take();
        }
        &mut self.data
    }

    /// Sends `message` by reference, behind `head`. Only where no small packet waits.
    pub(crate) fn send(&mut self, head: Vec<u8>, message: Leaving) {
        debug_assert!(self.data_bytes() == 0 && self.sending.is_none());
        let bytes = head.len() + message.message.payload.len();
        self.sending = Some(Sending { head, message, sent: 0, bytes });
    }

    /// The next bytes to send, at most `limit`; how many slices they take.
    pub(crate) fn slices<'a>(&'a self, limit: usize, out: &mut [IoSlice<'a>; SLICES_MAX]) -> usize {
        let mut filling = Filling { out, count: 0, left: limit };
        let control = &self.control[self.control_sent..];
        let data = &self.data[self.data_sent..];
        match &self.sending {
            Some(sending) => {
                // Small packets that came after it began wait behind it.
                if sending.sent == 0 {
                    filling.add(control);
                    sending.add_to(&mut filling);
                } else {
                    sending.add_to(&mut filling);
                    filling.add(control);
                }
                filling.add(data);
            }
            None => {
                let (begun, rest) = data.split_at(self.boundary - self.data_sent);
                filling.add(begun);
                filling.add(control);
                filling.add(rest);
            }
        }
        filling.count
    }

    /// `count` bytes of what [`Outbox::slices`] gave have left. True if that finished a packet sent by reference.
    pub(crate) fn advance(&mut self, mut count: usize, buffers: &mut Buffers) -> bool {
        self.written += count as u64;
        let mut finished = false;
        match self.sending.as_mut().map(|sending| sending.sent) {
            Some(0) => {
                self.advance_control(&mut count, buffers);
                finished = self.advance_sending(&mut count);
            }
            Some(_) => {
                finished = self.advance_sending(&mut count);
                if finished {
                    self.advance_control(&mut count, buffers);
                }
            }
            None => {
                let begun = count.min(self.boundary - self.data_sent);
                self.data_sent += begun;
                count -= begun;
                self.advance_control(&mut count, buffers);
            }
        }
        self.advance_data(count, buffers);
        finished
    }

    fn advance_control(&mut self, count: &mut usize, buffers: &mut Buffers) {
        let sent = (*count).min(self.control_bytes());
        self.control_sent += sent;
        *count -= sent;
        if self.control_sent == self.control.len() && self.control_sent > 0 {
            buffers.put(std::mem::take(&mut self.control));
            self.control_sent = 0;
        }
    }

    fn advance_sending(&mut self, count: &mut usize) -> bool {
        let Some(sending) = &mut self.sending else { return false };
        let sent = (*count).min(sending.bytes - sending.sent);
        sending.sent += sent;
        *count -= sent;
        let finished = sending.sent == sending.bytes;
        if finished {
            self.sending = None;
        }
        finished
    }

    fn advance_data(&mut self, count: usize, buffers: &mut Buffers) {
        self.data_sent += count;
        debug_assert!(self.data_sent <= self.data.len());
        if self.data_sent == self.data.len() {
            if self.data_sent > 0 {
                buffers.put(std::mem::take(&mut self.data));
            }
            (self.data_sent, self.boundary) = (0, 0);
            return;
        }
        while self.boundary < self.data_sent {
            self.boundary += packet_bytes(&self.data[self.boundary..]);
        }
        // Sent bytes are dropped once they are most of the buffer.
        if self.data_sent > self.data.len() / 2 {
            self.data.drain(..self.data_sent);
            self.boundary -= self.data_sent;
            self.data_sent = 0;
        }
    }

    /// Forgets the messages that have not begun to leave; answers stay.
    pub(crate) fn forget_unbegun(&mut self, buffers: &mut Buffers) {
        self.sending.take_if(|sending| sending.sent == 0);
        self.data.truncate(self.boundary);
        self.advance_data(0, buffers);
        self.take_handed(&mut Vec::new());
    }

    /// Gives its buffers back.
    pub(crate) fn clear(&mut self, buffers: &mut Buffers) {
        for buffer in [std::mem::take(&mut self.control), std::mem::take(&mut self.data)] {
            if buffer.capacity() > 0 {
                buffers.put(buffer);
            }
        }
        *self = Self { written: self.written, ..Self::new(self.hands_out()) };
    }
}

impl Sending {
    fn add_to<'a>(&'a self, filling: &mut Filling<'_, 'a>) {
        let mut skip = self.sent;
        for part in std::iter::once(&self.head[..])
            .chain(self.message.message.payload.segments().iter().map(|segment| &segment[..]))
        {
            if skip >= part.len() {
                skip -= part.len();
                continue;
            }
            if !filling.add(&part[skip..]) {
                return;
            }
            skip = 0;
        }
    }
}

struct Filling<'o, 'a> {
    out: &'o mut [IoSlice<'a>; SLICES_MAX],
    count: usize,
    left: usize,
}

impl<'a> Filling<'_, 'a> {
    /// False once nothing more fits. The part that is cut off leads the next time.
    fn add(&mut self, bytes: &'a [u8]) -> bool {
        let bytes = &bytes[..bytes.len().min(self.left)];
        if bytes.is_empty() {
            return self.left > 0;
        }
        if self.count == SLICES_MAX {
            self.left = 0;
            return false;
        }
        self.out[self.count] = IoSlice::new(bytes);
        self.count += 1;
        self.left -= bytes.len();
        self.left > 0
    }
}

/// Length of the packet that `bytes` begin with; our own packets, so that it is always whole.
fn packet_bytes(bytes: &[u8]) -> usize {
    let (mut length, mut at) = (0, 1);
    loop {
        length |= usize::from(bytes[at] & 0x7f) << (7 * (at - 1));
        at += 1;
        if bytes[at - 1] & 0x80 == 0 {
            return at + length;
        }
    }
}
