//! Pictures from a stream of bytes, and the ffmpeg programs that write such streams.
//!
//! ffmpeg decodes and writes JPEG images to a pipe that we read when a picture is wanted: a full pipe holds it back, and a
//! closed one ends it, so that it never outlives us. Its filter `showinfo` says of each picture, before it is written, which time and
//! which size it has.
//!
//! Always true: each picture that was decoded comes once (`-fps_mode passthrough`, which was `-vsync` before FFmpeg 5.1), and as soon
//! as it is decoded: decoders run one thread, since each thread of FFmpeg's usual kind holds a picture back.

use std::{
    collections::VecDeque,
    ffi::{OsStr, OsString},
    fmt, io,
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    sync::{Arc, LazyLock, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncSeekExt, BufReader},
    net::unix::pipe,
    process::{Child, ChildStderr, ChildStdin, Command},
    sync::{OnceCell, mpsc},
    task::JoinHandle,
};

use tidegate_message::FrameSize;

use super::{Picture, Rate, SourceError, SourceSpec, SplitError, Splitter};

/// A program that writes nothing for this long is given up.
const STALL: Duration = Duration::from_secs(10);

/// Bytes asked for in one read.
const READ_BYTES: usize = 64 << 10;

/// Part of a slot that lies before the time it is named by: times in files are rounded.
pub(super) const SLOT_BEGINS: f64 = 0.25;

/// Times of pictures that wait for their pictures; more hold the decoder back.
const SHOWN_MAX: usize = 256;

/// Frames a second above which a file's rate of shortest periods is not believed.
const SHORTEST_MAX: f64 = 60.0;

/// How much of what a program says last is kept.
const SAID_BYTES: usize = 2 << 10;

/// ffmpeg's quality scale runs from 2, the best, to 31; 2 is close to quality 95 on libjpeg's scale.
const FFMPEG_QUALITY: &str = "2";

/// JPEG images from a stream of bytes.
pub(super) struct Reader {
    place: String,
    splitter: Splitter,
    /// The remaining images at the end of the stream.
    rest: VecDeque<Result<Bytes, SplitError>>,
    input: Input,
    ended: bool,
}

enum Input {
    /// A pipe or standard input.
    Pipe(Box<dyn AsyncRead + Send + Sync + Unpin>),
    /// A file, read again from its start at the end if it repeats.
    File { file: tokio::fs::File, path: PathBuf, repeat: bool },
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").field("place", &self.place).finish_non_exhaustive()
    }
}

impl Reader {
    /// Opens a file, a named pipe or, without a path, standard input.
    ///
    /// A named pipe may have no writer yet, and a writer that leaves may be followed by another.
    pub(super) async fn open(
        path: Option<PathBuf>,
        frame_bytes_max: usize,
        repeat: bool,
    ) -> Result<Self, SourceError> {
        let (place, input) = match path {
            None => ("standard input".to_owned(), Input::Pipe(Box::new(tokio::io::stdin()))),
            Some(path) => {
                let place = path.display().to_string();
                let read = |source| SourceError::Read { path: path.clone(), source };
                let metadata = tokio::fs::metadata(&path).await.map_err(read)?;
                if metadata.file_type().is_fifo() {
                    // Opened for writing too, so that it does not end when its writer leaves.
                    let pipe = pipe::OpenOptions::new().read_write(true).open_receiver(&path);
                    (place, Input::Pipe(Box::new(pipe.map_err(read)?)))
                } else {
                    let file = tokio::fs::File::open(&path).await.map_err(read)?;
                    (place, Input::File { file, path, repeat })
                }
            }
        };
        let splitter = Splitter::new(frame_bytes_max);
        Ok(Self { place, splitter, rest: VecDeque::new(), input, ended: false })
    }

    pub(super) const fn is_file(&self) -> bool {
        matches!(self.input, Input::File { .. })
    }

    pub(super) fn place(&self) -> &str {
        &self.place
    }

