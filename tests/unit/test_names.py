"""Names: what is accepted, what is refused, and that no two logical names share a queue."""

from __future__ import annotations

import copy
import pickle
import time
from itertools import combinations
from uuid import RFC_4122, UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commandbus.errors import InvalidCommandIdError, InvalidInputError, InvalidNameError
from commandbus.names import (
    INBOX,
    MAX_DOMAIN_LENGTH,
    MAX_QUEUE_LENGTH,
    MAX_TYPE_LENGTH,
    NO_REPLY,
    batches_channel,
    check_command_type,
    check_domain,
    check_operator,
    check_reply_to,
    check_text,
    check_uuid,
    commands_queue,
    dispatch_queue,
    inbox_channel,
    new_id,
    physical_queue,
    replies_queue,
    wakeup_channel,
)

BAD_DOMAINS = [
    "", " ", None, 5, b"payments", ["payments"], "Payments", "pay-ments", "pay.ments", "pay ments",
    "_payments", "1payments", "pay__ments", "payments\n", "zahlüngen", "pаyments",  # noqa: RUF001
    "a" * 38, 'pay"ments', "pay;drop", "payments\x00",
]  # fmt: skip


@pytest.mark.parametrize("domain", ["a", "payments", "pay_ments", "p2", "trailing_", "a" * 37])
def test_a_domain_is_returned_when_it_is_well_formed(domain: str) -> None:
    assert check_domain(domain) == domain


@pytest.mark.parametrize("domain", BAD_DOMAINS)
def test_a_domain_is_refused_when_it_breaks_the_grammar(domain: object) -> None:
    with pytest.raises(InvalidNameError, match=r"a-z, 0-9|at most 37"):
        check_domain(domain)


def test_the_longest_domain_fills_the_longest_queue_name() -> None:
    longest = "a" * MAX_DOMAIN_LENGTH
    assert len(physical_queue(commands_queue(longest))) == MAX_QUEUE_LENGTH


@pytest.mark.parametrize("name", ["D", "DebitAccount", "debit.account:v2", "a-b_c", "T" * 200])
def test_a_command_type_is_returned_when_it_is_well_formed(name: str) -> None:
    assert check_command_type(name) == name


@pytest.mark.parametrize(
    "name",
    ["", None, 7, "1st", "Debit Account", "Débit", "T" * 201, "Debit\n", "a/b", "<b>", ["A"]],
)
def test_a_command_type_is_refused_when_it_breaks_the_grammar(name: object) -> None:
    with pytest.raises(InvalidNameError, match=f"at most {MAX_TYPE_LENGTH} characters"):
        check_command_type(name)


@pytest.mark.parametrize(
    "queue", ["payments.replies", "shared", "ops.answers", NO_REPLY, INBOX, "a" * 47]
)
def test_a_reply_queue_is_returned_when_it_is_well_formed(queue: str) -> None:
    assert check_reply_to(queue) == queue


@pytest.mark.parametrize(
    "queue",
    [
        None, 5, ["payments.replies"], {"a": 1}, "Payments.replies", "a.b.c", ".replies",
        "payments.", "payments..replies", "pay__ments.replies", "payments replies",
        "payments.replies\n", " ", "a" * 48, "a" * 38 + ".replies2",
    ],
)  # fmt: skip
def test_a_reply_queue_is_refused_when_it_breaks_the_grammar(queue: object) -> None:
    with pytest.raises(InvalidNameError, match=r"<domain>.replies"):
        check_reply_to(queue)


@pytest.mark.parametrize("queue", ["payments.commands", "commands"])
def test_a_reply_queue_is_refused_when_it_holds_commands(queue: str) -> None:
    with pytest.raises(InvalidNameError, match="queue of commands"):
        check_reply_to(queue)


def test_a_uuid_is_returned_as_it_is_or_from_its_text() -> None:
    value = uuid4()
    assert check_uuid(value) is value
    assert check_uuid(str(value)) == value
    assert isinstance(check_uuid(str(value)), UUID)


