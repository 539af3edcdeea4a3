"""Names of domains, command types and queues: one grammar, checked before anything is sent.

A queue has a logical, dotted name (`payments.commands`), which is what users see, and a physical
one for PGMQ, where the dot is `__`. A domain may not contain `__`, or two logical names could
share one table; PGMQ folds case and cuts at 63 bytes, so neither capitals nor other alphabets.
"""

from __future__ import annotations

import os
import re
import time
import warnings
from collections.abc import Collection
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, TypeVar
from uuid import UUID, SafeUUID

from commandbus.errors import (
    InvalidCommandIdError,
    InvalidInputError,
    InvalidNameError,
    InvalidSettingError,
)

Word = TypeVar("Word", bound=StrEnum)

#: 37 + len("__commands") = 47, the longest queue name that PGMQ takes.
MAX_DOMAIN_LENGTH = 37
MAX_QUEUE_LENGTH = 47
MAX_TYPE_LENGTH = 200
DEFAULT_SCHEMA = "commandbus"
#: The edges of the calendar, as Python knows it.
FIRST_MOMENT = datetime(1, 1, 1, tzinfo=UTC)
LAST_MOMENT = datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)

#: `reply_to=NO_REPLY`: the command has no reply.
NO_REPLY = ""
#: `reply_to=INBOX`: the reply is kept for `wait_reply` (and `call`), not published to a queue.
INBOX = "@inbox"

#: Names that SQL, or the language of our functions, would read as something else than a schema;
#: and schemas that belong to others.
RESERVED_WORDS = frozenset(
    """
    all analyse analyze and any array as asc asymmetric authorization between bigint binary bit
    boolean both case cast char character check coalesce collate collation column concurrently
    constraint create cross current_catalog current_date current_role current_schema current_time
    current_timestamp current_user dec decimal default deferrable desc distinct do else end except
    exists extract false fetch float for foreign freeze from full grant greatest group grouping
    having ilike in initially inner inout int integer intersect interval into is isnull join json
    json_array json_arrayagg json_exists json_object json_objectagg json_query json_scalar
    json_serialize json_table json_value lateral leading least left like limit localtime
    localtimestamp merge_action national natural nchar none normalize not notnull null nullif
    numeric offset on only or order out outer overlaps overlay placing position precision primary
    real references returning right row select session_user setof similar smallint some substring
    symmetric system_user table tablesample then time timestamp to trailing treat trim true union
    unique user using values varchar variadic verbose when where window with xmlattributes
    xmlconcat xmlelement xmlexists xmlforest xmlnamespaces xmlparse xmlpi xmlroot xmlserialize
    xmltable
    begin by declare execute foreach if loop strict while
    information_schema pgmq
    """.split()  # noqa: SIM905  (one line for ten words)
)

_SEGMENT = re.compile(r"[a-z][a-z0-9_]*\Z")
_TYPE = re.compile(r"[A-Za-z][A-Za-z0-9_.:-]*\Z")


def check_domain(domain: Any) -> str:
    """Return the domain, or raise InvalidNameError with the rule that it breaks."""
    if not isinstance(domain, str) or not _SEGMENT.match(domain) or "__" in domain:
        raise InvalidNameError(
            f"domain {domain!r} is not well formed: use a-z, 0-9 and single underscores, "
            "with a letter first (for example 'payments')"
        )
    if len(domain) > MAX_DOMAIN_LENGTH:
        raise InvalidNameError(
            f"domain {domain!r} has {len(domain)} characters; at most {MAX_DOMAIN_LENGTH} fit "
            "into a queue name"
        )
    return domain


def check_reach(domain: str | None, domains: Collection[str] | None) -> list[str] | None:
    """The domains to look in: the one that is named, of those that are reached; None: all."""
    reached = None if domains is None else sorted({check_domain(each) for each in domains})
    if domain is None:
        return reached
    named = check_domain(domain)
    return [named] if reached is None or named in reached else []


