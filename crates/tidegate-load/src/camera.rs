//! A network camera that is none: pictures with a clock in them, over RTSP, coded as cameras code them.
//!
//! ```text
//!  count drawn as bits ─▶ ffmpeg, once ─▶ Clip ─▶ a thread for each client: packet after packet, at the moment of each picture
//! ```
//!
//! Picture `n` is captured `n` periods after the camera was started, and shows `n`: its decoder knows how old it is, whatever
//! anybody else says. Sender reports, a login, the time of an encoder, a burst of old pictures at the start and packets by UDP, lost or
//! in disorder, are to be had.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// Width of the pictures, unless they are larger by [`Clip::make_scaled`].
pub const WIDTH: usize = 640;
/// Height of the pictures.
pub const HEIGHT: usize = 360;

/// Bits of the count, each a field of its own, and again with black for white.
const BITS: usize = 16;
const FIELD: usize = WIDTH / BITS;
/// Steps of a timestamp a second.
const CLOCK_HERTZ: f64 = 90_000.0;
/// Bytes of a packet's payload.
const PAYLOAD_BYTES: usize = 1400;
/// Beyond that, a JPEG image by RTP has no numbers for its sides (RFC 2435).
const SCALE_MAX: u8 = 3;
/// Seconds from the begin of NTP's time to that of Unix'.
const NTP_TO_UNIX: u64 = 2_208_988_800;

/// How the pictures are coded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    /// H.264, a key each second or two.
    H264,
    /// H.264 without a key but the very first picture, as cameras send it that refresh their pictures in stripes.
    H264Stripes,
    /// H.265, with keys.
    H265,
    /// JPEG.
    Jpeg,
}

impl Coding {
    /// Those of most cameras.
    pub const ALL: [Self; 3] = [Self::H264, Self::H265, Self::Jpeg];
}

/// Coded pictures that count from zero, to be repeated.
#[derive(Clone, Debug)]
pub struct Clip {
    coding: Coding,
    frames_per_second: f64,
    /// Pictures between two keys.
    key_every: usize,
    scale: u8,
    /// The parts of each picture as they travel; of a JPEG image, its tables and its data.
    pictures: Vec<Vec<Vec<u8>>>,
}

/// Behaviour of a camera other than sending pictures in time.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// User and password that it asks for, as Basic.
    pub login: Option<(String, String)>,
    /// Whether it sends sender reports, one a second, and by how much its clock of the day is ahead.
    pub reports: Option<Ahead>,
    /// Time that its encoder takes.
    pub encoder: Duration,
    /// Pictures of so long ago come first, all at once.
    pub backlog: Duration,
    /// Of the packets by UDP, each of so many is lost, and each after another of so many is sent before it; 0 is none.
    pub udp_faults: (usize, usize),
}

/// Nanoseconds by which a clock is ahead of that of this machine.
pub type Ahead = i64;

/// A running camera. Dropping it ends it.
#[derive(Debug)]
pub struct Camera {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    clip: Clip,
    options: Options,
    started: Instant,
    started_wall: Duration,
    stop: AtomicBool,
    requests: AtomicU64,
}

impl Clip {
    /// Has ffmpeg code `frames` pictures.
    ///
    /// # Errors
    /// ffmpeg is not there, or cannot code so.
    pub fn make(coding: Coding, frames_per_second: f64, frames: u16) -> io::Result<Self> {
        Self::make_scaled(coding, frames_per_second, frames, 1)
    }

