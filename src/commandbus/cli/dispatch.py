"""`dispatch`: a batch from a file, through a broker or at a rate; and what is left is queued."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Annotated

import typer

from commandbus.batches.model import DispatchMode, DispatchResult
from commandbus.brokers import open_transport
from commandbus.cli.batch_create import (
    About,
    Delimiter,
    RowType,
    delimiter_of,
    read_commands,
    refuse_untyped_csv,
    repeated,
)
from commandbus.cli.frame import Frame, View
from commandbus.cli.options import Domain
from commandbus.cli.output import ExitCode
from commandbus.cli.relay import QueueAddress
from commandbus.cli.timing import Start
from commandbus.errors import DuplicateCommandError
from commandbus.loads.model import RowFormat


async def dispatch(
    frame: Frame,
    domain: Domain,
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE", help="JSON (.jsonl, .json) or .csv, also .gz; '-' is stdin, with JSON."
        ),
    ],
    *,
    queue: QueueAddress = None,
    mode: Annotated[
        DispatchMode, typer.Option("--mode", help="When a command is marked as queued.")
    ] = DispatchMode.TWO_PHASE,
    rate: Annotated[
        float | None, typer.Option("--rate", metavar="NUMBER", help="Commands a second, at most.")
    ] = None,
    command_type: RowType = None,
    delimiter: Delimiter = None,
    start: Start,
    about: About,
) -> View:
    """Create a batch from a file and queue it in groups: through a broker, or at a rate.

    The rows are those of `batch create`. Without --queue the commands go to the queue beside them.
    Whatever is printed, the batch exists; what was not queued is queued by recovery.
    """
    options = about.options()
    refuse_untyped_csv(file, command_type)
    lines, commands = await read_commands(
        domain, file, RowFormat(command_type, delimiter=delimiter_of(delimiter)), start.options()
    )
    async with AsyncExitStack() as stack:
        transport = None
        if queue:
            transport = await stack.enter_async_context(open_transport(queue))
        session = await stack.enter_async_context(frame.open(creates=True))
        try:
            result = await session.bus.batches.dispatch(
                domain, commands, mode=mode, dispatch_rate=rate, queue=transport, **options
            )
        except DuplicateCommandError as error:
            raise repeated(error, commands, lines) from None
    code = ExitCode.FAILED if result.retry_needed else ExitCode.OK
    return View(result.as_dict(), lambda: _show(result), code)


def _show(result: DispatchResult) -> None:
    print(f"{result.batch_id} {result.status}: {result.queued_tasks:,} of "
          f"{result.database_tasks:,} commands queued")  # fmt: skip
    for text in (result.error, result.warning):
        if text:
            print(text)
