"""Stacks: where in the code an attempt failed, bounded, without values, whatever was raised."""

from __future__ import annotations

import asyncio
import json
import linecache
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from commandbus.privacy.values import Secrets
from commandbus.worker import stacks
from commandbus.worker.stacks import place_of, stack_of, traceback_text

HERE = __name__


def stack(error: BaseException, *secrets: str, home: str = HERE) -> dict[str, Any]:
    found = stack_of(error, Secrets(secrets), home=home)
    assert found is not None
    return found


def raised(function: Any, *arguments: Any) -> BaseException:
    try:
        function(*arguments)
    except BaseException as error:  # noqa: BLE001
        return error
    raise AssertionError("nothing was raised")


def inner() -> None:
    raise KeyError("account")


def outer() -> None:
    inner()


def deep(depth: int) -> None:
    if depth:
        deep(depth - 1)
    raise ValueError("at the bottom")


def module(source: str, path: str, name: str) -> dict[str, Any]:
    """Code as if it were in that file."""
    space: dict[str, Any] = {"__name__": name}
    exec(compile(source, path, "exec"), space)
    return space


def test_frames_have_path_line_and_function_with_the_innermost_last() -> None:
    found = stack(raised(outer))
    line = inner.__code__.co_firstlineno + 1
    path = f"{HERE.replace('.', '/')}.py"
    assert found["exception"] == "KeyError"
    assert found["frames"][-2:] == [f"{path}:{line + 4} outer", f"{path}:{line} inner"]
    assert found["last"] == place_of(found) == f"{path}:{line} inner"
    assert found["first"] == found["frames"][0]
    assert "causes" not in found
    assert "frames_left_out" not in found


def test_the_last_frame_of_the_user_is_told_when_a_library_raised() -> None:
    found = stack(raised(lambda: json.loads("{")))
    assert "json/decoder.py" in found["frames"][-1]
    assert "test_stacks.py" in found["last"]
    assert found["exception"] == "json.decoder.JSONDecodeError"


def test_an_application_that_is_installed_among_the_libraries_is_the_users_code() -> None:
    app = module("def work(): {}['x']", "/opt/lib/site-packages/shop/work.py", "shop.work")
    error = raised(app["work"])
    assert stack(error, home="shop.main")["last"] == "shop/work.py:1 work"
    assert "test_stacks.py" in stack(error, home=HERE)["last"]


@pytest.mark.parametrize(
    ("path", "name", "shown"),
    [
        ("/home/ann/project/shop/handlers.py", "shop.handlers", "shop/handlers.py"),
        ("/home/ann/project/shop/__init__.py", "shop", "shop/__init__.py"),
        ("/home/ann/run.py", "__main__", "run.py"),
        ("shop/handlers.py", "shop.handlers", "shop/handlers.py"),
        ("/home/ann/generated", "", "generated"),
        ("<string>", "shop.handlers", "<string>"),
        ("/home/ann/a\n\x1b[31m.py", "__main__", "a\ufffd\ufffd[31m.py"),
        ("/home/ann/bad\udcff.py", "__main__", "bad\ufffd.py"),
    ],
)
def test_a_path_is_that_of_its_module_and_never_a_home(path: str, name: str, shown: str) -> None:
    found = stack(raised(module("def work(): 1 / 0", path, name)["work"]), home=name)
    assert found["last"] == f"{shown}:1 work"
    assert "ann" not in json.dumps(found)
    json.dumps(found, ensure_ascii=False).encode()


def test_ten_thousand_frames_of_a_recursion_leave_the_last_thirty() -> None:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(12_000)
    try:
        error = raised(deep, 10_000)
    finally:
        sys.setrecursionlimit(limit)
    found = stack(error)
    assert len(found["frames"]) == stacks.MAX_FRAMES
    assert found["frames_left_out"] > 9_900
    assert found["first"].endswith("raised")
    assert f"{found['frames_left_out']} frames left out" in traceback_text(error, "x")


def test_frames_with_long_names_stay_within_their_bytes() -> None:
    name = "ü" * 3_000
    source = f"def {name}(n):\n    {name}(n - 1) if n else 1 / 0"
    found = stack(raised(module(source, f"/x/{'p' * 250}.py", "shop")[name], 50))
    assert sum(len(frame.encode()) for frame in found["frames"]) <= stacks.MAX_STACK_BYTES
    assert all(len(frame) <= stacks.MAX_FRAME for frame in found["frames"])
    assert len(found["frames"]) > 3
    assert f"py:2 {'ü' * 100}" in found["frames"][-1]


def test_causes_are_told_and_a_suppressed_one_is_not() -> None:
    def work(how: str) -> None:
        try:
            inner()
        except KeyError as error:
            if how == "cause":
                raise ValueError("no") from error
            if how == "none":
                raise ValueError("no") from None
            raise ValueError("no")  # noqa: B904

    [cause] = stack(raised(work, "cause"))["causes"]
    assert (cause["relation"], cause["exception"]) == ("cause", "KeyError")
    assert cause["message"] == "'account'"
    assert cause["frames"][-1].endswith(" inner")
    [context] = stack(raised(work, "context"))["causes"]
    assert context["relation"] == "context"
    assert "causes" not in stack(raised(work, "none"))


