"""Nothing that CommandBus can do is missing on BlockingBus."""

from __future__ import annotations

import inspect

import pytest

from commandbus import BlockingBus, CommandBus
from tests.blocking.generate import FOLDER, LEFT_OUT, facets, write


@pytest.mark.parametrize("file_name", sorted(write()))
def test_the_verbs_are_those_of_the_bus_today(file_name: str) -> None:
    written = (FOLDER / file_name).read_text()
    assert written == write()[file_name], "run `make blocking`"


def test_each_public_name_of_the_bus_is_there_and_documented() -> None:
    names = {name for name in dir(CommandBus) if not name.startswith("_")}
    missing = names - {name for name in dir(BlockingBus) if not name.startswith("_")}
    assert missing <= LEFT_OUT
    for name in names - LEFT_OUT - set(facets()):
        assert inspect.getdoc(getattr(BlockingBus, name)), name


def test_nothing_on_it_is_a_coroutine_or_found_by_a_guess() -> None:
    for name, method in inspect.getmembers(BlockingBus):
        assert not inspect.iscoroutinefunction(method), name
        assert not inspect.isasyncgenfunction(method), name
    assert not hasattr(BlockingBus, "__getattr__")


#: What runs in the background of the service, or belongs to its console.
SERVICE_OWN = {"sessions", "runs", "standing"}


def test_a_facet_has_every_public_attribute_of_the_one_it_waits_for(dsn: str) -> None:
    with BlockingBus.connect(dsn) as bus:
        for name in facets():
            facet = getattr(bus, name)
            waited_for = facet._facet
            public = {each for each in dir(waited_for) if not each.startswith("_")}
            assert public - set(dir(facet)) <= SERVICE_OWN | {"close", "firing"}, name
