//! Pictures from a stream of bytes, and the ffmpeg programs that write such streams.
//!
//! ffmpeg decodes and writes JPEG images to a pipe that we read when a picture is wanted: a full pipe holds it back, and a
//! closed one ends it, so that it never outlives us.

use std::{
    ffi::{OsStr, OsString},
    fmt, io,
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncSeekExt},
    net::unix::pipe,
    process::{Child, ChildStderr, Command},
    task::JoinHandle,
};

use tidegate_message::FrameSize;

use super::{Picture, Rate, SourceError, SourceSpec, SplitError, Splitter};

/// A program that writes nothing for this long is given up.
const STALL: Duration = Duration::from_secs(10);

/// Bytes asked for in one read.
const READ_BYTES: usize = 64 << 10;

/// How much of what a program says last is kept.
const SAID_BYTES: usize = 2 << 10;

/// ffmpeg's quality scale runs from 2, the best, to 31; 2 is close to quality 95 on libjpeg's scale.
const FFMPEG_QUALITY: &str = "2";

/// JPEG images from a stream of bytes.
pub(super) struct Reader {
    place: String,
    splitter: Splitter,
    input: Input,
    ended: bool,
}

enum Input {
    /// A pipe or standard input.
    Pipe(Box<dyn AsyncRead + Send + Sync + Unpin>),
    /// A file, read again from its start at the end if it repeats.
    File { file: tokio::fs::File, path: PathBuf, repeat: bool },
    /// The output of a program.
    Program(Program),
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
        Ok(Self { place, splitter: Splitter::new(frame_bytes_max), input, ended: false })
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
            match self.splitter.next_image() {
                Some(Ok(jpeg)) => return Ok(Some(Picture { jpeg, truth: None })),
                Some(Err(error)) => return Err(self.damaged(error)),
                None if self.ended => return Ok(None),
                None => {}
            }
            if self.fill().await? > 0 {
                continue;
            }
            // The end: an image that was begun is lost.
            let fresh = Splitter::new(self.splitter.frame_bytes_max());
            let rest = std::mem::replace(&mut self.splitter, fresh).finish();
            self.ended = true;
            if let Input::Program(program) = &mut self.input {
                program.finish(&self.place).await?;
            }
            if let Input::File { file, path, repeat: true } = &mut self.input {
                if rewound {
                    return Err(SourceError::Empty { path: path.clone(), wanted: "JPEG image" });
                }
                let read = |source| SourceError::Read { path: path.clone(), source };
                file.rewind().await.map_err(read)?;
                (self.ended, rewound) = (false, true);
            }
            rest.map_err(|error| self.damaged(error))?;
        }
    }

    async fn fill(&mut self) -> Result<usize, SourceError> {
        let buffer = self.splitter.buffer_mut();
        buffer.reserve(READ_BYTES);
        let (place, path) = (&self.place, PathBuf::from(&self.place));
        let read = |source| SourceError::Read { path, source };
        match &mut self.input {
            Input::Pipe(pipe) => pipe.read_buf(buffer).await.map_err(read),
            Input::File { file, .. } => file.read_buf(buffer).await.map_err(read),
            Input::Program(program) => {
                match tokio::time::timeout(STALL, program.output.read_buf(buffer)).await {
                    Ok(result) => result.map_err(read),
                    Err(_) => Err(SourceError::Stalled { place: place.clone(), after: STALL }),
                }
            }
        }
    }

    fn damaged(&self, source: SplitError) -> SourceError {
        SourceError::Damaged { place: self.place.clone(), source }
    }
}

/// A running ffmpeg.
struct Program {
    child: Child,
    output: tokio::process::ChildStdout,
    said: JoinHandle<String>,
    command: String,
    secret: Option<String>,
}

impl Program {
    fn start(arguments: &[OsString], secret: Option<&str>) -> Result<Self, SourceError> {
        const NAME: &str = "ffmpeg";
        let mut command = Command::new(NAME);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.kill_on_drop(true);
        let mut child = command.spawn().map_err(|error| start_error(NAME, error))?;
        let output = child.stdout.take().expect("stdout was asked for as a pipe");
        let stderr = child.stderr.take().expect("stderr was asked for as a pipe");
        let words: Vec<_> = arguments.iter().map(|word| word.to_string_lossy()).collect();
        let command = format!("{NAME} {}", words.join(" "));
        let said = tokio::spawn(last_words(stderr));
        let mut program = Self { child, output, said, command, secret: secret.map(str::to_owned) };
        program.command = program.without_secret(&program.command);
        Ok(program)
    }

    /// Waits for a program whose output has ended.
    async fn finish(&mut self, place: &str) -> Result<(), SourceError> {
        let status = match tokio::time::timeout(STALL, self.child.wait()).await {
            Ok(status) => status.map_err(|error| start_error("ffmpeg", error))?,
            Err(_) => {
                return Err(SourceError::Stalled { place: place.to_owned(), after: STALL });
            }
        };
        let said = (&mut self.said).await.unwrap_or_default();
        self.report(place, status, &said)
    }

    fn report(&self, place: &str, status: ExitStatus, said: &str) -> Result<(), SourceError> {
        if status.success() {
            return Ok(());
        }
        Err(SourceError::ProgramFailed {
            place: place.to_owned(),
            status,
            said: self.without_secret(said.trim()).replace('\n', "; "),
            command: self.command.clone(),
        })
    }

