//! Knobs: the cost of each setting on 1080p frames of real size, compared with OpenCV doing the same.
//!
//! Frames are generated, textured until they have the wanted size, and encoded beforehand. Ours and the peer take turns
//! row by row, frame by frame on one thread each, and report thread CPU time, so that a busy machine disturbs both alike.

use std::{
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};
use tidegate_frame::knob::{Applied, FrameLimits, KnobSetting, Transcoder};
use tidegate_jpeg::{Codec, Planes, Quality, Sampling};
use tidegate_sys::clock::thread_cpu_nanos;

/// The measured parameters.
#[derive(Clone, Debug)]
pub struct KnobBench {
    /// How many different frames there are.
    pub frames: usize,
    /// Size that the frames are textured to, in bytes; they come within a tenth of it.
    pub frame_bytes: usize,
    /// How often every row is run over all frames. The first round warms up and is left out.
    pub rounds: usize,
    /// The settings, as text.
    pub rows: Vec<String>,
    /// Where the frames are written for the peer. Made if it is missing.
    pub folder: PathBuf,
    /// The Python that has OpenCV, and the peer's script; `None` measures ours alone.
    pub peer: Option<(PathBuf, PathBuf)>,
}

impl KnobBench {
    /// The default rows, frames of 400 KB, five measured rounds of eight frames.
    pub fn new(folder: PathBuf, peer: Option<(PathBuf, PathBuf)>) -> Self {
        let rows = KnobSetting::ladder().iter().map(ToString::to_string).collect();
        Self { frames: 8, frame_bytes: 400_000, rounds: 6, rows, folder, peer }
    }
}

/// One row: a value for every frame of every measured round.
#[derive(Clone, Debug, Default, Serialize)]
pub struct KnobRow {
    /// The setting.
    pub setting: String,
    /// Our thread CPU times in milliseconds.
    pub ours_ms: Vec<f64>,
    /// Our sizes in bytes.
    pub ours_bytes: Vec<usize>,
    /// The peer's thread CPU times in milliseconds; empty without a peer.
    pub peer_ms: Vec<f64>,
    /// The peer's sizes in bytes.
    pub peer_bytes: Vec<usize>,
}

/// Runs the bench once.
///
/// # Errors
/// When frames cannot be written, a setting is not understood, or the peer fails.
pub fn run(bench: &KnobBench) -> anyhow::Result<Vec<KnobRow>> {
    let frames = make_frames(bench.frames, bench.frame_bytes)?;
    write_frames(&bench.folder, &frames)?;
    let mut peer = match &bench.peer {
        Some((python, script)) => Some(Peer::start(python, script, &bench.folder)?),
        None => None,
    };
    let mut rows = Vec::new();
    for text in &bench.rows {
        let setting: KnobSetting = text.parse().with_context(|| format!("row {text:?}"))?;
        let row = KnobRow { setting: text.clone(), ..KnobRow::default() };
        rows.push((row, setting, Transcoder::new(FrameLimits::default())));
    }
    let mut out = Vec::new();
    for round in 0..bench.rounds {
        for (row, setting, transcoder) in &mut rows {
            for frame in &frames {
                let start = thread_cpu_nanos();
                let applied = transcoder.apply(frame, setting, &mut out)?;
                let nanos = thread_cpu_nanos() - start;
                if applied != (Applied::Unchanged { changed: 0.0 }) {
                    transcoder.sent();
                }
                if round > 0 {
                    row.ours_ms.push(nanos as f64 / 1e6);
                    row.ours_bytes.push(out.len());
                }
            }
            if let Some(peer) = &mut peer {
                let answer = peer.ask(&row.setting)?;
                ensure!(answer.ms.len() == frames.len(), "the peer skipped frames");
                if round > 0 {
                    row.peer_ms.extend(answer.ms);
                    row.peer_bytes.extend(answer.bytes);
                }
            }
        }
    }
    Ok(rows.into_iter().map(|(row, ..)| row).collect())
}

/// Frames of 1920x1080, quality 95, 4:2:0: a textured street that stands still, sensor grain, and a few boxes that move.
///
/// # Errors
/// When no amount of grain gives frames within a tenth of `bytes`.
pub fn make_frames(count: usize, bytes: usize) -> anyhow::Result<Vec<Vec<u8>>> {
    let street = Street::new();
    let mut codec = Codec::new();
    let (mut low, mut high) = (0.0f32, 40.0f32);
    for _ in 0..12 {
        let grain = (low + high) / 2.0;
        let size = street.frame(0, grain, &mut codec)?.len();
        if size.abs_diff(bytes) * 20 <= bytes {
            return (0..count).map(|index| street.frame(index, grain, &mut codec)).collect();
        }
        if size < bytes { low = grain } else { high = grain }
    }
    bail!("frames of {bytes} bytes are out of reach; ask for 200 KB to 1 MB")
}

fn write_frames(folder: &Path, frames: &[Vec<u8>]) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
    for (index, frame) in frames.iter().enumerate() {
        let path = folder.join(format!("{index:04}.jpg"));
        std::fs::write(&path, frame).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}

const WIDTH: usize = 1920;
const HEIGHT: usize = 1080;

/// The still background, as luma and chroma levels.
struct Street {
    luma: Vec<f32>,
    chroma: [Vec<u8>; 2],
}