    /// The next image, `None` at the end of the stream.
    pub(super) async fn next(&mut self) -> Result<Option<Picture>, SourceError> {
        let mut rewound = false;
        loop {
            let found = self.rest.pop_front().or_else(|| self.splitter.next_image());
            match found {
                Some(Ok(jpeg)) => return Ok(Some(Picture { jpeg, truth: None })),
                Some(Err(error)) => return Err(self.damaged(error)),
                None if self.ended => return Ok(None),
                None => {}
            }
            if self.fill().await? > 0 {
                continue;
            }
            // The end: an image that was begun is lost, unless no image here has an end marker.
            let fresh = Splitter::new(self.splitter.frame_bytes_max());
            self.rest = std::mem::replace(&mut self.splitter, fresh).finish().collect();
            self.ended = true;
            if let Input::File { file, path, repeat: true } = &mut self.input {
                if rewound {
                    return Err(SourceError::Empty { path: path.clone(), wanted: "JPEG image" });
                }
                let read = |source| SourceError::Read { path: path.clone(), source };
                file.rewind().await.map_err(read)?;
                (self.ended, rewound) = (false, true);
            }
        }
    }

    async fn fill(&mut self) -> Result<usize, SourceError> {
        let buffer = self.splitter.buffer_mut();
        buffer.reserve(READ_BYTES);
        let path = PathBuf::from(&self.place);
        let read = |source| SourceError::Read { path, source };
        match &mut self.input {
            Input::Pipe(pipe) => pipe.read_buf(buffer).await.map_err(read),
            Input::File { file, .. } => file.read_buf(buffer).await.map_err(read),
        }
    }

    fn damaged(&self, source: SplitError) -> SourceError {
        SourceError::Damaged { place: self.place.clone(), source }
    }
}

/// An ffmpeg program.
#[derive(Debug)]
pub(super) struct Ffmpeg {
    path: PathBuf,
    /// Its option by which no picture is left out or made up, once it was asked.
    timing: OnceCell<&'static str>,
}

impl Ffmpeg {
    /// The one at `path`, or of that name in the search path.
    pub(super) fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), timing: OnceCell::new() }
    }

    /// That of this machine.
    pub(super) fn installed() -> &'static Self {
        static INSTALLED: LazyLock<Ffmpeg> = LazyLock::new(|| Ffmpeg::at(NAME));
        &INSTALLED
    }

    /// Its option that says which pictures are written: `-fps_mode` from FFmpeg 5.1 on, and before it `-vsync`, which FFmpeg 9 does not
    /// have any more. Asked of the program itself, since versions of builds from a repository have no number.
    async fn timing(&self) -> Result<&'static str, SourceError> {
        let ask = async || {
            let mut command = command(&self.path);
            command.args(["-hide_banner", "-h", "long"]).stdin(Stdio::null());
            let output = match tokio::time::timeout(STALL, command.output()).await {
                Ok(output) => output.map_err(|error| start_error(NAME, error))?,
                Err(_) => return Err(start_error(NAME, io::ErrorKind::TimedOut.into())),
            };
            let help = String::from_utf8_lossy(&output.stdout);
            let has = |option| help.lines().any(|line| line.starts_with(option));
            Ok(if has("-vsync") && !has("-fps_mode") { "-vsync" } else { "-fps_mode" })
        };
        self.timing.get_or_try_init(ask).await.copied()
    }
}

const NAME: &str = "ffmpeg";

/// A program that ends with us. It inherits no secrets: a source that a variable names may have a password.
fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.kill_on_drop(true);
    for (name, _) in
        std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"TIDEGATE"))
    {
        command.env_remove(name);
    }
    command
}

/// A running ffmpeg.
struct Program {
    child: Child,
    output: tokio::process::ChildStdout,
    /// The last of its complaints, one a line.
    said: Arc<Mutex<String>>,
    listening: JoinHandle<()>,
    command: String,
}

impl Program {
    /// Starts ffmpeg; of what it writes to its standard error, it tells the times and sizes of the pictures that pass.
    fn start(
        ffmpeg: &Ffmpeg,
        arguments: &[OsString],
        stdin: Stdio,
    ) -> Result<(Self, mpsc::Receiver<Shown>), SourceError> {
        let mut command = command(&ffmpeg.path);
        command.args(arguments).stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| start_error(NAME, error))?;
        let output = child.stdout.take().expect("stdout was asked for as a pipe");
        let stderr = child.stderr.take().expect("stderr was asked for as a pipe");
        let words: Vec<_> = arguments.iter().map(|word| word.to_string_lossy()).collect();
        let command = format!("{NAME} {}", words.join(" "));
        let (shown, times) = mpsc::channel(SHOWN_MAX);
        let said = Arc::default();
        let listening = tokio::spawn(listen(stderr, shown, Arc::clone(&said)));
        Ok((Self { child, output, said, listening, command }, times))
    }

    /// Waits for a program whose output has ended.
    async fn finish(&mut self, place: &str) -> Result<(), SourceError> {
        let status = match tokio::time::timeout(STALL, self.child.wait()).await {
            Ok(status) => status.map_err(|error| start_error(NAME, error))?,
            Err(_) => {
                return Err(SourceError::stalled(place, STALL, &self.said()));
            }
        };
        // It ends with the pipe; that it was ended before is no reason to say less.
        let _ = (&mut self.listening).await;
        self.report(place, status)
    }

    fn report(&self, place: &str, status: ExitStatus) -> Result<(), SourceError> {
        if status.success() {
            return Ok(());
        }
        Err(SourceError::ProgramFailed {
            place: place.to_owned(),
            status,
            said: self.said(),
            command: self.command.clone(),
        })
    }

    /// Its last complaints, in one line.
    fn said(&self) -> String {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).trim().replace('\n', "; ")
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