    /// The same with pictures that are `scale` times as wide and as high, at most three times.
    ///
    /// # Errors
    /// ffmpeg is not there, or cannot code so.
    pub fn make_scaled(
        coding: Coding,
        frames_per_second: f64,
        frames: u16,
        scale: u8,
    ) -> io::Result<Self> {
        let scale = scale.clamp(1, SCALE_MAX);
        let key_every = (frames_per_second.round() as usize).clamp(2, 30);
        let rate = frames_per_second.to_string();
        let size = format!("{WIDTH}x{HEIGHT}");
        let keys = key_every.to_string();
        let x265 = format!(
            "keyint={keys}:min-keyint={keys}:scenecut=0:bframes=0:aud=1:repeat-headers=1:log-level=none"
        );
        let mut command = Command::new("ffmpeg");
        command.args([
            "-nostdin", "-v", "error", "-f", "rawvideo", "-pix_fmt", "gray", "-s", &size, "-r",
            &rate, "-i", "-",
        ]);
        if scale > 1 {
            command.args(["-vf", &format!("scale=iw*{scale}:ih*{scale}:flags=neighbor")]);
        }
        command.args(match coding {
            Coding::H264 | Coding::H264Stripes => &[
                "-pix_fmt",
                "yuv420p",
                "-c:v",
                "libx264",
                "-preset",
                "ultrafast",
                "-tune",
                "zerolatency",
            ][..],
            Coding::H265 => &[
                "-pix_fmt",
                "yuv420p",
                "-c:v",
                "libx265",
                "-preset",
                "ultrafast",
                "-tune",
                "zerolatency",
            ],
            Coding::Jpeg => {
                &["-pix_fmt", "yuvj420p", "-c:v", "mjpeg", "-q:v", "4", "-huffman", "default"]
            }
        });
        command.args(match coding {
            Coding::H264 => ["-g", &keys, "-x264-params", "aud=1:scenecut=0", "-f", "h264"],
            Coding::H264Stripes => {
                let params = "aud=1:scenecut=0:intra-refresh=1:repeat-headers=1";
                ["-g", &keys, "-x264-params", params, "-f", "h264"]
            }
            Coding::H265 => ["-g", &keys, "-x265-params", &x265, "-f", "hevc"],
            Coding::Jpeg => ["-g", "1", "-threads", "1", "-f", "mjpeg"],
        });
        command.arg("-").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let mut input = child.stdin.take().expect("stdin was asked for as a pipe");
        let feeding =
            thread::spawn(move || (0..frames).try_for_each(|count| input.write_all(&draw(count))));
        let output = child.wait_with_output()?;
        // ffmpeg says itself why it did not take all of its input.
        let _ = feeding.join();
        if !output.status.success() {
            return Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned()));
        }
        let pictures = match coding {
            Coding::H264 | Coding::H264Stripes => {
                units(&output.stdout, |part| part.first().is_some_and(|first| first & 0x1f == 9))
            }
            Coding::H265 => {
                units(&output.stdout, |part| part.first().is_some_and(|first| first >> 1 == 35))
            }
            Coding::Jpeg => images(&output.stdout)?,
        };
        if pictures.len() != usize::from(frames) {
            return Err(io::Error::other(format!("{frames} pictures became {}", pictures.len())));
        }
        Ok(Self { coding, frames_per_second, key_every, scale, pictures })
    }

    /// Time between two pictures.
    pub fn period(&self) -> Duration {
        Duration::from_secs_f64(1.0 / self.frames_per_second)
    }
}

/// A gray picture that shows `count`.
fn draw(count: u16) -> Vec<u8> {
    let at = move |x: usize, y: usize| {
        let bit = count >> (BITS - 1 - x / FIELD) & 1 == 1;
        match y * 3 / HEIGHT {
            0 => {
                if bit {
                    235
                } else {
                    20
                }
            }
            1 => {
                if bit {
                    20
                } else {
                    235
                }
            }
            // Something that moves, so that no picture is like the last.
            _ => ((x + y + 8 * usize::from(count)) & 0x7f) as u8 + 64,
        }
    };
    (0..HEIGHT).flat_map(|y| (0..WIDTH).map(move |x| at(x, y))).collect()
}

/// The count that a picture shows, from its brightness, row by row; none if it is no such picture.
pub fn read_count(luma: &[u8], stride: usize) -> Option<u16> {
    let at = |bit: usize, third: usize| {
        luma.get((HEIGHT / 6 + third * HEIGHT / 3) * stride + bit * FIELD + FIELD / 2)
    };
    let mut count = 0;
    for bit in 0..BITS {
        let (field, inverse) = (*at(bit, 0)? > 128, *at(bit, 1)? > 128);
        if field == inverse {
            return None;
        }
        count = count << 1 | u16::from(field);
    }
    Some(count)
}

