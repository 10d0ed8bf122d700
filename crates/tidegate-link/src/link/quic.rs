//! The link over QUIC.
//!
//! Every stream is unidirectional and opens with its type, one byte: the control lane, the critical lane, or
//! one record with a body. Progress acks are datagrams. Priorities put the control lane first, then the
//! critical lane, live frames (older first), frames in order (older first), and bulk.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicI32, Ordering},
};

use bytes::{Buf, Bytes, BytesMut};
use futures::{StreamExt as _, stream::FuturesUnordered};
use quinn::{ConnectionError, ReadError, RecvStream, SendStream, VarInt, WriteError};
use tidegate_wire::{Ack, Class, DecodeError, FrameHeader, Record, limits::BULK_BYTES_MAX};
use tokio::{sync::mpsc, time};

use super::{
    DownReason, Incoming, Outcome, Path, Priority, ProtocolError, Transport,
    congestion::QueueBound,
    core::{Carrier, Core, Queues},
    frame::{ACK_INTERVAL, Receipt, Sending},
    lane::{self, Head},
};

const STREAM_CONTROL: u8 = 1;
const STREAM_CRITICAL: u8 = 2;
const STREAM_BODY: u8 = 3;

const RANK_CONTROL: i32 = i32::MAX;
const RANK_CRITICAL: i32 = i32::MAX - 1;
const RANK_LIVE: i32 = RANK_CRITICAL - 1;
const RANK_IN_ORDER: i32 = -1;
const RANK_BULK: i32 = i32::MIN;

/// The code of a stream that was given up by its sender.
const GIVEN_UP: VarInt = VarInt::from_u32(1);
/// The code of a stream that its receiver has no room for.
const NO_ROOM: VarInt = VarInt::from_u32(2);

/// Bodies of bulk under way at once.
const BULK_UNDER_WAY_MAX: usize = 8;
/// Room for bulk is taken in steps of this many bytes.
const BULK_ROOM_STEP: u64 = 1 << 20;

/// The connection of a link.
pub(super) struct Quic {
    connection: quinn::Connection,
    /// Keeps a dialling endpoint alive as long as its connection.
    _endpoint: quinn::Endpoint,
    live: AtomicI32,
    in_order: AtomicI32,
    lanes_open: [AtomicBool; 2],
}

impl Quic {
    pub(super) fn new(connection: quinn::Connection, endpoint: quinn::Endpoint) -> Self {
        Self {
            connection,
            _endpoint: endpoint,
            live: AtomicI32::new(RANK_LIVE),
            in_order: AtomicI32::new(RANK_IN_ORDER),
            lanes_open: Default::default(),
        }
    }

    /// The rank of the next frame of that priority. At 60 frames a second it would take a year to wrap.
    fn rank(&self, priority: Priority) -> i32 {
        match priority {
            Priority::Live => {
                self.live.fetch_sub(1, Ordering::Relaxed).clamp(RANK_IN_ORDER + 1, RANK_LIVE)
            }
            Priority::InOrder => {
                self.in_order.fetch_sub(1, Ordering::Relaxed).clamp(RANK_BULK + 1, RANK_IN_ORDER)
            }
        }
    }
}

impl Carrier for Quic {
    fn send_frame(
        self: Arc<Self>,
        core: &Arc<Core>,
        state: Arc<Sending>,
        record: Bytes,
        body: Bytes,
        priority: Priority,
    ) {
        let rank = self.rank(priority);
        core.spawn(carry_frame(core.clone(), self, state, record, body, rank));
    }

    fn send_ack(&self, ack: Ack) {
        // Best effort by contract; a dead connection is noticed by those who wait for it.
        let _ = self.connection.send_datagram(Record::from(ack).to_bytes());
    }

    fn close(&self, code: u32, reason: &str) {
        self.connection.close(VarInt::from_u32(code), reason.as_bytes());
    }

    fn path(&self) -> Path {
        let stats = self.connection.stats().path;
        let congestion = self.connection.congestion_state().into_any().downcast::<QueueBound>();
        // CUBIC, if it is configured, tells its window only.
        let (base, in_flight, rate) =
            congestion.map_or((None, 0, 0.0), |ours| (ours.base(), ours.in_flight(), ours.rate()));
        Path {
            transport: Transport::Quic,
            rtt: stats.rtt,
            rtt_min: base.unwrap_or_else(|| self.connection.min_rtt()),
            in_flight,
            window: stats.cwnd,
            delivery_rate: rate as u64,
            lost: stats.lost_packets,
            congestion_events: stats.congestion_events,
        }
    }
}

