"""Settings: one frozen value, each field documented once; from arguments or the environment."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, Self

from commandbus.errors import InvalidNameError, InvalidSettingError
from commandbus.names import DEFAULT_SCHEMA, INBOX, NO_REPLY, RESERVED_WORDS, check_reply_to

_SCHEMA = re.compile(r"(?!pg_)[a-z_][a-z0-9_]{0,62}\Z")

#: A week: the database forgets a user's last submission after eight days.
MAX_COOLDOWN_SECONDS = 604_800


class EnvironmentSettings:
    """Settings whose fields can be read from the environment: PREFIX and the name of the field."""

    __slots__ = ()
    PREFIX: ClassVar[str]

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **overrides: Any) -> Self:
        """Read the variable of every field; arguments win over the environment."""
        environ = os.environ if environ is None else environ
        settings: Any = cls  # each is a data class
        named = {f"{cls.PREFIX}{spec.name.upper()}": spec for spec in fields(settings)}
        found = {
            spec.name: _parse(name, environ[name], spec.default)
            for name, spec in named.items()
            if name in environ
        }
        return cls(**(found | overrides))

    def check_ranges(self, ranges: Mapping[str, tuple[float, float]]) -> None:
        """Refuse numbers that are too small or too large; whole ones have a whole default."""
        settings: Any = self
        whole = {spec.name for spec in fields(settings) if type(spec.default) is int}
        for name, (low, high) in ranges.items():
            check_number(getattr(self, name), name, low, high, is_whole=name in whole)


@dataclass(frozen=True, slots=True)
class Settings(EnvironmentSettings):
    """How a bus and its workers behave. `from_env` reads COMMANDBUS_<FIELD> for each field."""

    PREFIX: ClassVar[str] = "COMMANDBUS_"

    #: Schema of our tables and functions.
    schema: str = DEFAULT_SCHEMA
    #: Bytes of JSON that one payload, or one result, may have.
    max_payload_bytes: int = 256 * 1024
    #: Whether a payload whose type this process knows must fit it to be sent.
    validate_on_send: bool = True
    #: Commands in one call of send_many to the database; a larger call is sent in such chunks,
    #: still in one transaction.
    send_chunk_size: int = 2_000
    #: Commands in one send_many.
    max_send_many: int = 100_000
    #: Commands in one create_batch, which is one transaction; larger batches are loaded.
    max_batch_size: int = 10_000
    #: A batch of more commands than this is dispatched in groups, a smaller one command by command.
    bulk_threshold: int = 100
    #: Commands in one group of a dispatch, which is one commit.
    queue_batch_size: int = 100
    #: How often queueing a command is tried before it is FAILED.
    max_queue_attempts: int = 3
    #: A dispatching process that reports nothing for this long is taken to be gone.
    dispatch_grace_seconds: float = 120.0
    #: A command that a queue in another database accepted and did not bring back for this long is
    #: taken to be lost there: recovery queues it here.
    unconfirmed_after_seconds: float = 3_600.0
    #: How long an on_complete may run before it is cancelled.
    on_complete_timeout_seconds: float = 60.0
    #: Whether workers do the chores: recovery of what was not queued, retention.
    maintenance: bool = True
    #: Seconds between two rounds of a chore, by all workers together.
    maintenance_interval_seconds: float = 300.0
    #: Whether workers seal the audit, if they have the key or no seal was ever made.
    seal_audit: bool = True
    #: Where replies go when a command names no queue: "domain" (<domain>.replies), "none", or the
    #: logical name of a queue that all domains share.
    replies: str = "domain"
    #: Whether a leased command shows as IN_PROGRESS.
    mark_in_progress: bool = True
    #: Uniqueness of command ids: "domain" or "global". It must equal the database's setting.
    command_id_scope: Literal["domain", "global"] = "domain"
    #: Longest wait between two looks into an empty queue.
    poll_max_seconds: float = 1.0
    #: Most commands that are leased ahead of the free slots of a fast worker.
    max_prefetch: int = 1_000
    #: How long `stop` waits for running handlers before it cancels them.
    shutdown_grace_seconds: float = 30.0
    #: A handler that runs longer than this loses its lease: one that hangs does not keep it.
    lease_deadline_seconds: float = 3_600.0
    #: A handler that runs longer than this has failed, unless it is registered with a time-out of
    #: its own. None: ten seconds less than lease_deadline_seconds, or half of it if that is short.
    handler_timeout_seconds: float | None = None
    #: Governed batches that may be pending at once, of all users together.
    max_global_pending_batches: int = 100
    #: API requests in one minute, of all users together; rejected ones count too.
    max_global_api_requests: int = 1_000
    #: Governed batches of one user that may be pending at once.
    max_user_pending_batches: int = 3
    #: Seconds between two submissions of one user; 0: none.
    user_cooldown_seconds: int = 120
    #: Commands in the pending batches of one user.
    max_user_pending_children: int = 30
    #: Whether the user who submitted a batch may approve or reject it.
    self_approval: bool = False
    #: How long a submitted batch, or an edit of one of its commands, may wait for a decision before
    #: it expires. 0: for ever.
    approval_expires_seconds: float = 604_800.0
    #: Further keys whose values are masked in logs, audit and listings, separated by commas. A key
    #: that contains one of the names is masked too.
    redact_keys: str = ""
    #: Mixed into the hashes of API tokens. All processes need the same. Empty: the key that the
    #: folder of keys has, which is made with the first token. Never shown.
    token_pepper: str = field(default="", repr=False)
    #: Former peppers whose tokens are still accepted, separated by commas. Never shown.
    token_pepper_old: str = field(default="", repr=False)
    #: Whether tokens are accepted that were made without a pepper, before there always was one.
    unpeppered_tokens: bool = True
    #: The folder of keys that are made here; empty: `commandbus` in $XDG_CONFIG_HOME or ~/.config.
    keys_folder: str = ""
    #: Connections of the pool that `connect` builds for callers.
    pool_size: int = 10
    #: Connections that all workers of a bus share for receiving, committing and chores.
    worker_pool_size: int = 24
    #: Connections that all transactional handlers of a bus share; never fewer than the
    #: concurrency of one worker.
    handler_pool_size: int = 100
    #: Whether `conn=` may be a connection that commits each statement by itself.
    allow_autocommit_conn: bool = False
    #: How long to wait for a connection.
    connect_timeout_seconds: float = 5.0
    #: A server that has not answered a statement for this long is left: the connection is closed,
    #: and another is opened. Statements that may take long, and those of handlers, go on as long as
    #: the server gives a sign of life.
    deadline_seconds: float = 10.0
    #: Limit of one statement of the chores of a worker. Its other statements are ended by the
    #: server a little before deadline_seconds, or at this limit, if that is sooner.
    statement_timeout_seconds: float = 25.0

    def __post_init__(self) -> None:
        self.check_ranges(_RANGES)
        if self.handler_timeout_seconds is not None:
            name, deadline = "handler_timeout_seconds", self.lease_deadline_seconds
            check_number(self.handler_timeout_seconds, name, 0.001, deadline)
            if self.handler_timeout_seconds >= deadline:
                raise InvalidSettingError(
                    f"{name} is {self.handler_timeout_seconds!r}; use less than "
                    f"lease_deadline_seconds, which is {deadline:g}"
                )
        if not isinstance(self.redact_keys, str):
            raise InvalidSettingError(
                f"redact_keys is {self.redact_keys!r}; use names separated by commas"
            )
        for name in ("token_pepper", "token_pepper_old", "keys_folder"):
            if not isinstance(getattr(self, name), str):
                raise InvalidSettingError(f"{name} must be a text")
        if not _SCHEMA.match(str(self.schema)):
            raise InvalidSettingError(
                f"schema is {self.schema!r}; use a-z, 0-9 and _, a letter first, at most 63 "
                "characters, not pg_*"
            )
        if self.schema in RESERVED_WORDS:
            raise InvalidSettingError(
                f"schema is {self.schema!r}, which is a reserved word or belongs to others; choose "
                "another name, for example 'commandbus'"
            )
        for name in _SWITCHES:
            if type(getattr(self, name)) is not bool:
                raise InvalidSettingError(f"{name} is {getattr(self, name)!r}; use True or False")
        if not _is_reply_setting(self.replies):
            raise InvalidSettingError(
                f"replies is {self.replies!r}; use 'domain', 'none' or the name of a queue, for "
                "example 'shared.replies'"
            )
        if self.command_id_scope not in {"domain", "global"}:
            raise InvalidSettingError(
                f"command_id_scope is {self.command_id_scope!r}; use 'domain' or 'global'"
            )

    @property
    def server_seconds(self) -> float:
        """How long the server goes on with a statement, or waits for a lock, before it ends it.

        Before we leave the server: what we leave may go on there.
        """
        return self.deadline_seconds * 0.8

    @property
    def handler_timeout(self) -> float:
        """The time-out of handlers that are registered without one, in seconds."""
        if self.handler_timeout_seconds is not None:
            return self.handler_timeout_seconds
        return self.lease_deadline_seconds - min(10.0, self.lease_deadline_seconds / 2)


_SWITCHES = (
    "mark_in_progress", "maintenance", "seal_audit", "self_approval", "unpeppered_tokens",
    "allow_autocommit_conn",
)  # fmt: skip
_RANGES: dict[str, tuple[float, float]] = {
    "max_payload_bytes": (1, 64 * 1024 * 1024),
    "send_chunk_size": (1, 10_000),
    "max_send_many": (1, 10_000_000),
    "max_batch_size": (1, 100_000),
    "bulk_threshold": (0, 1_000_000),
    "queue_batch_size": (1, 10_000),
    "max_queue_attempts": (1, 1_000),
    "dispatch_grace_seconds": (0, 86_400),
    "unconfirmed_after_seconds": (0, 31_536_000),
    "on_complete_timeout_seconds": (0.001, 86_400),
    "maintenance_interval_seconds": (0.05, 86_400),
    "poll_max_seconds": (0.01, 60),
    "max_prefetch": (0, 10_000),
    "shutdown_grace_seconds": (0, 86_400),
    "lease_deadline_seconds": (1, 31_536_000),
    "max_global_pending_batches": (0, 1_000_000),
    "max_global_api_requests": (0, 100_000_000),
    "max_user_pending_batches": (0, 1_000_000),
    "user_cooldown_seconds": (0, MAX_COOLDOWN_SECONDS),
    "max_user_pending_children": (0, 100_000_000),
    "approval_expires_seconds": (0, 315_360_000),
    "pool_size": (1, 1_000),
    "worker_pool_size": (6, 1_000),
    "handler_pool_size": (1, 1_000),
    "connect_timeout_seconds": (0.1, 600),
    "deadline_seconds": (0.5, 3_600),
    "statement_timeout_seconds": (0.1, 3_600),
}


def check_worker_settings(concurrency: Any, vt_seconds: Any) -> None:
    """Refuse a concurrency or a visibility timeout outside the allowed range."""
    check_number(concurrency, "concurrency", 1, 10_000, is_whole=True)
    check_number(vt_seconds, "vt_seconds", 1, 43_200, is_whole=True)


def check_timeout(timeout: float) -> None:
    """Refuse a time to wait that is not a number of seconds up to a day."""
    check_number(timeout, "timeout", 0.001, 86_400)


def check_number(value: Any, name: str, low: float, high: float, *, is_whole: bool = False) -> None:
    """Refuse what is not a number of this range."""
    if type(value) not in ({int} if is_whole else {int, float}) or not low <= value <= high:
        kind = "whole number" if is_whole else "number"
        raise InvalidSettingError(f"{name} is {value!r}; use a {kind} from {low:,} to {high:,}")


def _is_reply_setting(replies: Any) -> bool:
    if replies in ("domain", "none"):
        return True
    try:
        return check_reply_to(replies) not in {NO_REPLY, INBOX}
    except InvalidNameError:
        return False


def _parse(name: str, text: str, default: Any) -> Any:
    if isinstance(default, bool):
        if text.lower() not in {"true", "false", "1", "0", "yes", "no", "on", "off"}:
            raise InvalidSettingError(f"{name} is {text!r}; use true or false")
        return text.lower() in {"true", "1", "yes", "on"}
    if default is None and text.lower() in {"", "none"}:
        return None
    if default is None or isinstance(default, int | float):
        try:
            return float(text) if default is None else type(default)(text)
        except ValueError:
            raise InvalidSettingError(f"{name} is {text!r}; use a number") from None
    return text
