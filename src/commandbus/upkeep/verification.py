"""Verification: is every sealed event of the audit still as it was sealed?

First the chain: numbers, ranges, digests, signatures, and the records of removals. Then the rows of
each seal: their digest is compared with the sealed one, and only where it differs the entries are
read, to find the rows. Memory does not grow with the audit but by some hundred bytes for each seal.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from commandbus.errors import InvalidSettingError
from commandbus.upkeep.checks import record_check
from commandbus.upkeep.findings import Finding, Severity, finding_of, worst_first
from commandbus.upkeep.heads import Head, read_heads
from commandbus.upkeep.retention import LONGEST_AGE
from commandbus.upkeep.seal_reading import SealReader, SignedSeal, moment_of, reading
from commandbus.upkeep.seal_rows import Lawful, RowCheck
from commandbus.upkeep.sealing import Sealing
from commandbus.upkeep.seals import NOTHING_BEFORE, Removal, Seal, SealKeys, removals_of

#: Places that are told at most; the rest is counted.
MAX_PLACES = 1_000
#: Places that are kept with the result, for who looks later.
KEPT_PLACES = 100
#: Seals whose rows are read in one snapshot.
SNAPSHOT_SEALS = 20
#: A seal is late if it has an event that is older than this.
LATE = timedelta(hours=1, minutes=10)
#: A removal that is older than the last seal by more than this should be signed.
UNSIGNED_TOLERANCE = timedelta(minutes=10)
#: How much younger than the seal that signs it a removal may be: clocks differ, and are set.
FUTURE_TOLERANCE = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class AuditPlace:
    """One place where the audit is not as it was sealed, or a seal not as it was made."""

    code: str
    text: str
    seal_number: int | None = None
    first_id: int | None = None
    last_id: int | None = None


@dataclass(frozen=True, slots=True)
class AuditVerification:
    """What the verification of the audit found."""

    places: tuple[AuditPlace, ...]
    #: The same by code, with what each means and what to do.
    findings: tuple[Finding, ...]
    seals: int
    #: Events whose digests were compared.
    rows: int
    #: Events that were lawfully removed after they were sealed.
    removed: int
    #: Events that no seal covers yet: nothing is promised of them.
    unsealed: int
    sealed_to: int | None
    last_sealed_at: datetime | None
    #: Keys that verified a signature.
    key_ids: tuple[str, ...]
    #: Heads from outside the database that were compared.
    heads: int
    #: Of the removed: how many went with a part of the audit as a whole. That they are gone is as
    #: the rules want it; whether one of them had been changed before, nobody can say any more.
    dropped: int = 0

    @property
    def is_intact(self) -> bool:
        """No finding is an error."""
        return all(each.severity is not Severity.ERROR for each in self.findings)


@dataclass(slots=True)
class Places:
    """Collects places; keeps the first thousand and counts all."""

    kept: list[AuditPlace] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    def add(
        self,
        code: str,
        text: str,
        seal: int | None = None,
        ids: tuple[int, int] | None = None,
    ) -> None:
        """One more."""
        self.counts[code] = self.counts.get(code, 0) + 1
        if len(self.kept) < MAX_PLACES:
            first, last = ids or (None, None)
            self.kept.append(AuditPlace(code, text, seal, first, last))

    def findings(self) -> tuple[Finding, ...]:
        """By code, the worst first."""
        examples: dict[str, list[str]] = {code: [] for code in self.counts}
        for place in self.kept:
            examples[place.code].append(place.text)
        return worst_first(
            [finding_of(code, None, n, examples[code]) for code, n in self.counts.items()]
        )


class Verification(Sealing):
    """Verifies the audit against its seals."""

    async def verify_audit(
        self,
        *,
        window: timedelta | None = None,
        heads: Path | Sequence[Head] | None = None,
        keep: timedelta | None = None,
        approved: Collection[int] = (),
        progress: Callable[[int, int], None] | None = None,
    ) -> AuditVerification:
        """Compare the audit with its seals; changes nothing.

        The chain is always verified as a whole; with `window` only the rows of seals that were made
        in this time. `heads` come from outside the database: a file of `commandbus seals export`.
        So do `keep`, the shortest time for which a rule may keep events, and `approved`, the
        numbers of removals without a rule that were meant: what the database says, its owner wrote.
        `progress` is called with the rows that were compared, and how many there are.
        """
        began = datetime.now(UTC)
        if window is not None and window <= timedelta(0):
            raise InvalidSettingError("`window` must be a positive time")
        window = None if window is None else min(window, LONGEST_AGE)
        places, chain = Places(), _Chain(self._keys)
        known = await self._known_heads(heads)
        async with reading(self._store.gateway.patient) as reader:
            for name, why in await reader.table_faults():
                places.add("AUDIT_UNPROTECTED", f"{name}: {why}")
            await chain.read(reader, places)
            unsealed = await reader.unsealed(chain.sealed_to or -(2**63))
            if not chain.seals and unsealed:
                text = f"{unsealed} events, and no seal: none was made yet, or all were removed"
                places.add("AUDIT_UNSEALED", text)
            if chain.seals:
                for each in await reader.ids_before(chain.seals[0].first_id):
                    text = f"event {each} was inserted below the first seal"
                    places.add("AUDIT_ROW_INSERTED", text, ids=(each, each))
        chain.compare(known, places)
        last = chain.seals[-1].sealed_at if chain.seals else None
        wanted = [
            seal
            for seal in chain.seals
            # an empty one too: somebody may have put events into it
            if seal.first_id <= seal.last_id
            and (window is None or (last and seal.sealed_at >= last - window))
        ]
        total = sum(seal.row_count for seal in wanted)
        lawful = Lawful(keep or timedelta(0), frozenset(approved))
        first_id = wanted[0].first_id if wanted else 0
        check = RowCheck(places, chain.bad_removals, first_id, lawful, chain.removals)
        for begin in range(0, len(wanted), SNAPSHOT_SEALS):
            async with reading(self._store.gateway.patient) as reader:
                for seal in wanted[begin : begin + SNAPSHOT_SEALS]:
                    await check.check(reader, seal)
                    if progress is not None:
                        progress(check.rows, total)
        found = AuditVerification(
            tuple(places.kept), places.findings(), len(chain.seals), check.rows, check.removed,
            unsealed, chain.sealed_to, last, tuple(sorted(chain.key_ids)), len(known),
            check.dropped,
        )  # fmt: skip
        kept = replace(found, places=found.places[:KEPT_PLACES])
        seconds = None if window is None else window.total_seconds()
        document = {"window_seconds": seconds, **asdict(kept)}
        await record_check(self._store, "audit", began, document)
        return found

    async def _known_heads(self, heads: Path | Sequence[Head] | None) -> list[Head]:
        """Those that were given, and the one that this machine keeps."""
        known = read_heads(heads) if isinstance(heads, Path) else list(heads or ())
        file = await self._head_file()
        own = None if file is None else file.read()
        return known if own is None else [*known, own]


class _Chain:
    """The seals, one after the other."""

    def __init__(self, keys: SealKeys) -> None:
        self._keys = keys
        self._held: dict[str, bytes | None] = {}
        self.seals: list[Seal] = []
        self._digests: dict[int, bytes] = {}
        self.key_ids: set[str] = set()
        #: Seals since the last one with a good signature: nobody vouches for them.
        self._unvouched: list[Seal] = []
        self.bad_removals: set[int] = set()
        #: All that there were when the seals were read.
        self.removals: set[int] = set()

    @property
    def sealed_to(self) -> int | None:
        return self.seals[-1].last_id if self.seals else None

    async def read(self, reader: SealReader, places: Places) -> None:
        """Read and verify all seals, and the removals that they sign."""
        while page := await reader.seals(self.seals[-1].seal_number if self.seals else 0):
            await self._check_removals(reader, page, places)
            for each in page:
                self._check(each, places)
        self._tell_unvouched(places)
        last = self.seals[-1] if self.seals else None
        for removal in await reader.other_removals(last.seal_number if last else 0):
            self.removals.add(removal.removal_number)
            self._check_unsigned(removal, last, places)

    def _check(self, signed: SignedSeal, places: Places) -> None:
        seal, number = signed.seal, signed.seal.seal_number
        before = self.seals[-1] if self.seals else None
        expected = 1 if before is None else before.seal_number + 1
        ids = (seal.first_id, seal.last_id)
        if number != expected:
            self._tell_unvouched(places)  # the chain ends here: no later seal vouches for these
            gone = f"{expected}" if number == expected + 1 else f"{expected} to {number - 1}"
            first = None if before is None else before.last_id + 1
            where = f"up to {ids[0] - 1}" if first is None else f"{first} to {ids[0] - 1}"
            text = f"seal {gone} is missing; nothing proves the events {where}"
            places.add("SEAL_MISSING", text, expected)
        elif seal.previous != (NOTHING_BEFORE if before is None else self._digests[expected - 1]):
            self._tell_unvouched(places)
            places.add("SEAL_FORGED", f"seal {number} does not follow the one before", number, ids)
        elif before is not None and seal.first_id != before.last_id + 1:
            text = f"seal {number} does not begin where the one before ends"
            places.add("SEAL_FORGED", text, number, ids)
        if signed.digest != seal.digest:
            text = f"seal {number} (events {ids[0]} to {ids[1]}) is not as it was made"
            places.add("SEAL_FORGED", text, number, ids)
        self._check_signature(signed, places)
        self._check_time(seal, places)
        self.seals.append(seal)
        # what the next seal has to refer to is computed, not read
        self._digests[number] = seal.digest

    def _check_signature(self, signed: SignedSeal, places: Places) -> None:
        seal = signed.seal
        if seal.key_id not in self._held:
            self._held[seal.key_id] = self._keys.by_id(seal.key_id)
        key = self._held[seal.key_id]
        if key is None:
            self._unvouched.append(seal)
        elif hmac.compare_digest(seal.signature(key), signed.signature):
            self.key_ids.add(seal.key_id)
            self._unvouched.clear()
        else:
            text = f"the signature of seal {seal.seal_number} is not of the key {seal.key_id}"
            places.add("SEAL_FORGED", text, seal.seal_number, (seal.first_id, seal.last_id))

    def _check_time(self, seal: Seal, places: Places) -> None:
        """Late ones: what was cut off and sealed again is among them."""
        begun = self.seals[0].sealed_at if self.seals else seal.sealed_at
        oldest = seal.oldest_ts
        # What was written before the first seal could not be sealed in time.
        if oldest is not None and oldest > begun and seal.sealed_at - oldest > LATE:
            late = f"{(seal.sealed_at - oldest).total_seconds() / 3_600:.1f} hours"
            text = f"seal {seal.seal_number} has events that waited {late} to be sealed"
            ids = (seal.first_id, seal.last_id)
            places.add("SEAL_LATE", text, seal.seal_number, ids)

    def _tell_unvouched(self, places: Places) -> None:
        if self._unvouched:
            first, last = self._unvouched[0], self._unvouched[-1]
            names = ", ".join(sorted({seal.key_id for seal in self._unvouched}))
            text = (
                f"cannot verify the seals {first.seal_number} to {last.seal_number}: the key "
                f"{names} is needed (looked for it at {self._keys.place})"
            )
            ids = (first.first_id, last.last_id)
            places.add("SEAL_KEY_NEEDED", text, first.seal_number, ids)
            self._unvouched.clear()

    async def _check_removals(
        self, reader: SealReader, page: list[SignedSeal], places: Places
    ) -> None:
        """Compare the records with what the seals say of them."""
        by_seal: dict[int, list[Removal]] = {}
        # from the page before on, so that no number between two pages is left out
        after = self.seals[-1].seal_number if self.seals else -(2**63)
        for each in await reader.signed_removals(after + 1, page[-1].seal.seal_number):
            by_seal.setdefault(each.sealed_by or 0, []).append(each)
            self.removals.add(each.removal_number)
        for seal in (signed.seal for signed in page):
            signed_ones = removals_of(seal.removals)
            number = seal.seal_number
            for removal in by_seal.pop(number, ()):
                told = signed_ones.pop(removal.removal_number, None)
                self._check_moment(removal, seal.sealed_at, places)
                if told != removal.digest:
                    why = "was not signed by" if told is None else "is not as it was signed by"
                    self._tell_bad(removal, f"{why} seal {number}", number, places)
            for missing in signed_ones:
                text = f"the record of removal {missing}, signed by seal {number}, is gone"
                places.add("REMOVAL_FORGED", text, number)
        for others in by_seal.values():
            for removal in others:
                self._tell_bad(removal, "names a seal that is not there", None, places)

    def _check_moment(self, removal: Removal, latest: datetime, places: Places) -> None:
        """A removal from the future would make young events old enough for its rule."""
        removed_at = moment_of(removal.removed_at)
        if removed_at is None or removed_at > latest + FUTURE_TOLERANCE:
            ranges = removal.ranges
            text = (
                f"removal {removal.removal_number} of {removal.row_count} events says that it was "
                "made later than it was"
            )
            ids = (ranges[0][0], ranges[-1][1]) if ranges else None
            places.add("REMOVAL_UNLAWFUL", text, removal.sealed_by, ids)

    def _check_unsigned(self, removal: Removal, last: Seal | None, places: Places) -> None:
        removed_at = moment_of(removal.removed_at)
        if removal.sealed_by is not None:
            self._tell_bad(removal, "names a seal that is not there", None, places)
        elif last is None or (
            removed_at is not None and removed_at > last.sealed_at - UNSIGNED_TOLERANCE
        ):
            text = f"removal {removal.removal_number} of {removal.row_count} events"
            places.add("REMOVAL_UNSIGNED", text)
            self._check_moment(removal, datetime.now(UTC), places)
        else:
            self._tell_bad(removal, "was not signed, although seals were made since", None, places)

    def _tell_bad(self, removal: Removal, why: str, seal: int | None, places: Places) -> None:
        self.bad_removals.add(removal.removal_number)
        text = f"the record of removal {removal.removal_number} ({removal.row_count} events) {why}"
        places.add("REMOVAL_FORGED", text, seal)

    def compare(self, heads: Sequence[Head], places: Places) -> None:
        """Every head that is known outside must be in the chain."""
        told: set[int] = set()
        for head in heads:
            digest = self._digests.get(head.seal_number)
            if (digest is not None and digest.hex() == head.digest) or head.seal_number in told:
                continue
            told.add(head.seal_number)
            if digest is None:
                end = self.seals[-1].seal_number if self.seals else 0
                text = (
                    f"seal {head.seal_number} of {head.sealed_at}, known outside, is missing; the "
                    f"chain ends with seal {end}, and events up to {head.last_id} were sealed"
                )
                places.add("SEAL_MISSING", text, head.seal_number)
            else:
                text = f"seal {head.seal_number} is another one than that which is known outside"
                places.add("SEAL_FORGED", text, head.seal_number)
