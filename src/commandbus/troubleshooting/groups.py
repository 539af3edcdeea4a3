"""Failure groups: a thousand failures with one cause are one line."""

from __future__ import annotations

import re
from typing import Any, LiteralString

from commandbus.database.store import Store
from commandbus.errors import InvalidInputError, InvalidOperationError
from commandbus.models import EVERYTHING, Viewer
from commandbus.names import check_names
from commandbus.paging import MAX_LIMIT, check_page
from commandbus.troubleshooting.model import FailureGroup

_FINGERPRINT = re.compile(r"[0-9a-f]{1,16}\Z")
_LIST: LiteralString = (
    "select g.domain, g.fingerprint, g.command_type, g.error_class, g.error_code, g.message,"
    " g.sample_message, g.sample_command_id, g.parked_count, g.total_seen, g.first_seen,"
    " g.last_seen, s.stack ->> 'first', s.stack ->> 'last'"
    " from {schema}.list_failure_groups(%s, %s, %s, %s, %s, cast(%s as text)) g"
    " cross join lateral (select {schema}.failure_stack(g.domain, g.sample_command_id) as stack) s"
    " order by g.parked_count desc, g.last_seen desc, g.domain, g.fingerprint"
)


def check_fingerprint(group: Any) -> str:
    """Return the fingerprint, or the beginning of one, or raise InvalidInputError."""
    if not isinstance(group, str) or not _FINGERPRINT.match(group):
        raise InvalidInputError(
            f"group {group!r} is not the fingerprint of a failure group: up to 16 of 0-9 and a-f; "
            "`bus.troubleshooting.groups` and `commandbus tsq groups` show them"
        )
    return group


class Groups:
    """Lists failure groups, and gives the one whose fingerprint begins with some characters."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def groups(
        self,
        domain: str | None = None,
        *,
        command_type: str | None = None,
        include_empty: bool = False,
        viewer: Viewer = EVERYTHING,
        limit: int = 100,
    ) -> list[FailureGroup]:
        """Parked commands by cause, largest group first; it reads no command.

        `include_empty`: also groups without parked commands.
        """
        check_names(domain, command_type)
        check_page(limit)
        params = (domain, command_type, include_empty, limit, "", viewer.owner)
        return await self._store.gateway.rows(_LIST, params, into=FailureGroup)

    async def require_group(
        self, fingerprint: str, domain: str | None = None, *, viewer: Viewer = EVERYTHING
    ) -> FailureGroup:
        """The one group whose fingerprint begins so; raises if there is none, or several."""
        params = (domain, None, True, MAX_LIMIT, check_fingerprint(fingerprint), viewer.owner)
        found = await self._store.gateway.rows(_LIST, params, into=FailureGroup)
        # Operators copy the beginning from a listing, which shows only groups with parked commands.
        found = [each for each in found if each.parked_count] or found
        where = "" if domain is None else f" in domain {domain!r}"
        if not found:
            raise InvalidOperationError(
                f"no failure group {fingerprint!r}{where}; `commandbus tsq groups` lists them"
            )
        if len(found) > 1:
            shown = ", ".join(sorted({each.fingerprint for each in found})[:5])
            raise InvalidInputError(
                f"several failure groups{where} begin with {fingerprint!r}: {shown}; "
                "write more of it"
            )
        return found[0]
