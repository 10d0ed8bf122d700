from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetFabricRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetFabricResponse(_message.Message):
    __slots__ = ("me", "name", "view_hash", "algorithm", "replicas", "members", "linked", "doubted", "lost", "problems", "cells")
    ME_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VIEW_HASH_FIELD_NUMBER: _ClassVar[int]
    ALGORITHM_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    LINKED_FIELD_NUMBER: _ClassVar[int]
    DOUBTED_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    CELLS_FIELD_NUMBER: _ClassVar[int]
    me: str
    name: str
    view_hash: str
    algorithm: int
    replicas: int
    members: int
    linked: int
    doubted: int
    lost: int
    problems: _containers.RepeatedScalarFieldContainer[str]
    cells: _containers.RepeatedCompositeFieldContainer[Cell]
    def __init__(self, me: _Optional[str] = ..., name: _Optional[str] = ..., view_hash: _Optional[str] = ..., algorithm: _Optional[int] = ..., replicas: _Optional[int] = ..., members: _Optional[int] = ..., linked: _Optional[int] = ..., doubted: _Optional[int] = ..., lost: _Optional[int] = ..., problems: _Optional[_Iterable[str]] = ..., cells: _Optional[_Iterable[_Union[Cell, _Mapping]]] = ...) -> None: ...

class Cell(_message.Message):
    __slots__ = ("name", "south", "west", "north", "east", "members")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SOUTH_FIELD_NUMBER: _ClassVar[int]
    WEST_FIELD_NUMBER: _ClassVar[int]
    NORTH_FIELD_NUMBER: _ClassVar[int]
    EAST_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    name: str
    south: float
    west: float
    north: float
    east: float
    members: int
    def __init__(self, name: _Optional[str] = ..., south: _Optional[float] = ..., west: _Optional[float] = ..., north: _Optional[float] = ..., east: _Optional[float] = ..., members: _Optional[int] = ...) -> None: ...

class GeoPoint(_message.Message):
    __slots__ = ("latitude", "longitude")
    LATITUDE_FIELD_NUMBER: _ClassVar[int]
    LONGITUDE_FIELD_NUMBER: _ClassVar[int]
    latitude: float
    longitude: float
    def __init__(self, latitude: _Optional[float] = ..., longitude: _Optional[float] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("id", "name", "standing", "me", "linked", "addresses", "api_addresses", "position", "mobile", "zone", "weight", "cameras", "number", "start", "version", "filters", "round_trip_nanos", "cell", "reason")
    class Standing(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STANDING_UNSPECIFIED: _ClassVar[Member.Standing]
        STANDING_HERE: _ClassVar[Member.Standing]
        STANDING_DOUBTED: _ClassVar[Member.Standing]
        STANDING_LOST: _ClassVar[Member.Standing]
        STANDING_LEFT: _ClassVar[Member.Standing]
        STANDING_FORGOTTEN: _ClassVar[Member.Standing]
    STANDING_UNSPECIFIED: Member.Standing
    STANDING_HERE: Member.Standing
    STANDING_DOUBTED: Member.Standing
    STANDING_LOST: Member.Standing
    STANDING_LEFT: Member.Standing
    STANDING_FORGOTTEN: Member.Standing
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    STANDING_FIELD_NUMBER: _ClassVar[int]
    ME_FIELD_NUMBER: _ClassVar[int]
    LINKED_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    API_ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    MOBILE_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    CAMERAS_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FILTERS_FIELD_NUMBER: _ClassVar[int]
    ROUND_TRIP_NANOS_FIELD_NUMBER: _ClassVar[int]
    CELL_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    standing: Member.Standing
    me: bool
    linked: bool
    addresses: _containers.RepeatedScalarFieldContainer[str]
    api_addresses: _containers.RepeatedScalarFieldContainer[str]
    position: GeoPoint
    mobile: bool
    zone: str
    weight: int
    cameras: _containers.RepeatedScalarFieldContainer[str]
    number: int
    start: str
    version: int
    filters: int
    round_trip_nanos: int
    cell: str
    reason: str
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., standing: _Optional[_Union[Member.Standing, str]] = ..., me: bool = ..., linked: bool = ..., addresses: _Optional[_Iterable[str]] = ..., api_addresses: _Optional[_Iterable[str]] = ..., position: _Optional[_Union[GeoPoint, _Mapping]] = ..., mobile: bool = ..., zone: _Optional[str] = ..., weight: _Optional[int] = ..., cameras: _Optional[_Iterable[str]] = ..., number: _Optional[int] = ..., start: _Optional[str] = ..., version: _Optional[int] = ..., filters: _Optional[int] = ..., round_trip_nanos: _Optional[int] = ..., cell: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class ListMembersRequest(_message.Message):
    __slots__ = ("after", "limit")
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    after: str
    limit: int
    def __init__(self, after: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ListMembersResponse(_message.Message):
    __slots__ = ("members",)
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    members: _containers.RepeatedCompositeFieldContainer[Member]
    def __init__(self, members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ...) -> None: ...

class LocateRequest(_message.Message):
    __slots__ = ("topic", "camera", "position")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    CAMERA_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    camera: str
    position: GeoPoint
    def __init__(self, topic: _Optional[str] = ..., camera: _Optional[str] = ..., position: _Optional[_Union[GeoPoint, _Mapping]] = ...) -> None: ...

class LocateResponse(_message.Message):
    __slots__ = ("members",)
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    members: _containers.RepeatedCompositeFieldContainer[Located]
    def __init__(self, members: _Optional[_Iterable[_Union[Located, _Mapping]]] = ...) -> None: ...

class Located(_message.Message):
    __slots__ = ("id", "name", "api_addresses", "why")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    API_ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    api_addresses: _containers.RepeatedScalarFieldContainer[str]
    why: str
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., api_addresses: _Optional[_Iterable[str]] = ..., why: _Optional[str] = ...) -> None: ...

class ListRulesRequest(_message.Message):
    __slots__ = ("after",)
    AFTER_FIELD_NUMBER: _ClassVar[int]
    after: str
    def __init__(self, after: _Optional[str] = ...) -> None: ...

class ListRulesResponse(_message.Message):
    __slots__ = ("rules",)
    RULES_FIELD_NUMBER: _ClassVar[int]
    rules: _containers.RepeatedCompositeFieldContainer[Rule]
    def __init__(self, rules: _Optional[_Iterable[_Union[Rule, _Mapping]]] = ...) -> None: ...

class Rule(_message.Message):
    __slots__ = ("subject", "text")
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    subject: str
    text: str
    def __init__(self, subject: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class ForgetMemberRequest(_message.Message):
    __slots__ = ("member",)
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    member: str
    def __init__(self, member: _Optional[str] = ...) -> None: ...

class ForgetMemberResponse(_message.Message):
    __slots__ = ("id", "name")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class LeaveFabricRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LeaveFabricResponse(_message.Message):
    __slots__ = ("unsent", "unsent_to")
    UNSENT_FIELD_NUMBER: _ClassVar[int]
    UNSENT_TO_FIELD_NUMBER: _ClassVar[int]
    unsent: int
    unsent_to: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, unsent: _Optional[int] = ..., unsent_to: _Optional[_Iterable[str]] = ...) -> None: ...