/// ffmpeg's description of a picture before it writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shown {
    /// Its time in the stream, in nanoseconds; none if the stream has none.
    pub(super) nanos: Option<i64>,
    /// Its size as it was decoded.
    pub(super) size: Option<FrameSize>,
}

/// Pictures that ffmpeg decodes, with their times.
pub(super) struct Decoder {
    place: String,
    program: Program,
    shown: mpsc::Receiver<Shown>,
    splitter: Splitter,
    /// A picture whose time has not been read.
    held: Option<Bytes>,
    /// Its pictures pass as they come, and nothing is said of them.
    untimed: bool,
    /// A program that writes nothing for this long is given up; none if that is checked elsewhere.
    stall: Option<Duration>,
}

impl fmt::Debug for Decoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decoder").field("place", &self.place).finish_non_exhaustive()
    }
}

impl Decoder {
    /// A decoder of what is written to the pipe that is returned, in Matroska; by hardware, if one of ffmpeg's names for it is given.
    pub(super) async fn piped(
        ffmpeg: &Ffmpeg,
        place: String,
        hwaccel: Option<&str>,
    ) -> Result<(Self, ChildStdin), SourceError> {
        let mut arguments = words(["-copyts"], []);
        if let Some(hwaccel) = hwaccel {
            arguments.extend(words(["-hwaccel"], [hwaccel.into()]));
        }
        // One picture tells all that there is to be known.
        arguments.extend(words(
            ["-probesize", "32", "-analyzeduration", "0", "-fpsprobesize", "0", "-f"],
            [],
        ));
        arguments.extend(words(["matroska", "-i", "pipe:0"], []));
        let mut decoder = Self::start(ffmpeg, place, arguments, None, Stdio::piped(), None).await?;
        let stdin = decoder.program.child.stdin.take().expect("stdin was asked for as a pipe");
        Ok((decoder, stdin))
    }

    /// Plays what `input`, a number of arguments with `-i` in the end, names; through `filter` if there is one.
    async fn start(
        ffmpeg: &Ffmpeg,
        place: String,
        input: Vec<OsString>,
        filter: Option<String>,
        stdin: Stdio,
        stall: Option<Duration>,
    ) -> Result<Self, SourceError> {
        let shown =
            filter.map_or(String::new(), |filter| format!("{filter},")) + "showinfo=checksum=0";
        let mut arguments = words(["-hide_banner", "-nostats", "-nostdin", "-v", "level+info"], []);
        arguments.extend(words(["-threads", "1", "-flags", "low_delay"], []));
        arguments.extend(input);
        arguments.extend(words(["-map", "0:v:0", "-vf"], [shown.into()]));
        // Times in steps of their own, or two pictures may fall on one; sizes as they are, or what follows is scaled unsaid.
        arguments.extend(words(
            [ffmpeg.timing().await?, "passthrough", "-enc_time_base", "1:90000", "-autoscale", "0"],
            [],
        ));
        arguments.extend(words(["-pix_fmt", "yuvj420p", "-c:v", "mjpeg", "-q:v"], []));
        arguments.extend(words(
            [FFMPEG_QUALITY, "-threads", "1", "-f", "mjpeg", "-flush_packets", "1", "pipe:1"],
            [],
        ));
        let (program, shown) = Program::start(ffmpeg, &arguments, stdin)?;
        let splitter = Splitter::new(SourceSpec::FRAME_BYTES_MAX);
        Ok(Self { place, program, shown, splitter, held: None, stall, untimed: false })
    }

    pub(super) fn place(&self) -> &str {
        &self.place
    }

    /// The last complaints of its program; empty if it had none.
    pub(super) fn said(&self) -> String {
        self.program.said()
    }

