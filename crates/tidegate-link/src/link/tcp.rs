//! The link over TCP, for networks that block UDP.
//!
//! ```text
//!  chunk = kind (u8) · stream (u32) · length (u16) · payload       at most one TLS record
//! ```
//!
//! Output is cut into chunks, and the next chunk is chosen when the kernel has sent most of the one before
//! (`TCP_NOTSENT_LOWAT`): control, acks, critical, the oldest live frame, the oldest frame in order, bulk.
//! A frame that is given up ends with an abort mark; its chunks that the kernel already has still
//! travel.

use std::{
    collections::BTreeMap,
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, Mutex, MutexGuard, atomic::Ordering},
    time::Duration,
};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tidegate_process::descriptors::Descriptor;
use tidegate_sys::net::tcp_info;
use tidegate_wire::{Ack, Class, FrameHeader, Record, limits::BULK_BYTES_MAX};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    sync::{Notify, mpsc},
    time,
};

use super::{
    DownReason, Incoming, Path, Priority, ProtocolError, Transport,
    core::{Assembling, Carrier, Core, Queues},
    frame::{ACK_INTERVAL, Receipt, Sending},
};

const KIND_CONTROL: u8 = 1;
const KIND_CRITICAL: u8 = 2;
const KIND_ACK: u8 = 3;
/// A record whose body follows in chunks of the same stream.
const KIND_HEAD: u8 = 4;
const KIND_BODY: u8 = 5;
const KIND_END: u8 = 6;
const KIND_ABORT: u8 = 7;
const KIND_CLOSE: u8 = 8;

const HEADER_BYTES: usize = 7;
/// With its header a chunk fills one TLS record.
const PAYLOAD_BYTES_MAX: usize = (16 << 10) - HEADER_BYTES;
/// Bodies that a peer may have under way at once.
const STREAMS_MAX: usize = 128;
/// Room for what is read at first, and while more comes at once: most links of a node carry little, and each keeps its buffer.
const BUFFER_BYTES_MIN: usize = 4 << 10;
const BUFFER_BYTES_MAX: usize = 64 << 10;
/// Time to say good-bye in.
const CLOSE_TIME: Duration = Duration::from_millis(200);

/// The connection of a link.
pub(super) struct Tcp {
    /// A second handle on the socket, for the kernel's figures.
    socket: OwnedFd,
    pending: Mutex<Pending>,
    /// Something was put into `pending`.
    added: Notify,
    /// Of an accepted connection.
    _descriptor: Option<Descriptor>,
}

#[derive(Default)]
struct Pending {
    /// The first goes first. Bounded by the frames that may be under way.
    frames: BTreeMap<(Priority, u64), OutFrame>,
    /// The newest for each frame. Bounded by the frames that the peer may have under way.
    acks: Vec<Ack>,
    next_stream: u32,
    next_rank: u64,
    close: Option<(u32, String)>,
}

struct OutFrame {
    stream: u32,
    state: Arc<Sending>,
    /// The record, until it is sent.
    head: Option<Bytes>,
    left: Bytes,
}

impl Tcp {
    pub(super) fn new(socket: OwnedFd, descriptor: Option<Descriptor>) -> Self {
        Self { socket, pending: Mutex::default(), added: Notify::new(), _descriptor: descriptor }
    }

    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().expect("no holder of this lock panics")
    }
}

impl Carrier for Tcp {
    fn send_frame(
        self: Arc<Self>,
        _core: &Arc<Core>,
        state: Arc<Sending>,
        record: Bytes,
        body: Bytes,
        priority: Priority,
    ) {
        let mut pending = self.lock();
        pending.next_rank += 1;
        let rank = (priority, pending.next_rank);
        let stream = pending.stream();
        pending.frames.insert(rank, OutFrame { stream, state, head: Some(record), left: body });
        drop(pending);
        self.added.notify_one();
    }

