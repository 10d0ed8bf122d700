from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Camera(_message.Message):
    __slots__ = ("name", "online", "size", "frames_per_second", "frame_bytes", "oldest_at", "newest_at", "log_bytes", "log_bytes_max", "transfers", "subscriptions", "transport", "clock_offset", "no_frames", "substream_of", "capture_clock", "node")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ONLINE_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    FRAMES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    FRAME_BYTES_FIELD_NUMBER: _ClassVar[int]
    OLDEST_AT_FIELD_NUMBER: _ClassVar[int]
    NEWEST_AT_FIELD_NUMBER: _ClassVar[int]
    LOG_BYTES_FIELD_NUMBER: _ClassVar[int]
    LOG_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    TRANSFERS_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    CLOCK_OFFSET_FIELD_NUMBER: _ClassVar[int]
    NO_FRAMES_FIELD_NUMBER: _ClassVar[int]
    SUBSTREAM_OF_FIELD_NUMBER: _ClassVar[int]
    CAPTURE_CLOCK_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    name: str
    online: bool
    size: FrameSize
    frames_per_second: float
    frame_bytes: int
    oldest_at: int
    newest_at: int
    log_bytes: int
    log_bytes_max: int
    transfers: int
    subscriptions: int
    transport: str
    clock_offset: ClockOffset
    no_frames: str
    substream_of: str
    capture_clock: str
    node: str
    def __init__(self, name: _Optional[str] = ..., online: bool = ..., size: _Optional[_Union[FrameSize, _Mapping]] = ..., frames_per_second: _Optional[float] = ..., frame_bytes: _Optional[int] = ..., oldest_at: _Optional[int] = ..., newest_at: _Optional[int] = ..., log_bytes: _Optional[int] = ..., log_bytes_max: _Optional[int] = ..., transfers: _Optional[int] = ..., subscriptions: _Optional[int] = ..., transport: _Optional[str] = ..., clock_offset: _Optional[_Union[ClockOffset, _Mapping]] = ..., no_frames: _Optional[str] = ..., substream_of: _Optional[str] = ..., capture_clock: _Optional[str] = ..., node: _Optional[str] = ...) -> None: ...

class FrameSize(_message.Message):
    __slots__ = ("width", "height")
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    width: int
    height: int
    def __init__(self, width: _Optional[int] = ..., height: _Optional[int] = ...) -> None: ...

class ClockOffset(_message.Message):
    __slots__ = ("offset_nanos", "uncertainty_nanos")
    OFFSET_NANOS_FIELD_NUMBER: _ClassVar[int]
    UNCERTAINTY_NANOS_FIELD_NUMBER: _ClassVar[int]
    offset_nanos: int
    uncertainty_nanos: int
    def __init__(self, offset_nanos: _Optional[int] = ..., uncertainty_nanos: _Optional[int] = ...) -> None: ...
