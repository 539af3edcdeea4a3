"""Stacks: where in the code an attempt failed, as it is stored and as it is logged.

Names of files and functions with line numbers; no values of variables. A handler may raise
anything, also exceptions that fail when they are looked at: nothing here raises, whatever it is.
"""

from __future__ import annotations

import linecache
import os
import sysconfig
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from commandbus.privacy.redaction import redact_text
from commandbus.privacy.values import NONE, Secrets, text_of

#: Frames of one exception that are kept, the innermost ones.
MAX_FRAMES = 30
#: Bytes of the frames of the exception itself, and of all its causes together.
MAX_STACK_BYTES = 4_096
MAX_CAUSES_BYTES = 8_192
#: Exceptions that led to it, and members of an exception group, that are kept.
MAX_CAUSES = 3
MAX_MEMBERS = 3
#: Characters of one frame, and of the text of a cause.
MAX_FRAME = 240
MAX_CAUSE_TEXT = 512
#: Bytes of a traceback in the log, and characters of one of its lines.
MAX_TRACEBACK = 16_384
MAX_SOURCE = 200

#: What stands between the event loop, or a thread, and the handler.
_AROUND = ("commandbus.worker.", "asyncio.", "concurrent.futures.", "threading.")
_RELATIONS = {
    "cause": "This was the direct cause of the exception below:",
    "context": "While this was handled, the exception below was raised:",
    "member": "This is a member of the exception group below:",
}


class _Frame(NamedTuple):
    """One frame, before it is shown."""

    file: str
    line: int
    function: str
    module: str


def stack_of(
    error: BaseException, secrets: Secrets = NONE, *, home: str | None = None
) -> dict[str, Any] | None:
    """What is stored of the place where an exception was raised; None if that cannot be told.

    `exception`, `frames` (`path:line function`, innermost last), `frames_left_out` if there were
    more, `first` and `last`: the frames of the user's own code, and `causes`. `secrets` are masked.
    `home`: the module of the handler, whose package is the user's code wherever it is installed.
    """
    try:
        return _stack_of(error, secrets, home or "")
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001  (an exception of somebody else's may fail when looked at)
        return None


def place_of(stack: Mapping[str, Any] | None) -> str | None:
    """Where it failed: the innermost frame of the user's code, else the innermost of all."""
    if not stack:
        return None
    frames: Sequence[str] = stack.get("frames") or ()
    last: str | None = stack.get("last")
    return last or (frames[-1] if frames else None)


def traceback_text(error: BaseException, message: str, secrets: Secrets = NONE) -> str:
    """The traceback as Python prints it, with lines of source, redacted and cut at its beginning.

    `message`: the text of the exception, redacted already.
    """
    try:
        shown = [
            [
                *_source_lines(each, secrets),
                f"{_named(each, secrets)}: {text}",
                _RELATIONS[relation],
                "",
            ]
            for relation, each, text in reversed(_related(error, secrets))
        ]
        shown.append([*_source_lines(error, secrets), f"{_named(error, secrets)}: {message}"])
        text = _end_of("\n".join(line for lines in shown for line in lines), MAX_TRACEBACK)
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001  (as in stack_of)
        text = "its traceback cannot be shown"
    return text


def _named(error: BaseException, secrets: Secrets) -> str:
    """The class of an exception with its module, but for those of Python itself."""
    kind = type(error)
    module = kind.__module__
    name = kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}"
    return _masked(_clean(name), secrets)[:200]


# -- what is stored


def _stack_of(error: BaseException, secrets: Secrets, home: str) -> dict[str, Any]:
    package = home.partition(".")[0]
    frames, first, count = _frames_of(error, package)
    shown = _within([_shown(frame, secrets) for frame in frames], MAX_STACK_BYTES)
    stack: dict[str, Any] = {"exception": _named(error, secrets), "frames": shown}
    if count > len(shown):
        stack["frames_left_out"] = count - len(shown)
    last = _last_own(frames, package)
    causes: list[dict[str, Any]] = []
    left = MAX_CAUSES_BYTES
    for relation, each, text in _related(error, secrets):
        inner, inner_first, _ = _frames_of(each, package)
        name = _named(each, secrets)
        left -= len(name) + len(text.encode()) + 64
        if left <= 0:
            break
        lines = _within([_shown(frame, secrets) for frame in inner], min(left, MAX_STACK_BYTES))
        left -= _bytes_of(lines)
        cause = {"relation": relation, "exception": name, "message": text, "frames": lines}
        causes.append(cause)
        # What the worker raises itself, a time-out say, has no frame of the user's.
        first, last = first or inner_first, last or _last_own(inner, package)
    for name, frame in (("first", first), ("last", last)):
        if frame is not None:
            stack[name] = _shown(frame, secrets)
    return {**stack, "causes": causes} if causes else stack


def _related(error: BaseException, secrets: Secrets) -> list[tuple[str, BaseException, str]]:
    """The exceptions that led to this one, nearest first, with their redacted texts."""
    found: list[tuple[str, BaseException, str]] = []
    left = {"cause": MAX_CAUSES, "member": MAX_MEMBERS}
    seen = {id(error)}
    waiting = deque([error])
    while waiting:
        for relation, each in _next_of(waiting.popleft()):
            kind = "member" if relation == "member" else "cause"
            if left[kind] and id(each) not in seen:
                left[kind] -= 1
                seen.add(id(each))
                waiting.append(each)
                text = redact_text(text_of(each), MAX_CAUSE_TEXT, secrets=secrets)
                found.append((relation, each, text))
    return found


