"""Starts a detector: `python -m tidegate_detector moving|person|face`, with the socket in TIDEGATE_DETECTOR_SOCKET."""

from __future__ import annotations

import os
import signal
import socket
import sys


def main() -> int:
    try:
        import cv2

        from . import face, moving, person, protocol
    except ImportError as error:
        print(f"{error}; make the worker's Python environment with workers/detector/setup.sh", file=sys.stderr)
        return 3
    detectors = {"moving": moving.Moving, "person": person.Person, "face": face.Face}
    path = os.environ.get("TIDEGATE_DETECTOR_SOCKET")
    name = sys.argv[1] if len(sys.argv) == 2 else None
    if name not in detectors or not path:
        print(f"usage: TIDEGATE_DETECTOR_SOCKET=PATH python -m tidegate_detector {'|'.join(detectors)}", file=sys.stderr)
        return 2
    # One thread: the cameras' encoders need the other cores, and results must not depend on how many there are.
    cv2.setNumThreads(1)
    cv2.ocl.setUseOpenCL(False)
    # Ctrl-C reaches every process of the terminal; this one ends when the socket closes, after its last answer.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    try:
        protocol.serve(connection, detectors[name]())
    except (protocol.ProtocolError, ConnectionError) as error:
        print(f"the connection broke: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
