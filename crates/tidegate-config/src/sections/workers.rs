//! `[workers]`.

use std::{path::PathBuf, time::Duration};

use tidegate_message::{Confidential, command};

use super::{millis, seconds};
use crate::{ByteCount, words::WorkerRuntime};

/// Largest image that a program is given, in bytes.
pub const IMAGE_BYTES_MOST: u64 = 64 << 20;

section! {
    /// `[workers]`: the programs that look at images, one pool for privacy regions, live detection and the endpoints of a node; see the
    /// chapter on detectors. They begin when something is looked at for the first time.
    WorkersSection: fixed {
        /// Programs that run at once, 1 to 32, each with a processor to itself. Default none: half as many as there are processors, 1 to 4.
        count: Option<u32> = None
            => "from 1 to 32" if |it, _| it.count.is_none_or(|count| (1..=32).contains(&count)),
        /// The program of ours that looks: `python`, which has `face`, `person` and `recognize` and runs models of yours, or `native`, which runs
        /// models of yours alone, by ONNX Runtime and without Python. Default `python`.
        runtime: WorkerRuntime = WorkerRuntime::Python
            => "python where workers.command names a program in place of ours"
                if |it, _| it.runtime == WorkerRuntime::Python || it.command.is_none(),
        /// The library of ONNX Runtime for `native`, libonnxruntime.so, version 1.17 or later. A relative path begins at the folder of the file
        /// that names it. Default none: it is looked for, see the chapter on detectors.
        library: Option<PathBuf> = None
            => "named where workers.runtime is native"
                if |it, _| it.library.is_none() || it.runtime == WorkerRuntime::Native,
        /// A program of yours that speaks the detector protocol, with its arguments, in place of ours, which has `face`, `person` and
        /// `recognize`. Default none.
        command: Option<Confidential> = None
            => "a program and its arguments, every quote closed"
                if |it, _| it.command.as_ref().is_none_or(|text| command::split(text.expose()).is_some()),
        /// Folder of models of yours, which are loaded at the start: each an ONNX file and its description. A relative path begins at the folder
        /// of the file that names it. Default none.
        models_dir: Option<PathBuf> = None,
        /// Images that may wait for a program, 1 to 65536; more are refused, with the time after which a place is likely. Default 256.
        waiting_max: u32 = 256
            => "from 1 to 65536" if |it, _| (1..=65_536).contains(&it.waiting_max),
        /// Bytes of images that may wait, `64MiB` to `64GiB`. Default `256MiB`.
        waiting_bytes: ByteCount = ByteCount(256 << 20)
            => "from 64MiB, the largest image, to 64GiB"
                if |it, _| (IMAGE_BYTES_MOST..=64 << 30).contains(&it.waiting_bytes.0),
        /// Memory shared with each program for images on their way, 0 for none, at most `4GiB`. Default `64MiB`.
        memory: ByteCount = ByteCount(64 << 20)
            => "4GiB at most" if |it, _| it.memory.0 <= 4 << 30,
        /// How long an image waits for others of its model, which are looked at together, at most `1s`. Default `0ms`: those that wait when a
        /// program is free go together.
        batch_wait: Duration = millis(0)
            => "1s at most" if |it, _| it.batch_wait <= seconds(1),
        /// Longest time that a program has to start, and to load a model, `1s` to `10min`. Default `30s`.
        start_timeout: Duration = seconds(30)
            => "from 1s to 10min" if |it, _| (seconds(1)..=seconds(600)).contains(&it.start_timeout),
        /// Longest wait for a program that has images to answer one, `100ms` to `10min`; it is started again then. Default `20s`.
        answer_timeout: Duration = seconds(20)
            => "from 100ms to 10min"
                if |it, _| (millis(100)..=seconds(600)).contains(&it.answer_timeout),
    }
}