    /// The next picture, with its time and its size as it was decoded; `None` at the end of the stream.
    ///
    /// # Cancel safety
    /// Cancel safe until it gives `None` or an error.
    pub(super) async fn next(&mut self) -> Result<Option<(Bytes, Shown)>, SourceError> {
        loop {
            if self.held.is_some() {
                // It was said before the picture was written, on another pipe.
                let nothing = Shown { nanos: None, size: None };
                let shown =
                    if self.untimed { nothing } else { self.shown.recv().await.unwrap_or(nothing) };
                return Ok(self.held.take().map(|jpeg| (jpeg, shown)));
            }
            match self.splitter.next_image() {
                Some(Ok(jpeg)) => {
                    self.held = Some(jpeg);
                    continue;
                }
                Some(Err(source)) => {
                    return Err(SourceError::Damaged { place: self.place.clone(), source });
                }
                None => {}
            }
            let buffer = self.splitter.buffer_mut();
            buffer.reserve(READ_BYTES);
            let read = tokio::time::timeout(
                self.stall.unwrap_or(Duration::MAX),
                self.program.output.read_buf(buffer),
            );
            let Ok(count) = read.await else {
                let after = self.stall.unwrap_or(STALL);
                return Err(SourceError::stalled(&self.place, after, &self.said()));
            };
            let count = count
                .map_err(|source| SourceError::Read { path: PathBuf::from(&self.place), source })?;
            if count == 0 {
                self.program.finish(&self.place).await?;
                return Ok(None);
            }
        }
    }
}

/// Reads what ffmpeg writes to its standard error: tells of pictures, and keeps the last of its complaints in `said`.
async fn listen(stderr: ChildStderr, shown: mpsc::Sender<Shown>, said: Arc<Mutex<String>>) {
    let mut lines = BufReader::new(stderr).split(b'\n');
    let mut base = None;
    // A pipe that cannot be read has no more: the kept text stands.
    while let Ok(Some(line)) = lines.next_segment().await {
        let line = String::from_utf8_lossy(&line);
        if line.contains("showinfo") {
            base = time_base(&line).or(base);
            if let Some(picture) = picture(&line, base) {
                // Without a receiver there is nothing to wait for.
                let _ = shown.send(picture).await;
            }
        } else if ["[panic]", "[fatal]", "[error]"].iter().any(|level| line.contains(level)) {
            let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
            said.push_str(line.trim_end());
            said.push('\n');
            if said.len() > 2 * SAID_BYTES {
                let from =
                    (said.len() - SAID_BYTES..said.len()).find(|&at| said.is_char_boundary(at));
                said.drain(..from.unwrap_or(0));
            }
        }
    }
}

/// `config in time_base: 1/10000, …`: seconds of one step, as a fraction.
fn time_base(line: &str) -> Option<(i64, i64)> {
    let (_, rest) = line.split_once("config in time_base: ")?;
    let (above, below) = rest.split(',').next()?.trim().split_once('/')?;
    Some((above.parse().ok()?, below.parse().ok().filter(|&below| below > 0)?))
}

/// `n:   0 pts: 123450 pts_time:12.345 … s:320x180 …`.
fn picture(line: &str, base: Option<(i64, i64)>) -> Option<Shown> {
    let (_, rest) = line.split_once("] n:")?;
    let (_, pts) = rest.split_once(" pts:")?;
    let size = rest.split_whitespace().find_map(|word| word.strip_prefix("s:")?.parse().ok());
    let pts: Option<i64> = pts.split_whitespace().next()?.parse().ok();
    let nanos = pts.zip(base).and_then(|(pts, (above, below))| {
        let nanos = i128::from(pts) * i128::from(above) * 1_000_000_000 / i128::from(below);
        i64::try_from(nanos).ok()
    });
    Some(Shown { nanos, size })
}