    fn without_secret(&self, text: &str) -> String {
        match &self.secret {
            Some(secret) => text.replace(secret.as_str(), "***"),
            None => text.to_owned(),
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.said.abort();
    }
}

/// The last of what a program writes to its standard error.
pub(crate) async fn last_words(mut stderr: ChildStderr) -> String {
    let mut kept = Vec::new();
    let mut chunk = [0; 1024];
    // A pipe that cannot be read says no more: what was kept stands.
    while let Ok(count @ 1..) = stderr.read(&mut chunk).await {
        kept.extend_from_slice(&chunk[..count]);
        if kept.len() > 2 * SAID_BYTES {
            kept.drain(..kept.len() - SAID_BYTES);
        }
    }
    let start = kept.len().saturating_sub(SAID_BYTES);
    String::from_utf8_lossy(&kept[start..]).into_owned()
}

/// The rate at which a video file was recorded.
pub(super) async fn video_rate(path: &Path) -> Result<Rate, SourceError> {
    const NAME: &str = "ffprobe";
    let read = |source| SourceError::Read { path: path.to_owned(), source };
    tokio::fs::metadata(path).await.map_err(read)?;
    let arguments = words(
        ["-v", "error", "-select_streams", "v:0", "-show_entries", "stream=avg_frame_rate", "-of"],
        ["csv=p=0".into(), file_url(path)],
    );
    let mut command = Command::new(NAME);
    command.args(&arguments).stdin(Stdio::null()).kill_on_drop(true);
    let output = match tokio::time::timeout(STALL, command.output()).await {
        Ok(output) => output.map_err(|error| start_error(NAME, error))?,
        Err(_) => {
            return Err(SourceError::Stalled { place: path.display().to_string(), after: STALL });
        }
    };
    let said = String::from_utf8_lossy(&output.stdout);
    let rate = said.trim().trim_end_matches(',').split_once('/').and_then(|(frames, seconds)| {
        Rate::new(frames.parse::<f64>().ok()? / seconds.parse::<f64>().ok()?)
    });
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

/// Plays a video file; pictures come as they are asked for.
pub(super) async fn play_video(
    path: &Path,
    rate: Rate,
    repeat: bool,
) -> Result<Reader, SourceError> {
    let mut arguments = words(["-nostdin", "-v", "error"], []);
    if repeat {
        arguments.extend(words(["-stream_loop", "-1"], []));
    }
    arguments.extend(words(["-i"], [file_url(path)]));
    arguments.extend(words(["-an", "-sn", "-vf"], [format!("fps={rate}").into()]));
    arguments.extend(encode());
    reader(path.display().to_string(), &arguments, None)
}

/// Plays a network camera over TCP, which loses no packet on the way.
pub(super) async fn play_rtsp(url: &str) -> Result<Reader, SourceError> {
    let mut arguments =
        words(["-nostdin", "-v", "error", "-rtsp_transport", "tcp", "-i"], [url.into()]);
    arguments.extend(words(["-an", "-sn"], []));
    arguments.extend(encode());
    let secret = credentials(url);
    let place = secret.map_or_else(|| url.to_owned(), |secret| url.replacen(secret, "***", 1));
    reader(place, &arguments, secret)
}

/// Plays a local camera.
pub(super) async fn play_v4l2(
    device: &Path,
    size: Option<FrameSize>,
    rate: Option<Rate>,
    copy: bool,
) -> Result<Reader, SourceError> {
    let read = |source| SourceError::Read { path: device.to_owned(), source };
    tokio::fs::metadata(device).await.map_err(read)?;
    let mut arguments = words(["-nostdin", "-v", "error", "-f", "v4l2"], []);
    if copy {
        arguments.extend(words(["-input_format", "mjpeg"], []));
    }
    if let Some(size) = size {
        arguments.extend(words(["-video_size"], [size.to_string().into()]));
    }
    if let Some(rate) = rate {
        arguments.extend(words(["-framerate"], [rate.to_string().into()]));
    }
    arguments.extend(words(["-i"], [device.into()]));
    arguments.extend(if copy { words(["-c:v", "copy", "-f", "mjpeg", "-"], []) } else { encode() });
    reader(device.display().to_string(), &arguments, None)
}

fn encode() -> Vec<OsString> {
    let quality = FFMPEG_QUALITY;
    words(["-pix_fmt", "yuvj420p", "-c:v", "mjpeg", "-q:v", quality, "-threads", "1"], [])
        .into_iter()
        .chain(words(["-f", "mjpeg", "-"], []))
        .collect()
}

fn reader(
    place: String,
    arguments: &[OsString],
    secret: Option<&str>,
) -> Result<Reader, SourceError> {
    let program = Program::start(arguments, secret)?;
    let splitter = Splitter::new(SourceSpec::FRAME_BYTES_MAX);
    Ok(Reader { place, splitter, input: Input::Program(program), ended: false })
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

/// The `user:password` part of an address.
fn credentials(url: &str) -> Option<&str> {
    let rest = url.split_once("://")?.1;
    let authority = rest.split('/').next()?;
    authority.rsplit_once('@').map(|(credentials, _)| credentials).filter(|text| !text.is_empty())
}

fn start_error(program: &'static str, source: io::Error) -> SourceError {
    match source.kind() {
        io::ErrorKind::NotFound => SourceError::ProgramMissing { program },
        _ => SourceError::ProgramStart { program, source },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_found_and_kept_out_of_messages() {
        for (url, expected) in [
            ("rtsp://cam/1", None),
            ("rtsp://me:s3cret@cam:554/1", Some("me:s3cret")),
            ("rtsp://me:a@b@cam/1", Some("me:a@b")),
            ("rtsp://cam/a@b", None),
        ] {
            assert_eq!(credentials(url), expected, "{url}");
        }
    }
}
