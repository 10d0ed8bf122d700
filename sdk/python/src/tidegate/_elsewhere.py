"""Cameras of other nodes, without I/O: both clients drive it.

    call ──▶ the node that is remembered for the camera ── not there ──┐
      └────▶ the node of the client ◀──────────────────────────────────┘
                  │ elsewhere            │ elsewhere
                  └──▶ the named node ───┴──▶ the named node ── elsewhere ──▶ fails

Always true: a token or a password goes to another node only where its certificate is one that the first connection would take: of the same
authority, for the name that was given or else for the host of the address. A node that answers by another name than the one that was named
serves no call. A call makes two steps at most.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Generator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from ._calls import ServerInfo
from .errors import CameraElsewhereError, LinkDownError, TidegateError, of_code

STEPS_MAX = 2
"""One step leads to the node; the second is for a camera that has just moved and of which the first node has not heard."""
CAMERAS_MAX = 256
"""Cameras whose nodes are remembered, and so the connections that are kept at most."""
ADDRESSES_MAX = 8
"""Addresses of a node that are tried."""

# The node is not reached, or is no longer who it was.
_AWAY = ("link.down", "auth.identity.refused", "auth.identity.revoked")
# The node is there, and the camera may be at another by now.
_MISSING = ("frames.camera.elsewhere", "frames.camera.unknown", "frames.camera.offline")


class Node(Protocol):
    """A client of one node."""

    @property
    def server(self) -> ServerInfo:
        """The node's description of itself."""

    @property
    def address(self) -> str:
        """The address of its API, `host:port`."""


N = TypeVar("N", bound=Node)
A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class Ask(Generic[N]):
    """Make the call at this node; its outcome is sent back."""

    node: N


@dataclass(frozen=True, slots=True)
class Reach:
    """Connect to a node of this name at this address; the outcome is sent back."""

    address: str
    name: str


# The answer, or the node that is reached; or why there is none.
Outcome = tuple[object, TidegateError | None]


class Elsewhere(Generic[N]):
    """The nodes that serve cameras which the node of a client does not. From any thread."""

    def __init__(self) -> None:
        # The camera that was asked for last stands last. Cameras of one node share its connection.
        self._known: OrderedDict[str, N] = OrderedDict()
        self._lock = threading.Lock()

    def call(self, own: N, camera: str) -> Generator[Ask[N] | Reach, Outcome, object]:
        """Makes a call about a camera at the node that serves it, beginning with `own`; returns the answer.

        Raises:
            TidegateError: as the call fails; LinkDownError or IdentityRefusedError if a node that was named is not reached.
        """
        known = self._recall(camera)
        if known is not None:
            answer, error = yield Ask(known)
            if error is None:
                return answer
            if error.code in _AWAY:
                self._lose(known)
            elif error.code not in _MISSING:
                raise error
        at, place, steps = own, None, 0
        while True:
            answer, error = yield Ask(at)
            if not isinstance(error, CameraElsewhereError):
                if place is None:
                    self._forget(camera)
                elif error is not None and error.code in _AWAY:
                    self._lose(at)
                    raise _unreached(own, camera, place, error)
                else:
                    self._remember(camera, at)
                if error is not None:
                    raise error
                return answer
            if error.node is None or not error.addresses:
                raise error
            steps += 1
            if steps > STEPS_MAX:
                self._forget(camera)
                here, there = own.server.node, at.server.node
                text = f"camera {camera} was not found from node {here} in {STEPS_MAX} steps: node {there} says it is at node {error.node}"
                raise CameraElsewhereError(text, error.code, error.node, error.addresses)
            at, place = (yield from self._reach(at, camera, error)), error

    def _reach(self, at: N, camera: str, place: CameraElsewhereError) -> Generator[Ask[N] | Reach, Outcome, N]:
        assert place.node is not None
        addresses = place.addresses[:ADDRESSES_MAX]
        with self._lock:
            for held in self._known.values():
                if held.server.node == place.node and held.address in addresses:
                    return held
        last: TidegateError = LinkDownError("it has no address", "link.down")
        for address in addresses:
            reached, error = yield Reach(address, place.node)
            if error is None:
                return reached  # type: ignore[return-value]
            # A refusal says more than an address that leads nowhere from here.
            if last.code == "link.down":
                last = error
        raise _unreached(at, camera, place, last) from last

    def nodes(self) -> list[N]:
        """Those whose connections are kept, each once."""
        with self._lock:
            return list({id(node): node for node in self._known.values()}.values())

    def _recall(self, camera: str) -> N | None:
        with self._lock:
            if camera in self._known:
                self._known.move_to_end(camera)
            return self._known.get(camera)

    def _remember(self, camera: str, node: N) -> None:
        with self._lock:
            self._known[camera] = node
            self._known.move_to_end(camera)
            # The one that was asked for least recently; its connection ends with the last stream that it serves.
            if len(self._known) > CAMERAS_MAX:
                self._known.popitem(last=False)

    def _forget(self, camera: str) -> None:
        with self._lock:
            self._known.pop(camera, None)

    def _lose(self, node: N) -> None:
        """Forgets a node, for all cameras."""
        with self._lock:
            for camera in [camera for camera, held in self._known.items() if held is node]:
                del self._known[camera]


def other_node(found: str, address: str) -> LinkDownError:
    """An address that is one of a private network, of which there are many, leads to another node than the one that was named."""
    return LinkDownError(f"node {found} answers at {address}", "link.down")


def _unreached(at: Node, camera: str, place: CameraElsewhereError, error: TidegateError) -> TidegateError:
    where = " or ".join(place.addresses)
    text = f"node {at.server.node} says that camera {camera} is at node {place.node}, which is not reached at {where}: {error}"
    return of_code(error.code if error.code in _AWAY else "link.down", text)