/// The parts of each picture of a stream in which delimiters stand before each picture; without the delimiters.
fn units(stream: &[u8], is_delimiter: impl Fn(&[u8]) -> bool) -> Vec<Vec<Vec<u8>>> {
    let mut starts: Vec<usize> = (0..stream.len().saturating_sub(3))
        .filter(|&at| stream[at..].starts_with(&[0, 0, 1]))
        .collect();
    starts.push(stream.len());
    let mut units: Vec<Vec<Vec<u8>>> = Vec::new();
    for pair in starts.windows(2) {
        let mut part = &stream[pair[0] + 3..pair[1]];
        while let [rest @ .., 0] = part {
            part = rest;
        }
        if is_delimiter(part) {
            units.push(Vec::new());
        } else if let Some(unit) = units.last_mut() {
            unit.push(part.to_vec());
        }
    }
    units
}

/// Of each JPEG image its quantization tables and its coded data.
fn images(stream: &[u8]) -> io::Result<Vec<Vec<Vec<u8>>>> {
    let broken = || io::Error::other("ffmpeg wrote an image that cannot be read");
    let mut images = Vec::new();
    let mut at = 0;
    while at < stream.len() {
        let mut tables = Vec::new();
        at += 2; // the start marker
        loop {
            let marker = *stream.get(at + 1).ok_or_else(broken)?;
            let length = usize::from(u16::from_be_bytes([
                *stream.get(at + 2).ok_or_else(broken)?,
                *stream.get(at + 3).ok_or_else(broken)?,
            ]));
            let content = stream.get(at + 4..at + 2 + length).ok_or_else(broken)?;
            at += 2 + length;
            match marker {
                0xdb => content.chunks(65).for_each(|table| tables.extend_from_slice(&table[1..])),
                0xda => break,
                _ => {}
            }
        }
        let end =
            stream[at..].windows(2).position(|pair| pair == [0xff, 0xd9]).ok_or_else(broken)?;
        images.push(vec![tables, stream[at..at + end + 2].to_vec()]);
        at += end + 2;
    }
    Ok(images)
}

impl Camera {
    /// Starts a camera on a port of this machine.
    ///
    /// # Errors
    /// There is no port.
    pub fn start(clip: Clip, options: Options) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            clip,
            options,
            started: Instant::now(),
            started_wall: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
            stop: AtomicBool::new(false),
            requests: AtomicU64::new(0),
        });
        let serving = shared.clone();
        let accepting = thread::spawn(move || {
            let mut clients = Vec::new();
            while let Ok((socket, _)) = listener.accept() {
                if serving.stop.load(Ordering::Acquire) {
                    break;
                }
                let serving = serving.clone();
                // A client that leaves ends its thread; that is no failure of the camera.
                clients.push(thread::spawn(move || drop(serving.serve(&socket))));
            }
            for client in clients {
                drop(client.join());
            }
        });
        Ok(Self { address, shared, accepting: Some(accepting) })
    }

    /// Where it is.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// When the picture was captured that shows `count` and is seen `now`; both since the Unix epoch.
    pub fn captured(&self, count: u16, now: Duration) -> Duration {
        let period = self.shared.clip.period().as_secs_f64();
        let passed = now.saturating_sub(self.shared.started_wall).as_secs_f64();
        let newest = (passed / period).floor() as u64;
        let pictures = self.shared.clip.pictures.len() as u64;
        let behind = (newest + pictures - u64::from(count)) % pictures;
        self.shared.started_wall
            + Duration::from_secs_f64(newest.saturating_sub(behind) as f64 * period)
    }

    /// Requests that it was sent.
    pub fn requests(&self) -> u64 {
        self.shared.requests.load(Ordering::Acquire)
    }
}