/// The rate at which a video file was recorded.
pub(super) async fn video_rate(path: &Path) -> Result<Rate, SourceError> {
    const NAME: &str = "ffprobe";
    let read = |source| SourceError::Read { path: path.to_owned(), source };
    tokio::fs::metadata(path).await.map_err(read)?;
    let arguments = words(
        [
            "-v",
            "error",
            "-select_streams",
            "v:0",
            "-show_entries",
            "stream=avg_frame_rate,r_frame_rate",
        ],
        ["-of".into(), "default=nw=1".into(), file_url(path)],
    );
    let mut command = command(NAME.as_ref());
    command.args(&arguments).stdin(Stdio::null());
    let output = match tokio::time::timeout(STALL, command.output()).await {
        Ok(output) => output.map_err(|error| start_error(NAME, error))?,
        Err(_) => {
            return Err(SourceError::stalled(&path.display().to_string(), STALL, ""));
        }
    };
    let said = String::from_utf8_lossy(&output.stdout);
    // A stream that belongs to a program is listed twice.
    let named = |name: &str| {
        said.lines().find_map(|line| {
            let (frames, seconds) = line.trim().strip_prefix(name)?.split_once('/')?;
            Rate::new(frames.parse::<f64>().ok()? / seconds.parse::<f64>().ok()?)
        })
    };
    // That of its shortest periods, unless it is a number that only the container knows: a file whose rate changes has its pictures at
    // their times.
    let shortest = named("r_frame_rate=").filter(|rate| rate.per_second() <= SHORTEST_MAX);
    let rate = shortest.max(named("avg_frame_rate="));
    match rate {
        Some(rate) if output.status.success() => Ok(rate),
        _ if output.status.success() => {
            Err(SourceError::Empty { path: path.to_owned(), wanted: "video of a known frame rate" })
        }
        _ => Err(SourceError::ProgramFailed {
            place: path.display().to_string(),
            status: output.status,
            said: String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; "),
            command: format!("{NAME} {}", path.display()),
        }),
    }
}

/// Plays a video file from `from` of its own time on; pictures come as they are asked for, at most `rate` a second of the file's time.
pub(super) async fn play_video(
    path: &Path,
    rate: Rate,
    from: Duration,
    repeat: bool,
) -> Result<Decoder, SourceError> {
    let mut input = if repeat { words(["-stream_loop", "-1"], []) } else { Vec::new() };
    input.extend(words(["-i"], [file_url(path)]));
    // The first picture of each slot of the wanted rate: a picture is left out or it is not, and none is made up.
    let (from, slot) =
        (from.as_secs_f64() - 1e-4, |time: &str| format!("floor({time}*{rate}+{SLOT_BEGINS})"));
    let (now, last) = (slot("t"), slot("prev_selected_t"));
    let select = format!("select='gte(t,{from})*(isnan(prev_selected_t)+gt({now},{last}))'");
    let place = path.display().to_string();
    let ffmpeg = Ffmpeg::installed();
    Decoder::start(ffmpeg, place, input, Some(select), Stdio::null(), Some(STALL)).await
}

/// Plays a local camera.
pub(super) async fn play_v4l2(
    device: &Path,
    size: Option<FrameSize>,
    rate: Option<Rate>,
    copy: bool,
) -> Result<Decoder, SourceError> {
    let read = |source| SourceError::Read { path: device.to_owned(), source };
    tokio::fs::metadata(device).await.map_err(read)?;
    let place = device.display().to_string();
    let mut input = words(["-fflags", "nobuffer", "-f", "v4l2"], []);
    if copy {
        input.extend(words(["-input_format", "mjpeg"], []));
    }
    if let Some(size) = size {
        input.extend(words(["-video_size"], [size.to_string().into()]));
    }
    if let Some(rate) = rate {
        input.extend(words(["-framerate"], [rate.to_string().into()]));
    }
    input.extend(words(["-i"], [device.into()]));
    // A camera that was asked for few pictures is silent for long between two.
    let stall = rate.map_or(STALL, |rate| STALL.max(3 * rate.period()));
    let ffmpeg = Ffmpeg::installed();
    if !copy {
        return Decoder::start(ffmpeg, place, input, None, Stdio::null(), Some(stall)).await;
    }
    let mut arguments = words(["-hide_banner", "-nostats", "-nostdin", "-v", "level+info"], []);
    arguments.extend(input);
    arguments.extend(words(["-c:v", "copy", "-f", "mjpeg", "-flush_packets", "1", "pipe:1"], []));
    let (program, shown) = Program::start(ffmpeg, &arguments, Stdio::null())?;
    let splitter = Splitter::new(SourceSpec::FRAME_BYTES_MAX);
    Ok(Decoder { place, program, shown, splitter, held: None, stall: Some(stall), untimed: true })
}

fn words<const N: usize, const M: usize>(fixed: [&str; N], more: [OsString; M]) -> Vec<OsString> {
    fixed.into_iter().map(OsString::from).chain(more).collect()
}