    fn send_ack(&self, ack: Ack) {
        let mut pending = self.lock();
        let older = |other: &&mut Ack| (other.transfer, other.frame) == (ack.transfer, ack.frame);
        match pending.acks.iter_mut().find(older) {
            Some(older) => *older = ack,
            None => pending.acks.push(ack),
        }
        drop(pending);
        self.added.notify_one();
    }

    /// Leaves a good-bye for the writer, which ends next.
    fn close(&self, code: u32, reason: &str) {
        self.lock().close.get_or_insert((code, reason.to_owned()));
    }

    fn path(&self) -> Path {
        // Fails only on kernels that do not tell: then all is zero, which is what an unknown path shows.
        let info = tcp_info(self.socket.as_fd()).unwrap_or_default();
        let bytes = |segments: u32| u64::from(segments) * u64::from(info.segment_bytes);
        Path {
            transport: Transport::Tcp,
            rtt: info.rtt,
            rtt_min: info.rtt_min,
            in_flight: bytes(info.unacked),
            window: bytes(info.window),
            delivery_rate: info.delivery_rate,
            lost: u64::from(info.retransmitted),
            congestion_events: u64::from(info.retransmitted),
        }
    }
}

impl Pending {
    fn stream(&mut self) -> u32 {
        self.next_stream = self.next_stream.wrapping_add(1);
        self.next_stream
    }

    /// The next chunk of the frame that goes first.
    fn frame_chunk(&mut self, out: &mut BytesMut) -> bool {
        while let Some(mut entry) = self.frames.first_entry() {
            let frame = entry.get_mut();
            if frame.state.is_given_up() {
                let begun = frame.head.is_none();
                let stream = frame.stream;
                entry.remove();
                if begun {
                    put_chunk(KIND_ABORT, stream, &[], out);
                    return true;
                }
                continue;
            }
            if let Some(head) = frame.head.take() {
                put_chunk(KIND_HEAD, frame.stream, &head, out);
            }
            let Some(count) = put_body(frame.stream, &mut frame.left, out) else { return true };
            frame.state.written.fetch_add(count as u64, Ordering::Relaxed);
            if frame.left.is_empty() {
                entry.remove();
            }
            return true;
        }
        false
    }
}

fn put_chunk(kind: u8, stream: u32, payload: &[u8], out: &mut BytesMut) {
    out.put_u8(kind);
    out.put_u32_le(stream);
    out.put_u16_le(u16::try_from(payload.len()).expect("payloads are below 64 KiB"));
    out.put_slice(payload);
}

/// Puts as much of a body as fits into one TLS record behind what is in `out`; how much that was, and none where there is no room for any.
fn put_body(stream: u32, left: &mut Bytes, out: &mut BytesMut) -> Option<usize> {
    let room = PAYLOAD_BYTES_MAX.checked_sub(out.len()).filter(|room| *room > 0)?;
    let payload = left.split_to(left.len().min(room));
    let kind = if left.is_empty() { KIND_END } else { KIND_BODY };
    put_chunk(kind, stream, &payload, out);
    Some(payload.len())
}

/// Starts the tasks of a link over TCP, whose carrier is `tcp`.
pub(super) fn start<S>(core: &Arc<Core>, tcp: Arc<Tcp>, stream: S, queues: Queues)
where
    S: AsyncRead + AsyncWrite + Send + 'static,
{
    let (from_peer, to_peer) = tokio::io::split(stream);
    core.spawn_to_end(write(core.clone(), tcp, to_peer, queues));
    core.spawn(read(core.clone(), from_peer));
}

fn broken(core: &Core, error: &std::io::Error) {
    let reason = match error.kind() {
        std::io::ErrorKind::UnexpectedEof => "the peer hung up".to_owned(),
        _ => error.to_string(),
    };
    core.go_down(DownReason::Broken { reason });
}