/// Starts the tasks of a link over QUIC, whose carrier is `quic`.
pub(super) fn start(core: &Arc<Core>, quic: &Arc<Quic>, queues: Queues) {
    let Queues { control, critical, bulk } = queues;
    core.spawn(send_lane(core.clone(), quic.clone(), control, STREAM_CONTROL, RANK_CONTROL));
    core.spawn(send_lane(core.clone(), quic.clone(), critical, STREAM_CRITICAL, RANK_CRITICAL));
    core.spawn(send_bulk(core.clone(), quic.clone(), bulk));
    core.spawn(accept_streams(core.clone(), quic.clone()));
    core.spawn(accept_datagrams(core.clone(), quic.clone()));
}

fn broken(core: &Core, error: ConnectionError) {
    let reason = match error {
        ConnectionError::ApplicationClosed(close) => DownReason::ClosedByPeer {
            code: u32::try_from(close.error_code.into_inner()).unwrap_or(u32::MAX),
            reason: String::from_utf8_lossy(&close.reason).into_owned(),
        },
        ConnectionError::TimedOut => DownReason::Silent { after: core.config.idle_timeout },
        ConnectionError::LocallyClosed => {
            DownReason::ClosedHere { reason: "closed here".to_owned() }
        }
        other => DownReason::Broken { reason: other.to_string() },
    };
    core.go_down(reason);
}

async fn send_lane(
    core: Arc<Core>,
    quic: Arc<Quic>,
    mut queue: mpsc::Receiver<Bytes>,
    kind: u8,
    rank: i32,
) {
    let send = async {
        let mut stream = quic.connection.open_uni().await?;
        // Only a closed stream refuses a priority, and then writing fails.
        let _ = stream.set_priority(rank);
        let mut out = BytesMut::from(&[kind][..]);
        while let Some(record) = queue.recv().await {
            lane::put(&record, &mut out);
            while let Ok(record) = queue.try_recv() {
                lane::put(&record, &mut out);
            }
            stream.write_chunk(out.split().freeze()).await?;
        }
        Ok(())
    };
    if let Err(error) = send.await {
        lane_failed(&core, error);
    }
}

fn lane_failed(core: &Core, error: WriteError) {
    match error {
        WriteError::ConnectionLost(error) => broken(core, error),
        WriteError::Stopped(_) | WriteError::ClosedStream | WriteError::ZeroRttRejected => {
            core.go_down(DownReason::Broken { reason: "a lane was refused".to_owned() });
        }
    }
}

/// Writes a record with its body on a stream of its own, up to the end.
async fn write_body(
    quic: &Quic,
    record: &[u8],
    body: Bytes,
    rank: i32,
) -> Result<SendStream, WriteError> {
    let mut stream = quic.connection.open_uni().await?;
    let _ = stream.set_priority(rank);
    let mut head = BytesMut::from(&[STREAM_BODY][..]);
    lane::put(record, &mut head);
    stream.write_all_chunks(&mut [head.freeze(), body]).await?;
    stream.finish().map_err(|_| WriteError::ClosedStream)?;
    Ok(stream)
}

/// Begins bodies in order; a few are under way at once, lest each wait for the word that the last has arrived.
async fn send_bulk(core: Arc<Core>, quic: Arc<Quic>, mut queue: mpsc::Receiver<(Bytes, Bytes)>) {
    let refused = || tracing::warn!(peer = %core.peer, "the peer had no room for a bulk body");
    let mut under_way = FuturesUnordered::new();
    loop {
        tokio::select! {
            biased;
            Some(arrived) = under_way.next() => match arrived {
                Ok(None) => {}
                Ok(Some(_)) => refused(),
                Err(error) => return lane_failed(&core, WriteError::from(error)),
            },
            next = queue.recv(), if under_way.len() < BULK_UNDER_WAY_MAX => {
                let Some((record, body)) = next else { return };
                match write_body(&quic, &record, body, RANK_BULK).await {
                    Ok(stream) => under_way.push(async move { stream.stopped().await }),
                    Err(WriteError::Stopped(_)) => refused(),
                    Err(error) => return lane_failed(&core, error),
                }
            }
        }
    }
}

/// Carries one frame until the peer has it, it is given up, or the link goes down.
async fn carry_frame(
    core: Arc<Core>,
    quic: Arc<Quic>,
    state: Arc<Sending>,
    record: Bytes,
    body: Bytes,
    rank: i32,
) {
    let opened = tokio::select! {
        biased;
        () = state.given_up() => return,
        opened = quic.connection.open_uni() => opened,
    };
    let mut stream = match opened {
        Ok(stream) => stream,
        Err(error) => return broken(&core, error),
    };
    let total = body.len() as u64;
    let write = async {
        let _ = stream.set_priority(rank);
        let mut head = BytesMut::from(&[STREAM_BODY][..]);
        lane::put(&record, &mut head);
        stream.write_all_chunks(&mut [head.freeze(), body]).await?;
        state.written.store(total, Ordering::Relaxed);
        stream.finish().map_err(|_| WriteError::ClosedStream)?;
        stream.stopped().await.map_err(WriteError::from)
    };
    let stopped = tokio::select! {
        biased;
        () = state.given_up() => None,
        stopped = write => Some(stopped),
    };
    match stopped {
        // Refused only if the peer has all of it or has stopped it: then there is nothing to give up.
        None => drop(stream.reset(GIVEN_UP)),
        // The transport has delivered it; the peer's last ack settles the frame.
        Some(Ok(None)) => {}
        Some(Ok(Some(_)) | Err(WriteError::Stopped(_))) => state.settle(Outcome::Reset),
        Some(Err(error)) => lane_failed(&core, error),
    }
}

