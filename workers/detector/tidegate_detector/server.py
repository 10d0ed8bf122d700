"""Serves detectors over one connection: scenes, batches, shared memory, models that come and go.

Always true: each request is answered once; one that fails is answered with its reason and the next is served; at most `SCENES_MAX`
scenes are kept.
"""

from __future__ import annotations

import mmap
import os
import socket
import time
import traceback
from collections import OrderedDict
from typing import Any, Callable, Iterator, Mapping

from .protocol import (
    JSON_BYTES_MAX, VERSION, Detector, Found, FrameError, Size, Stream, json_text, read_message, write_message, write_text,
)  # fmt: skip

SCENES_MAX = 16
IN_FLIGHT = 8
BATCH = 8
NAME = "tidegate"

Factory = Callable[[], Detector]


class Server:
    """The state of one connection. `factories` make a detector for each scene; the first is used where a request names none.

    `picture` makes of bytes and a shape what detectors are given. `load` makes a factory of the file of a model, or raises `FrameError`;
    without it none can be loaded.
    """

    def __init__(
        self,
        factories: Mapping[str, Factory],
        picture: Callable[[Any, Any], Any] = lambda data, shape: data,
        load: Callable[[str, str], Factory] | None = None,
    ) -> None:
        self._factories = dict(factories)
        self._built_in = tuple(factories)
        self._picture, self._load = picture, load
        self._first = self._factories[self._built_in[0]]()
        self._scenes: OrderedDict[int, tuple[Size, dict[str, Detector]]] = OrderedDict()
        self._alone: dict[str, Detector] = {self._built_in[0]: self._first}
        self._memory: mmap.mmap | None = None

    def hello(self) -> dict:
        models = [{"name": name, "kind": self._kind(name)} for name in self._factories]
        name = self._first.name if len(self._built_in) == 1 else NAME
        return {
            "type": "hello", "protocol": VERSION, "detector": name, "background": self._first.needs_background,
            "memory": True, "in_flight": IN_FLIGHT, "batch": BATCH, "scenes": SCENES_MAX, "models": models,
        }  # fmt: skip

    def serve(self, connection: socket.socket) -> None:
        """Serves requests until the other side closes the connection."""
        with connection:
            stream = Stream(connection)
            write_message(stream, self.hello())
            batch: list[tuple[dict, Any]] = []
            while (message := read_message(stream)) is not None:
                head, payload = message
                if head.get("type") == "detect":
                    batch.append((head, payload))
                    # Never more than was asked for, whatever the other side says.
                    if head.get("more") is True and len(batch) < BATCH:
                        continue
                    replies, batch = self._detect(batch), []
                else:
                    replies = [self._answer(head, payload, stream)]
                for reply in replies:
                    write_reply(stream, reply)

    def _kind(self, name: str) -> str:
        return getattr(self._factories[name], "kind", "detection")

    def _answer(self, head: dict, payload: Any, stream: Stream) -> dict:
        requests = {
            "memory": lambda: self._map(head, stream),
            "scene": lambda: self._begin_scene(head),
            "background": lambda: self._learn(head, payload),
            "load": lambda: self._add(head),
            "unload": lambda: self._drop(head),
            "train": lambda: self._train(head, payload),
        }
        request = requests.get(head.get("type"))
        try:
            if request is None:
                raise FrameError(f"unknown request {head.get('type')!r}")
            return {"id": head.get("id"), **request()}
        except Exception as error:  # noqa: BLE001  a request that fails takes no other along
            return {"id": head.get("id"), "error": failure(error)}

    def _map(self, head: dict, stream: Stream) -> dict:
        size = number(head, "bytes", 1)
        if not stream.descriptors:
            raise FrameError("no descriptor came with the request for shared memory")
        descriptor = stream.descriptors.pop()
        try:
            self._memory = mmap.mmap(descriptor, size, prot=mmap.PROT_READ)
        except (OSError, ValueError) as error:
            raise FrameError(f"the shared memory cannot be mapped: {error}") from error
        finally:
            os.close(descriptor)
        return {}

    def _image(self, head: dict, payload: Any) -> Any:
        if "offset" in head:
            offset, size = number(head, "offset", 0), number(head, "bytes", 0)
            if self._memory is None or offset + size > len(self._memory):
                raise FrameError(f"{size} bytes at {offset} are outside the shared memory")
            # Copied: the other side may write over it once this request is answered, and a slice of a view would keep it.
            payload = self._memory[offset : offset + size]
        return self._picture(payload, head.get("shape"))

    def _begin_scene(self, head: dict) -> dict:
        try:
            source = Size(*(int(side) for side in head["source"]))
        except (KeyError, TypeError, ValueError) as error:
            raise FrameError(f"a scene request needs source: [width, height] ({error})") from error
        if not (0 < source.width <= 65535 and 0 < source.height <= 65535):
            raise FrameError(f"a scene of {source.width}x{source.height} pixels cannot be")
        scene = number(head, "scene", 0, default=0)
        self._scenes.pop(scene, None)
        first = self._factories[self._built_in[0]]()
        size = first.begin_scene(source)
        self._scenes[scene] = (source, {self._built_in[0]: first})
        while len(self._scenes) > SCENES_MAX:
            self._scenes.popitem(last=False)
        return {"input": list(size)}

    def _scene(self, head: dict) -> tuple[Size, dict[str, Detector]] | None:
        if "scene" not in head and not (0 in self._scenes and "model" not in head):
            return None
        scene = number(head, "scene", 0, default=0)
        if scene not in self._scenes:
            raise FrameError("no scene was begun: send a scene request first")
        self._scenes.move_to_end(scene)
        return self._scenes[scene]

    def _learn(self, head: dict, payload: Any) -> dict:
        scene = self._scene(head)
        if scene is None:
            raise FrameError("no scene was begun: send a scene request first")
        scene[1][self._built_in[0]].learn(self._image(head, payload))
        return {}

    def _detector(self, head: dict, image: Any) -> Detector:
        name = head.get("model", self._built_in[0])
        if name not in self._factories:
            raise FrameError(f"there is no model {name!r}; there are: {' '.join(self._factories)}")
        scene = self._scene(head)
        if scene is None:
            # Asked of the class: asking the image would decode it.
            if not hasattr(type(image), "size"):
                raise FrameError("no scene was begun: send a scene request first")
            detector = self._alone.get(name) or self._alone.setdefault(name, self._factories[name]())
            # One that looks at several at once is given their sizes with them.
            if not hasattr(detector, "detect_many"):
                # Decoded once, as the detector will ask for it, and its size is known.
                if hasattr(image, "pixels"):
                    image.pixels(gray=getattr(detector, "gray", False))
                detector.begin_scene(image.size)
            return detector
        source, detectors = scene
        if name not in detectors:
            detectors[name] = self._factories[name]()
            detectors[name].begin_scene(source)
        return detectors[name]

    def _detect(self, batch: list[tuple[dict, Any]]) -> Iterator[dict]:
        """Answers a batch. Detectors that look at several images at once are given those that came together; of others an image is answered
        before the next is looked at.

        The pixels of one image are in memory at a time: they are forgotten once they were looked at.
        """
        together: dict[str, tuple[Detector, list[tuple[int, Any, Size | None]]]] = {}
        for at, (head, payload) in enumerate(batch):
            try:
                scene = self._scene(head)
                image = self._image(head, payload)
                detector = self._detector(head, image)
                if hasattr(detector, "detect_many"):
                    source = None if scene is None else scene[0]
                    entry = together.setdefault(head.get("model", ""), (detector, []))
                    entry[1].append((at, image, source))
                else:
                    started = time.perf_counter()
                    before = decode_s(image)
                    found = detector.detect(image)
                    answer = reply(found, image, time.perf_counter() - started + before)
                    if hasattr(image, "forget"):
                        image.forget()
                    yield {"id": head.get("id"), **answer}
            except Exception as error:  # noqa: BLE001  as above
                yield {"id": head.get("id"), "error": failure(error)}
        for detector, entries in together.values():
            started = time.perf_counter()
            results = together_or_alone(detector, [image for _, image, _ in entries], [size for _, _, size in entries])
            # The time of an image is its share of the batch's, and its own decoding.
            decoded = sum(decode_s(image) for _, image, _ in entries)
            share = max(0.0, time.perf_counter() - started - decoded) / len(entries)
            for (at, image, _), found in zip(entries, results):
                try:
                    if isinstance(found, Exception):
                        raise found
                    answer = reply(found, image, share + decode_s(image))
                except Exception as error:  # noqa: BLE001  as above
                    answer = {"error": failure(error)}
                yield {"id": batch[at][0].get("id"), **answer}

    def _add(self, head: dict) -> dict:
        name, path = text(head, "name"), text(head, "path")
        if self._load is None or name in self._built_in:
            raise FrameError(f"{name} cannot be loaded: models are not loaded here, or one of that name is built in")
        factory = self._load(name, path)
        self._drop_from_scenes(name)
        self._factories[name] = factory
        return {}

    def _drop(self, head: dict) -> dict:
        name = text(head, "name")
        if name in self._built_in or name not in self._factories:
            raise FrameError(f"{name} was not loaded")
        del self._factories[name]
        self._drop_from_scenes(name)
        return {}

    def _drop_from_scenes(self, name: str) -> None:
        self._alone.pop(name, None)
        for _, detectors in self._scenes.values():
            detectors.pop(name, None)

    def _train(self, head: dict, payload: Any) -> dict:
        image = self._image(head, payload)
        detector = self._detector({"model": text(head, "model")}, image)
        if not hasattr(detector, "train"):
            raise FrameError(f"the model {head['model']} does not learn")
        return {"images": detector.train(text(head, "subject"), image)}


