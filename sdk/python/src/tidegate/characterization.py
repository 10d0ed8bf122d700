"""Tables of what each setting of the knobs costs and is worth to a detector that is a Python function.

tidegate characterize ──starts──▶ _rendezvous.py ──path of the socket──▶ this process ──▶ the function
         └───────────────── detector protocol over that socket ────────────────┘
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from .errors import InvalidRequestError, NotInstalledError, TidegateError
from .frames import Size
from .serving import Answers, Detect

_RENDEZVOUS = Path(__file__).with_name("_rendezvous.py")
_ROW = re.compile(r"^\s*(\d+) of (\d+)\s+(.*)$")
_BAR_CELLS = 30
# Each starts the detector anew; one that never connects is given up by then.
_ACCEPT_S = 30.0


@dataclass(frozen=True, slots=True)
class Characterization:
    """A table that was written."""

    table: Path
    """To be put into `frames.tables_dir` of the camera's node."""
    picture: Path | None
    """Size against accuracy, as SVG."""
    report: str
    """The front, and how far it can be trusted."""

    def __str__(self) -> str:
        return self.report

    def _repr_html_(self) -> str:
        """The picture, for notebooks."""
        return self.picture.read_text(encoding="utf-8") if self.picture is not None else f"<pre>{self.report}</pre>"


def characterize(
    detect: Detect,
    clip: str | Path,
    *,
    table: str | Path = "tidegate.table",
    name: str = "python",
    scene: str | None = None,
    frames: int = 120,
    profile: Literal["jpeg", "mez"] = "jpeg",
    use_truth: bool = True,
    input_size: Size | tuple[int, int] | None = None,
    progress: bool | None = None,
    program: str | Path = "tidegate",
) -> Characterization:
    """Measures on your own footage what each setting of the knobs costs in bytes and is worth to your detector.

    Runs `tidegate characterize` on this machine, which has to be installed, and calls `detect` on each frame at each setting, in this
    process, one at a time and in a thread of its own. The clip is known to be long enough if there are fifty boxes or more.

    Args:
        detect: called with BGR pixels; returns boxes as (left, top, right, bottom, score[, label]) in pixels of that image.
        clip: a video file, a folder of JPEG images, or any other source of the node, such as `scene:street`.
        table: where to write the table; its picture goes next to it.
        name: names the detector in the table, 1 to 64 letters, digits, `.`, `_` or `-`. Subscriptions pick the table by it.
        scene: scene class that the table is for, one word.
        frames: how many, spread over the clip.
        profile: which knobs.
        use_truth: compare with the boxes that the source knows, where it knows them (a generated scene), and else with detections on
            the originals.
        input_size: the size to which `detect` brings its images; that of the clip where none is given.
        progress: a bar on the standard error; by default if that is a terminal.
        program: the program to run.

    Raises:
        NotInstalledError: the program, or both OpenCV and Pillow, are not installed.
        InvalidRequestError: a name or a clip that cannot be used, or too few boxes; the text is the program's.
        Exception: an exception of `detect` ends it and is raised as it is.
    """
    answers = Answers(detect, name, input_size=input_size, is_strict=True)
    found = shutil.which(str(program))
    if found is None:
        raise NotInstalledError(f"the program {program} is not installed", "sdk.not_installed")
    if progress is None:
        progress = sys.stderr.isatty()
    with tempfile.TemporaryDirectory(prefix="tidegate-") as folder:
        rendezvous = Path(folder) / "rendezvous"
        command = shlex.join([sys.executable, "-I", str(_RENDEZVOUS), str(rendezvous)])
        arguments = [found, "characterize", "--clip", str(clip), "--detector", "command", "--detector-command", command]
        arguments += ["--frames", str(frames), "--profile", profile, "--output", str(table)]
        arguments += [] if scene is None else ["--scene", scene]
        arguments += [] if use_truth else ["--no-truth"]
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(rendezvous))
            listener.listen()
            with subprocess.Popen(
                arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            ) as process:
                worker = _Worker(listener, process, answers)
                try:
                    assert process.stdout is not None and process.stderr is not None, "both are piped"
                    out = _Reader(process.stdout)
                    said = _follow(process.stderr, _Bar() if progress else None)
                    status = process.wait()
                except BaseException:
                    process.kill()
                    raise
                finally:
                    worker.stop()
    if worker.failure is not None:
        raise worker.failure
    report = out.text()
    if status != 0:
        code = "config.invalid"
        error = InvalidRequestError if status in (2, 3) else TidegateError
        raise error(said or f"{program} characterize ended with {status}", code)
    picture = Path(table).with_suffix(".svg")
    return Characterization(Path(table), picture if picture.is_file() else None, report)


class _Reader:
    """Reads a pipe to its end, so that the program never waits for it."""

    def __init__(self, pipe: IO[str]) -> None:
        self._text = ""
        self._thread = threading.Thread(target=self._read, args=(pipe,), name="tidegate-report", daemon=True)
        self._thread.start()

    def _read(self, pipe: IO[str]) -> None:
        self._text = pipe.read()

    def text(self) -> str:
        self._thread.join()
        return self._text


def _follow(pipe: IO[str], bar: _Bar | None) -> str:
    """Shows rows as they come; returns the other lines, which say why it failed if it does."""
    said: list[str] = []
    for line in pipe:
        row = _ROW.match(line)
        if row is None:
            said.append(line.rstrip())
        elif bar is not None:
            bar.show(int(row[1]), int(row[2]), row[3].strip())
    if bar is not None:
        bar.end()
    return "\n".join(said[-20:])


class _Bar:
    """A bar on the standard error, of letters and nothing else."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._width = 0

    def show(self, done: int, of: int, text: str) -> None:
        filled = _BAR_CELLS * done // max(of, 1)
        left_s = (time.monotonic() - self._began) / max(done, 1) * (of - done)
        line = f"[{'#' * filled}{'.' * (_BAR_CELLS - filled)}] {done}/{of}, {left_s:.0f} s left  {text}"
        sys.stderr.write("\r" + line.ljust(self._width))
        sys.stderr.flush()
        self._width = len(line)

    def end(self) -> None:
        if self._width:
            sys.stderr.write("\n")


class _Worker:
    """Answers the detector protocol with a function, for each time that the program starts its detector."""

    def __init__(
        self,
        listener: socket.socket,
        process: subprocess.Popen[str],
        answers: Answers,
    ) -> None:
        self.failure: BaseException | None = None
        self._listener = listener
        self._process = process
        self._answers = answers
        self._thread = threading.Thread(target=self._run, name="tidegate-detector", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        # `accept` in another thread is woken by this, not by closing.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(_ACCEPT_S)

    def _run(self) -> None:
        try:
            while True:
                try:
                    waiting, _ = self._listener.accept()
                except OSError:
                    return
                with waiting:
                    self._serve(waiting)
        except BaseException as error:
            self.failure = error
            self._process.kill()

    def _serve(self, waiting: socket.socket) -> None:
        path = b""
        while part := waiting.recv(4096):
            path += part
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(os.fsdecode(path))
            self._answers.serve(connection)
