"""What `allowed_actions` names is accepted by both stores, and the rest is refused."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from uuid import UUID

import pytest

from commandbus import CommandBus
from commandbus.database.store import Store
from commandbus.errors import InvalidOperationError, PayloadLostError
from commandbus.models import CommandStatus
from commandbus.troubleshooting.actions import Action, allowed_actions
from tests.conformance.worlds import DOMAIN, World, done, failed, new, parked

VERBS: dict[Action, Callable[[CommandBus, UUID], Awaitable[object]]] = {
    Action.RETRY: lambda bus, name: bus.troubleshooting.retry(DOMAIN, name),
    Action.EDIT: lambda bus, name: bus.troubleshooting.retry(DOMAIN, name, payload={"a": 2}),
    Action.CANCEL: lambda bus, name: bus.troubleshooting.cancel(DOMAIN, name, "not wanted"),
    Action.COMPLETE: lambda bus, name: bus.troubleshooting.complete(DOMAIN, name),
    Action.CANCEL_PENDING: lambda bus, name: bus.cancel(DOMAIN, name, "not wanted"),
    Action.NOTE: lambda bus, name: bus.troubleshooting.note(DOMAIN, name, "seen"),
}


async def put(world: World, status: CommandStatus) -> UUID:
    """A command of this status."""
    command = new(data={"a": 1})
    await world.send(command)
    if status is CommandStatus.PENDING:
        return command.command_id
    if status is CommandStatus.CANCELED:
        await world.store.cancel(DOMAIN, [command.command_id], reason="x", actor=None)
        return command.command_id
    [lease] = await world.receive()
    endings = {
        CommandStatus.COMPLETED: done,
        CommandStatus.FAILED: failed,
        CommandStatus.IN_TROUBLESHOOTING_QUEUE: parked,
    }
    if status in endings:
        await world.settle(endings[status](lease))
    return command.command_id


@pytest.mark.parametrize("action", Action)
@pytest.mark.parametrize("status", CommandStatus)
async def test_an_action_is_accepted_exactly_if_it_is_allowed(
    world: World, store: Store, status: CommandStatus, action: Action
) -> None:
    command_id = await put(world, status)
    command = await world.command(command_id)
    assert command.status is status
    allowed = allowed_actions(status, is_leased=command.leased_by is not None)

    act = VERBS[action](CommandBus(store=store), command_id)
    if action in allowed:
        await act
    else:
        with pytest.raises(InvalidOperationError, match=f"cannot .* command {command_id}"):
            await act


@pytest.mark.parametrize("action", sorted(set(Action) - {Action.CANCEL_PENDING}))
async def test_without_the_payload_only_what_sends_it_is_refused(
    world: World, store: Store, action: Action
) -> None:
    command_id = await put(world, CommandStatus.IN_TROUBLESHOOTING_QUEUE)
    await world.lose_archive()

    act = VERBS[action](CommandBus(store=store), command_id)
    if action in allowed_actions(CommandStatus.IN_TROUBLESHOOTING_QUEUE, has_payload=False):
        await act
    else:
        with pytest.raises(PayloadLostError):
            await act


async def test_a_pending_command_that_a_worker_has_leased_cannot_be_canceled(
    world: World, store: Store
) -> None:
    [lease] = await world.send_and_receive(new(), mark_in_progress=False)
    command = await world.command(lease.command_id)
    assert command.status is CommandStatus.PENDING
    assert Action.CANCEL_PENDING not in allowed_actions(
        command.status, is_leased=command.leased_by is not None
    )
    with pytest.raises(InvalidOperationError, match="leased by a worker"):
        await CommandBus(store=store).cancel(DOMAIN, lease.command_id, "x")
