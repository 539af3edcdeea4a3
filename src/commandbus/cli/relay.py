"""`relay`: a process that brings messages from a broker to the queues beside the commands."""

from __future__ import annotations

from typing import Annotated

from commandbus.brokers import Transport, open_transport
from commandbus.bus import CommandBus
from commandbus.cli.declared import argument, option
from commandbus.cli.frame import WAIT_SECONDS, Frame, Place, WaitForServer
from commandbus.cli.logs import Logs
from commandbus.cli.output import say
from commandbus.cli.worker import run_until_signal, run_until_stopped
from commandbus.errors import InvalidInputError
from commandbus.names import check_domain

#: Where the address of a broker may be, so that its password is in no list of processes.
VARIABLE = "COMMANDBUS_QUEUE"

QueueAddress = Annotated[
    str | None,
    option(
        "--queue",
        metavar="ADDRESS",
        envvar=VARIABLE,
        help="The broker: nats://…, amqp://…, postgresql://…, or a connection string of Azure "
        f"Service Bus. One with a password belongs into ${VARIABLE}.",
    ),
]


def address_of(queue: str | None) -> str:
    """The address that was given, or an error that says how to give one."""
    if not queue:
        raise InvalidInputError(f"there is no broker: use --queue ADDRESS, or set {VARIABLE}")
    return queue


def relay(
    domain: Annotated[list[str], argument(metavar="DOMAIN...", help="One or more domains.")],
    *,
    queue: QueueAddress = None,
    until_empty: Annotated[
        bool, option("--until-empty", help="End once the broker has nothing more.")
    ] = False,
    wait: WaitForServer = WAIT_SECONDS,
    logs: Logs,
    place: Place,
) -> None:
    """Bring commands from a broker to their workers, until Ctrl-C or SIGTERM.

    Several may run at once. What the broker loses is dispatched again by recovery, which is
    maintenance of every worker.
    """
    address, domains = address_of(queue), [check_domain(each) for each in domain]
    logs.start()

    async def work() -> bool:
        async with (
            Frame(place=place).open(wait_seconds=wait) as session,
            open_transport(address) as transport,
        ):
            moving = [_move(session.bus, each, transport, drain=until_empty) for each in domains]
            return await run_until_signal(
                session.bus, moving, None, lambda: _greet(domains, transport), ends=until_empty
            )

    run_until_stopped(work)


async def _move(bus: CommandBus, domain: str, transport: Transport, *, drain: bool) -> None:
    moved = await bus.batches.relay(domain, transport, drain=drain)
    if drain:
        say(f"{domain}: {moved:,} commands came")


def _greet(domains: list[str], transport: Transport) -> None:
    say(f"[bold green]commandbus brings {', '.join(domains)} from {transport.name}[/]")
    say("Stop with Ctrl-C.")
