"""Handlers whose nested functions fail; the payload's secrets are in everything that they raise."""

from __future__ import annotations

from typing import Any

from commandbus import Command, CommandBus, HandlerContext, RetryPolicy

#: The line of `find_account` that raises.
RAISING_LINE = 22
HERE = "tests/integration/failing_bank.py"
WHERE = f"{HERE}:{RAISING_LINE} find_account"

ONCE = RetryPolicy(max_attempts=1, backoff_schedule=())
TWICE = RetryPolicy(max_attempts=2, backoff_schedule=(0,))


def find_account(data: dict[str, Any]) -> Any:
    try:
        return dict[str, Any]()[f"account of {data['password']}"]
    except KeyError as error:
        raise KeyError(f"no account {data!r}") from error


async def book(command: Command, ctx: HandlerContext) -> Any:
    return find_account(command.data)


def book_in_thread(command: Command, ctx: HandlerContext) -> Any:
    return find_account(command.data)


def register(bus: CommandBus) -> None:
    bus.register_handler("bank", "Book", book, retry_policy=TWICE)
    bus.register_handler("bank", "BookInThread", book_in_thread, retry_policy=TWICE)
    bus.register_handler("bank", "BookTogether", book, retry_policy=TWICE, transactional=True)
    bus.register_handler(
        "bank",
        "BookOnce",
        book,
        retry_policy=RetryPolicy(max_attempts=1, backoff_schedule=(), when_exhausted="fail"),
    )
