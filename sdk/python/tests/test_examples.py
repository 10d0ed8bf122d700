"""The examples, run as their first lines say against a real node."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import Site, poll

import tidegate

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
BOUND_S = 90

Python = Callable[..., "subprocess.Popen[str]"]


def run(site: Site, python: Python, name: str, *arguments: str) -> str:
    process = python(str(EXAMPLES / name), "--node", site.url, "--pki", str(site.pki), "--mqtt", site.mqtt, *arguments)
    out, said = process.communicate(timeout=BOUND_S)
    assert process.returncode == 0, said
    return out


def test_every_example_is_run() -> None:
    text = "".join(file.read_text(encoding="utf-8") for file in Path(__file__).parent.glob("test_*.py"))
    for example in EXAMPLES.glob("[!_]*.py"):
        assert f'"{example.name}"' in text, example


def test_verdicts(site: Site, python: Python) -> None:
    said = run(site, python, "verdicts.py", "cam1", "--latency-ms", "2000", "--accuracy", "0.5", "--frames", "5")
    assert "5 of 5 frames kept both bounds" in said and "<Camera cam1 online" in said


def test_an_alarm_has_the_original(site: Site, client: tidegate.Client, python: Python, tmp_path: Path) -> None:
    with client.subscribe("open/alarms/#") as alarms:
        run(site, python, "alarm_with_original.py", "cam1", "--folder", str(tmp_path), "--topic", "open/alarms", "--alarms", "2")
        first = next(alarms)
    alarm = json.loads(first.payload)
    assert first.topic == "open/alarms/cam1"
    kept = Path(alarm["original"]).read_bytes()
    assert client.fetch_original("cam1", alarm["captured_at_ns"]).jpeg == kept
    left, top, right, bottom = alarm["box"]
    assert 0 <= left < right <= 640 and 0 <= top < bottom <= 360
    assert len(list(tmp_path.iterdir())) == 2


def test_messages_become_a_table(site: Site, client: tidegate.Client, python: Python, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    csv = tmp_path / "rows.csv"
    example = [str(EXAMPLES / "messages_to_pandas.py"), "--node", site.url, "--pki", str(site.pki), "--mqtt", site.mqtt]
    process = python(*example, "open/plant/#", "--seconds", "4", "--csv", str(csv))
    assert process.stdout is not None and process.stdout.readline().startswith("collecting")
    for number in range(20):
        client.publish(f"open/plant/{number % 2}", json.dumps({"celsius": 20 + number}))
    client.publish("open/plant/0", "no JSON")
    poll(lambda: process.poll() is not None, BOUND_S)
    assert process.returncode == 0
    table = pandas.read_csv(csv)
    assert len(table) == 20 and table["celsius"].sum() == sum(range(20, 40))
    assert "mean" in process.stdout.read()


def test_a_folder_is_a_camera(site: Site, client: tidegate.Client, python: Python, tmp_path: Path) -> None:
    with client.frames("cam2", 2000, 0.0) as stream:
        for number in range(3):
            (tmp_path / f"{number}.jpg").write_bytes(next(stream).jpeg)
    (tmp_path / "2.jpg").write_bytes(b"no picture")
    said = run(site, python, "pictures_as_camera.py", "attic", str(tmp_path), "--fps", "50")
    assert "2 pictures taken, 1 refused" in said
    assert client.camera("attic").newest_at_ns


def test_a_table_is_made_for_a_detector_of_ones_own(site: Site, python: Python, tmp_path: Path) -> None:
    table = tmp_path / "own.table"
    clip = "scene:street?size=320x180&fps=5&seconds=4"
    example = [str(EXAMPLES / "own_detector.py"), clip, "--table", str(table), "--frames", "10", "--program", site.program]
    out, said = python(*example).communicate(timeout=BOUND_S)
    assert "front" in out and "detector own" in table.read_text(), said


def test_an_onnx_model_of_ones_own_looks_at_frames(site: Site, python: Python, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    path = Path(__file__).resolve().parents[3] / "workers" / "detector" / "tests" / "tiny_onnx.py"
    spec = importlib.util.spec_from_file_location("tiny_onnx", path)
    assert spec is not None and spec.loader is not None
    tiny_onnx = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tiny_onnx)
    # It finds the same in each image: one thing of the second class in its upper left quarter, and one that is too uncertain.
    output = np.array([[[16, 16, 32, 32, 0.1, 0.9], [10, 10, 4, 4, 0.2, 0.1]]], np.float32).transpose(0, 2, 1)
    model = tmp_path / "tiny.onnx"
    model.write_bytes(tiny_onnx.answers(output, [1, 3, 64, 64]))
    said = run(site, python, "own_onnx_model.py", "cam1", str(model), "--labels", "person", "car", "--frames", "2")
    lines = said.splitlines()
    assert len(lines) == 2 and all("car 0.90 at 0,0 to " in line for line in lines), said
    # Half of the picture that came, or of the original where the node tells its size.
    assert lines[0].rpartition(" ")[2] in {
        f"{width // 2},{height // 2}" for width, height in [(640, 360), (320, 180), (480, 270), (400, 225), (240, 135)]
    }