async fn write(
    core: Arc<Core>,
    tcp: Arc<Tcp>,
    mut to_peer: impl AsyncWrite + Unpin,
    queues: Queues,
) {
    let mut writer = Writer { queues, bulk: None };
    let mut out = BytesMut::with_capacity(BUFFER_BYTES_MIN);
    loop {
        out.clear();
        let ready = tokio::select! {
            biased;
            () = core.stop.cancelled() => false,
            () = writer.next(&tcp, &mut out) => true,
        };
        if !ready {
            break;
        }
        let written = async {
            to_peer.write_all(&out).await?;
            to_peer.flush().await
        };
        // A chunk that was begun is finished, lest the good-bye be taken for a part of it.
        let too_long = async {
            core.stop.cancelled().await;
            time::sleep(CLOSE_TIME).await;
        };
        let written = tokio::select! {
            written = written => written,
            () = too_long => return,
        };
        if let Err(error) = written {
            return broken(&core, &error);
        }
    }
    let Some((code, reason)) = tcp.lock().close.take() else { return };
    out.clear();
    // Records that were taken before it closed are said first.
    writer.small(&tcp, &mut out);
    let mut payload = code.to_le_bytes().to_vec();
    payload.extend_from_slice(&reason.as_bytes()[..reason.floor_char_boundary(1024)]);
    put_chunk(KIND_CLOSE, 0, &payload, &mut out);
    let farewell = async {
        to_peer.write_all(&out).await?;
        to_peer.shutdown().await
    };
    // The link is down already; a peer that does not hear it finds the connection closed.
    let _ = time::timeout(CLOSE_TIME, farewell).await;
}

/// Chooses what is written next.
struct Writer {
    queues: Queues,
    bulk: Option<(u32, Bytes)>,
}

impl Writer {
    /// Puts the next chunks into `out`: all small ones that wait, or one of a body. Waits for the first.
    async fn next(&mut self, tcp: &Tcp, out: &mut BytesMut) {
        loop {
            self.small(tcp, out);
            if !out.is_empty() || tcp.lock().frame_chunk(out) {
                return;
            }
            if self.bulk.is_some() {
                return self.bulk_chunk(out);
            }
            let Queues { control, critical, bulk } = &mut self.queues;
            tokio::select! {
                biased;
                Some(record) = control.recv() => put_chunk(KIND_CONTROL, 0, &record, out),
                () = tcp.added.notified() => {}
                Some(record) = critical.recv() => put_chunk(KIND_CRITICAL, 0, &record, out),
                Some((record, body)) = bulk.recv() => {
                    let stream = tcp.lock().stream();
                    put_chunk(KIND_HEAD, stream, &record, out);
                    self.bulk = Some((stream, body));
                    return self.bulk_chunk(out);
                }
            }
        }
    }

    /// A short body goes with its record: each write is a packet, and wakes the peer up.
    fn bulk_chunk(&mut self, out: &mut BytesMut) {
        let Some((stream, body)) = &mut self.bulk else { return };
        if put_body(*stream, body, out).is_some() && body.is_empty() {
            self.bulk = None;
        }
    }

    fn small(&mut self, tcp: &Tcp, out: &mut BytesMut) {
        drain(&mut self.queues.control, KIND_CONTROL, out);
        for ack in tcp.lock().acks.drain(..) {
            put_chunk(KIND_ACK, 0, &Record::from(ack).to_bytes(), out);
        }
        drain(&mut self.queues.critical, KIND_CRITICAL, out);
    }
}

fn drain(queue: &mut mpsc::Receiver<Bytes>, kind: u8, out: &mut BytesMut) {
    while let Ok(record) = queue.try_recv() {
        put_chunk(kind, 0, &record, out);
    }
}

