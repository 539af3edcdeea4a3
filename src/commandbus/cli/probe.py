"""Probe: asks a worker for its health. Loads neither the driver nor the application, and little
else: a probe runs every few seconds.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence
from typing import Annotated, Any

from commandbus.cli.declared import option

DEFAULT_URL = "http://127.0.0.1:8081/readyz"
_SECONDS = 5.0
_USAGE = f"""Usage: commandbus health [--url URL]

Ask a worker that was started with --http whether it is well: exit code 0 if it is, 1 if it is not
or does not answer.

  --url URL  The page to ask: /livez, /readyz or /startupz. [default: {DEFAULT_URL}]
"""


def run(words: Sequence[str]) -> int:
    """Run the command `health`; returns the exit code."""
    url = DEFAULT_URL
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word in {"-h", "--help"}:
            print(_USAGE, end="")
            return 0
        if word == "--url" and rest:
            url = rest.pop(0)
        elif word.startswith("--url="):
            url = word.removeprefix("--url=")
        else:
            print(f"error: {word} is not an option of `commandbus health`", file=sys.stderr)
            return 2
    try:
        host, port, path = _parts(url)
    except ValueError:
        print(f"error: --url is {url!r}; write http://HOST:PORT/readyz", file=sys.stderr)
        return 2
    try:
        status, body = ask(host, port, path)
    except OSError as error:
        print(f"no answer from {url}: {error}", file=sys.stderr)
        return 1
    print(body.strip())
    return 0 if status == 200 else 1


def health(
    url: Annotated[
        str, option("--url", metavar="URL", help="The page: /livez, /readyz or /startupz.")
    ] = DEFAULT_URL,
) -> None:
    """Ask a worker that was started with --http whether it is well; exit code 1 if it is not."""
    raise SystemExit(run(["--url", url]))


def _parts(url: str) -> tuple[str, int, str]:
    scheme, colon, rest = url.partition("://")
    place, _, path = rest.partition("/")
    host, _, port = place.rpartition(":")
    if scheme != "http" or not colon or not host:
        raise ValueError(url)
    return host.strip("[]"), int(port), f"/{path or 'readyz'}"


def ask(host: str, port: int, path: str) -> tuple[int, str]:
    """The status and the body of one page."""
    # Bytes: to encode a name, Python would load tables that nothing else here needs.
    place: Any = (host.encode(), port)
    with socket.create_connection(place, timeout=_SECONDS) as sock:
        sock.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        answer = b""
        while len(answer) < 65_536 and (part := sock.recv(8_192)):
            answer += part
    head, _, body = answer.partition(b"\r\n\r\n")
    words = head.split(b" ", 2)
    if len(words) < 2 or not words[1].isdigit():
        raise OSError("that is no answer in HTTP")
    return int(words[1]), body.decode("utf-8", "replace")
