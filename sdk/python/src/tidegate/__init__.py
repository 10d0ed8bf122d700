"""Camera frames within bounds of latency and accuracy, and messages, from a Tidegate node.

    import tidegate

    with tidegate.connect("127.0.0.1:7080", pki="tidegate-data/pki") as node:
        for frame in node.frames("cam1", latency_ms=100, accuracy=0.95):
            print(frame.verdict, frame.image.shape)

`tidegate.aio` has the same for asyncio. Every failure is a `TidegateError`.
"""

from ._calls import FrameInput, Published, Refused, ServerInfo
from ._connection import VERSION as __version__
from ._connection import Retries
from ._mqtt import MessageStream
from .cameras import Camera, CameraList
from .characterization import Characterization, characterize
from .client import Client, Detector, EventStream, FramePublisher, FrameStream, connect
from .detections import Box, Detections, DetectionTimes, Found, Model
from .errors import (
    ActionDeniedError,
    CameraElsewhereError,
    CameraOfflineError,
    CameraTakenError,
    CameraUnknownError,
    DetectorFailedError,
    FrameMissingError,
    FrameRefusedError,
    IdentityRefusedError,
    ImageRefusedError,
    InfeasibleError,
    InvalidRequestError,
    LimitReachedError,
    LinkDownError,
    ModelUnknownError,
    NotInstalledError,
    SourceSizeUnknownError,
    TidegateError,
)
from .frames import (
    AccuracyAssumed,
    Bounds,
    CameraOffline,
    CameraOnline,
    ControllerFailed,
    Ended,
    Event,
    Feasible,
    Frame,
    Infeasible,
    KnobsChanged,
    Missed,
    NoFrames,
    Original,
    Silent,
    Size,
    Stages,
    Started,
    Unchanged,
    Verdict,
)
from .messages import Message
from .serving import serve_detector

__all__ = [
    "AccuracyAssumed",
    "ActionDeniedError",
    "Bounds",
    "Box",
    "Camera",
    "CameraElsewhereError",
    "CameraList",
    "CameraOffline",
    "CameraOfflineError",
    "CameraOnline",
    "CameraTakenError",
    "CameraUnknownError",
    "Characterization",
    "Client",
    "ControllerFailed",
    "DetectionTimes",
    "Detections",
    "Detector",
    "DetectorFailedError",
    "Ended",
    "Event",
    "EventStream",
    "Feasible",
    "Found",
    "Frame",
    "FrameInput",
    "FrameMissingError",
    "FramePublisher",
    "FrameRefusedError",
    "FrameStream",
    "IdentityRefusedError",
    "ImageRefusedError",
    "Infeasible",
    "InfeasibleError",
    "InvalidRequestError",
    "KnobsChanged",
    "LimitReachedError",
    "LinkDownError",
    "Message",
    "MessageStream",
    "Missed",
    "Model",
    "ModelUnknownError",
    "NoFrames",
    "NotInstalledError",
    "Original",
    "Published",
    "Refused",
    "Retries",
    "ServerInfo",
    "Silent",
    "Size",
    "SourceSizeUnknownError",
    "Stages",
    "Started",
    "TidegateError",
    "Unchanged",
    "Verdict",
    "__version__",
    "characterize",
    "connect",
    "serve_detector",
]
