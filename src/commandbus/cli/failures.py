"""Failures in words: what kind of failure it was, and where in the code it was raised."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from commandbus.cli.output import escaped, moment, say
from commandbus.worker.stacks import place_of

_RELATIONS = {"cause": "caused by", "context": "raised while handling", "member": "member"}


def told(event_type: str, details: dict[str, Any]) -> list[str]:
    """What happened, in words, if the name of an event or its code does not say it.

    Takes from the details what the words say.
    """
    if event_type == "LEASE_EXPIRED":
        return [_lapse(details)]
    if event_type == "STALE_RESULT_REJECTED":
        return ["a worker that had lost its lease brought a result; it was ignored"]
    own = details.get("details")
    if details.get("code") == "LEASE_EXPIRED" and isinstance(own, dict) and "worker" in own:
        return [_lapse(dict(details.pop("details")))]
    return []


def kind_of(code: str | None) -> str | None:
    """What kind of failure a code of the bus itself stands for."""
    return _KINDS.get(code or "")


_KINDS = {
    "HANDLER_TIMEOUT": "a hang: the handler ran longer than its time-out, and its worker ended the"
    " attempt",
    "LEASE_EXPIRED": "a crash or a lost lease: no result came before the lease ran out; the events"
    " say which worker had it",
    "ATTEMPTS_EXHAUSTED": "no attempt was left: the handler was not started",
}


def _lapse(details: dict[str, Any]) -> str:
    worker = details.pop("worker", None)
    since, until, seen = (
        _time(details.pop(name, None)) for name in ("leased_at", "lease_ended_at", "worker_seen_at")
    )
    if worker is None:
        return (
            "the lease ran out before a result came: the worker crashed, was killed, or lost its "
            "connection"
        )
    had = (
        f"{worker}, which had it since {moment(since)}, brought no result before the lease ran out"
    )
    if seen is None:
        return f"{had}: it crashed, was killed, or lost its connection"
    if until is not None and seen > until:
        return f"{had}: it is alive (seen {moment(seen)}), so it lost the lease"
    return f"{had}: silent since {moment(seen)}, it crashed, was killed, or lost its connection"


def _time(text: object) -> datetime | None:
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        return None  # a handler may use our code with details of its own
    return found if found.tzinfo else None


def raised(stack: Mapping[str, Any]) -> str:
    """The class of an exception and where it was raised."""
    first, where = stack.get("first"), place_of(stack)
    by = f", called from {first}" if first and first != where else ""
    return f"{stack.get('exception', '?')} at {where or '?'}{by}"


def print_stack(stack: Mapping[str, Any]) -> None:
    """All frames that are kept, innermost last; then the exceptions that led to it."""
    say("\n[bold]Stack of the last failure[/], innermost last")
    for line in _lines(stack):
        say(escaped(line))


def _lines(stack: Mapping[str, Any]) -> Iterator[str]:
    if stack.get("frames_left_out"):
        yield f"  … {stack['frames_left_out']} frames left out"
    yield from (f"  {frame}" for frame in stack.get("frames", ()))
    yield f"  {stack.get('exception', '?')}"
    for cause in stack.get("causes", ()):
        relation = _RELATIONS.get(cause.get("relation"), "see also")
        yield f"{relation} {cause.get('exception')}: {cause.get('message')}"
        yield from (f"  {frame}" for frame in cause.get("frames", ()))
