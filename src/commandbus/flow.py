"""Flow: when a command may start, in which order, and under which limit, as a sender says it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any, Literal, TypedDict, cast

from commandbus.errors import InvalidInputError
from commandbus.names import in_utc, is_storable

#: One year, in seconds: the longest delay.
MAX_DELAY_SECONDS = 31_622_400.0
#: The longest time until a command expires.
MAX_EXPIRY_SECONDS = 2 * MAX_DELAY_SECONDS
#: Levels of priority; the highest goes first, and 0 is that of a command which names none.
LOWEST_PRIORITY, HIGHEST_PRIORITY = -2, 2
MAX_KEY_LENGTH = 200
#: The longest pause that ends by itself: ten years.
MAX_PAUSE_SECONDS = 10 * MAX_DELAY_SECONDS

#: What a send does if its `unique_key` is held by another command.
OnDuplicate = Literal["refuse", "skip", "replace"]


class SendOptions(TypedDict, total=False):
    """When a command may start, in which order, and under which limit; all of it may be left out.

    None is the same as nothing. Seconds are counted by the clock of the database.
    """

    #: Not before this number of seconds (or a timedelta) from now; at most one year.
    delay: float | timedelta | None
    #: Not before this time, which must carry a time zone; a time in the past is now.
    deliver_at: datetime | None
    #: If it has not begun within this number of seconds (or a timedelta), it ends as CANCELED.
    expires_in: float | timedelta | None
    #: The same as a time, which must carry a time zone.
    expires_at: datetime | None
    #: From -2 to 2; with both due, the higher goes first. Left out: 0.
    priority: int | None
    #: Commands of one key run one after the other, in the order in which they were sent.
    ordering_key: str | None
    #: What limits by key count it by; left out: its ordering key.
    limit_key: str | None
    #: Of the commands of one key one at a time is sent, for as long as `unique_while` says.
    unique_key: str | None
    #: Until a worker leases it (`waiting`), until it has ended or is parked (`open`, which is what
    #: holds if it is left out), or for this time from its send, also if it has ended by then.
    unique_while: Literal["waiting", "open"] | float | timedelta | None
    #: If the key is held: `refuse` (UniqueKeyHeldError), which holds if it is left out, `skip`, or
    #: `replace`: the command that waits gets this payload and this time.
    on_duplicate: OnDuplicate | None
    #: With `replace` and a delay: it waits no longer than this from its first send.
    max_wait: float | timedelta | None
    #: Texts that travel with the command beside its data, like a tenant or the context of a trace:
    #: at most 20 keys and 2 KiB. Shown to operators, so never a secret.
    meta: Mapping[str, str] | None


#: The members that the document of a command has for them: in rows of loads, over HTTP, in SQL.
OPTION_MEMBERS = {
    "deliver_at": "deliver_at", "delay_seconds": "delay", "expires_at": "expires_at",
    "expires_in_seconds": "expires_in", "priority": "priority", "ordering_key": "ordering_key",
    "limit_key": "limit_key", "meta": "meta",
}  # fmt: skip
#: Two ways to say the same.
_PAIRS = ({"delay", "deliver_at"}, {"expires_in", "expires_at"})


@dataclass(frozen=True, slots=True)
class Flow:
    """Options that were checked. What only the database can tell, such as what is past, is not."""

    deliver_at: datetime | None = None
    delay_seconds: float | None = None
    expires_at: datetime | None = None
    expires_in_seconds: float | None = None
    priority: int | None = None
    ordering_key: str | None = None
    limit_key: str | None = None
    unique_key: str | None = None
    unique_while: str | float | None = None
    on_duplicate: str | None = None
    max_wait_seconds: float | None = None

    def document(self) -> dict[str, Any]:
        """Its members in the document of a command, without those that are not set."""
        named = ((each.name, getattr(self, each.name)) for each in fields(self))
        return {name: value for name, value in named if value is not None}

    def digestible(self) -> dict[str, Any]:
        """The same, in one form for one meaning: its times are in UTC."""
        return {
            name: value.isoformat() if isinstance(value, datetime) else value
            for name, value in self.document().items()
        }


@dataclass(frozen=True, slots=True)
class Pause:
    """A domain of which nothing is started."""

    domain: str
    since: datetime
    #: When it is over by itself; None: when somebody resumes it.
    until: datetime | None
    by: str | None
    reason: str
    #: The command type, if not all of the domain is paused.
    type: str | None = None

    def __str__(self) -> str:
        who = f" by {self.by}" if self.by else ""
        end = f" until {self.until:%Y-%m-%d %H:%M:%S %Z}" if self.until else ""
        return f"paused since {self.since:%Y-%m-%d %H:%M:%S %Z}{end}{who}: {self.reason}"


def check_flow(options: SendOptions) -> Flow | None:
    """Check the options of a send; None if they say nothing."""
    given = {name: value for name, value in options.items() if value is not None and name != "meta"}
    if not given:
        return None
    unknown = given.keys() - SendOptions.__annotations__.keys()
    if unknown:
        raise InvalidInputError(
            f"{', '.join(sorted(unknown))} is not an option of a send; use "
            + ", ".join(SendOptions.__annotations__)
        )
    _refuse_both(given, "delay", "deliver_at")
    _refuse_both(given, "expires_in", "expires_at")
    flow = Flow(
        deliver_at=_time(given, "deliver_at"),
        delay_seconds=_seconds(given, "delay", 0.0, MAX_DELAY_SECONDS),
        expires_at=_time(given, "expires_at"),
        expires_in_seconds=_seconds(given, "expires_in", 0.001, MAX_EXPIRY_SECONDS),
        priority=check_priority(given["priority"]) or None if "priority" in given else None,
        ordering_key=_key(given, "ordering_key"),
        limit_key=_key(given, "limit_key"),
        unique_key=_key(given, "unique_key"),
        unique_while=_rule(given),
        on_duplicate=_choice(given, "on_duplicate", ("refuse", "skip", "replace")),
        max_wait_seconds=_seconds(given, "max_wait", 0.001, MAX_DELAY_SECONDS),
    )
    _check_unique(flow)
    is_delayed = flow.deliver_at is not None or flow.delay_seconds
    if flow.ordering_key is not None and is_delayed:
        raise InvalidInputError(
            "a command with an ordering_key cannot be delayed: either all of its key would wait, "
            "or the order would break; delay it without the key, or send it when it is due"
        )
    if flow.deliver_at and flow.expires_at and flow.expires_at <= flow.deliver_at:
        raise InvalidInputError("expires_at must be later than deliver_at")
    if flow.expires_in_seconds and flow.expires_in_seconds <= (flow.delay_seconds or 0.0):
        raise InvalidInputError("expires_in must be longer than delay")
    return None if flow == Flow() else flow


def _check_unique(flow: Flow) -> None:
    if flow.unique_key is None:
        for name in ("unique_while", "on_duplicate", "max_wait_seconds"):
            if getattr(flow, name) is not None:
                raise InvalidInputError(f"{name.removesuffix('_seconds')} goes with a unique_key")
        return
    if flow.max_wait_seconds is not None and flow.on_duplicate != "replace":
        raise InvalidInputError('max_wait goes with on_duplicate="replace"')
    if flow.on_duplicate != "replace":
        return
    if flow.unique_while != "waiting":
        raise InvalidInputError(
            'only a command that waits can be replaced: use unique_while="waiting"'
        )
    if flow.ordering_key is not None:
        raise InvalidInputError("a command with an ordering_key is not replaced: leave one out")
    if flow.max_wait_seconds is not None and flow.max_wait_seconds < (flow.delay_seconds or 0.0):
        raise InvalidInputError("max_wait must be at least as long as delay")


def options_of(document: Mapping[str, Any] | None) -> SendOptions:
    """The options that the document of a command has; its times may be texts."""
    found: dict[str, Any] = {}
    for member, name in OPTION_MEMBERS.items():
        value = None if document is None else document.get(member)
        if value is not None:
            is_time = member.endswith("_at") and isinstance(value, str)
            found[name] = parse_time(value, member) if is_time else value
    return cast("SendOptions", found)


def parse_time(text: str, name: str) -> datetime:
    """Read a time with its zone, in ISO 8601."""
    try:
        return check_time(datetime.fromisoformat(text.strip()), name)
    except ValueError:
        raise InvalidInputError(
            f"{name} is {text!r}; write a time with its zone, like 2026-05-01T10:00:00Z"
        ) from None


def with_defaults(own: SendOptions | None, defaults: SendOptions) -> SendOptions:
    """What a command says itself, and the rest of what all are to have."""
    said = {name: value for name, value in (own or {}).items() if value is not None}
    taken = set(said).union(*(pair for pair in _PAIRS if pair & said.keys()))
    rest = {name: value for name, value in defaults.items() if name not in taken}
    return cast("SendOptions", {**rest, **said})


def check_priority(value: object) -> int:
    """Return the level, or raise InvalidInputError."""
    if type(value) is not int or not LOWEST_PRIORITY <= value <= HIGHEST_PRIORITY:
        raise InvalidInputError(f"priority is {value!r}; use -2, -1, 0, 1 or 2; 2 goes first")
    return value


def check_time(value: object, name: str) -> datetime:
    """Return a time that carries a time zone, in UTC, or raise InvalidInputError."""
    if not isinstance(value, datetime):
        raise InvalidInputError(f"{name} is {value!r}; use a datetime with a time zone")
    if value.utcoffset() is None:
        raise InvalidInputError(
            f"{name} has no time zone; use for example datetime(..., tzinfo=UTC)"
        )
    return in_utc(value)


def check_seconds(value: object, name: str, low: float, high: float) -> float:
    """Return a number of seconds, of which a timedelta is one, or raise InvalidInputError."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise InvalidInputError(f"{name} is {value!r}; use seconds or a timedelta")
    if not low <= seconds <= high:  # also refuses NaN
        raise InvalidInputError(f"{name} is {value!r}; use {low:g} to {high:,.0f} seconds")
    return float(seconds)


