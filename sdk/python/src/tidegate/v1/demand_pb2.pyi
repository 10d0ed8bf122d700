from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Controller(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CONTROLLER_UNSPECIFIED: _ClassVar[Controller]
    CONTROLLER_BUDGET: _ClassVar[Controller]
    CONTROLLER_MEZ_PI: _ClassVar[Controller]
    CONTROLLER_AIMD: _ClassVar[Controller]
    CONTROLLER_FIXED: _ClassVar[Controller]

class Delivery(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DELIVERY_UNSPECIFIED: _ClassVar[Delivery]
    DELIVERY_LATEST: _ClassVar[Delivery]
    DELIVERY_EVERY: _ClassVar[Delivery]

class WhenInfeasible(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WHEN_INFEASIBLE_UNSPECIFIED: _ClassVar[WhenInfeasible]
    WHEN_INFEASIBLE_KEEP_LATENCY: _ClassVar[WhenInfeasible]
    WHEN_INFEASIBLE_KEEP_ACCURACY: _ClassVar[WhenInfeasible]
    WHEN_INFEASIBLE_PAUSE: _ClassVar[WhenInfeasible]

class Profile(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PROFILE_UNSPECIFIED: _ClassVar[Profile]
    PROFILE_JPEG: _ClassVar[Profile]
    PROFILE_MEZ: _ClassVar[Profile]
CONTROLLER_UNSPECIFIED: Controller
CONTROLLER_BUDGET: Controller
CONTROLLER_MEZ_PI: Controller
CONTROLLER_AIMD: Controller
CONTROLLER_FIXED: Controller
DELIVERY_UNSPECIFIED: Delivery
DELIVERY_LATEST: Delivery
DELIVERY_EVERY: Delivery
WHEN_INFEASIBLE_UNSPECIFIED: WhenInfeasible
WHEN_INFEASIBLE_KEEP_LATENCY: WhenInfeasible
WHEN_INFEASIBLE_KEEP_ACCURACY: WhenInfeasible
WHEN_INFEASIBLE_PAUSE: WhenInfeasible
PROFILE_UNSPECIFIED: Profile
PROFILE_JPEG: Profile
PROFILE_MEZ: Profile

class Demand(_message.Message):
    __slots__ = ("latency_nanos", "accuracy", "controller", "delivery", "when_infeasible", "profile", "frames_per_second")
    LATENCY_NANOS_FIELD_NUMBER: _ClassVar[int]
    ACCURACY_FIELD_NUMBER: _ClassVar[int]
    CONTROLLER_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_FIELD_NUMBER: _ClassVar[int]
    WHEN_INFEASIBLE_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    FRAMES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    latency_nanos: int
    accuracy: float
    controller: Controller
    delivery: Delivery
    when_infeasible: WhenInfeasible
    profile: Profile
    frames_per_second: float
    def __init__(self, latency_nanos: _Optional[int] = ..., accuracy: _Optional[float] = ..., controller: _Optional[_Union[Controller, str]] = ..., delivery: _Optional[_Union[Delivery, str]] = ..., when_infeasible: _Optional[_Union[WhenInfeasible, str]] = ..., profile: _Optional[_Union[Profile, str]] = ..., frames_per_second: _Optional[float] = ...) -> None: ...

class DemandChanges(_message.Message):
    __slots__ = ("latency_nanos", "accuracy", "controller", "delivery", "when_infeasible", "profile", "frames_per_second")
    LATENCY_NANOS_FIELD_NUMBER: _ClassVar[int]
    ACCURACY_FIELD_NUMBER: _ClassVar[int]
    CONTROLLER_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_FIELD_NUMBER: _ClassVar[int]
    WHEN_INFEASIBLE_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    FRAMES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    latency_nanos: int
    accuracy: float
    controller: Controller
    delivery: Delivery
    when_infeasible: WhenInfeasible
    profile: Profile
    frames_per_second: float
    def __init__(self, latency_nanos: _Optional[int] = ..., accuracy: _Optional[float] = ..., controller: _Optional[_Union[Controller, str]] = ..., delivery: _Optional[_Union[Delivery, str]] = ..., when_infeasible: _Optional[_Union[WhenInfeasible, str]] = ..., profile: _Optional[_Union[Profile, str]] = ..., frames_per_second: _Optional[float] = ...) -> None: ...
