"""Why a call failed: one class for each way out, with the node's stable code.

TidegateError
├── InvalidRequestError     the request can never work: fix it
├── InfeasibleError         both bounds cannot be kept
├── CameraUnknownError      no camera of that name
├── CameraOfflineError      the camera is not reached now
├── CameraTakenError        the name is another's
├── CameraElsewhereError    another node serves the camera
├── FrameMissingError       the log has no such frame, or no longer
├── FrameRefusedError       a published frame was not taken; the next one may be
├── ModelUnknownError       no model of that name
├── ImageRefusedError       an image that no detector can use
├── DetectorFailedError     the detector does not answer, or its answer is none
├── IdentityRefusedError    this side or the other is not who it must be
├── ActionDeniedError       the caller may not
├── LimitReachedError       full now: later
├── LinkDownError           the node is not reached
├── SourceSizeUnknownError  boxes cannot be put on the original
└── NotInstalledError       an optional package or program is missing
"""

from __future__ import annotations

from typing import Any

import grpc

_CODE_METADATA = "tidegate-code"
_NODE_METADATA = "tidegate-place-node"
_ADDRESS_METADATA = "tidegate-place-address"


class TidegateError(Exception):
    """A failure: `code` is stable and for programs, the text is for people and may change.

    `code` is one of the node's, such as `frames.camera.unknown`, or `sdk.…` for a failure that this package found itself.
    """

    code: str

    def __init__(self, message: str, code: str = "internal") -> None:
        super().__init__(message)
        self.code = code


class InvalidRequestError(TidegateError):
    """The request can never work: a bound out of its range, an empty time range, no table, an address that is none."""


class InfeasibleError(TidegateError):
    """Both bounds cannot be kept at the capacity there is; the bounds that could be kept stand in the fields.

    Raised by streams that were opened with `when_infeasible="raise"`.
    """

    latency_at_accuracy_ms: float | None
    """The shortest latency at the accuracy asked for, in ms; None if no setting is accurate enough."""
    accuracy_at_latency: float | None
    """The highest accuracy at the latency asked for, 0 to 1; None if nothing fits."""
    frames_per_second: float | None
    """The frame rate at which the accuracy could be kept, within `latency_at_accuracy_ms` where that is given and else within the latency
    asked for; None if it is not the rate that is too high."""

    def __init__(
        self,
        message: str,
        code: str = "frames.bound.infeasible",
        latency_at_accuracy_ms: float | None = None,
        accuracy_at_latency: float | None = None,
        frames_per_second: float | None = None,
    ) -> None:
        super().__init__(message, code)
        self.latency_at_accuracy_ms = latency_at_accuracy_ms
        self.accuracy_at_latency = accuracy_at_latency
        self.frames_per_second = frames_per_second


class CameraUnknownError(TidegateError):
    """The node knows no camera of that name."""


class CameraOfflineError(TidegateError):
    """The camera is known and not reached now."""


class CameraTakenError(TidegateError):
    """Another client or a camera node holds the name."""


class CameraElsewhereError(TidegateError):
    """Another node serves the camera: connect to that one. A client that follows, as it does unless it is told not to, has tried."""

    node: str | None
    """The node's name."""
    addresses: list[str]
    """Addresses of its API, `host:port`, the best first."""

    def __init__(
        self,
        message: str,
        code: str = "frames.camera.elsewhere",
        node: str | None = None,
        addresses: list[str] | None = None,
    ) -> None:
        super().__init__(message, code)
        self.node = node
        self.addresses = addresses or []


class FrameMissingError(TidegateError):
    """The camera's log no longer has the frame, or never had it."""


class FrameRefusedError(TidegateError):
    """A published frame was not taken: no JPEG image, too large, or not later than the one before. The next one may follow."""


class ModelUnknownError(TidegateError):
    """The node has no model of that name; the text names those that there are."""


class ImageRefusedError(TidegateError):
    """The image is of another type than JPEG or PNG, too large, or damaged."""


class DetectorFailedError(TidegateError):
    """The detector does not start, does not answer in time, or gives an answer that is none; the same call may succeed later."""


class IdentityRefusedError(TidegateError):
    """A certificate, token or password was not accepted, by the node or by this side."""


class ActionDeniedError(TidegateError):
    """The node knows who calls, and its rules do not allow it."""


class LimitReachedError(TidegateError):
    """The node, the camera or the disk takes no more now; the same call may succeed later."""

    retry_after_s: float | None = None
    """When the node expects to take more, in seconds from now; None where it does not say."""


class LinkDownError(TidegateError):
    """The node is not reached, or the connection broke and the tries are used up."""


class SourceSizeUnknownError(TidegateError):
    """The node does not tell the size of the original, so that boxes cannot be put on it."""


class NotInstalledError(TidegateError, ImportError):
    """An optional package, or the program `tidegate`, is needed for this and is not installed."""


