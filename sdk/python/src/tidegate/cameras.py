"""Descriptions of a node's cameras. Nothing here does I/O."""

from __future__ import annotations

import html
from collections.abc import Iterable
from dataclasses import dataclass

from .frames import Size, datetime_of
from .v1 import camera_pb2


@dataclass(frozen=True, slots=True)
class Camera:
    """A camera as the node described it when it was asked."""

    name: str
    online: bool
    """Whether it is reached."""
    size: Size | None
    """Of the newest frame; None before the first one."""
    frames_per_second: float
    """Measured over the last seconds; 0 before the second frame."""
    frame_bytes: int
    """Mean size of the recent originals."""
    oldest_at_ns: int | None
    """Capture time of the oldest frame that can be fetched; None while the log is empty."""
    newest_at_ns: int | None
    """Capture time of the newest frame; None while the log is empty."""
    log_bytes: int
    log_bytes_max: int
    transfers: int
    """Streams that the camera sends now."""
    subscriptions: int
    """Subscriptions that those serve."""
    transport: str
    """How its frames come: `quic`, `tcp`, `api` (published here) or `local`; empty while offline."""
    clock_offset_ns: int | None
    """Its clock against the node's: to be added to its time; None where both are one."""
    clock_uncertainty_ns: int | None
    no_frames: str
    """Why it gives no frames although it is online; empty while it gives some or is offline."""
    capture_clock: str
    """By which clock its frames are timed, where something is wrong with that (timestamps that are no clock, a line that is full);
    empty where nothing is.
    """
    substream_of: str
    """The camera of the node's configuration whose substream it is; empty if it is none."""
    node: str
    """The node that has it, where that is another one than the node that answers; empty where it is this one."""

    def __repr__(self) -> str:
        state = ("online" if not self.no_frames else "no frames") if self.online else "offline"
        return f"<Camera {self.name} {state} {self.size or '-'} {self.frames_per_second:.1f} fps {self.frame_bytes / 1e3:.0f} kB>"

    def _repr_html_(self) -> str:
        """A table of one row, for notebooks."""
        return CameraList([self])._repr_html_()


class CameraList(list[Camera]):
    """Cameras in order of their names; a list that notebooks show as a table."""

    def _repr_html_(self) -> str:
        head = ("name", "state", "via", "size", "fps", "frame", "oldest", "newest", "streams")
        rows = [
            (
                camera.name,
                (camera.no_frames or "online") if camera.online else "offline",
                camera.transport,
                str(camera.size or ""),
                f"{camera.frames_per_second:.1f}",
                f"{camera.frame_bytes / 1e3:.0f} kB",
                _time(camera.oldest_at_ns),
                _time(camera.newest_at_ns),
                str(camera.transfers),
            )
            for camera in self
        ]
        return f"<table><thead>{_row(head, 'th')}</thead><tbody>{''.join(_row(row, 'td') for row in rows)}</tbody></table>"


def camera_of(camera: camera_pb2.Camera) -> Camera:
    """A camera from its message."""
    has_offset = camera.HasField("clock_offset")
    return Camera(
        name=camera.name,
        online=camera.online,
        size=Size(camera.size.width, camera.size.height) if camera.HasField("size") else None,
        frames_per_second=camera.frames_per_second,
        frame_bytes=camera.frame_bytes,
        oldest_at_ns=camera.oldest_at if camera.HasField("oldest_at") else None,
        newest_at_ns=camera.newest_at if camera.HasField("newest_at") else None,
        log_bytes=camera.log_bytes,
        log_bytes_max=camera.log_bytes_max,
        transfers=camera.transfers,
        subscriptions=camera.subscriptions,
        transport=camera.transport,
        clock_offset_ns=camera.clock_offset.offset_nanos if has_offset else None,
        clock_uncertainty_ns=camera.clock_offset.uncertainty_nanos if has_offset else None,
        no_frames=camera.no_frames,
        capture_clock=camera.capture_clock,
        substream_of=camera.substream_of,
        node=camera.node,
    )


def _time(nanos: int | None) -> str:
    return "" if nanos is None else datetime_of(nanos).isoformat(sep=" ", timespec="milliseconds")


def _row(cells: Iterable[str], tag: str) -> str:
    return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"
