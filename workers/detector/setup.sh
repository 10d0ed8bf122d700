#!/bin/sh
# Makes the detector worker's Python environment. Run it again at any time: it does nothing when nothing is missing.
#
#   workers/detector/setup.sh [FOLDER]
#
# FOLDER is TIDEGATE_WORKER_VENV, or tidegate/worker-venv in the user's cache folder, where the program looks by itself.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
venv=${1:-${TIDEGATE_WORKER_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/tidegate/worker-venv}}
python=${PYTHON:-python3}

works() {
    "$venv/bin/python" -c '
import cv2, numpy, platform
if platform.machine() in ("x86_64", "aarch64", "arm64"): import onnxruntime
cv2.HOGDescriptor_getDefaultPeopleDetector(), cv2.face.LBPHFaceRecognizer_create()' >/dev/null 2>&1
}

if works; then
    echo "detector worker: $venv is complete"
    exit 0
fi
if ! command -v "$python" >/dev/null; then
    echo "detector worker: $python is missing; install Python 3.9 or later" >&2
    exit 1
fi
if ! "$python" -m venv "$venv"; then
    echo "detector worker: cannot make $venv; on Debian and Ubuntu: apt-get install python3-venv" >&2
    exit 1
fi
# Packages of OpenCV share their files, so that the one of an earlier environment goes before the new one comes; and nothing goes
# before all that comes is here.
packages=$(mktemp -d)
trap 'rm -rf "$packages"' EXIT
pip() { "$venv/bin/python" -m pip --quiet --disable-pip-version-check "$@"; }
pip download --dest "$packages" -r "$here/requirements.txt"
pip uninstall --yes opencv-python-headless >/dev/null 2>&1 || true
pip install --no-index --find-links "$packages" -r "$here/requirements.txt"
if ! works; then
    echo "detector worker: OpenCV or onnxruntime does not load from $venv; remove that folder and run this again" >&2
    exit 1
fi
echo "detector worker: made $venv"