def together_or_alone(detector: Any, images: list[Any], sizes: list[Size | None]) -> list[Any]:
    """The findings in images that came together; where that fails, each is looked at alone, so that one that fails takes no other along."""
    try:
        return detector.detect_many(images, sizes)
    except Exception as error:  # noqa: BLE001  as above
        if len(images) == 1:
            return [error]
        return [found for image, size in zip(images, sizes) for found in together_or_alone(detector, [image], [size])]


def failure(error: Exception) -> str:
    """Why a request failed; an error that no detector raises on purpose is also written to standard error, with its place."""
    if isinstance(error, FrameError):
        return str(error)
    traceback.print_exception(type(error), error, error.__traceback__)
    return f"the detector failed: {type(error).__name__}: {str(error).strip()[:500]}"


def decode_s(image: Any) -> float:
    return getattr(image, "decode_s", 0.0)


def reply(found: Any, image: Any, took_s: float) -> dict:
    """An answer: what was found, the image's size, and the times."""
    if not isinstance(found, Found):
        found = Found(found)
    times = {"took_ms": round(took_s * 1e3, 3), "decode_ms": round(decode_s(image) * 1e3, 3)}
    answer: dict = {"boxes": [list(box) for box in found.boxes], **times}
    if hasattr(type(image), "size"):
        answer["size"] = list(image.size)
    if found.classes:
        answer["classes"] = [list(entry) for entry in found.classes]
    if found.poses:
        answer["poses"] = [[list(point) for point in pose] for pose in found.poses]
    return answer


def write_reply(stream: Stream, answer: dict) -> None:
    """Writes an answer; one that cannot be written, or that Tidegate would not read, is a refusal."""
    try:
        text = json_text(answer)
        if len(text) > JSON_BYTES_MAX:
            raise FrameError(f"the answer has {len(text)} bytes of JSON and may have {JSON_BYTES_MAX}: too much was found in the image")
    except FrameError as error:
        text = json_text({"id": answer.get("id"), "error": str(error)})
    except ValueError:
        text = json_text({"id": answer.get("id"), "error": "the model returned values that are not finite numbers"})
    except TypeError as error:
        text = json_text({"id": answer.get("id"), "error": f"the detector returned what JSON has no form for: {error}"})
    write_text(stream, text)


def number(head: dict, field: str, least: int, default: int | None = None) -> int:
    value = head.get(field, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise FrameError(f"{field} must be a whole number from {least}, not {value!r}")
    return value


def text(head: dict, field: str) -> str:
    value = head.get(field)
    if not isinstance(value, str) or not value:
        raise FrameError(f"{field} must be a text, not {value!r}")
    return value