impl Drop for Camera {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        // Wakes who accepts.
        drop(TcpStream::connect(self.address));
        if let Some(accepting) = self.accepting.take() {
            drop(accepting.join());
        }
    }
}

impl Shared {
    fn serve(&self, socket: &TcpStream) -> io::Result<()> {
        socket.set_nodelay(true)?;
        let mut requests = BufReader::new(socket.try_clone()?);
        let mut udp = None;
        loop {
            let Some((method, headers)) = request(&mut requests)? else { return Ok(()) };
            self.requests.fetch_add(1, Ordering::AcqRel);
            let number =
                headers.iter().find_map(|line| line.strip_prefix("CSeq:")).unwrap_or("0").trim();
            let allowed = self.options.login.as_ref().is_none_or(|(user, password)| {
                let expected = format!(
                    "Authorization: Basic {}",
                    base64(format!("{user}:{password}").as_bytes())
                );
                headers.contains(&expected)
            });
            let ports = headers.iter().find_map(|line| client_ports(line));
            let (status, more, body) = match method.as_str() {
                "OPTIONS" => (
                    "200 OK",
                    "Public: DESCRIBE, SETUP, PLAY, GET_PARAMETER\r\n".to_owned(),
                    String::new(),
                ),
                _ if !allowed => (
                    "401 Unauthorized",
                    "WWW-Authenticate: Basic realm=\"x\"\r\n".to_owned(),
                    String::new(),
                ),
                "DESCRIBE" => {
                    let body = self.description();
                    (
                        "200 OK",
                        format!(
                            "Content-Type: application/sdp\r\nContent-Length: {}\r\n",
                            body.len()
                        ),
                        body,
                    )
                }
                "SETUP" if ports.is_some() => {
                    let (own, peer) = (socket.local_addr()?.ip(), socket.peer_addr()?.ip());
                    let sockets = [UdpSocket::bind((own, 0))?, UdpSocket::bind((own, 0))?];
                    let [first, second] = [&sockets[0], &sockets[1]].map(UdpSocket::local_addr);
                    let (first, second) = (first?.port(), second?.port());
                    let (pictures, reports) = ports.unwrap_or_default();
                    let to = [SocketAddr::new(peer, pictures), SocketAddr::new(peer, reports)];
                    udp = Some((sockets, to));
                    let transport = format!(
                        "Transport: RTP/AVP;unicast;client_port={pictures}-{reports};server_port={first}-{second}\r\nSession: 7;timeout=60\r\n"
                    );
                    ("200 OK", transport, String::new())
                }
                "SETUP" => {
                    let transport = "Transport: RTP/AVP/TCP;unicast;interleaved=0-1\r\nSession: 7;timeout=60\r\n";
                    ("200 OK", transport.to_owned(), String::new())
                }
                _ => ("200 OK", "Session: 7\r\n".to_owned(), String::new()),
            };
            (&*socket).write_all(
                format!("RTSP/1.0 {status}\r\nCSeq: {number}\r\n{more}\r\n{body}").as_bytes(),
            )?;
            if method == "PLAY" && allowed {
                break;
            }
        }
        // The client's requests from here on are read, so that it is never held up, and need no answer: pictures are signs of life.
        thread::spawn(move || drop(io::copy(&mut requests, &mut io::sink())));
        self.play(socket, udp.as_ref())
    }

    fn description(&self) -> String {
        let map = match self.clip.coding {
            Coding::H264 | Coding::H264Stripes => {
                "96\r\na=rtpmap:96 H264/90000\r\na=fmtp:96 packetization-mode=1"
            }
            Coding::H265 => "96\r\na=rtpmap:96 H265/90000",
            Coding::Jpeg => "26",
        };
        format!(
            "v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\ns=x\r\nt=0 0\r\nm=video 0 RTP/AVP {map}\r\na=control:trackID=1\r\n"
        )
    }