async fn accept_streams(core: Arc<Core>, quic: Arc<Quic>) {
    loop {
        match quic.connection.accept_uni().await {
            Ok(stream) => core.spawn(read_stream(core.clone(), quic.clone(), stream)),
            Err(error) => return broken(&core, error),
        }
    }
}

async fn accept_datagrams(core: Arc<Core>, quic: Arc<Quic>) {
    loop {
        let datagram = match quic.connection.read_datagram().await {
            Ok(datagram) => datagram,
            Err(error) => return broken(&core, error),
        };
        match Record::decode(&datagram) {
            Ok(Some(Record::Ack(ack))) => core.handle_progress(ack),
            Ok(None) => {}
            Ok(Some(record)) => {
                let name = record.name();
                return core.refuse(ProtocolError::Misplaced { name, on: "a datagram" });
            }
            Err(error) => return core.refuse(error.into()),
        }
    }
}

/// Why a stream was not read to its end.
enum Stop {
    /// The sender gave it up.
    Reset,
    Lost(ConnectionError),
    Protocol(ProtocolError),
}

impl From<ReadError> for Stop {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Reset(_) => Self::Reset,
            ReadError::ConnectionLost(error) => Self::Lost(error),
            // None of these can be the peer's doing: we stop no stream that we read.
            ReadError::ClosedStream
            | ReadError::IllegalOrderedRead
            | ReadError::ZeroRttRejected => Self::Reset,
        }
    }
}

impl From<ProtocolError> for Stop {
    fn from(error: ProtocolError) -> Self {
        Self::Protocol(error)
    }
}

impl From<DecodeError> for Stop {
    fn from(error: DecodeError) -> Self {
        Self::Protocol(error.into())
    }
}

async fn read_stream(core: Arc<Core>, quic: Arc<Quic>, stream: RecvStream) {
    let mut reader = Reader { core: core.clone(), quic, stream, input: BytesMut::new(), read: 0 };
    match reader.run().await {
        // A stream that is reset before its header came carries nothing that anybody knows of.
        Ok(()) | Err(Stop::Reset) => {}
        Err(Stop::Lost(error)) => broken(&core, error),
        Err(Stop::Protocol(error)) => core.refuse(error),
    }
}

/// Reads one stream.
struct Reader {
    core: Arc<Core>,
    quic: Arc<Quic>,
    stream: RecvStream,
    /// Input that is not used yet.
    input: BytesMut,
    /// Bytes read of the stream so far, in order.
    read: u64,
}

impl Reader {
    async fn run(&mut self) -> Result<(), Stop> {
        while self.input.is_empty() {
            if !self.more().await? {
                return Ok(());
            }
        }
        let kind = self.input.get_u8();
        match kind {
            STREAM_CONTROL => self.lane(Class::Control).await,
            STREAM_CRITICAL => self.lane(Class::Critical).await,
            STREAM_BODY => self.record_with_body().await,
            kind => Err(ProtocolError::Stream { kind }.into()),
        }
    }

    /// Waits for more bytes; false at the end of the stream.
    async fn more(&mut self) -> Result<bool, Stop> {
        let Some(chunk) = self.stream.read_chunk(usize::MAX, true).await? else {
            return Ok(false);
        };
        self.input.extend_from_slice(&chunk.bytes);
        self.read += chunk.bytes.len() as u64;
        Ok(true)
    }

    async fn lane(&mut self, class: Class) -> Result<(), Stop> {
        let open = &self.quic.lanes_open[usize::from(class == Class::Critical)];
        if open.swap(true, Ordering::Relaxed) {
            return Err(ProtocolError::Misplaced { name: "a lane", on: "a second stream" }.into());
        }
        loop {
            match lane::take(&mut self.input)? {
                Head::Record(Some(record)) => self.core.handle_record(record, class).await?,
                Head::Record(None) => {}
                // A lane ends with its link only.
                Head::Part if !self.more().await? => return Ok(()),
                Head::Part => {}
            }
        }
    }