def _next_of(error: BaseException) -> Iterator[tuple[str, BaseException]]:
    if isinstance(error, BaseExceptionGroup):
        for member in error.exceptions[:MAX_MEMBERS]:
            yield "member", member
    if error.__cause__ is not None:
        yield "cause", error.__cause__
    elif error.__context__ is not None and not error.__suppress_context__:
        yield "context", error.__context__


def _frames_of(error: BaseException, package: str) -> tuple[list[_Frame], _Frame | None, int]:
    """The innermost frames from the handler on, its first one of the user's code, and how many
    there are. A recursion may have left thousands: one walk, and only what is kept is looked into.
    """
    kept: deque[TracebackType] = deque(maxlen=MAX_FRAMES)
    first: _Frame | None = None
    count, is_around = 0, True
    traceback = error.__traceback__
    while traceback is not None:
        if is_around and not _is_around(_module_of(traceback)):
            is_around, count = False, 0
            kept.clear()
        if first is None and not is_around and count < MAX_FRAMES:
            frame = _frame_of(traceback)
            first = frame if _is_own(frame, package) else None
        kept.append(traceback)
        count += 1
        traceback = traceback.tb_next
    return [_frame_of(each) for each in kept], first, count


def _is_around(module: str) -> bool:
    return f"{module}.".startswith(_AROUND)


def _module_of(traceback: TracebackType) -> str:
    name = dict.get(traceback.tb_frame.f_globals, "__name__")
    return name if type(name) is str else ""


def _frame_of(traceback: TracebackType) -> _Frame:
    code = traceback.tb_frame.f_code
    name, line = code.co_qualname, traceback.tb_lineno
    return _Frame(code.co_filename, line or 0, name, _module_of(traceback))


def _last_own(frames: list[_Frame], package: str) -> _Frame | None:
    return next((frame for frame in reversed(frames) if _is_own(frame, package)), None)


def _is_own(frame: _Frame, package: str) -> bool:
    """Whether a frame is of the user's code: of the handler's package, or of no library."""
    top = frame.module.partition(".")[0]
    if package not in {"", "__main__", "functools"} and top == package:
        return not _is_around(frame.module)
    return top != "commandbus" and not _is_library(frame.file)


def _shown(frame: _Frame, secrets: Secrets) -> str:
    path = _masked(_path_of(frame.file, frame.module), secrets)
    function = _masked(_clean(frame.function), secrets)
    text = f"{path}:{frame.line} {function}"
    if len(text) <= MAX_FRAME:
        return text
    return f"…{path[-120:]}:{frame.line} {function[:100]}"


def _masked(text: str, secrets: Secrets) -> str:
    # Not redact_text: `token.py:12` looks like a key with its value.
    return secrets.masked(text)


def _within(lines: list[str], most: int) -> list[str]:
    """The last lines that have no more bytes than this."""
    if _bytes_of(lines) <= most:
        return lines
    kept: deque[str] = deque()
    for line in reversed(lines):
        most -= _bytes_of([line])
        if most < 0:
            break
        kept.appendleft(line)
    return list(kept)


def _bytes_of(lines: Sequence[str]) -> int:
    return sum(map(len, map(str.encode, lines))) + 4 * len(lines)  # quotes, comma, space


# -- names of files


@lru_cache(maxsize=4_096)
def _path_of(file: str, module: str) -> str:
    """The file as its module names it, `shop/handlers.py`; never where it is installed."""
    name = module.replace(".", "/")
    for tail in (f"{name}.py", f"{name}/__init__.py"):
        if module and f"/{file.replace(os.sep, '/')}".endswith(f"/{tail}"):
            return _clean(tail)
    if file.startswith("<"):
        return _clean(file)
    return _clean(Path(file).name)


@lru_cache(maxsize=4_096)
def _is_library(file: str) -> bool:
    parts = Path(file).parts
    return (
        "site-packages" in parts
        or "dist-packages" in parts
        or file.startswith((*_STANDARD_LIBRARY, "<frozen "))
    )


_STANDARD_LIBRARY = tuple(
    path + os.sep for path in {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
)


def _clean(text: str) -> str:
    """A name that can be stored and printed: names of code objects may be any text."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)


# -- what is logged


def _source_lines(error: BaseException, secrets: Secrets) -> list[str]:
    frames, _, count = _frames_of(error, "")
    lines = ["Raised (innermost frame last):"]
    if count > len(frames):
        lines.append(f"  … {count - len(frames)} frames left out")
    for frame in frames:
        path = _masked(_path_of(frame.file, frame.module), secrets)
        function = _masked(_clean(frame.function), secrets)
        lines.append(f'  File "{path}", line {frame.line}, in {function}'[:MAX_SOURCE])
        source = _clean(linecache.getline(frame.file, frame.line).strip())
        if source:
            lines.append(f"    {redact_text(source, MAX_SOURCE, secrets=secrets)}")
    return lines


def _end_of(text: str, most: int) -> str:
    """The end of a text, from the beginning of a line."""
    data = text.encode()
    if len(data) <= most:
        return text
    return "…\n" + data[len(data) - most + 4 :].partition(b"\n")[2].decode()
