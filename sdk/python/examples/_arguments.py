"""Arguments of every example: the node, and the identity of the caller."""

from __future__ import annotations

import argparse

import tidegate


def parser(text: str) -> argparse.ArgumentParser:
    """Options that every example has."""
    options = argparse.ArgumentParser(description=text)
    options.add_argument("--node", default="127.0.0.1:7080", help="HOST:PORT of the node's API (default: %(default)s)")
    options.add_argument("--mqtt", help="mqtt://HOST:PORT or mqtts://HOST:PORT of its broker, where that is elsewhere")
    options.add_argument("--pki", default="tidegate-data/pki", help="folder that `tidegate init` made (default: %(default)s)")
    return options


def connect(given: argparse.Namespace) -> tidegate.Client:
    """A client of the node that was named."""
    return tidegate.connect(given.node, pki=given.pki, mqtt=given.mqtt)