    async fn record_with_body(&mut self) -> Result<(), Stop> {
        let record = loop {
            match lane::take(&mut self.input)? {
                Head::Record(record) => break record,
                Head::Part if !self.more().await? => {
                    return Err(ProtocolError::Length { bytes: 0, expected: 1 }.into());
                }
                Head::Part => {}
            }
        };
        match record {
            Some(Record::FrameHeader(header)) => self.frame(header).await,
            Some(record) if record.class() == Class::Bulk => self.bulk(record).await,
            Some(record) => {
                let name = record.name();
                Err(ProtocolError::Misplaced { name, on: "a stream of its own" }.into())
            }
            // A newer peer sends what this version may skip.
            None => self.refuse(),
        }
    }

    /// Asks the sender to stop this stream.
    fn refuse(&mut self) -> Result<(), Stop> {
        // Fails only if the stream has ended already.
        let _ = self.stream.stop(NO_ROOM);
        Ok(())
    }

    async fn frame(&mut self, header: FrameHeader) -> Result<(), Stop> {
        let core = self.core.clone();
        let Some(_room) = core.assemble(header.bytes) else {
            tracing::warn!(peer = %core.peer, bytes = header.bytes, "no room for a frame");
            return self.refuse();
        };
        let mut receipt = Receipt::new(&header, core.now());
        match self.frame_body(&header, &mut receipt).await {
            Ok(body) => {
                let (first_at, last_at) = (receipt.first_at(), receipt.last_at());
                // Handed over first: a sender that sends the next frame once this one is acknowledged has them in
                // order.
                core.deliver(Incoming::Frame { header, body, first_at, last_at }).await;
                core.send_final(receipt.complete()).await;
                Ok(())
            }
            Err(Stop::Reset) => {
                let received = receipt.received();
                core.send_final(receipt.reset()).await;
                let at = core.now();
                core.deliver(Incoming::FrameReset { header, received, at }).await;
                Ok(())
            }
            Err(stop) => Err(stop),
        }
    }

    /// Reads the body in the order in which it comes, so that a lost packet delays neither acks nor
    /// capacity samples.
    async fn frame_body(
        &mut self,
        header: &FrameHeader,
        receipt: &mut Receipt,
    ) -> Result<Bytes, Stop> {
        let length = |bytes| ProtocolError::Length { bytes, expected: header.bytes };
        let total = usize::try_from(header.bytes).map_err(|_| length(header.bytes))?;
        let mut body = BytesMut::zeroed(total);
        let early = self.input.split();
        let body_offset = self.read - early.len() as u64;
        let mut chunk = Some((0, early.freeze()));
        loop {
            if let Some((at, bytes)) = chunk.take().filter(|(_, bytes)| !bytes.is_empty()) {
                let end = at + bytes.len() as u64;
                let place = usize::try_from(at).ok().zip(usize::try_from(end).ok());
                let place = place.and_then(|(at, end)| body.get_mut(at..end)).ok_or(length(end))?;
                place.copy_from_slice(&bytes);
                let now = self.core.now();
                self.core.frame_bytes(now);
                if let Some(ack) = receipt.arrived(now, bytes.len() as u64) {
                    self.core.send_progress(ack);
                }
            }
            let more = self.stream.read_chunk(usize::MAX, false);
            let more = match receipt.untold() {
                true => time::timeout(ACK_INTERVAL, more).await,
                false => Ok(more.await),
            };
            match more {
                Ok(Ok(Some(more))) => {
                    let at = more.offset.checked_sub(body_offset);
                    chunk = Some((at.expect("the head was read before"), more.bytes));
                }
                Ok(Ok(None)) if receipt.received() == header.bytes => return Ok(body.freeze()),
                Ok(Ok(None)) => return Err(length(receipt.received()).into()),
                Ok(Err(error)) => return Err(error.into()),
                Err(_) => {
                    if let Some(ack) = receipt.due(self.core.now()) {
                        self.core.send_progress(ack);
                    }
                }
            }
        }
    }

    async fn bulk(&mut self, record: Record) -> Result<(), Stop> {
        let length = |bytes| ProtocolError::Length { bytes, expected: BULK_BYTES_MAX };
        let mut rooms = Vec::new();
        let mut taken = 0;
        loop {
            let bytes = self.input.len() as u64;
            if bytes > BULK_BYTES_MAX {
                return Err(length(bytes).into());
            }
            // Bulk does not say how long it is: room is taken as it comes.
            if bytes > taken {
                let step = (bytes - taken).max(BULK_ROOM_STEP);
                let Some(room) = self.core.assemble(step) else {
                    tracing::warn!(peer = %self.core.peer, bytes, "no room for a bulk body");
                    return self.refuse();
                };
                rooms.push(room);
                taken += step;
            }
            if !self.more().await? {
                let body = self.input.split().freeze();
                self.core.deliver(Incoming::Bulk { record, body }).await;
                return Ok(());
            }
        }
    }
}
