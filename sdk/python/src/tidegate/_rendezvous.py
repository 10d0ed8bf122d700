"""The detector's program that `characterize` hands to the node: it tells the caller's process where the socket is, and waits.

It is run by its path, with the rendezvous as its argument, and imports nothing of this package, so that it starts at once.
"""

import os
import socket
import sys


def main() -> int:
    """Sends the path of the detector's socket to the rendezvous, and ends when that is closed."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(sys.argv[1])
    connection.sendall(os.environ["TIDEGATE_DETECTOR_SOCKET"].encode())
    connection.shutdown(socket.SHUT_WR)
    while connection.recv(4096):
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
