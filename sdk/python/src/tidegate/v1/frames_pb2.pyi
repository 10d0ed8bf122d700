from tidegate.v1 import camera_pb2 as _camera_pb2
from tidegate.v1 import demand_pb2 as _demand_pb2
from tidegate.v1 import event_pb2 as _event_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ConnectRequest(_message.Message):
    __slots__ = ("client",)
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    client: str
    def __init__(self, client: _Optional[str] = ...) -> None: ...

class ConnectResponse(_message.Message):
    __slots__ = ("client_id", "node", "version", "server_at", "frame_bytes_max")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SERVER_AT_FIELD_NUMBER: _ClassVar[int]
    FRAME_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    node: str
    version: str
    server_at: int
    frame_bytes_max: int
    def __init__(self, client_id: _Optional[str] = ..., node: _Optional[str] = ..., version: _Optional[str] = ..., server_at: _Optional[int] = ..., frame_bytes_max: _Optional[int] = ...) -> None: ...

class RegisterRequest(_message.Message):
    __slots__ = ("camera", "size", "frames_per_second")
    CAMERA_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    FRAMES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    camera: str
    size: _camera_pb2.FrameSize
    frames_per_second: float
    def __init__(self, camera: _Optional[str] = ..., size: _Optional[_Union[_camera_pb2.FrameSize, _Mapping]] = ..., frames_per_second: _Optional[float] = ...) -> None: ...

class RegisterResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class UnregisterRequest(_message.Message):
    __slots__ = ("camera",)
    CAMERA_FIELD_NUMBER: _ClassVar[int]
    camera: str
    def __init__(self, camera: _Optional[str] = ...) -> None: ...

class UnregisterResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PublishRequest(_message.Message):
    __slots__ = ("camera", "captured_at", "jpeg")
    CAMERA_FIELD_NUMBER: _ClassVar[int]
    CAPTURED_AT_FIELD_NUMBER: _ClassVar[int]
    JPEG_FIELD_NUMBER: _ClassVar[int]
    camera: str
    captured_at: int
    jpeg: bytes
    def __init__(self, camera: _Optional[str] = ..., captured_at: _Optional[int] = ..., jpeg: _Optional[bytes] = ...) -> None: ...

