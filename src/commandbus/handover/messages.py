"""The messages of a handover: what is given away and what comes back, each signed.

A message is `{"body": "<JSON as text>", "signature": "<hex>"}`. The signature is HMAC-SHA256 of the
bytes of the body under a key that both ends have. The body is a text inside, so that a broker that
writes JSON in its own way changes nothing that was signed. Its `kind` and `domain` are part of it:
a command is no result, and a result of one domain is none of another.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from commandbus.errors import CommandBusError, InvalidSettingError
from commandbus.keys import MIN_BYTES, Key

#: What a result may say.
OUTCOMES = ("completed", "retry", "park", "fail", "discard", "snooze", "alive")
#: The largest number of a lease, which is a bigint.
MAX_LEASE = 2**63 - 1


class UntrustedMessageError(CommandBusError):
    """A message that nobody with the key has made, or that is none at all."""


@dataclass(frozen=True, slots=True)
class OutsideCommand:
    """A command that was given to a worker outside. `lease` is its fence: a result names it."""

    domain: str
    command_id: UUID
    command_type: str
    lease: int
    attempt: int
    max_attempts: int
    correlation_id: UUID | None
    data: Any = field(repr=False)
    #: A result that comes later is refused, and somebody else has the command by then. By the clock
    #: of the process that gave it away.
    lease_ends_at: datetime
    lease_seconds: int


@dataclass(frozen=True, slots=True)
class Result:
    """What a worker outside says of a command."""

    command_id: UUID
    lease: int
    outcome: str
    result: Any = field(default=None, repr=False)
    code: str | None = None
    message: str | None = None
    details: dict[str, Any] | None = field(default=None, repr=False)
    delay_seconds: float | None = None
    progress: float | None = None
    #: Why it cannot be used, if it cannot; the command is known all the same.
    problem: str | None = None


def check_keys(keys: bytes | Sequence[bytes]) -> tuple[Key, ...]:
    """The keys of one end: the first signs, each of them is believed."""
    given = (keys,) if isinstance(keys, bytes) else tuple(keys)
    if not given:
        raise InvalidSettingError("a handover needs a key; make one with `openssl rand -base64 32`")
    if not all(type(each) in {bytes, Key} and len(each) >= MIN_BYTES for each in given):
        raise InvalidSettingError(
            f"a key of a handover is bytes, {MIN_BYTES} or more; `openssl rand -base64 32` "
            "prints one"
        )
    return tuple(Key(each) for each in given)


def sign(body: Mapping[str, Any], key: bytes, **parts: str | None) -> str:
    """A message with this body. `parts`: more members, whose JSON is written already."""
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for name, written in parts.items():
        # As it was stored: numbers that no computer can read must come through.
        text = f'{text[:-1]},"{name}":{written or "null"}}}'
    return json.dumps({"body": text, "signature": _signature(text, key)})


def open_message(text: str, kind: str, domain: str, keys: Sequence[bytes]) -> dict[str, Any]:
    """The body of a message, or UntrustedMessageError. Texts of errors repeat nothing of it."""
    try:
        outer = json.loads(text)
        inner, signature = outer["body"], outer["signature"]
        given = signature.lower()  # other languages write hexadecimal digits in capitals
        is_right = any(hmac.compare_digest(_signature(inner, key), given) for key in keys)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise UntrustedMessageError("it is no signed message") from None
    if not is_right:
        raise UntrustedMessageError("its signature is not one of our keys")
    try:
        body = json.loads(inner)
        if (body["kind"], body["domain"]) == (kind, domain):
            return dict(body)
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    raise UntrustedMessageError(f"it is signed, but is no {kind} of the domain {domain}")


def read_command(body: Mapping[str, Any]) -> OutsideCommand:
    """A command by its body."""
    try:
        related = body.get("correlation_id")
        return OutsideCommand(
            domain=str(body["domain"]), command_id=UUID(body["command_id"]),
            command_type=str(body["type"]), lease=int(body["lease"]), attempt=int(body["attempt"]),
            max_attempts=int(body["max_attempts"]), data=body.get("data"),
            correlation_id=None if related is None else UUID(related),
            lease_ends_at=datetime.fromisoformat(body["lease_ends_at"]),
            lease_seconds=int(body["lease_seconds"]),
        )  # fmt: skip
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UntrustedMessageError(f"it is no command: {type(error).__name__}") from None


def read_result(body: Mapping[str, Any]) -> Result:
    """A result by its body. One that names its command and lease is never refused as a whole."""
    try:
        command_id, lease = UUID(body["command_id"]), body["lease"]
    except (ValueError, TypeError, KeyError, AttributeError):
        raise UntrustedMessageError("it names no command and lease") from None
    # One that no column holds would be refused with all results that came along.
    if type(lease) is not int or not 0 <= lease <= MAX_LEASE:
        raise UntrustedMessageError("its lease is no number of one")
    outcome, problem = body.get("outcome"), None
    error = body.get("error") or {}
    number, share = body.get("delay_seconds"), body.get("progress")
    if outcome not in OUTCOMES:
        problem = f"its outcome is none of {', '.join(OUTCOMES)}"
    elif not isinstance(error, dict) or not isinstance(error.get("details") or {}, dict):
        problem, error = "its error is no object with code, message and details", {}
    elif not all(each is None or type(each) in {int, float} for each in (number, share)):
        problem = "its delay_seconds or progress is no number"
    elif share is not None and not 0 <= share <= 1:
        problem = "its progress is not from 0 to 1"
    elif outcome == "snooze" and number is None:
        problem = "a snooze needs delay_seconds"
    if problem is not None:
        return Result(command_id, lease, "park", problem=problem)
    return Result(
        command_id, lease, str(outcome), result=body.get("result"), code=_text(error, "code"),
        message=_text(error, "message") or _text(body, "message"), details=error.get("details"),
        delay_seconds=number, progress=share,
    )  # fmt: skip


def _text(found: Mapping[str, Any], name: str) -> str | None:
    value = found.get(name)
    return None if value is None else str(value)


def _signature(text: str, key: bytes) -> str:
    return hmac.new(key, text.encode(), "sha256").hexdigest()
