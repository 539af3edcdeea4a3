"""Types and error codes that a field of a filter suggests while one types."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from commandbus.models import CommandMetadata

if TYPE_CHECKING:
    from commandbus.http.console.view import View

#: Suggestions of one field: fifty rows and all of these are still a small page.
SHOWN = 40
#: Signs of one suggestion at most; longer ones are no names.
LONGEST = 100
#: Seconds for which the causes are kept that they come from, and for how many kinds of callers.
KEPT_SECONDS = 30.0
MAX_KEPT = 200


class Suggested(NamedTuple):
    """What may be meant, sorted."""

    types: list[str]
    codes: list[str]


class _Kept(NamedTuple):
    at: float
    pairs: list[tuple[str, str | None]]


class Suggestions:
    """Those of one process. They come from the causes that a caller may see, empty ones too, and
    from the commands on the page; never from all commands, of which there may be any number.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, _Kept] = OrderedDict()

    async def of(
        self, view: View, domain: str | None, shown: Iterable[CommandMetadata]
    ) -> Suggested:
        """For who looks at a domain, or at all that they may."""
        pairs = [(each.command_type, each.last_error_code) for each in shown]
        pairs += await self._causes(view, domain)
        types = dict.fromkeys(kind for kind, _ in pairs)
        codes = dict.fromkeys(code for _, code in pairs if code and len(code) <= LONGEST)
        return Suggested(sorted([*types][:SHOWN]), sorted([*codes][:SHOWN]))

    async def _causes(self, view: View, domain: str | None) -> list[tuple[str, str | None]]:
        key = (domain, view.visibility)
        known = self._kept.get(key)
        if known is None or time.monotonic() - known.at >= KEPT_SECONDS:
            found = await view.bus.troubleshooting.find_groups(
                domain, domains=view.caller.domains, include_empty=True, viewer=view.viewer
            )
            pairs = dict.fromkeys((each.command_type, each.error_code) for each in found.groups)
            known = self._kept[key] = _Kept(time.monotonic(), [*pairs])
            self._kept.move_to_end(key)
            while len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
        return known.pairs