class PublishResponse(_message.Message):
    __slots__ = ("accepted_at", "refused")
    ACCEPTED_AT_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    accepted_at: int
    refused: Refusal
    def __init__(self, accepted_at: _Optional[int] = ..., refused: _Optional[_Union[Refusal, _Mapping]] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("code", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class ListCamerasRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListCamerasResponse(_message.Message):
    __slots__ = ("cameras",)
    CAMERAS_FIELD_NUMBER: _ClassVar[int]
    cameras: _containers.RepeatedCompositeFieldContainer[_camera_pb2.Camera]
    def __init__(self, cameras: _Optional[_Iterable[_Union[_camera_pb2.Camera, _Mapping]]] = ...) -> None: ...

class GetCameraInfoRequest(_message.Message):
    __slots__ = ("camera",)
    CAMERA_FIELD_NUMBER: _ClassVar[int]
    camera: str
    def __init__(self, camera: _Optional[str] = ...) -> None: ...

class GetCameraInfoResponse(_message.Message):
    __slots__ = ("camera",)
    CAMERA_FIELD_NUMBER: _ClassVar[int]
    camera: _camera_pb2.Camera
    def __init__(self, camera: _Optional[_Union[_camera_pb2.Camera, _Mapping]] = ...) -> None: ...

class SubscribeRequest(_message.Message):
    __slots__ = ("camera", "to", "demand", "detector", "scene", "from_epoch")
    CAMERA_FIELD_NUMBER: _ClassVar[int]
    FROM_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    DEMAND_FIELD_NUMBER: _ClassVar[int]
    DETECTOR_FIELD_NUMBER: _ClassVar[int]
    SCENE_FIELD_NUMBER: _ClassVar[int]
    FROM_EPOCH_FIELD_NUMBER: _ClassVar[int]
    camera: str
    to: int
    demand: _demand_pb2.Demand
    detector: str
    scene: str
    from_epoch: int
    def __init__(self, camera: _Optional[str] = ..., to: _Optional[int] = ..., demand: _Optional[_Union[_demand_pb2.Demand, _Mapping]] = ..., detector: _Optional[str] = ..., scene: _Optional[str] = ..., from_epoch: _Optional[int] = ..., **kwargs) -> None: ...

class SubscribeResponse(_message.Message):
    __slots__ = ("started", "frame", "unchanged", "missed", "infeasible", "feasible", "camera_offline", "camera_online", "knobs_changed", "controller_failed", "ended", "accuracy_assumed", "no_frames")
    STARTED_FIELD_NUMBER: _ClassVar[int]
    FRAME_FIELD_NUMBER: _ClassVar[int]
    UNCHANGED_FIELD_NUMBER: _ClassVar[int]
    MISSED_FIELD_NUMBER: _ClassVar[int]
    INFEASIBLE_FIELD_NUMBER: _ClassVar[int]
    FEASIBLE_FIELD_NUMBER: _ClassVar[int]
    CAMERA_OFFLINE_FIELD_NUMBER: _ClassVar[int]
    CAMERA_ONLINE_FIELD_NUMBER: _ClassVar[int]
    KNOBS_CHANGED_FIELD_NUMBER: _ClassVar[int]
    CONTROLLER_FAILED_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    ACCURACY_ASSUMED_FIELD_NUMBER: _ClassVar[int]
    NO_FRAMES_FIELD_NUMBER: _ClassVar[int]
    started: _event_pb2.Started
    frame: _event_pb2.Frame
    unchanged: _event_pb2.Unchanged
    missed: _event_pb2.Missed
    infeasible: _event_pb2.Infeasible
    feasible: _event_pb2.Feasible
    camera_offline: _event_pb2.CameraOffline
    camera_online: _event_pb2.CameraOnline
    knobs_changed: _event_pb2.KnobsChanged
    controller_failed: _event_pb2.ControllerFailed
    ended: _event_pb2.Ended
    accuracy_assumed: _event_pb2.AccuracyAssumed
    no_frames: _event_pb2.NoFrames
    def __init__(self, started: _Optional[_Union[_event_pb2.Started, _Mapping]] = ..., frame: _Optional[_Union[_event_pb2.Frame, _Mapping]] = ..., unchanged: _Optional[_Union[_event_pb2.Unchanged, _Mapping]] = ..., missed: _Optional[_Union[_event_pb2.Missed, _Mapping]] = ..., infeasible: _Optional[_Union[_event_pb2.Infeasible, _Mapping]] = ..., feasible: _Optional[_Union[_event_pb2.Feasible, _Mapping]] = ..., camera_offline: _Optional[_Union[_event_pb2.CameraOffline, _Mapping]] = ..., camera_online: _Optional[_Union[_event_pb2.CameraOnline, _Mapping]] = ..., knobs_changed: _Optional[_Union[_event_pb2.KnobsChanged, _Mapping]] = ..., controller_failed: _Optional[_Union[_event_pb2.ControllerFailed, _Mapping]] = ..., ended: _Optional[_Union[_event_pb2.Ended, _Mapping]] = ..., accuracy_assumed: _Optional[_Union[_event_pb2.AccuracyAssumed, _Mapping]] = ..., no_frames: _Optional[_Union[_event_pb2.NoFrames, _Mapping]] = ...) -> None: ...

class UpdateSubscriptionRequest(_message.Message):
    __slots__ = ("subscription_id", "changes")
    SUBSCRIPTION_ID_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    subscription_id: int
    changes: _demand_pb2.DemandChanges
    def __init__(self, subscription_id: _Optional[int] = ..., changes: _Optional[_Union[_demand_pb2.DemandChanges, _Mapping]] = ...) -> None: ...

class UpdateSubscriptionResponse(_message.Message):
    __slots__ = ("demand",)
    DEMAND_FIELD_NUMBER: _ClassVar[int]
    demand: _demand_pb2.Demand
    def __init__(self, demand: _Optional[_Union[_demand_pb2.Demand, _Mapping]] = ...) -> None: ...

class UnsubscribeRequest(_message.Message):
    __slots__ = ("subscription_id",)
    SUBSCRIPTION_ID_FIELD_NUMBER: _ClassVar[int]
    subscription_id: int
    def __init__(self, subscription_id: _Optional[int] = ...) -> None: ...

class UnsubscribeResponse(_message.Message):
    __slots__ = ("transfer", "delivered", "missed")
    class Transfer(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        TRANSFER_UNSPECIFIED: _ClassVar[UnsubscribeResponse.Transfer]
        TRANSFER_CONTINUES: _ClassVar[UnsubscribeResponse.Transfer]
        TRANSFER_STOPPED: _ClassVar[UnsubscribeResponse.Transfer]
    TRANSFER_UNSPECIFIED: UnsubscribeResponse.Transfer
    TRANSFER_CONTINUES: UnsubscribeResponse.Transfer
    TRANSFER_STOPPED: UnsubscribeResponse.Transfer
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_FIELD_NUMBER: _ClassVar[int]
    MISSED_FIELD_NUMBER: _ClassVar[int]
    transfer: UnsubscribeResponse.Transfer
    delivered: int
    missed: int
    def __init__(self, transfer: _Optional[_Union[UnsubscribeResponse.Transfer, str]] = ..., delivered: _Optional[int] = ..., missed: _Optional[int] = ...) -> None: ...

class FetchOriginalRequest(_message.Message):
    __slots__ = ("camera", "captured_at")
    CAMERA_FIELD_NUMBER: _ClassVar[int]
    CAPTURED_AT_FIELD_NUMBER: _ClassVar[int]
    camera: str
    captured_at: int
    def __init__(self, camera: _Optional[str] = ..., captured_at: _Optional[int] = ...) -> None: ...

class FetchOriginalResponse(_message.Message):
    __slots__ = ("captured_at", "jpeg")
    CAPTURED_AT_FIELD_NUMBER: _ClassVar[int]
    JPEG_FIELD_NUMBER: _ClassVar[int]
    captured_at: int
    jpeg: bytes
    def __init__(self, captured_at: _Optional[int] = ..., jpeg: _Optional[bytes] = ...) -> None: ...

class FeedbackRequest(_message.Message):
    __slots__ = ("subscription_id", "camera")
    SUBSCRIPTION_ID_FIELD_NUMBER: _ClassVar[int]
    CAMERA_FIELD_NUMBER: _ClassVar[int]
    subscription_id: int
    camera: str
    def __init__(self, subscription_id: _Optional[int] = ..., camera: _Optional[str] = ...) -> None: ...

class FeedbackResponse(_message.Message):
    __slots__ = ("verdict",)
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    verdict: _event_pb2.Verdict
    def __init__(self, verdict: _Optional[_Union[_event_pb2.Verdict, _Mapping]] = ...) -> None: ...
