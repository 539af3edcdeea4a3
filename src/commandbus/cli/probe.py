"""Probe: asks a worker for its health. Loads neither the driver nor the application, and little
else: a probe runs every few seconds.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Sequence
from typing import Annotated, Any

from commandbus.cli.declared import option

DEFAULT_URL = "http://127.0.0.1:8081/readyz"
#: The pages of a health file. Without a word it is whether the process lives: a probe that asks for
#: more than that starts workers again whose database is away, which does not help it.
PAGES = ("livez", "readyz", "startupz")
#: A worker writes its file every two seconds; one that is older belongs to one that is gone.
MAX_AGE_SECONDS = 15.0
_SECONDS = 5.0
_USAGE = f"""Usage: commandbus health [--url URL | --file FILE [--page PAGE] [--max-age SECONDS]]

Ask a worker that was started with --http or --health-file whether it is well: exit code 0 if it is,
1 if it is not or does not answer.

  --url URL          The page to ask: /livez, /readyz or /startupz. [default: {DEFAULT_URL}]
  --file FILE        Read the file of --health-file instead.
  --page PAGE        What of the file: {", ".join(PAGES)}. [default: {PAGES[0]}]
  --max-age SECONDS  A file that is older is of a worker gone. [default: {MAX_AGE_SECONDS:g}]
"""
_OPTIONS = ("--url", "--file", "--page", "--max-age")


def run(words: Sequence[str]) -> int:
    """Run the command `health`; returns the exit code."""
    if {"-h", "--help"} & set(words):
        print(_USAGE, end="")
        return 0
    given: dict[str, str] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if name not in _OPTIONS or not (equals or rest):
            if name in _OPTIONS:
                return _refused(f"{name} needs a value")
            return _refused(f"{word} is not an option of `commandbus health`")
        given[name] = value if equals else rest.pop(0)
    if "--file" in given:
        return _ask_file(given)
    if odd := [name for name in ("--page", "--max-age") if name in given]:
        return _refused(f"{odd[0]} goes with --file")
    return _ask_url(given.get("--url", DEFAULT_URL))


def _refused(why: str) -> int:
    print(f"error: {why}", file=sys.stderr)
    return 2


def _ask_url(url: str) -> int:
    try:
        host, port, path = _parts(url)
    except ValueError:
        return _refused(f"--url is {url!r}; write http://HOST:PORT/readyz")
    try:
        status, body = ask(host, port, path)
    except OSError as error:
        print(f"no answer from {url}: {error}", file=sys.stderr)
        return 1
    print(body.strip())
    return 0 if status == 200 else 1


def _ask_file(given: dict[str, str]) -> int:
    page = given.get("--page", PAGES[0]).lstrip("/")
    if "--url" in given:
        return _refused("use --url or --file, not both")
    if page not in PAGES:
        return _refused(f"--page is {page!r}; use {', '.join(PAGES)}")
    try:
        limit = float(given.get("--max-age", MAX_AGE_SECONDS))
    except ValueError:
        return _refused(f"--max-age is {given['--max-age']!r}; write seconds, such as 15")
    path = given["--file"]
    try:
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123  (pathlib is dear)
            age = time.time() - os.fstat(file.fileno()).st_mtime
            lines = file.read(65_536).splitlines()
    except OSError as error:
        print(f"no worker writes {path}: {error.strerror or error}", file=sys.stderr)
        return 1
    if age > limit:
        print(f"{path} was written {age:.0f} s ago: its worker is gone", file=sys.stderr)
        return 1
    found = [line.removeprefix(f"{page}: ") for line in lines if line.startswith(f"{page}: ")]
    print("\n".join(found) or f"{path} says nothing of {page}")
    return 0 if found == ["ok"] else 1


def health(
    url: Annotated[
        str, option("--url", metavar="URL", help="The page: /livez, /readyz or /startupz.")
    ] = DEFAULT_URL,
    file: Annotated[
        str | None,
        option("--file", metavar="FILE", help="Read the file of --health-file instead."),
    ] = None,
    page: Annotated[
        str, option("--page", metavar="PAGE", help="Of the file: livez, readyz or startupz.")
    ] = PAGES[0],
    max_age: Annotated[
        float, option("--max-age", metavar="SECONDS", help="An older file is of a worker gone.")
    ] = MAX_AGE_SECONDS,
) -> None:
    """Ask a worker that was started with --http or --health-file whether it is well; exit code 1
    if it is not.
    """
    if file is None:
        raise SystemExit(run(["--url", url]))
    raise SystemExit(run(["--file", file, "--page", page, "--max-age", str(max_age)]))


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