/// The path as a file and nothing else: ffmpeg would take `http:x` for an address.
fn file_url(path: &Path) -> OsString {
    let mut url = OsString::from("file:");
    url.push(OsStr::new(path));
    url
}

fn start_error(program: &'static str, source: io::Error) -> SourceError {
    match source.kind() {
        io::ErrorKind::NotFound => SourceError::ProgramMissing { program },
        _ => SourceError::ProgramStart { program, source },
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::{fs, io::Write as _};

    use super::*;

    /// A program that is called as ffmpeg is, in a folder of its own.
    pub(in crate::source) fn made_up(script: &str) -> (tempfile::TempDir, Ffmpeg) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("ffmpeg");
        // By another process: a file that a process of ours holds open for writing, if only a moment, cannot be run.
        let mut writer = std::process::Command::new("sh")
            .args(["-c", "cat > \"$0\" && chmod 755 \"$0\""])
            .arg(&path)
            .stdin(Stdio::piped())
            .spawn()
            .expect("a shell");
        let mut input = writer.stdin.take().expect("stdin was asked for as a pipe");
        input.write_all(format!("#!/bin/sh\n{script}").as_bytes()).expect("it reads");
        drop(input);
        assert!(writer.wait().expect("it is ours").success());
        (folder, Ffmpeg::at(path))
    }

    /// The output of the made-up programs: a scan without a frame is an image as far as a stream is concerned.
    const IMAGE: &[u8] = b"\xff\xd8\xff\xda\0\x08\x01\x01\0\0\x3f\0\x12\x34\xff\xd9";

    /// FFmpeg 9 has no `-vsync`, FFmpeg 5.0 no `-fps_mode`; it is asked once.
    #[tokio::test]
    async fn each_ffmpeg_is_told_of_times_by_the_option_that_it_has() {
        for (offered, other) in [("-fps_mode", "-vsync"), ("-vsync", "-fps_mode")] {
            let (folder, ffmpeg) = made_up(&format!(
                r#"echo called >> "$(dirname "$0")/calls"
[ "$2" = -h ] && {{ echo "{offered}  set how"; exit 0; }}
for word; do
    [ "$word" = {other} ] && {{ echo "[error] Unrecognized option '${{word#-}}'." >&2; exit 8; }}
    [ "$word" = {offered} ] && has=1
done
[ -n "$has" ] || exit 9
printf '\377\330\377\332\000\010\001\001\000\000\077\000\022\064\377\331'
"#
            ));
            for _ in 0..2 {
                let input = words(["-i", "x"], []);
                let place = "x".to_owned();
                let started =
                    Decoder::start(&ffmpeg, place, input, None, Stdio::null(), Some(STALL));
                let mut decoder = started.await.unwrap();
                let picture = decoder.next().await.unwrap().map(|(jpeg, _)| jpeg);
                assert_eq!(picture.as_deref(), Some(IMAGE), "{offered}");
                assert!(decoder.next().await.unwrap().is_none(), "{offered}");
            }
            let calls = fs::read_to_string(folder.path().join("calls")).unwrap();
            assert_eq!(calls.lines().count(), 3, "{offered}: asked once, started twice");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_ffmpeg_that_does_not_answer_is_given_up() {
        let (_folder, ffmpeg) = made_up("exec sleep 1000\n");
        let started =
            Decoder::start(&ffmpeg, "x".to_owned(), Vec::new(), None, Stdio::null(), None);
        let error = started.await.unwrap_err().to_string();
        assert!(error.contains("the program ffmpeg cannot be started"), "{error}");
    }

    #[test]
    fn times_and_sizes_of_pictures_are_read() {
        let config =
            "[Parsed_showinfo_0 @ 0x5] [info] config in time_base: 1/10000, frame_rate: 5/1";
        assert_eq!(time_base(config), Some((1, 10_000)));
        let line = "[Parsed_showinfo_0 @ 0x5] [info] n:   1 pts: 123450 pts_time:12.345  pos:   0 fmt:yuv420p sar:1/1 s:320x180 i:P";
        let size = Some(FrameSize { width: 320, height: 180 });
        assert_eq!(
            picture(line, Some((1, 10_000))),
            Some(Shown { nanos: Some(12_345_000_000), size })
        );
        assert_eq!(
            picture(&line.replace("123450", "NOPTS"), Some((1, 10_000))),
            Some(Shown { nanos: None, size })
        );
        assert_eq!(picture("[Parsed_showinfo_0 @ 0x5] [info]   side data - x", None), None);
    }
}