def check_command_type(command_type: Any) -> str:
    """Return the command type, or raise InvalidNameError."""
    if (
        not isinstance(command_type, str)
        or not _TYPE.match(command_type)
        or len(command_type) > MAX_TYPE_LENGTH
    ):
        raise InvalidNameError(
            f"command type {command_type!r} is not well formed: use letters, digits and _ . : -, "
            f"a letter first, at most {MAX_TYPE_LENGTH} characters (for example 'DebitAccount')"
        )
    return command_type


def check_names(domain: Any, command_type: Any = None) -> None:
    """Check what narrows a listing to a domain and a command type. None: to none of them."""
    if domain is not None:
        check_domain(domain)
    if command_type is not None:
        check_command_type(command_type)


def check_reply_to(reply_to: Any) -> str:
    """Return the logical reply queue (or NO_REPLY), or raise InvalidNameError."""
    if isinstance(reply_to, str) and reply_to in {NO_REPLY, INBOX}:
        return reply_to
    segments = reply_to.split(".") if isinstance(reply_to, str) else []
    if (
        not segments
        or len(segments) > 2
        or any(not _SEGMENT.match(segment) or "__" in segment for segment in segments)
        or len(physical_queue(reply_to)) > MAX_QUEUE_LENGTH
    ):
        raise InvalidNameError(
            f"reply queue {reply_to!r} is not well formed: use <domain>.replies, at most "
            f"{MAX_QUEUE_LENGTH} characters, or '' for no reply"
        )
    if segments[-1] in {"commands", "dispatch"}:
        raise InvalidNameError(
            f"reply queue {reply_to!r} is a queue of commands; use <domain>.replies"
        )
    return str(reply_to)


#: The bits of a UUID that are by chance in version 7, and those that say that it is one.
_CHANCE = 0xFFF << 64 | (1 << 62) - 1
_VERSION_7 = 7 << 76 | 2 << 62
_put, _unknown = object.__setattr__, SafeUUID.unknown