def check_key(value: object, name: str) -> str:
    """Return a key, or raise InvalidInputError."""
    if isinstance(value, str) and 1 <= len(value) <= MAX_KEY_LENGTH and is_storable(value):
        return value
    raise InvalidInputError(f"{name} must be a text of 1 to {MAX_KEY_LENGTH} characters")


def _refuse_both(given: dict[str, Any], one: str, other: str) -> None:
    if one in given and other in given:
        raise InvalidInputError(f"{one} and {other} were both given; give one of them")


def _time(given: dict[str, Any], name: str) -> datetime | None:
    return check_time(given[name], name) if name in given else None


def _seconds(given: dict[str, Any], name: str, low: float, high: float) -> float | None:
    return check_seconds(given[name], name, low, high) if name in given else None


def _key(given: dict[str, Any], name: str) -> str | None:
    return check_key(given[name], name) if name in given else None


def _choice(given: dict[str, Any], name: str, choices: tuple[str, ...]) -> str | None:
    value = given.get(name)
    if value is not None and value not in choices:
        raise InvalidInputError(f"{name} is {value!r}; use {', '.join(choices)}")
    return value


def _rule(given: dict[str, Any]) -> str | float | None:
    value = given.get("unique_while")
    if isinstance(value, str):
        return _choice(given, "unique_while", ("waiting", "open"))
    return _seconds(given, "unique_while", 0.001, MAX_DELAY_SECONDS)
