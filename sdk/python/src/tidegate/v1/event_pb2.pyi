from tidegate.v1 import camera_pb2 as _camera_pb2
from tidegate.v1 import demand_pb2 as _demand_pb2
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Started(_message.Message):
    __slots__ = ("subscription_id", "demand")
    SUBSCRIPTION_ID_FIELD_NUMBER: _ClassVar[int]
    DEMAND_FIELD_NUMBER: _ClassVar[int]
    subscription_id: int
    demand: _demand_pb2.Demand
    def __init__(self, subscription_id: _Optional[int] = ..., demand: _Optional[_Union[_demand_pb2.Demand, _Mapping]] = ...) -> None: ...

class Frame(_message.Message):
    __slots__ = ("captured_at", "size", "original_bytes", "knobs", "accuracy", "accuracy_kept", "replayed", "stages", "handed_at", "jpeg", "epoch", "source_size")
    CAPTURED_AT_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    ORIGINAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    KNOBS_FIELD_NUMBER: _ClassVar[int]
    ACCURACY_FIELD_NUMBER: _ClassVar[int]
    ACCURACY_KEPT_FIELD_NUMBER: _ClassVar[int]
    REPLAYED_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    HANDED_AT_FIELD_NUMBER: _ClassVar[int]
    JPEG_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SOURCE_SIZE_FIELD_NUMBER: _ClassVar[int]
    captured_at: int
    size: _camera_pb2.FrameSize
    original_bytes: int
    knobs: str
    accuracy: float
    accuracy_kept: bool
    replayed: bool
    stages: Stages
    handed_at: int
    jpeg: bytes
    epoch: int
    source_size: _camera_pb2.FrameSize
    def __init__(self, captured_at: _Optional[int] = ..., size: _Optional[_Union[_camera_pb2.FrameSize, _Mapping]] = ..., original_bytes: _Optional[int] = ..., knobs: _Optional[str] = ..., accuracy: _Optional[float] = ..., accuracy_kept: bool = ..., replayed: bool = ..., stages: _Optional[_Union[Stages, _Mapping]] = ..., handed_at: _Optional[int] = ..., jpeg: _Optional[bytes] = ..., epoch: _Optional[int] = ..., source_size: _Optional[_Union[_camera_pb2.FrameSize, _Mapping]] = ...) -> None: ...

class Stages(_message.Message):
    __slots__ = ("capture_nanos", "encode_nanos", "queue_nanos", "network_nanos", "delivery_nanos")
    CAPTURE_NANOS_FIELD_NUMBER: _ClassVar[int]
    ENCODE_NANOS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_NANOS_FIELD_NUMBER: _ClassVar[int]
    NETWORK_NANOS_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_NANOS_FIELD_NUMBER: _ClassVar[int]
    capture_nanos: int
    encode_nanos: int
    queue_nanos: int
    network_nanos: int
    delivery_nanos: int
    def __init__(self, capture_nanos: _Optional[int] = ..., encode_nanos: _Optional[int] = ..., queue_nanos: _Optional[int] = ..., network_nanos: _Optional[int] = ..., delivery_nanos: _Optional[int] = ...) -> None: ...