def new_id() -> UUID:
    """Make an id that begins with the time (UUID version 7).

    Ids of one time are neighbours in an index. Random ids are spread over all of its pages, most of
    which are not in memory: sending would become slower as the table grows.
    """
    chance = int.from_bytes(os.urandom(10), "big") & _CHANCE
    # As UUID(int=...) does it, without the checks, which take as long as all the rest.
    made = UUID.__new__(UUID)
    _put(made, "int", time.time_ns() // 1_000_000 << 80 | chance | _VERSION_7)
    _put(made, "is_safe", _unknown)
    return made


def check_uuid(value: Any, what: str = "command_id") -> UUID:
    """Return the UUID (also from its text), or raise InvalidCommandIdError."""
    if isinstance(value, UUID):
        return value
    if isinstance(value, str):
        try:
            return UUID(value)
        except ValueError:
            pass
    raise InvalidCommandIdError(
        f"{what} {value!r} is not a UUID; make one with commandbus.new_id() and keep it for repeats"
    )


def domain_first(given: tuple[Any, ...], domain: Any, command_id: Any) -> tuple[str | None, UUID]:
    """The checked domain and id of `get_audit_trail`, whose first versions took the id first."""
    if len(given) > 2:
        raise TypeError("give at most two arguments by position: domain and command_id")
    first, second = (*given, None, None)[:2]
    if second is None and command_id is None and domain is None:
        first, second = None, first  # one argument alone can only be the id
    elif _is_id(first) and not _is_id(second):
        first, second = second, first
        if first is not None or domain is not None:
            warnings.warn(
                "get_audit_trail(command_id, domain) is deprecated; give the domain first: "
                "get_audit_trail(domain, command_id)",
                DeprecationWarning,
                stacklevel=3,
            )
    if None not in (first, domain) or None not in (second, command_id):
        raise TypeError("domain or command_id is given twice, by position and by name")
    place = domain if first is None else first
    check_names(place)
    return place, check_uuid(command_id if second is None else second)


def _is_id(value: Any) -> bool:
    try:
        check_uuid(value)
    except InvalidCommandIdError:
        return False
    return True


def check_text(value: Any, what: str, *, max_length: int = 2_000) -> str:
    """Return a non-empty text that PostgreSQL can store, or raise InvalidInputError."""
    if not isinstance(value, str) or not value.strip():
        raise InvalidInputError(f"{what} must be a text that is not empty, not {value!r}")
    if len(value) > max_length or not is_storable(value):
        raise InvalidInputError(f"{what} must be plain text of at most {max_length} characters")
    return value


def in_utc(moment: datetime) -> datetime:
    """The same moment in UTC; what UTC has no year for, from 1 to 9999, becomes the nearest one.

    Midnight of the first day of the year 1 in Auckland lies in the year 0 of UTC, and the end of
    the year 9999 in Honolulu in the year 10000, which no row could be read with. Besides,
    PostgreSQL knows no zone that is sixteen hours away from UTC, and Python does.
    """
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        return FIRST_MOMENT if moment.year == FIRST_MOMENT.year else LAST_MOMENT


def check_choice(words: type[Word], given: Any, what: str) -> Word:
    """Return the member of an enum, also from its text, or raise with the list of its members."""
    try:
        return words(given)
    except ValueError:
        names = ", ".join(words)
        raise InvalidSettingError(f"no {what} {given!r}; use one of {names}") from None


def check_choice_or_none(words: type[Word], given: Any, what: str) -> Word | None:
    """The same for an option that may be left out."""
    return None if given is None else check_choice(words, given, what)


def check_operator(operator: Any) -> str | None:
    """Return the name of the operator, for the audit; None if none was given."""
    return None if operator is None else check_text(operator, "operator", max_length=200)


def is_storable(value: str) -> bool:
    """Whether PostgreSQL can store a text: no NUL, and no half of a pair of surrogates."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return "\x00" not in value


def commands_queue(domain: str) -> str:
    """Logical name of the queue of commands."""
    return f"{domain}.commands"


def replies_queue(domain: str) -> str:
    """Logical name of the queue of replies."""
    return f"{domain}.replies"


def dispatch_queue(domain: str) -> str:
    """Logical name of the queue that commands pass through in another database."""
    return f"{domain}.dispatch"


def handover_queue(domain: str) -> str:
    """Logical name of the queue at a broker for commands that another system works on."""
    return f"{domain}.handover"


def results_queue(domain: str) -> str:
    """Logical name of the queue at a broker for the results of such commands."""
    return f"{domain}.results"


def physical_queue(queue: str) -> str:
    """Name of the PGMQ queue that stands for a logical, dotted name."""
    return queue.replace(".", "__")


def schema_mark(schema: str) -> str:
    """What keeps the channels, and the queues, of a schema apart from those of other schemas.

    Nothing for the default schema. It begins with a digit, which no domain does; the function
    `channel` in the database makes the same one.
    """
    if schema == DEFAULT_SCHEMA:
        return ""
    from hashlib import sha256  # noqa: PLC0415  (not at the start)

    return f"0{sha256(schema.encode()).hexdigest()[:4]}_"


def wakeup_channel(domain: str) -> str:
    """Channel of the hints that new commands are there."""
    return f"commandbus.{domain}"


def batches_channel(domain: str) -> str:
    """Channel of the hints that a batch has ended."""
    return f"commandbus.{domain}.batches"


def cancels_channel(domain: str) -> str:
    """Channel of the hints that the cancel of a running command was requested."""
    return f"commandbus.{domain}.cancels"


def inbox_channel(domain: str) -> str:
    """Channel of the hints that a reply for `call` is there."""
    return f"commandbus.{domain}.inbox"
