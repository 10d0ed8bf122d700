from tidegate.v1 import camera_pb2 as _camera_pb2
from tidegate.v1 import frames_pb2 as _frames_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DetectRequest(_message.Message):
    __slots__ = ("model", "image", "id")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    model: str
    image: bytes
    id: int
    def __init__(self, model: _Optional[str] = ..., image: _Optional[bytes] = ..., id: _Optional[int] = ...) -> None: ...

class DetectResponse(_message.Message):
    __slots__ = ("id", "detected", "refused")
    ID_FIELD_NUMBER: _ClassVar[int]
    DETECTED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    id: int
    detected: Detected
    refused: _frames_pb2.Refusal
    def __init__(self, id: _Optional[int] = ..., detected: _Optional[_Union[Detected, _Mapping]] = ..., refused: _Optional[_Union[_frames_pb2.Refusal, _Mapping]] = ...) -> None: ...

class Detected(_message.Message):
    __slots__ = ("model", "image", "boxes", "classes", "poses", "times")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    BOXES_FIELD_NUMBER: _ClassVar[int]
    CLASSES_FIELD_NUMBER: _ClassVar[int]
    POSES_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    model: str
    image: _camera_pb2.FrameSize
    boxes: _containers.RepeatedCompositeFieldContainer[DetectedBox]
    classes: _containers.RepeatedCompositeFieldContainer[DetectedClass]
    poses: _containers.RepeatedCompositeFieldContainer[DetectedPose]
    times: DetectTimes
    def __init__(self, model: _Optional[str] = ..., image: _Optional[_Union[_camera_pb2.FrameSize, _Mapping]] = ..., boxes: _Optional[_Iterable[_Union[DetectedBox, _Mapping]]] = ..., classes: _Optional[_Iterable[_Union[DetectedClass, _Mapping]]] = ..., poses: _Optional[_Iterable[_Union[DetectedPose, _Mapping]]] = ..., times: _Optional[_Union[DetectTimes, _Mapping]] = ...) -> None: ...

class DetectedBox(_message.Message):
    __slots__ = ("left", "top", "right", "bottom", "score", "label")
    LEFT_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    RIGHT_FIELD_NUMBER: _ClassVar[int]
    BOTTOM_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    left: float
    top: float
    right: float
    bottom: float
    score: float
    label: str
    def __init__(self, left: _Optional[float] = ..., top: _Optional[float] = ..., right: _Optional[float] = ..., bottom: _Optional[float] = ..., score: _Optional[float] = ..., label: _Optional[str] = ...) -> None: ...

class DetectedClass(_message.Message):
    __slots__ = ("score", "label")
    SCORE_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    score: float
    label: str
    def __init__(self, score: _Optional[float] = ..., label: _Optional[str] = ...) -> None: ...

class DetectedPose(_message.Message):
    __slots__ = ("points",)
    POINTS_FIELD_NUMBER: _ClassVar[int]
    points: _containers.RepeatedCompositeFieldContainer[DetectedPoint]
    def __init__(self, points: _Optional[_Iterable[_Union[DetectedPoint, _Mapping]]] = ...) -> None: ...

class DetectedPoint(_message.Message):
    __slots__ = ("x", "y", "score")
    X_FIELD_NUMBER: _ClassVar[int]
    Y_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    x: float
    y: float
    score: float
    def __init__(self, x: _Optional[float] = ..., y: _Optional[float] = ..., score: _Optional[float] = ...) -> None: ...

class DetectTimes(_message.Message):
    __slots__ = ("queue_nanos", "decode_nanos", "infer_nanos", "total_nanos")
    QUEUE_NANOS_FIELD_NUMBER: _ClassVar[int]
    DECODE_NANOS_FIELD_NUMBER: _ClassVar[int]
    INFER_NANOS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_NANOS_FIELD_NUMBER: _ClassVar[int]
    queue_nanos: int
    decode_nanos: int
    infer_nanos: int
    total_nanos: int
    def __init__(self, queue_nanos: _Optional[int] = ..., decode_nanos: _Optional[int] = ..., infer_nanos: _Optional[int] = ..., total_nanos: _Optional[int] = ...) -> None: ...