    fn play(&self, socket: &TcpStream, udp: Option<&Ports>) -> io::Result<()> {
        let mut sent = 0;
        let period = self.clip.period();
        let newest = self.started.elapsed().as_secs_f64() / period.as_secs_f64();
        let backlog = (self.options.backlog.as_secs_f64() / period.as_secs_f64()).round() as u64;
        let mut next = (newest.floor() as u64 + 1).saturating_sub(backlog);
        // A burst begins with a key.
        let key_every = self.clip.key_every as u64;
        next = if backlog > 0 { next - next % key_every } else { next };
        let mut sequence = 65_000_u16;
        let mut reported: Option<Instant> = None;
        while !self.stop.load(Ordering::Acquire) {
            let due = self.started + period.mul_f64(next as f64) + self.options.encoder;
            thread::sleep(due.saturating_duration_since(Instant::now()));
            let timestamp = self.timestamp(next);
            let parts = &self.clip.pictures[(next % self.clip.pictures.len() as u64) as usize];
            let payloads = match self.clip.coding {
                Coding::H264 | Coding::H264Stripes => fragments(parts, 1),
                Coding::H265 => fragments(parts, 2),
                Coding::Jpeg => slices(&parts[0], &parts[1], self.clip.scale),
            };
            let mut packets = Vec::new();
            let payload_type = if self.clip.coding == Coding::Jpeg { 26 } else { 96 };
            for (at, payload) in payloads.iter().enumerate() {
                let marker = if at + 1 == payloads.len() { 0x80 } else { 0 };
                let mut packet = vec![0x80, marker | payload_type];
                packet.extend(sequence.to_be_bytes());
                packet.extend(timestamp.to_be_bytes());
                packet.extend([0, 0, 0, 9]);
                packet.extend_from_slice(payload);
                sequence = sequence.wrapping_add(1);
                packets.push((0, packet));
            }
            if let Some(ahead) = self.options.reports
                && reported.is_none_or(|at| at.elapsed() >= Duration::from_secs(1))
            {
                reported = Some(Instant::now());
                packets.push((1, self.report(next, ahead)));
            }
            match udp {
                Some(udp) => self.send(udp, packets, &mut sent)?,
                None => {
                    let mut bytes = Vec::new();
                    for (channel, packet) in &packets {
                        interleave(&mut bytes, *channel, packet);
                    }
                    let mut socket = socket;
                    socket.write_all(&bytes)?;
                }
            }
            next += 1;
        }
        Ok(())
    }

    /// Sends packets by UDP, with the faults that are wished; counts them in `sent`.
    fn send(
        &self,
        (sockets, to): &Ports,
        mut packets: Vec<(u8, Vec<u8>)>,
        sent: &mut usize,
    ) -> io::Result<()> {
        let (lost, swapped) = self.options.udp_faults;
        let is_due = |count: usize, every: usize| every > 0 && count % every == every - 1;
        for at in 1..packets.len() {
            if is_due(*sent + at, swapped) {
                packets.swap(at - 1, at);
            }
        }
        for (channel, packet) in packets {
            *sent += 1;
            let at = usize::from(channel);
            if !is_due(*sent, lost) {
                sockets[at].send_to(&packet, to[at])?;
            }
        }
        Ok(())
    }

    fn timestamp(&self, picture: u64) -> u32 {
        (picture as f64 * CLOCK_HERTZ / self.clip.frames_per_second) as u64 as u32
    }

    /// A sender report that says when a picture was captured.
    fn report(&self, picture: u64, ahead: Ahead) -> Vec<u8> {
        let captured = self.started_wall + self.clip.period().mul_f64(picture as f64);
        let nanos = i128::try_from(captured.as_nanos()).unwrap_or(i128::MAX) + i128::from(ahead);
        let seconds = (nanos / 1_000_000_000) as u64 + NTP_TO_UNIX;
        let fraction = ((nanos % 1_000_000_000) as u64) << 32;
        let mut report = vec![0x80, 200, 0, 6, 0, 0, 0, 9];
        report.extend((seconds as u32).to_be_bytes());
        report.extend(((fraction / 1_000_000_000) as u32).to_be_bytes());
        report.extend(self.timestamp(picture).to_be_bytes());
        report.extend([0; 8]);
        report
    }
}

