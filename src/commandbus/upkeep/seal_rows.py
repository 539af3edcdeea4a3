"""The rows of a seal against what was sealed: which was changed, removed or inserted?"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from commandbus.upkeep.seal_reading import SealReader, moment_of
from commandbus.upkeep.seals import Removal, Seal, as_ranges, entries_of

if TYPE_CHECKING:
    from commandbus.upkeep.verification import Places


@dataclass(slots=True)
class _Open:
    """A removal whose rows are in more than one seal, as far as they were read."""

    removal: Removal
    digest: Any
    #: The last of its ids that had been sealed.
    last_id: int


@dataclass(frozen=True, slots=True)
class Lawful:
    """What is known outside the database of lawful removals."""

    #: The shortest time for which a rule may keep events.
    keep: timedelta = timedelta(0)
    #: Removals without a rule that were meant.
    approved: frozenset[int] = frozenset()


class RowCheck:
    """Compares the rows of one seal after the other, in their order."""

    def __init__(
        self,
        places: Places,
        bad_removals: set[int],
        first_id: int,
        lawful: Lawful,
        known_removals: set[int],
    ) -> None:
        self._places = places
        self._lawful = lawful
        self._known = known_removals
        self._bad = bad_removals
        self._first_id = first_id
        self._open: dict[int, _Open] = {}
        #: Removals that were looked at, while their rows are near.
        self._told: set[int] = set()
        self.rows = 0
        self.removed = 0
        #: Those of them that went with a part of the audit, unread.
        self.dropped = 0

    async def check(self, reader: SealReader, seal: Seal) -> None:
        """Compare all rows of a seal at once; look at each only if something differs."""
        self.rows += seal.row_count
        if await reader.digest_now(seal) == seal.entries_digest:
            return
        packed = await reader.entries_sealed(seal)
        number = seal.seal_number
        if hashlib.sha256(packed).digest() != seal.entries_digest:
            text = f"the digests in seal {number} were changed; its rows cannot be told apart"
            self._places.add("SEAL_FORGED", text, number, (seal.first_id, seal.last_id))
            return
        sealed = entries_of(packed, seal.first_id)
        now = entries_of(await reader.entries_now(seal), seal.first_id)
        removals = await reader.removals_in(seal.first_id, seal.last_id)
        self._compare(seal, sealed, now, removals)

    def _compare(
        self,
        seal: Seal,
        sealed: list[tuple[int, bytes]],
        now: list[tuple[int, bytes]],
        removals: list[Removal],
    ) -> None:
        before, after = dict(sealed), dict(now)
        changed = [each for each, digest in now if before.get(each, digest) != digest]
        inserted = [each for each, _ in now if each not in before]
        if len(after) != len(now):  # without a primary key an id can be there twice
            inserted = sorted({*inserted, *(a for (a, _), (b, _) in zip(now, now[1:]) if a == b)})  # noqa: B905, RUF007
        missing = [each for each in before if each not in after]
        lawful: set[int] = set()
        for removal in removals:
            if removal.removal_number not in self._bad:
                lawful |= _within(missing, removal.ranges)
                self._follow(removal, seal, before)
        self.removed += len(lawful)
        gone = [each for each in missing if each not in lawful]
        self._tell("AUDIT_ROW_CHANGED", "changed", seal, changed)
        self._tell("AUDIT_ROW_REMOVED", "removed", seal, gone)
        self._tell("AUDIT_ROW_INSERTED", "inserted", seal, inserted)

    def _tell(self, code: str, what: str, seal: Seal, ids: Sequence[int]) -> None:
        for first, last in as_ranges(sorted(ids)):
            which = f"event {first} was" if first == last else f"events {first} to {last} were"
            text = f"{which} {what} after seal {seal.seal_number} of {seal.sealed_at.isoformat()}"
            self._places.add(code, text, seal.seal_number, (first, last))

    def _follow(self, removal: Removal, seal: Seal, entries: dict[int, bytes]) -> None:
        """Was what a removal took away as it had been sealed, and old enough?"""
        number = removal.removal_number
        ranges = [(low, min(high, removal.sealed_to)) for low, high in removal.ranges]
        ranges = [(low, high) for low, high in ranges if low <= high]
        if number not in self._told:
            self._told.add(number)
            self._check_rule(removal)
        if not ranges or ranges[0][0] < self._first_id:  # not sealed then, or not all of it is read
            return
        if number not in self._known:  # made meanwhile: seals before may have been read without it
            return
        if number not in self._open and ranges[-1][1] < seal.first_id:  # nothing sealed is left
            return
        following = self._open.setdefault(number, _Open(removal, hashlib.sha256(), ranges[-1][1]))
        taken = sorted(_within(list(entries), ranges))
        if not removal.rows_digest:  # nobody read them
            self.dropped += len(taken)
        following.digest.update(b"".join(entries[each] for each in taken))
        before = moment_of(removal.before)
        if taken and before is not None and seal.oldest_ts is not None and seal.oldest_ts >= before:
            text = (
                f"removal {number} took events {taken[0]} to {taken[-1]}, which are younger than "
                f"it says ({before.isoformat()})"
            )
            ids = (taken[0], taken[-1])
            self._places.add("REMOVAL_UNLAWFUL", text, seal.seal_number, ids)
        if following.last_id <= seal.last_id:
            del self._open[number]
            if removal.rows_digest and following.digest.digest() != removal.rows_digest:
                ids = (ranges[0][0], ranges[-1][1])
                text = (
                    f"among the events {ids[0]} to {ids[1]} that removal {number} took, some had "
                    "been changed or inserted since they were sealed"
                )
                self._places.add("AUDIT_ROW_CHANGED", text, seal.seal_number, ids)

    def _check_rule(self, removal: Removal) -> None:
        number, ranges = removal.removal_number, removal.ranges
        ids = (ranges[0][0], ranges[-1][1]) if ranges else None
        before, removed_at = moment_of(removal.before), moment_of(removal.removed_at)
        if removal.keep_seconds is None and number not in self._lawful.approved:
            who = removal.actor or "somebody without a name"
            text = (
                f"removal {number} of {removal.row_count} events by {who}: no retention rule asked "
                "for it"
            )
            self._places.add("REMOVAL_BY_HAND", text, removal.sealed_by, ids)
        elif removal.keep_seconds is None:
            return
        elif (
            before is None
            or removed_at is None
            or before > removed_at - timedelta(seconds=removal.keep_seconds)
        ):
            text = f"removal {number} took events that its rule keeps"
            self._places.add("REMOVAL_UNLAWFUL", text, removal.sealed_by, ids)
        elif removal.keep_seconds < self._lawful.keep.total_seconds():
            text = (
                f"removal {number} of {removal.row_count} events was by a rule that keeps them for "
                f"{timedelta(seconds=removal.keep_seconds)}, which is too short"
            )
            self._places.add("REMOVAL_UNLAWFUL", text, removal.sealed_by, ids)


def _within(ids: Sequence[int], ranges: Sequence[tuple[int, int]]) -> set[int]:
    """Those of the ids that are in one of the ranges, which are sorted."""
    starts = [low for low, _ in ranges]
    found = set()
    for each in ids:
        at = bisect_right(starts, each) - 1
        if at >= 0 and each <= ranges[at][1]:
            found.add(each)
    return found
