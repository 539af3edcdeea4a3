"""Ids that are derived from parts. The golden values must never change: programs rely on finding
the id of a repeat again, also after an update.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commandbus import derive_id
from commandbus.errors import InvalidInputError

NOON = datetime(2026, 11, 18, 12, 0, 0, 123_456, tzinfo=UTC)
SCHEDULE = UUID("0193fd5b-0000-7000-8000-000000000001")

GOLDEN: list[tuple[tuple[Any, ...], datetime | None, str]] = [
    (("invoice", 4711), None, "37c7a91e-f8b2-8136-9388-53953c342323"),
    (("invoice", "4711"), None, "6af3588e-8249-88da-ab8f-0f800de113a9"),
    (("",), None, "1025b355-f547-8138-9249-d058d0d6c049"),
    (("Zürich", "東京"), None, "4f3501e7-87c4-824f-9f0b-20b3a679cca0"),
    ((-1, 2**80), None, "8b63fb01-fc98-8c64-8f99-80fe64c7ec3b"),
    ((b"\x00\xff",), None, "c9659536-1c28-84f1-94c2-355c9cd5026f"),
    ((SCHEDULE,), None, "0fbb5b4b-ec72-8dac-a2fb-291f6c3c80c7"),
    ((NOON,), None, "3c2260d1-4a93-8d46-8e97-ede44e8b54fd"),
    ((SCHEDULE,), NOON, "01a1ee87-327b-7a8e-9bb3-be228e7482dd"),
    (("payments", SCHEDULE, 3), NOON, "01a1ee87-327b-73f0-a42f-3f186ee54970"),
    (("x",), datetime(1970, 1, 1, tzinfo=UTC), "00000000-0000-799c-957e-08ff0ae61d38"),
]


@pytest.mark.parametrize(("parts", "at", "expected"), GOLDEN)
def test_same_parts_give_the_same_id_in_any_version(
    parts: tuple[Any, ...], at: datetime | None, expected: str
) -> None:
    assert str(derive_id(*parts, at=at)) == expected


def test_an_id_with_a_time_begins_with_it_and_one_without_is_of_its_own_version() -> None:
    timed, plain = derive_id("tick", at=NOON), derive_id("tick")
    assert timed.int >> 80 == int(NOON.timestamp() * 1_000)
    assert (timed.version, plain.version) == (7, 8)
    assert timed.variant == plain.variant == UUID(int=2 << 62).variant


def test_ids_of_later_times_sort_later() -> None:
    times = [NOON + timedelta(milliseconds=n) for n in range(50)]
    ids = [derive_id("tick", at=at) for at in times]
    assert ids == sorted(ids)


def test_the_same_instant_in_another_zone_gives_the_same_id() -> None:
    elsewhere = NOON.astimezone(timezone(timedelta(hours=5, minutes=45)))
    assert derive_id("tick", at=elsewhere) == derive_id("tick", at=NOON)
    assert derive_id(elsewhere) == derive_id(NOON)


def test_times_within_one_millisecond_give_different_ids() -> None:
    assert derive_id("tick", at=NOON) != derive_id("tick", at=NOON + timedelta(microseconds=1))


def test_where_a_part_ends_and_of_which_type_it_is_counts() -> None:
    different = [
        ("ab", "c"), ("a", "bc"), ("abc",), ("abc", ""), ("", "abc"), (b"abc",),
        (1, 2), (12,), ("1", "2"), (SCHEDULE,), (str(SCHEDULE),), (SCHEDULE.bytes,),
    ]  # fmt: skip
    assert len({derive_id(*parts) for parts in different}) == len(different)


@given(
    st.lists(
        st.one_of(st.text(st.characters(codec="utf-8")), st.integers(), st.binary()), min_size=1
    ),
    st.lists(
        st.one_of(st.text(st.characters(codec="utf-8")), st.integers(), st.binary()), min_size=1
    ),
)
def test_other_parts_give_another_id(one: list[Any], other: list[Any]) -> None:
    def kinds(parts: list[Any]) -> list[tuple[type, Any]]:
        return [(type(part), part) for part in parts]

    assert (derive_id(*one) == derive_id(*other)) == (kinds(one) == kinds(other))


@pytest.mark.parametrize(
    ("parts", "at", "message"),
    [
        ((), None, "at least one part"),
        ((), NOON, "at least one part"),
        (("a", None), None, "part 2 of derive_id is of the type NoneType"),
        ((1.5,), None, "part 1 of derive_id is of the type float"),
        ((True,), None, "write it as a text"),
        ((["a"],), None, "of the type list"),
        (("\ud800",), None, "not valid Unicode"),
        ((datetime(2026, 1, 1),), None, "with a time zone"),  # noqa: DTZ001
        (("a",), datetime(2026, 1, 1), "at must be a datetime with a time zone"),  # noqa: DTZ001
        (("a",), "2026-01-01", "at must be a datetime with a time zone"),
        (("a",), datetime(1969, 12, 31, tzinfo=UTC), "before 1970"),
    ],
)
def test_a_bad_part_is_refused_with_what_to_do(
    parts: tuple[Any, ...], at: Any, message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        derive_id(*parts, at=at)