_BY_CODE: dict[str, type[TidegateError]] = {
    "frames.bound.invalid": InvalidRequestError,
    "frames.bound.infeasible": InfeasibleError,
    "frames.camera.unknown": CameraUnknownError,
    "frames.camera.offline": CameraOfflineError,
    "frames.camera.taken": CameraTakenError,
    "frames.camera.elsewhere": CameraElsewhereError,
    "frames.frame.invalid": FrameRefusedError,
    "frames.frame.too_large": FrameRefusedError,
    "frames.frame.timestamp": FrameRefusedError,
    "frames.frame.missing": FrameMissingError,
    "frames.range.invalid": InvalidRequestError,
    "frames.subscription.unknown": InvalidRequestError,
    "frames.table.invalid": InvalidRequestError,
    "frames.table.missing": InvalidRequestError,
    "auth.identity.refused": IdentityRefusedError,
    "auth.identity.revoked": IdentityRefusedError,
    "auth.action.denied": ActionDeniedError,
    "config.invalid": InvalidRequestError,
    "storage.full": LimitReachedError,
    "limit.reached": LimitReachedError,
    "link.down": LinkDownError,
    "request.invalid": InvalidRequestError,
    "request.path.unknown": InvalidRequestError,
    "vision.detector.failed": DetectorFailedError,
    "vision.detector.unavailable": DetectorFailedError,
    "vision.image.invalid": ImageRefusedError,
    "vision.image.type": ImageRefusedError,
    "vision.image.too_large": ImageRefusedError,
    "vision.model.unknown": ModelUnknownError,
    "vision.model.refused": InvalidRequestError,
    "vision.request.invalid": InvalidRequestError,
}

# Where no node gave a code, as when a proxy answers or nothing does, the kind of the status decides.
_BY_STATUS: dict[grpc.StatusCode, str] = {
    grpc.StatusCode.UNAVAILABLE: "link.down",
    grpc.StatusCode.CANCELLED: "link.down",
    grpc.StatusCode.DEADLINE_EXCEEDED: "link.down",
    grpc.StatusCode.UNAUTHENTICATED: "auth.identity.refused",
    grpc.StatusCode.PERMISSION_DENIED: "auth.action.denied",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "limit.reached",
    grpc.StatusCode.OUT_OF_RANGE: "frames.frame.too_large",
    grpc.StatusCode.UNIMPLEMENTED: "link.protocol",
}

# The same of HTTP.
_BY_HTTP_STATUS: dict[int, str] = {
    400: "request.invalid",
    401: "auth.identity.refused",
    403: "auth.action.denied",
    404: "request.path.unknown",
    413: "vision.image.too_large",
    415: "vision.image.type",
    422: "vision.image.invalid",
    429: "limit.reached",
    502: "link.down",
    503: "link.down",
    504: "link.down",
}

# grpcio keeps of a failed handshake only its text.
_REFUSALS = ("CERTIFICATE_VERIFY_FAILED", "CERTIFICATE_REQUIRED", "Peer name", "BAD_CERTIFICATE", "UNKNOWN_CA")


def of_code(code: str, message: str) -> TidegateError:
    """The failure that a stable code stands for."""
    return _BY_CODE.get(code, TidegateError)(message, code)


def of_status(status: int, message: str) -> TidegateError:
    """The failure that an answer of HTTP without a code of a node stands for."""
    return of_code(_BY_HTTP_STATUS.get(status, "internal"), message)


def of_rpc(error: grpc.RpcError) -> TidegateError:
    """The failure behind the status of a call."""
    status = error.code()
    text = error.details() or f"the call ended with {status.name if status else 'no status'}"
    # A call that fails before its first answer may have all of it at its beginning.
    for metadata in (error.trailing_metadata(), getattr(error, "initial_metadata", tuple)()):
        code = _first(metadata, _CODE_METADATA)
        if code is None:
            continue
        failure = of_code(code, text)
        if isinstance(failure, CameraElsewhereError):
            failure.node = _first(metadata, _NODE_METADATA)
            failure.addresses = _values(metadata, _ADDRESS_METADATA)
        return failure
    if status is grpc.StatusCode.UNAVAILABLE and any(word in text for word in _REFUSALS):
        return IdentityRefusedError(
            f"the peers do not accept each other's certificates; both must come from the same `tidegate init` ({text})",
            "auth.identity.refused",
        )
    return of_code(_BY_STATUS.get(status, "internal"), text)


def _values(metadata: Any, key: str) -> list[str]:
    """The values of a key among the metadata of an answer."""
    values = (value for name, value in metadata or () if name == key)
    return [value if isinstance(value, str) else value.decode("ascii", "replace") for value in values]


def _first(metadata: Any, key: str) -> str | None:
    return next(iter(_values(metadata, key)), None)