def test_of_many_causes_three_are_kept_within_their_bytes_and_a_circle_ends() -> None:
    errors = [raised(deep, 40) for _ in range(5)]
    for error, cause in zip(errors, [*errors[1:], errors[0]], strict=True):
        error.__cause__ = cause
        error.args = ("ü" * 9_000,)
    found = stack(errors[0])
    assert 1 <= len(found["causes"]) <= stacks.MAX_CAUSES
    assert len(json.dumps(found["causes"], ensure_ascii=False).encode()) <= stacks.MAX_CAUSES_BYTES
    assert len(traceback_text(errors[0], "x")) <= stacks.MAX_TRACEBACK

    one = raised(inner)
    one.__cause__ = one
    assert "causes" not in stack(one)


def test_an_exception_group_shows_its_first_members() -> None:
    async def work() -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(5):
                group.create_task(asyncio.to_thread(inner))

    found = stack(raised(lambda: asyncio.run(work())))
    assert found["exception"] == "ExceptionGroup"
    members = [cause for cause in found["causes"] if cause["relation"] == "member"]
    assert len(members) == stacks.MAX_MEMBERS
    assert {member["exception"] for member in members} == {"KeyError"}
    assert members[0]["frames"][-1].endswith(" inner")


def test_an_error_that_only_its_cause_explains_has_the_frames_of_the_cause() -> None:
    error = TimeoutError("too long")  # never raised: no traceback
    error.__cause__ = raised(outer)
    found = stack(error)
    assert found["frames"] == []
    assert found["last"].endswith(" inner")


def test_a_library_that_is_named_like_one_around_the_handler_is_not_left_out() -> None:
    space = module("def work(): 1 / 0", "/x/asyncio_shop.py", "asyncio_shop")
    assert stack(raised(space["work"]))["frames"][-1] == "asyncio_shop.py:1 work"


class HostileError(Exception):
    """Fails however it is looked at."""

    def __str__(self) -> str:
        raise SystemExit("no text")

    @property
    def __cause__(self) -> BaseException:  # type: ignore[override]
        raise asyncio.CancelledError

    @property
    def exceptions(self) -> None:
        raise RuntimeError


class UnnamedError(Exception):
    __module__ = 3  # type: ignore[assignment]


@pytest.mark.parametrize(
    "error",
    [
        HostileError(),
        UnnamedError(),
        type("\x1b[31m\n", (Exception,), {})(),
        SystemExit(3),
        Exception(b"\xff"),
    ],
    ids=lambda error: type(error).__mro__[1].__name__,
)
def test_nothing_is_raised_whatever_the_exception_is(error: BaseException) -> None:
    def work() -> None:
        raise error

    found = stack_of(raised(work), Secrets(["secret"]))
    if found is not None:
        json.dumps(found, ensure_ascii=False).encode()
    traceback_text(error, "x").encode()
    assert place_of(None) is None
    assert place_of({}) is None


def test_secrets_are_masked_in_names_and_texts_and_a_line_number_is_not() -> None:
    token = "hunter2hunter2"
    source = f"def rule_{token}(): raise ValueError('{token} and password=open')"
    error = raised(module(source, f"<rule {token}>", "token")[f"rule_{token}"])
    final = RuntimeError("x")
    final.__cause__ = error
    text = json.dumps(stack(final, token)) + traceback_text(final, "x", Secrets([token]))
    assert token not in text
    assert "open" not in text
    assert "<rule [REDACTED]>:1 rule_[REDACTED]" in text
    code = module("def work(): 1 / 0", "/x/token.py", "token")["work"]
    assert stack(raised(code))["last"] == "token.py:1 work"


def test_the_logged_traceback_has_lines_of_source_and_ends_with_the_message() -> None:
    error = raised(outer)
    text = traceback_text(error, "masked")
    assert text.splitlines()[0] == "Raised (innermost frame last):"
    assert '", line ' in text
    assert '    raise KeyError("account")' in text
    assert text.endswith("KeyError: masked")
    assert "/home" not in text
    assert str(Path(__file__).parent) not in text


def test_a_logged_traceback_keeps_its_end_when_it_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linecache, "getline", lambda *_: "x" * 5_000)
    error = raised(deep, 50)
    error.__cause__ = raised(deep, 50)
    error.__cause__.__cause__ = raised(deep, 50)
    text = traceback_text(error, "the end")
    assert len(text) <= stacks.MAX_TRACEBACK
    assert text.endswith("ValueError: the end")


def test_the_frames_around_the_handler_are_left_out() -> None:
    around = module("def call(f): f()", "/x/commandbus/worker/execution.py", "commandbus.worker.x")
    traceback = raised(around["call"], outer).__traceback__
    assert isinstance(traceback, types.TracebackType)
    assert traceback.tb_next is not None
    error = KeyError("account")
    found = stack(error.with_traceback(traceback.tb_next))
    assert [frame.rpartition(" ")[2] for frame in found["frames"]] == ["outer", "inner"]
    assert found["first"].endswith(" outer")
