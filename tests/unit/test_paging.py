"""Pages: where they end, and cursors that lead nowhere else."""

from __future__ import annotations

import pytest

from commandbus import InvalidSettingError
from commandbus.paging import page_of, position_of, read_number


def number(item: int) -> list[int]:
    return [item]


@pytest.mark.parametrize("found", [[], [1], [1, 2]])
def test_a_page_is_the_last_one_if_no_more_was_found_than_was_asked_for(found: list[int]) -> None:
    page = page_of(found, 2, "numbers", number)
    assert (page.items, page.next_cursor) == (found, None)


def test_a_page_leads_on_from_its_last_item_if_one_more_was_found() -> None:
    page = page_of([1, 2, 3], 2, "numbers", number)
    assert page.items == [1, 2]
    assert position_of(page.next_cursor, "numbers", read_number) == 2


def test_a_cursor_of_one_listing_is_refused_by_another() -> None:
    page = page_of([1, 2], 1, "numbers", number)
    with pytest.raises(InvalidSettingError, match="belongs to another search"):
        position_of(page.next_cursor, "letters", read_number)
