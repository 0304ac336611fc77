"""Asks a server for its health until it is told to end: `python health_poll.py PORT`.

A process of its own, so that a client that is busy does not count as a server that is slow. In: a line on
standard input ends it. Out: at the end, a line for each answer, its seconds.
"""

import http.client
import sys
import threading
import time

__all__ = ["ask", "main"]

PAUSE_SECONDS = 0.1


def ask(port: int) -> float:
    """Seconds until a new connection has brought the whole answer, which must be 200."""
    started = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/health")
    response = connection.getresponse()
    response.read()
    connection.close()
    if response.status != 200:
        sys.exit(f"/health answered {response.status}")
    return time.monotonic() - started


def main() -> None:
    """Ask ten times a second."""
    told = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), told.set()), daemon=True).start()
    waits = []
    while not told.wait(PAUSE_SECONDS):
        waits.append(ask(int(sys.argv[1])))
    sys.stdout.writelines(f"{seconds:.6f}\n" for seconds in waits)


if __name__ == "__main__":
    main()