impl Street {
    /// Smooth noise at many scales, finer ones weaker, as in pictures of real places.
    fn new() -> Self {
        let octaves = [(240, 40.0), (96, 26.0), (40, 16.0), (17, 10.0), (7, 6.0), (3, 3.0)];
        let layer = |width: usize, height: usize, octaves: &[(usize, f32)], seed: u32| {
            let mut levels = vec![0.0f32; width * height];
            for (y, row) in levels.chunks_mut(width).enumerate() {
                for (x, level) in row.iter_mut().enumerate() {
                    for &(cell, strength) in octaves {
                        *level += strength * lattice(x, y, cell, seed);
                    }
                }
            }
            levels
        };
        let chroma = |seed| {
            let levels = layer(WIDTH / 2, HEIGHT / 2, &octaves[..3], seed);
            levels.iter().map(|level| (128.0 + level / 2.0) as u8).collect()
        };
        Self { luma: layer(WIDTH, HEIGHT, &octaves, 1), chroma: [chroma(2), chroma(3)] }
    }

    fn frame(&self, index: usize, grain: f32, codec: &mut Codec) -> anyhow::Result<Vec<u8>> {
        let of = |side| Sampling { horizontal: side, vertical: side };
        let mut planes = Planes::default();
        planes.reset(WIDTH as u16, HEIGHT as u16, 3, [of(2), of(1), of(1)]);
        let (_, _, stride, luma) = planes.plane_mut(0);
        for (y, row) in luma.chunks_mut(stride).enumerate() {
            for (x, sample) in row[..WIDTH].iter_mut().enumerate() {
                let noise = hash(x as u32, y as u32, 77 + index as u32) - 0.5;
                *sample = (115.0 + self.luma[y * WIDTH + x] + grain * noise) as u8;
            }
            // Boxes the size of people, each at its own pace.
            for person in 0..6 {
                let top = 300 + 90 * person;
                let left = (200 + 310 * person + index * (6 + 3 * person)) % (WIDTH - 80);
                if (top..top + 160).contains(&y) {
                    for (x, sample) in row[left..left + 64].iter_mut().enumerate() {
                        *sample = if (x / 8 + (y - top) / 16) % 2 == 0 { 40 } else { 210 };
                    }
                }
            }
        }
        for (i, chroma) in self.chroma.iter().enumerate() {
            let (width, _, stride, plane) = planes.plane_mut(1 + i);
            for (row, levels) in plane.chunks_mut(stride).zip(chroma.chunks(width)) {
                row[..width].copy_from_slice(levels);
            }
        }
        let mut jpeg = Vec::new();
        codec.encode_planes(&mut planes, Quality::Scaled(95), &mut jpeg)?;
        Ok(jpeg)
    }
}

/// Noise between -1/2 and 1/2 that changes smoothly over `cell` pixels.
fn lattice(x: usize, y: usize, cell: usize, seed: u32) -> f32 {
    let (cx, cy) = (x / cell, y / cell);
    let smooth = |at: usize| {
        let t = (at % cell) as f32 / cell as f32;
        t * t * (3.0 - 2.0 * t)
    };
    let corner =
        |dx: usize, dy: usize| hash((cx + dx) as u32, (cy + dy) as u32, seed + cell as u32);
    let (tx, ty) = (smooth(x), smooth(y));
    let mix = |a: f32, b: f32, t: f32| a + (b - a) * t;
    let upper = mix(corner(0, 0), corner(1, 0), tx);
    let lower = mix(corner(0, 1), corner(1, 1), tx);
    mix(upper, lower, ty) - 0.5
}

/// A number in 0..1 for a place.
fn hash(x: u32, y: u32, seed: u32) -> f32 {
    let mut h =
        x.wrapping_mul(0x9e37_79b1) ^ y.wrapping_mul(0x85eb_ca77) ^ seed.wrapping_mul(0xc2b2_ae3d);
    h = (h ^ (h >> 15)).wrapping_mul(0x2c1b_3c6d);
    h = (h ^ (h >> 12)).wrapping_mul(0x297a_2d39);
    (h >> 8) as f32 / (1u32 << 24) as f32
}

/// The peer's process.
struct Peer {
    child: Child,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
}

#[derive(Deserialize)]
struct Answer {
    ms: Vec<f64>,
    bytes: Vec<usize>,
}

impl Peer {
    fn start(python: &Path, script: &Path, folder: &Path) -> anyhow::Result<Self> {
        // Without these, glibc maps and unmaps every full-size image, which costs the peer 6 ms a frame.
        let mut child = Command::new(python)
            .arg(script)
            .arg(folder)
            .env("MALLOC_MMAP_THRESHOLD_", "1073741824")
            .env("MALLOC_TRIM_THRESHOLD_", "2147483648")
            .env("MALLOC_TOP_PAD_", "67108864")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("start {} with {}", script.display(), python.display()))?;
        let questions = child.stdin.take().context("the peer's input is piped")?;
        let answers = BufReader::new(child.stdout.take().context("the peer's output is piped")?);
        Ok(Self { child, questions, answers })
    }

    fn ask(&mut self, row: &str) -> anyhow::Result<Answer> {
        writeln!(self.questions, "{row}").context("the peer takes no more rows")?;
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        serde_json::from_str(&line)
            .with_context(|| format!("the peer answers {row:?} with {line:?}"))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It ends with its input; if it does not, it is ended. Its answers are all in by now.
        if self.child.kill().is_ok() {
            let _ = self.child.wait();
        }
    }
}
