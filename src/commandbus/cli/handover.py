"""`handover`: a process that gives commands to workers of another system, and takes results."""

from __future__ import annotations

from typing import Annotated

from commandbus.brokers import Transport, open_transport
from commandbus.cli.declared import argument, option
from commandbus.cli.frame import WAIT_SECONDS, Frame, Place, WaitForServer
from commandbus.cli.logs import Logs
from commandbus.cli.output import say
from commandbus.cli.relay import QueueAddress, address_of
from commandbus.cli.worker import run_until_signal, run_until_stopped
from commandbus.errors import InvalidSettingError
from commandbus.keys import Key, Keys
from commandbus.names import check_domain

#: The key that both ends have: COMMANDBUS_HANDOVER_KEY, COMMANDBUS_HANDOVER_KEY_FILE.
KEY_NAME = "handover_key"
#: One that was the key before: messages that it has signed are believed, none is signed with it.
FORMER_NAME = "handover_former_key"


def handover(
    domain: Annotated[list[str], argument(metavar="DOMAIN...", help="One or more domains.")],
    *,
    queue: QueueAddress = None,
    lease: Annotated[
        int,
        option("--lease", metavar="SECONDS", help="How long the other system may be silent."),
    ] = 300,
    at_once: Annotated[
        int,
        option("--at-once", metavar="NUMBER", help="Commands given away at most, by domain."),
    ] = 100,
    wait: WaitForServer = WAIT_SECONDS,
    logs: Logs,
    place: Place,
) -> None:
    """Let workers of another system do the commands of a domain, until Ctrl-C or SIGTERM.

    Commands and results pass through a broker, signed with the key in $COMMANDBUS_HANDOVER_KEY or
    the file that $COMMANDBUS_HANDOVER_KEY_FILE names; results signed with the one in
    $COMMANDBUS_HANDOVER_FORMER_KEY (or _FILE) are believed too. Several may run at once.
    """
    address, domains = address_of(queue), [check_domain(each) for each in domain]
    keys = _keys()
    logs.start()

    async def work() -> bool:
        async with (
            Frame(place=place).open(wait_seconds=wait) as session,
            open_transport(address) as transport,
        ):
            giving = [
                session.bus.handover(
                    each, transport, keys=keys, lease_seconds=lease, at_once=at_once
                )
                for each in domains
            ]
            return await run_until_signal(
                session.bus, giving, None, lambda: _greet(domains, transport)
            )

    run_until_stopped(work)


def _keys() -> list[Key]:
    """The key that signs, and the former one."""
    # None is made: each machine would have its own, and the other system another one still.
    key = Keys.load(KEY_NAME, allow_create=False)
    if key is None:
        raise InvalidSettingError(
            "a handover needs the key that the other system has: set COMMANDBUS_HANDOVER_KEY, or "
            "COMMANDBUS_HANDOVER_KEY_FILE; `openssl rand -base64 32` prints one"
        )
    return [key, *filter(None, [Keys.load(FORMER_NAME, allow_create=False)])]


def _greet(domains: list[str], transport: Transport) -> None:
    say(f"[bold green]commandbus hands {', '.join(domains)} over by {transport.name}[/]")
    say(f"The key is {Keys.place(KEY_NAME)}. Stop with Ctrl-C.")