def test_a_new_id_is_a_uuid_of_version_seven_that_begins_with_the_time() -> None:
    before = time.time_ns() // 1_000_000
    made = [new_id() for _ in range(2_000)]
    after = time.time_ns() // 1_000_000

    assert len(set(made)) == 2_000
    assert {(value.version, value.variant) for value in made} == {(7, RFC_4122)}
    times = [value.int >> 80 for value in made]
    assert times == sorted(times)
    assert before <= times[0]
    assert times[-1] <= after
    # Every bit that is not the time, the version or the variant is left to chance.
    ones, zeros = 0, 0
    for value in made:
        ones |= value.int
        zeros |= ~value.int
    chance = (0xFFF << 64) | ((1 << 62) - 1)
    assert ones & chance == zeros & chance == chance


def test_a_new_id_is_what_the_standard_library_makes_of_its_number() -> None:
    made = new_id()
    ordinary = UUID(int=made.int)
    assert (made, hash(made), str(made)) == (ordinary, hash(ordinary), str(ordinary))
    assert made.is_safe is ordinary.is_safe
    assert pickle.loads(pickle.dumps(made)) == copy.deepcopy(made) == ordinary


@pytest.mark.parametrize("value", [None, "", "abc", 5, b"x" * 16, "0" * 31, ["a"], 1.5])
def test_an_id_is_refused_when_it_is_no_uuid(value: object) -> None:
    with pytest.raises(InvalidCommandIdError, match=r"batch_id .* is not a UUID; make one"):
        check_uuid(value, "batch_id")


def test_a_text_is_returned_when_it_says_something() -> None:
    assert check_text("wrong amount", "reason") == "wrong amount"
    assert check_text("x" * 20, "reason", max_length=20) == "x" * 20


@pytest.mark.parametrize("value", ["", "  \n\t", None, 5, ["a"]])
def test_a_text_is_refused_when_it_says_nothing(value: object) -> None:
    with pytest.raises(InvalidInputError, match="reason must be a text that is not empty"):
        check_text(value, "reason")


@pytest.mark.parametrize("value", ["a\x00b", "\ud800", "x" * 21])
def test_a_text_is_refused_when_postgresql_cannot_keep_it(value: str) -> None:
    with pytest.raises(InvalidInputError, match="plain text of at most 20 characters"):
        check_text(value, "reason", max_length=20)


def test_a_text_has_at_most_two_thousand_characters_and_an_operator_two_hundred() -> None:
    assert check_text("x" * 2_000, "reason") == "x" * 2_000
    with pytest.raises(InvalidInputError, match="at most 2000 characters"):
        check_text("x" * 2_001, "reason")
    assert check_operator(None) is None
    assert check_operator("x" * 200) == "x" * 200
    with pytest.raises(InvalidInputError, match="operator must be plain text of at most 200"):
        check_operator("x" * 201)


def test_queues_and_channels_are_named_after_the_domain() -> None:
    assert dispatch_queue("payments") == "payments.dispatch"
    assert batches_channel("payments") == "commandbus.payments.batches"
    assert commands_queue("payments") == "payments.commands"
    assert replies_queue("payments") == "payments.replies"
    assert physical_queue("payments.replies") == "payments__replies"
    assert wakeup_channel("payments") == "commandbus.payments"
    assert inbox_channel("payments") == "commandbus.payments.inbox"


segments = st.from_regex(r"[ab][ab_]{0,4}", fullmatch=True).filter(lambda text: "__" not in text)


@given(st.lists(st.tuples(segments, segments).map(".".join) | segments, max_size=12, unique=True))
def test_two_logical_names_never_share_a_physical_queue(names: list[str]) -> None:
    accepted = [check_reply_to(name) for name in names]
    for one, other in combinations(accepted, 2):
        assert physical_queue(one) != physical_queue(other)