async fn read(core: Arc<Core>, mut from_peer: impl AsyncRead + Unpin) {
    let mut input = BytesMut::new();
    let mut room = BUFFER_BYTES_MIN;
    let mut reader = Reader { core: core.clone(), bodies: BTreeMap::new() };
    let mut heard_at = time::Instant::now();
    loop {
        let idle_timeout = core.idle_timeout();
        let silent_at = heard_at + idle_timeout;
        let untold = reader.bodies.values().any(Body::untold);
        let wake_at = if untold { time::Instant::now() + ACK_INTERVAL } else { silent_at };
        // Where more comes at once than there is room for, the next read is to find more room.
        input.reserve(room);
        match time::timeout_at(wake_at.min(silent_at), from_peer.read_buf(&mut input)).await {
            Ok(Ok(0)) => return broken(&core, &std::io::ErrorKind::UnexpectedEof.into()),
            Ok(Ok(count)) if count >= room => room = BUFFER_BYTES_MAX.min(2 * room),
            Ok(Ok(_)) => {}
            Ok(Err(error)) => return broken(&core, &error),
            Err(_) if time::Instant::now() >= silent_at => {
                return core.go_down(DownReason::Silent { after: idle_timeout });
            }
            Err(_) => {
                reader.tell();
                continue;
            }
        }
        while let Some(chunk) = take_chunk(&mut input) {
            if let Err(error) = reader.handle(chunk).await {
                return core.refuse(error);
            }
        }
        // Waiting for the application is not the peer's silence.
        heard_at = time::Instant::now();
    }
}

struct Chunk {
    kind: u8,
    stream: u32,
    payload: Bytes,
}

fn take_chunk(input: &mut BytesMut) -> Option<Chunk> {
    let &[kind, s0, s1, s2, s3, l0, l1] = input.first_chunk::<HEADER_BYTES>()?;
    let length = usize::from(u16::from_le_bytes([l0, l1]));
    if input.len() < HEADER_BYTES + length {
        input.reserve(HEADER_BYTES + length - input.len());
        return None;
    }
    input.advance(HEADER_BYTES);
    let stream = u32::from_le_bytes([s0, s1, s2, s3]);
    Some(Chunk { kind, stream, payload: input.split_to(length).freeze() })
}

/// A body that is being put together; `None` for one that is passed over.
struct Body {
    bytes: BytesMut,
    what: Option<What>,
    rooms: Vec<Assembling>,
}

enum What {
    Frame(FrameHeader, Receipt),
    Bulk(Record),
}

impl Body {
    fn untold(&self) -> bool {
        matches!(&self.what, Some(What::Frame(_, receipt)) if receipt.untold())
    }
}

struct Reader {
    core: Arc<Core>,
    bodies: BTreeMap<u32, Body>,
}

impl Reader {
    async fn handle(&mut self, chunk: Chunk) -> Result<(), ProtocolError> {
        let Chunk { kind, stream, mut payload } = chunk;
        match kind {
            KIND_CONTROL | KIND_CRITICAL => {
                let lane = if kind == KIND_CONTROL { Class::Control } else { Class::Critical };
                if let Some(record) = Record::decode(&payload)? {
                    self.core.handle_record(record, lane).await?;
                }
            }
            KIND_ACK => match Record::decode(&payload)? {
                Some(Record::Ack(ack)) => self.core.handle_progress(ack),
                Some(record) => {
                    let name = record.name();
                    return Err(ProtocolError::Misplaced { name, on: "an ack chunk" });
                }
                None => {}
            },
            KIND_HEAD => self.begin(stream, Record::decode(&payload)?)?,
            KIND_BODY => self.append(stream, &payload)?,
            KIND_END => {
                self.append(stream, &payload)?;
                self.end(stream).await?;
            }
            KIND_ABORT => self.abort(stream).await,
            KIND_CLOSE if payload.len() >= 4 => {
                let code = payload.get_u32_le();
                let reason = String::from_utf8_lossy(&payload).into_owned();
                self.core.go_down(DownReason::ClosedByPeer { code, reason });
            }
            kind => return Err(ProtocolError::Stream { kind }),
        }
        Ok(())
    }

