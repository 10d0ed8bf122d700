"""The list of packages by their hashes is one of what is asked for."""

import re
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent


def names(text: str) -> set[str]:
    return {match.group() for line in text.splitlines() if (match := re.match(r"[A-Za-z0-9._-]+", line))}


class Requirements(unittest.TestCase):
    def test_the_list_pins_each_package_by_hashes(self) -> None:
        asked = names((HERE / "requirements.txt").read_text())
        lock = (HERE / "requirements.lock").read_text()
        self.assertLessEqual(asked, names(lock))
        packages = re.split(r"\n(?=\S)", lock.strip())
        self.assertGreaterEqual(len(packages), len(asked))
        for package in packages:
            self.assertRegex(package, r"\A[A-Za-z0-9._-]+==[0-9.]+[^\n]* \\\n    --hash=sha256:[0-9a-f]{64}")

    def test_opencv_is_the_last_with_a_detector_of_people(self) -> None:
        lock = (HERE / "requirements.lock").read_text()
        self.assertRegex(lock, r"(?m)^opencv-contrib-python-headless==4\.")
