from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SessionOwner(_message.Message):
    __slots__ = ("kind", "name")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    kind: str
    name: str
    def __init__(self, kind: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class Session(_message.Message):
    __slots__ = ("client_id", "owner", "connected", "subscriptions", "queued", "queued_bytes", "inflight", "ends_in_s")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    QUEUED_BYTES_FIELD_NUMBER: _ClassVar[int]
    INFLIGHT_FIELD_NUMBER: _ClassVar[int]
    ENDS_IN_S_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    owner: SessionOwner
    connected: bool
    subscriptions: int
    queued: int
    queued_bytes: int
    inflight: int
    ends_in_s: int
    def __init__(self, client_id: _Optional[str] = ..., owner: _Optional[_Union[SessionOwner, _Mapping]] = ..., connected: bool = ..., subscriptions: _Optional[int] = ..., queued: _Optional[int] = ..., queued_bytes: _Optional[int] = ..., inflight: _Optional[int] = ..., ends_in_s: _Optional[int] = ...) -> None: ...

class ListSessionsRequest(_message.Message):
    __slots__ = ("after", "limit", "owner")
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    after: str
    limit: int
    owner: SessionOwner
    def __init__(self, after: _Optional[str] = ..., limit: _Optional[int] = ..., owner: _Optional[_Union[SessionOwner, _Mapping]] = ...) -> None: ...

class ListSessionsResponse(_message.Message):
    __slots__ = ("sessions",)
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    sessions: _containers.RepeatedCompositeFieldContainer[Session]
    def __init__(self, sessions: _Optional[_Iterable[_Union[Session, _Mapping]]] = ...) -> None: ...

class EndSessionsRequest(_message.Message):
    __slots__ = ("client_ids", "owner")
    CLIENT_IDS_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    client_ids: _containers.RepeatedScalarFieldContainer[str]
    owner: SessionOwner
    def __init__(self, client_ids: _Optional[_Iterable[str]] = ..., owner: _Optional[_Union[SessionOwner, _Mapping]] = ...) -> None: ...

class EndSessionsResponse(_message.Message):
    __slots__ = ("ended",)
    ENDED_FIELD_NUMBER: _ClassVar[int]
    ended: int
    def __init__(self, ended: _Optional[int] = ...) -> None: ...