class Unchanged(_message.Message):
    __slots__ = ("captured_at", "same_as", "replayed", "stages", "handed_at", "epoch")
    CAPTURED_AT_FIELD_NUMBER: _ClassVar[int]
    SAME_AS_FIELD_NUMBER: _ClassVar[int]
    REPLAYED_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    HANDED_AT_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    captured_at: int
    same_as: int
    replayed: bool
    stages: Stages
    handed_at: int
    epoch: int
    def __init__(self, captured_at: _Optional[int] = ..., same_as: _Optional[int] = ..., replayed: bool = ..., stages: _Optional[_Union[Stages, _Mapping]] = ..., handed_at: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class Missed(_message.Message):
    __slots__ = ("to", "count", "why")
    class Why(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        WHY_UNSPECIFIED: _ClassVar[Missed.Why]
        WHY_OVERTAKEN: _ClassVar[Missed.Why]
        WHY_LATE: _ClassVar[Missed.Why]
        WHY_LOG_WRAPPED: _ClassVar[Missed.Why]
        WHY_SLOW_SUBSCRIBER: _ClassVar[Missed.Why]
        WHY_LINK_DOWN: _ClassVar[Missed.Why]
        WHY_INFEASIBLE: _ClassVar[Missed.Why]
        WHY_DAMAGED: _ClassVar[Missed.Why]
    WHY_UNSPECIFIED: Missed.Why
    WHY_OVERTAKEN: Missed.Why
    WHY_LATE: Missed.Why
    WHY_LOG_WRAPPED: Missed.Why
    WHY_SLOW_SUBSCRIBER: Missed.Why
    WHY_LINK_DOWN: Missed.Why
    WHY_INFEASIBLE: Missed.Why
    WHY_DAMAGED: Missed.Why
    FROM_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    to: int
    count: int
    why: Missed.Why
    def __init__(self, to: _Optional[int] = ..., count: _Optional[int] = ..., why: _Optional[_Union[Missed.Why, str]] = ..., **kwargs) -> None: ...

class Infeasible(_message.Message):
    __slots__ = ("latency_at_accuracy_nanos", "accuracy_at_latency", "sentence", "frames_per_second")
    LATENCY_AT_ACCURACY_NANOS_FIELD_NUMBER: _ClassVar[int]
    ACCURACY_AT_LATENCY_FIELD_NUMBER: _ClassVar[int]
    SENTENCE_FIELD_NUMBER: _ClassVar[int]
    FRAMES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    latency_at_accuracy_nanos: int
    accuracy_at_latency: float
    sentence: str
    frames_per_second: float
    def __init__(self, latency_at_accuracy_nanos: _Optional[int] = ..., accuracy_at_latency: _Optional[float] = ..., sentence: _Optional[str] = ..., frames_per_second: _Optional[float] = ...) -> None: ...

class Feasible(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CameraOffline(_message.Message):
    __slots__ = ("sentence",)
    SENTENCE_FIELD_NUMBER: _ClassVar[int]
    sentence: str
    def __init__(self, sentence: _Optional[str] = ...) -> None: ...

class CameraOnline(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class NoFrames(_message.Message):
    __slots__ = ("sentence",)
    SENTENCE_FIELD_NUMBER: _ClassVar[int]
    sentence: str
    def __init__(self, sentence: _Optional[str] = ...) -> None: ...

class KnobsChanged(_message.Message):
    __slots__ = ("captured_at", "to", "reason")
    CAPTURED_AT_FIELD_NUMBER: _ClassVar[int]
    FROM_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    captured_at: int
    to: str
    reason: str
    def __init__(self, captured_at: _Optional[int] = ..., to: _Optional[str] = ..., reason: _Optional[str] = ..., **kwargs) -> None: ...

class ControllerFailed(_message.Message):
    __slots__ = ("sentence",)
    SENTENCE_FIELD_NUMBER: _ClassVar[int]
    sentence: str
    def __init__(self, sentence: _Optional[str] = ...) -> None: ...

class AccuracyAssumed(_message.Message):
    __slots__ = ("sentence",)
    SENTENCE_FIELD_NUMBER: _ClassVar[int]
    sentence: str
    def __init__(self, sentence: _Optional[str] = ...) -> None: ...

class Ended(_message.Message):
    __slots__ = ("reason",)
    class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        REASON_UNSPECIFIED: _ClassVar[Ended.Reason]
        REASON_COMPLETE: _ClassVar[Ended.Reason]
        REASON_UNSUBSCRIBED: _ClassVar[Ended.Reason]
        REASON_CAMERA_UNREGISTERED: _ClassVar[Ended.Reason]
        REASON_SHUTDOWN: _ClassVar[Ended.Reason]
    REASON_UNSPECIFIED: Ended.Reason
    REASON_COMPLETE: Ended.Reason
    REASON_UNSUBSCRIBED: Ended.Reason
    REASON_CAMERA_UNREGISTERED: Ended.Reason
    REASON_SHUTDOWN: Ended.Reason
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: Ended.Reason
    def __init__(self, reason: _Optional[_Union[Ended.Reason, str]] = ...) -> None: ...

class Verdict(_message.Message):
    __slots__ = ("camera", "transfer", "captured_at", "outcome", "sent_bytes", "original_bytes", "knobs", "row", "accuracy", "accuracy_kept", "stages", "bound_nanos", "capacity_bytes_per_second", "reason")
    class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        OUTCOME_UNSPECIFIED: _ClassVar[Verdict.Outcome]
        OUTCOME_KEPT: _ClassVar[Verdict.Outcome]
        OUTCOME_LATE: _ClassVar[Verdict.Outcome]
        OUTCOME_UNCHANGED: _ClassVar[Verdict.Outcome]
        OUTCOME_OVERTAKEN: _ClassVar[Verdict.Outcome]
        OUTCOME_RESET: _ClassVar[Verdict.Outcome]
        OUTCOME_WITHHELD: _ClassVar[Verdict.Outcome]
        OUTCOME_LOST: _ClassVar[Verdict.Outcome]
        OUTCOME_DAMAGED: _ClassVar[Verdict.Outcome]
    OUTCOME_UNSPECIFIED: Verdict.Outcome
    OUTCOME_KEPT: Verdict.Outcome
    OUTCOME_LATE: Verdict.Outcome
    OUTCOME_UNCHANGED: Verdict.Outcome
    OUTCOME_OVERTAKEN: Verdict.Outcome
    OUTCOME_RESET: Verdict.Outcome
    OUTCOME_WITHHELD: Verdict.Outcome
    OUTCOME_LOST: Verdict.Outcome
    OUTCOME_DAMAGED: Verdict.Outcome
    CAMERA_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    CAPTURED_AT_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    SENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    ORIGINAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    KNOBS_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    ACCURACY_FIELD_NUMBER: _ClassVar[int]
    ACCURACY_KEPT_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    BOUND_NANOS_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    camera: str
    transfer: int
    captured_at: int
    outcome: Verdict.Outcome
    sent_bytes: int
    original_bytes: int
    knobs: str
    row: int
    accuracy: float
    accuracy_kept: bool
    stages: Stages
    bound_nanos: int
    capacity_bytes_per_second: int
    reason: str
    def __init__(self, camera: _Optional[str] = ..., transfer: _Optional[int] = ..., captured_at: _Optional[int] = ..., outcome: _Optional[_Union[Verdict.Outcome, str]] = ..., sent_bytes: _Optional[int] = ..., original_bytes: _Optional[int] = ..., knobs: _Optional[str] = ..., row: _Optional[int] = ..., accuracy: _Optional[float] = ..., accuracy_kept: bool = ..., stages: _Optional[_Union[Stages, _Mapping]] = ..., bound_nanos: _Optional[int] = ..., capacity_bytes_per_second: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...