/// The method and the header lines of a request; none if the client has left.
fn request(requests: &mut BufReader<TcpStream>) -> io::Result<Option<(String, Vec<String>)>> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        // A line of a megabyte is none.
        if requests.by_ref().take(1 << 20).read_line(&mut line)? == 0 {
            return Ok(None);
        }
        match line.trim_end() {
            "" if lines.is_empty() => {}
            "" => break,
            line => lines.push(line.to_owned()),
        }
    }
    let method = lines.remove(0).split(' ').next().unwrap_or_default().to_owned();
    Ok(Some((method, lines)))
}

/// Ports for pictures and reports, and those of the client.
type Ports = ([UdpSocket; 2], [SocketAddr; 2]);

/// The ports that a client names for packets by UDP.
fn client_ports(line: &str) -> Option<(u16, u16)> {
    let (_, ports) = line.strip_prefix("Transport:")?.split_once("client_port=")?;
    let (first, second) = ports.split(';').next()?.split_once('-')?;
    Some((first.parse().ok()?, second.parse().ok()?))
}

fn interleave(bytes: &mut Vec<u8>, channel: u8, packet: &[u8]) {
    bytes.extend([b'$', channel]);
    bytes.extend((packet.len() as u16).to_be_bytes());
    bytes.extend_from_slice(packet);
}

/// Parts of a picture as payloads; large ones in fragments (RFC 6184 and RFC 7798), by the bytes of a part's header.
fn fragments(parts: &[Vec<u8>], header_bytes: usize) -> Vec<Vec<u8>> {
    let mut payloads = Vec::new();
    for part in parts {
        if part.len() <= PAYLOAD_BYTES {
            payloads.push(part.clone());
            continue;
        }
        let (header, rest) = part.split_at(header_bytes);
        let pieces = rest.chunks(PAYLOAD_BYTES);
        let last = pieces.len() - 1;
        for (at, piece) in pieces.enumerate() {
            let place = if at == 0 { 0x80 } else { 0 } | if at == last { 0x40 } else { 0 };
            let mut payload = match header {
                [first] => vec![first & 0xe0 | 28, place | first & 0x1f],
                [first, second] => vec![first & 0x81 | 49 << 1, *second, place | first >> 1 & 0x3f],
                _ => unreachable!("headers have one byte or two"),
            };
            payload.extend_from_slice(piece);
            payloads.push(payload);
        }
    }
    payloads
}

/// A JPEG image as payloads (RFC 2435), with its tables before the first.
fn slices(tables: &[u8], data: &[u8], scale: u8) -> Vec<Vec<u8>> {
    let [width, height] = [WIDTH, HEIGHT].map(|side| (side / 8 * usize::from(scale)) as u8);
    let mut payloads = Vec::new();
    let mut offset = 0_usize;
    for piece in data.chunks(PAYLOAD_BYTES) {
        let mut payload = (offset as u32).to_be_bytes().to_vec();
        payload.extend([1, 255, width, height]);
        if offset == 0 {
            payload.extend([0, 0]);
            payload.extend((tables.len() as u16).to_be_bytes());
            payload.extend_from_slice(tables);
        }
        payload.extend_from_slice(piece);
        payloads.push(payload);
        offset += piece.len();
    }
    payloads
}

/// RFC 4648, section 4.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    bytes
        .chunks(3)
        .flat_map(|chunk| {
            let bits = chunk.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte))
                << (8 * (3 - chunk.len()));
            (0..4).map(move |at| {
                if at <= chunk.len() {
                    char::from(ALPHABET[(bits >> (18 - 6 * at) & 63) as usize])
                } else {
                    '='
                }
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_shows_its_count() {
        for count in [0, 1, 499, 0x8001, u16::MAX] {
            assert_eq!(read_count(&draw(count), WIDTH), Some(count));
        }
        assert_eq!(read_count(&vec![0; WIDTH * HEIGHT], WIDTH), None);
        assert_eq!(base64(b"me:s3cret"), "bWU6czNjcmV0");
    }
}
