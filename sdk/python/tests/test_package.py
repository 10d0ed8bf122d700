"""The package itself: its generated messages, its types, its style, and that it installs."""

from __future__ import annotations

import inspect
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tidegate
import tidegate.aio

FOLDER = Path(__file__).resolve().parent.parent


def test_the_messages_are_those_of_proto(tmp_path: Path) -> None:
    made = tmp_path / "made"
    subprocess.run([str(FOLDER / "generate"), str(made)], check=True, env={"PYTHON": sys.executable, "PATH": "/usr/bin:/bin"}, timeout=60)
    ours = FOLDER / "src" / "tidegate" / "v1"
    names = {file.name for file in (made / "tidegate" / "v1").iterdir()}
    assert names == {file.name for file in ours.iterdir() if file.suffix in (".py", ".pyi")}
    for name in sorted(names):
        is_true = (made / "tidegate" / "v1" / name).read_bytes() == (ours / name).read_bytes()
        assert is_true, f"{name} is not what proto/ says: run scripts/sdk-python generate"


@pytest.mark.parametrize("command", [["mypy"], ["ruff", "check", "."], ["ruff", "format", "--check", "."]], ids=" ".join)
def test_types_and_style(command: list[str], tmp_path: Path) -> None:
    cache = ["--cache-dir", str(tmp_path)]
    said = subprocess.run([sys.executable, "-m", *command, *cache], cwd=FOLDER, check=False, capture_output=True, text=True, timeout=110)
    assert said.returncode == 0, said.stdout + said.stderr


def test_it_installs_with_its_types(tmp_path: Path) -> None:
    # A copy: a build leaves folders behind.
    copy = tmp_path / "source"
    shutil.copytree(FOLDER, copy, ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__", "tests"))
    target = tmp_path / "installed"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target", str(target), str(copy)]
    subprocess.run(pip, check=True, timeout=110)
    package = target / "tidegate"
    assert (package / "py.typed").is_file() and (package / "v1" / "frames_pb2.pyi").is_file()
    said = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(target)!r}); import tidegate.aio; print(tidegate.__file__)"],
        check=True,
        capture_output=True,
        text=True,
        env={},
        timeout=60,
    )
    assert said.stdout.strip().startswith(str(target))


def test_every_public_item_is_documented() -> None:
    missing = []
    for module in (tidegate, tidegate.aio):
        for name in module.__all__:
            item = getattr(module, name)
            if not (inspect.isclass(item) or inspect.isfunction(item)):
                continue
            if not inspect.getdoc(item):
                missing.append(name)
            if inspect.isclass(item) and item.__module__.startswith("tidegate"):
                for part, value in vars(item).items():
                    is_public = not part.startswith("_") and (inspect.isfunction(value) or isinstance(value, property))
                    if is_public and not value.__doc__:
                        missing.append(f"{name}.{part}")
    assert missing == []
