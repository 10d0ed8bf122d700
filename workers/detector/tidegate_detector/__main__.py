"""Starts a worker: `python -m tidegate_detector NAME…`, with the socket in TIDEGATE_DETECTOR_SOCKET.

It has the detectors that are named: moving, person, face, frontal_face, recognize. The first is used where a request names none; models are loaded
beside them.
"""

from __future__ import annotations

import os
import signal
import socket
import sys


def main() -> int:
    try:
        import cv2

        from . import face, moving, onnx, person, protocol, recognize, server
        from .image import Picture
    except ImportError as error:
        print(f"{error}; make the worker's Python environment with workers/detector/setup.sh", file=sys.stderr)
        return 3
    path, names = os.environ.get("TIDEGATE_DETECTOR_SOCKET"), sys.argv[1:]
    known: list[recognize.Known] = []

    def recognizer() -> recognize.Recognize:
        # All scenes share what was learned.
        if not known:
            known.append(recognize.Known(os.environ.get(recognize.FOLDER_VARIABLE)))
        return recognize.Recognize(known[0])

    recognizer.kind = recognize.Recognize.kind
    detectors = {
        "moving": moving.Moving,
        "person": person.Person,
        "face": face.Face,
        "frontal_face": face.FrontalFace,
        "recognize": recognizer,
    }
    if not names or not path or not set(names) <= set(detectors) or len(set(names)) < len(names):
        print(f"usage: TIDEGATE_DETECTOR_SOCKET=PATH python -m tidegate_detector {'|'.join(detectors)}…", file=sys.stderr)
        return 2
    # One thread: the cameras' encoders need the other cores, and results must not depend on how many there are.
    cv2.setNumThreads(1)
    cv2.ocl.setUseOpenCL(False)
    # Ctrl-C reaches every process of the terminal; this one ends when the socket closes, after its last answer.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    try:
        chosen = {}
        for name in names:
            try:
                warm(detectors[name], Picture)
            except protocol.FrameError as error:
                # Where others are asked for as well, they are of use without it; a request that names it is told those that there are.
                if len(names) == 1:
                    raise
                print(f"{name} is left out: {error}", file=sys.stderr)
            else:
                chosen[name] = detectors[name]
        if not chosen:
            return 3
        server.Server(chosen, Picture, onnx.load).serve(connection)
    except (protocol.ProtocolError, ConnectionError) as error:
        print(f"the connection broke: {error}", file=sys.stderr)
        return 1
    except protocol.FrameError as error:
        print(error, file=sys.stderr)
        return 3
    return 0


def warm(factory, picture) -> None:
    """Looks at a gray image, so that the first request does not pay for what is loaded at first use."""
    from .protocol import FrameError, Size

    detector = factory()
    detector.begin_scene(Size(64, 48))
    try:
        detector.detect(picture(bytes(64 * 48 * 3), [48, 64, 3]))
    except FrameError:
        # One that has learned nothing yet says so.
        pass


if __name__ == "__main__":
    sys.exit(main())
