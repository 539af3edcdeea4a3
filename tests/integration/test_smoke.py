"""The shortest way through the whole engine."""

from uuid import uuid4

from commandbus import Command, CommandBus, HandlerContext
from tests.waiting import working


async def test_a_call_is_answered_by_a_handler(bus: CommandBus) -> None:
    @bus.handler("payments", "Double")
    async def double(command: Command, ctx: HandlerContext) -> dict[str, int]:
        return {"twice": command.data["n"] * 2}

    async with working(bus, "payments"):
        reply = await bus.call("payments", "Double", {"n": 21}, command_id=uuid4())

    assert reply.data == {"twice": 42}
