"""The tree of errors: as drawn, and each says what to do next."""

from __future__ import annotations

import inspect
import pickle
import re
from uuid import UUID, uuid4

import pytest

from commandbus import errors
from commandbus.errors import (
    BatchNotFoundError,
    CommandBusError,
    CommandNotFoundError,
    DuplicateCommandError,
    Fail,
    HandlerError,
    InvalidInputError,
    PermanentCommandError,
    RepeatedIdError,
    ReplyTimeoutError,
    TransientCommandError,
)

ALL = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if kind.__module__ == errors.__name__ and issubclass(kind, BaseException)
]


def drawn() -> dict[str, str]:
    """Child -> parent, as the picture in the docstring has it."""
    parents: dict[str, str] = {}
    path: dict[int, str] = {}
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"^( {4}[│ ├└─]*)([A-Z]\w+Error|Fail)\b", line)
        if match:
            level = (len(match[1]) - 4) // 4
            path[level] = match[2]
            if level:
                parents[match[2]] = path[level - 1]
    return parents


def test_the_tree_is_as_it_is_drawn() -> None:
    real = {
        kind.__name__: kind.__bases__[0].__name__ for kind in ALL if kind is not CommandBusError
    }
    assert drawn() == real


@pytest.mark.parametrize("kind", ALL)
def test_every_error_has_one_root_and_a_sentence(kind: type[Exception]) -> None:
    assert issubclass(kind, CommandBusError)
    assert (kind.__doc__ or "").rstrip().endswith(".")


def test_errors_of_input_are_value_errors_and_a_late_reply_is_a_timeout() -> None:
    assert issubclass(InvalidInputError, ValueError)
    assert issubclass(ReplyTimeoutError, TimeoutError)


@pytest.mark.parametrize("kind", [TransientCommandError, PermanentCommandError, Fail])
def test_a_handler_error_carries_code_message_and_a_copy_of_the_details(
    kind: type[HandlerError],
) -> None:
    details = {"a": 1}
    error = kind("NO_FUNDS", "too little", details)
    details["a"] = 2
    assert (error.code, error.message, error.details) == ("NO_FUNDS", "too little", {"a": 1})
    assert str(error) == "NO_FUNDS: too little"
    assert kind("A", "b").details is None


def test_a_repeated_id_is_told_with_its_positions_and_counts_the_others() -> None:
    one, two, other = uuid4(), uuid4(), uuid4()
    error = DuplicateCommandError("shop", [one, two]).within([one, other, two, one, two])
    assert isinstance(error, RepeatedIdError)
    assert str(error) == (
        f"the id {one} is twice in this list (positions 1 and 4), as are 1 more; nothing was "
        "created. Give each command an id of its own"
    )
    assert error.command_ids == (one, two)
    same = pickle.loads(pickle.dumps(error))
    assert (str(same), same.positions) == (str(error), error.positions)
    known = DuplicateCommandError("shop", [one])
    assert known.within([one, two, two]) is known


def test_a_duplicate_names_the_first_ids_and_counts_the_rest() -> None:
    ids = [UUID(int=n) for n in range(8)]
    error = DuplicateCommandError("payments", ids)
    assert error.command_ids == tuple(ids)
    assert error.command_id == ids[0]
    text = str(error)
    assert "and 3 more" in text
    assert str(ids[4]) in text
    assert str(ids[5]) not in text
    assert "nothing of this call was created" in text
    assert "more" not in str(DuplicateCommandError("payments", ids[:5]))


@pytest.mark.parametrize(
    ("kind", "attribute", "advice"),
    [
        (CommandNotFoundError, "command_id", "check the id and the domain"),
        (BatchNotFoundError, "batch_id", "create it before"),
    ],
)
def test_what_is_not_found_is_named_with_advice(
    kind: type[CommandNotFoundError], attribute: str, advice: str
) -> None:
    missing = uuid4()
    error = kind("payments", missing)
    assert error.domain == "payments"
    assert getattr(error, attribute) == missing
    assert str(missing) in str(error)
    assert advice in str(error)


@pytest.mark.parametrize(
    "error",
    [
        DuplicateCommandError("payments", [uuid4()]),
        CommandNotFoundError("payments", uuid4()),
        BatchNotFoundError("payments", uuid4()),
        TransientCommandError("A", "b", {"c": 1}),
    ],
)
def test_an_error_survives_the_way_to_another_process(error: CommandBusError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)
