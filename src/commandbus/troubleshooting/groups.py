"""Failure groups: a thousand failures with one cause are one line."""

from __future__ import annotations

import re
from typing import Any

from commandbus.database.store import Store
from commandbus.errors import InvalidInputError, InvalidOperationError
from commandbus.names import check_command_type, check_domain
from commandbus.paging import MAX_LIMIT, check_page
from commandbus.troubleshooting.model import FailureGroup

_FINGERPRINT = re.compile(r"[0-9a-f]{1,16}\Z")


def check_fingerprint(group: Any) -> str:
    """Return the fingerprint, or the beginning of one, or raise InvalidInputError."""
    if not isinstance(group, str) or not _FINGERPRINT.match(group):
        raise InvalidInputError(
            f"group {group!r} is not the fingerprint of a failure group: up to 16 of 0-9 and a-f; "
            "`list_failure_groups` and `commandbus tsq groups` show them"
        )
    return group


class Groups:
    """Lists failure groups and finds one by the beginning of its fingerprint."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def list(
        self, domain: str | None, *, command_type: str | None, include_empty: bool, limit: int
    ) -> list[FailureGroup]:
        """Groups, largest first."""
        if domain is not None:
            check_domain(domain)
        if command_type is not None:
            check_command_type(command_type)
        check_page(limit)
        return await self._store.list_failure_groups(
            domain, command_type=command_type, include_empty=include_empty, limit=limit
        )

    async def find(self, domain: str | None, group: str) -> FailureGroup:
        """The one group whose fingerprint begins so; raises if there is none, or several."""
        check_fingerprint(group)
        found = await self._store.list_failure_groups(
            domain, command_type=None, include_empty=True, limit=MAX_LIMIT, prefix=group
        )
        # A beginning that was typed from a listing means what the listing showed.
        found = [each for each in found if each.parked_count] or found
        where = "" if domain is None else f" in domain {domain!r}"
        match found:
            case [only]:
                return only
            case []:
                raise InvalidOperationError(
                    f"no failure group {group!r}{where}; `commandbus tsq groups` lists them"
                )
            case several:
                shown = ", ".join(sorted({each.fingerprint for each in several})[:5])
                raise InvalidInputError(
                    f"several failure groups{where} begin with {group!r}: {shown}; write more of it"
                )