    fn begin(&mut self, stream: u32, record: Option<Record>) -> Result<(), ProtocolError> {
        if self.bodies.len() >= STREAMS_MAX || self.bodies.contains_key(&stream) {
            return Err(ProtocolError::Misplaced { name: "a body", on: "a stream in use" });
        }
        let mut body = Body { bytes: BytesMut::new(), what: None, rooms: Vec::new() };
        match record {
            Some(Record::FrameHeader(header)) => match self.core.assemble(header.bytes) {
                Some(room) => {
                    body.rooms.push(room);
                    let receipt = Receipt::new(&header, self.core.now());
                    body.what = Some(What::Frame(header, receipt));
                }
                None => tracing::warn!(peer = %self.core.peer, "no room for a frame"),
            },
            Some(record) if record.class() == Class::Bulk => body.what = Some(What::Bulk(record)),
            Some(record) => {
                let name = record.name();
                return Err(ProtocolError::Misplaced { name, on: "a stream of its own" });
            }
            None => {} // a newer peer sends what this version may skip
        }
        self.bodies.insert(stream, body);
        Ok(())
    }

    fn append(&mut self, stream: u32, payload: &[u8]) -> Result<(), ProtocolError> {
        let unknown = ProtocolError::Misplaced { name: "a body chunk", on: "an unknown stream" };
        let body = self.bodies.get_mut(&stream).ok_or(unknown)?;
        let bytes = (body.bytes.len() + payload.len()) as u64;
        match &mut body.what {
            None => return Ok(()),
            Some(What::Frame(header, receipt)) => {
                if bytes > header.bytes {
                    return Err(ProtocolError::Length { bytes, expected: header.bytes });
                }
                if !payload.is_empty() {
                    let now = self.core.now();
                    self.core.frame_bytes(now);
                    if let Some(ack) = receipt.arrived(now, payload.len() as u64) {
                        self.core.send_progress(ack);
                    }
                }
            }
            Some(What::Bulk(_)) => {
                if bytes > BULK_BYTES_MAX {
                    return Err(ProtocolError::Length { bytes, expected: BULK_BYTES_MAX });
                }
                // Bulk does not say how long it is: room is taken as it comes.
                match self.core.assemble(payload.len() as u64) {
                    Some(room) => body.rooms.push(room),
                    None => {
                        tracing::warn!(peer = %self.core.peer, bytes, "no room for a bulk body");
                        *body = Body { bytes: BytesMut::new(), what: None, rooms: Vec::new() };
                        return Ok(());
                    }
                }
            }
        }
        body.bytes.extend_from_slice(payload);
        Ok(())
    }

    async fn end(&mut self, stream: u32) -> Result<(), ProtocolError> {
        let Some(body) = self.bodies.remove(&stream) else { return Ok(()) };
        let bytes = body.bytes.freeze();
        match body.what {
            Some(What::Frame(header, receipt)) => {
                let (first_at, last_at) = (receipt.first_at(), receipt.last_at());
                if receipt.received() != header.bytes {
                    let bytes = receipt.received();
                    return Err(ProtocolError::Length { bytes, expected: header.bytes });
                }
                let frame = Incoming::Frame { header, body: bytes, first_at, last_at };
                self.core.deliver(frame).await;
                self.core.send_final(receipt.complete()).await;
            }
            Some(What::Bulk(record)) => {
                self.core.deliver(Incoming::Bulk { record, body: bytes }).await;
            }
            None => {}
        }
        Ok(())
    }

    async fn abort(&mut self, stream: u32) {
        let Some(body) = self.bodies.remove(&stream) else { return };
        if let Some(What::Frame(header, receipt)) = body.what {
            let received = receipt.received();
            self.core.send_final(receipt.reset()).await;
            let at = self.core.now();
            self.core.deliver(Incoming::FrameReset { header, received, at }).await;
        }
    }

    /// Sends the acks that are due because time passed.
    fn tell(&mut self) {
        let now = self.core.now();
        for body in self.bodies.values_mut() {
            if let Some(What::Frame(_, receipt)) = &mut body.what
                && let Some(ack) = receipt.due(now)
            {
                self.core.send_progress(ack);
            }
        }
    }
}
