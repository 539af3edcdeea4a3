"""Failure groups: a thousand failures with one cause are one line."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any, LiteralString

from commandbus.database.store import Store
from commandbus.errors import InvalidInputError, InvalidOperationError
from commandbus.models import EVERYTHING, Viewer
from commandbus.names import check_domain, check_names, check_operator, check_reach, check_text
from commandbus.paging import MAX_LIMIT, check_page
from commandbus.privacy.redaction import redact_text
from commandbus.troubleshooting.model import FailureGroup, GroupList

#: Groups that one look shows at most; a search text finds the others.
MAX_GROUPS = 200
#: Characters of a remark, of a search text, and of a name.
MAX_NOTE = 2_000
MAX_SEARCH = 200
MAX_ASSIGNEE = 255

_FINGERPRINT = re.compile(r"[0-9a-f]{1,16}\Z")
_GROUPS: LiteralString = (
    "select g.domain, g.fingerprint, g.command_type, g.error_class, g.error_code, g.message,"
    " g.sample_message, g.sample_command_id, g.parked_count, g.total_seen, g.first_seen,"
    " g.last_seen, s.stack ->> 'first', s.stack ->> 'last', g.note, g.note_by, g.note_at,"
    " g.assignee, g.emptied_at, g.back_at, g.back_after, g.back_count,"
    " {schema}.group_id(g.domain, g.fingerprint)"
    " from "
)
_IN_ORDER: LiteralString = (
    " cross join lateral (select {schema}.failure_stack(g.domain, g.sample_command_id) as stack) s"
    " order by g.parked_count desc, g.last_seen desc, g.domain, g.fingerprint"
)
_LIST: LiteralString = (
    _GROUPS
    + "{schema}.list_failure_groups(%s, %s, %s, %s, %s, cast(%s as text), cast(%s as text)) g"
    + _IN_ORDER
)
#: Of several domains; null: of all.
_LIST_OF: LiteralString = (
    _GROUPS
    + "unnest(cast(%s as text[])) d(domain) cross join lateral {schema}.list_failure_groups("
    "d.domain, %s, %s, %s, %s, cast(%s as text), cast(%s as text)) g" + _IN_ORDER + " limit %s"
)

_NOTE: LiteralString = "select {schema}.note_group(%s, %s, cast(%s as text), cast(%s as text))"
_ASSIGN: LiteralString = "select {schema}.assign_group(%s, %s, cast(%s as text), cast(%s as text))"


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
        params = (domain, command_type, include_empty, limit, "", viewer.owner, None)
        return await self._store.gateway.patient.rows(_LIST, params, into=FailureGroup)

    async def find_groups(
        self,
        domain: str | None = None,
        *,
        domains: Collection[str] | None = None,
        search: str | None = None,
        command_type: str | None = None,
        include_empty: bool = False,
        viewer: Viewer = EVERYTHING,
        limit: int = MAX_GROUPS,
    ) -> GroupList:
        """The same, at most MAX_GROUPS, and whether there are more; `domains`: of one of these.

        `search`: a text in the message, code, class, type, note, assignee or fingerprint, in
        capital letters or not.
        """
        check_names(None, command_type)
        check_page(limit)
        most = min(limit, MAX_GROUPS)
        text = None if search is None else check_text(search, "search", max_length=MAX_SEARCH)
        places = check_reach(domain, domains)
        params = (
            [None] if places is None else places, command_type, include_empty, most + 1, "",
            viewer.owner, text, most + 1,
        )  # fmt: skip
        found = await self._store.gateway.patient.rows(_LIST_OF, params, into=FailureGroup)
        return GroupList(tuple(found[:most]), is_cut=len(found) > most)

    async def note_group(
        self, domain: str, fingerprint: str, text: str | None, *, operator: str | None = None
    ) -> FailureGroup:
        """Put a remark on a group; None takes it off. The audit keeps all of them."""
        group = await self.require_group(fingerprint, check_domain(domain))
        note = None if text is None else redact_text(check_text(text, "note"), MAX_NOTE)
        params = (domain, group.fingerprint, note, check_operator(operator))
        await self._store.gateway.rows(_NOTE, params, domain=domain)
        return await self.require_group(group.fingerprint, domain)

    async def assign_group(
        self, domain: str, fingerprint: str, assignee: str | None, *, operator: str | None = None
    ) -> FailureGroup:
        """Say who looks after a group; None: nobody. It is in the audit."""
        group = await self.require_group(fingerprint, check_domain(domain))
        who = (
            None if assignee is None else check_text(assignee, "assignee", max_length=MAX_ASSIGNEE)
        )
        params = (domain, group.fingerprint, who, check_operator(operator))
        await self._store.gateway.rows(_ASSIGN, params, domain=domain)
        return await self.require_group(group.fingerprint, domain)

    async def require_group(
        self, fingerprint: str, domain: str | None = None, *, viewer: Viewer = EVERYTHING
    ) -> FailureGroup:
        """The one group whose fingerprint begins so; raises if there is none, or several."""
        start = check_fingerprint(fingerprint)
        params = (domain, None, True, MAX_LIMIT, start, viewer.owner, None)
        found = await self._store.gateway.patient.rows(_LIST, params, into=FailureGroup)
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
