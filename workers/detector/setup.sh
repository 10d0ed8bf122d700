#!/bin/sh
# Makes the detector worker's Python environment. Run it again at any time: it does nothing when nothing is missing.
#
#   workers/detector/setup.sh [FOLDER]
#   workers/detector/setup.sh --lock         writes requirements.lock from requirements.txt
#
# FOLDER is TIDEGATE_WORKER_VENV, or tidegate/worker-venv in the user's cache folder, where the program looks by itself. Packages are
# those of requirements.lock, by the hash of each file, on machines for which onnxruntime is built; on others, such as 32-bit ARM, those
# that requirements.txt allows, since the files that such machines use are on other indexes.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
python=${PYTHON:-python3}

if [ "${1:-}" = --lock ]; then
    # uv is not part of the environment that it describes. One list serves each Python from 3.9 on, and each machine.
    tools=$(mktemp -d)
    trap 'rm -rf "$tools"' EXIT
    "$python" -m venv "$tools"
    "$tools/bin/python" -m pip install --quiet --disable-pip-version-check uv==0.13.9
    cd "$here"
    "$tools/bin/uv" pip compile --quiet --universal --python-version 3.9 --generate-hashes --no-header --no-annotate \
        --no-emit-index-url --no-emit-find-links --upgrade --output-file requirements.lock requirements.txt
    exit
fi

venv=${1:-${TIDEGATE_WORKER_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/tidegate/worker-venv}}

works() {
    "$venv/bin/python" -c '
import cv2, numpy, platform
if platform.machine() in ("x86_64", "aarch64", "arm64"): import onnxruntime
cv2.HOGDescriptor_getDefaultPeopleDetector(), cv2.face.LBPHFaceRecognizer_create()' >/dev/null 2>&1
}

# The environment has its list beside it: another list is another environment.
if works && cmp -s "$here/requirements.lock" "$venv/requirements.lock"; then
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
case $("$venv/bin/python" -c 'import platform; print(platform.machine())') in
x86_64 | aarch64 | arm64) set -- --require-hashes -r "$here/requirements.lock" ;;
*) set -- -r "$here/requirements.txt" ;;
esac
pip download --dest "$packages" "$@"
pip uninstall --yes opencv-python-headless >/dev/null 2>&1 || true
pip install --no-index --find-links "$packages" "$@"
if ! works; then
    echo "detector worker: OpenCV or onnxruntime does not load from $venv; remove that folder and run this again" >&2
    exit 1
fi
cp "$here/requirements.lock" "$venv/requirements.lock"
echo "detector worker: made $venv"
