from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class ReloadConfigurationRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReloadConfigurationResponse(_message.Message):
    __slots__ = ("problems", "exchanged", "need_restart")
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    EXCHANGED_FIELD_NUMBER: _ClassVar[int]
    NEED_RESTART_FIELD_NUMBER: _ClassVar[int]
    problems: _containers.RepeatedScalarFieldContainer[str]
    exchanged: _containers.RepeatedScalarFieldContainer[str]
    need_restart: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, problems: _Optional[_Iterable[str]] = ..., exchanged: _Optional[_Iterable[str]] = ..., need_restart: _Optional[_Iterable[str]] = ...) -> None: ...
