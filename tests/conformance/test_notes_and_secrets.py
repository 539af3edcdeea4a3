"""Notes and declared secrets, in both stores."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from commandbus.database.store import Store
from commandbus.errors import CommandNotFoundError
from tests.conformance.worlds import DOMAIN, World, new

# -- notes


async def test_a_note_is_kept_in_any_state_and_changes_nothing_else(
    world: World, store: Store
) -> None:
    batch_id = await world.create_batch(new())
    [command_id] = await world.members(batch_id)
    before = await world.dump()

    await store.add_note(DOMAIN, command_id, text="ask the bank", actor="ann")

    trail = await store.get_audit_trail(command_id, domain=DOMAIN, limit=100)
    last = trail[-1]
    assert (last.event_type, last.actor, last.details) == ("NOTE", "ann", {"text": "ask the bank"})
    assert last.batch_id == batch_id
    after = await world.dump()
    assert after | {"audit": None} == before | {"audit": None}


async def test_a_note_on_an_unknown_command_is_refused(world: World, store: Store) -> None:
    with pytest.raises(CommandNotFoundError):
        await store.add_note(DOMAIN, uuid4(), text="x", actor=None)


# -- secrets


async def test_declared_secrets_are_known_to_everybody_and_only_grow(
    world: World, store: Store
) -> None:
    await store.declare_secrets(DOMAIN, {"Debit": ["iban"], "Credit": ["pin"]})
    await asyncio.gather(
        store.declare_secrets(DOMAIN, {"Debit": ["iban", "bic"]}),
        store.declare_secrets(DOMAIN, {"Debit": ["bic", "iban"]}),
    )

    assert await store.secret_keys(DOMAIN, "Debit") == {"iban", "bic"}
    assert await store.secret_keys(DOMAIN, "Credit") == {"pin"}
    assert await store.secret_keys("orders", "Debit") == frozenset()
