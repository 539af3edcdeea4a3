"""A loader process: loads a file, or goes on with it, and says how it ended and what it took.

python -m tests.acceptance.loader_app PATH BATCH_ID START CHECKPOINT_SIZE
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path
from uuid import UUID

from commandbus import CommandBus
from commandbus.loads import LoadStart


def peak_memory_kb() -> int:
    """Of this program. getrusage would still count the process that it was forked from."""
    status = Path("/proc/self/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1])


async def main() -> None:
    path, batch_id, start, size = sys.argv[1:]
    async with CommandBus.connect() as bus:
        result = await bus.loads.load(
            "shop", path, command_type="Work", start=LoadStart(start), batch_id=UUID(batch_id),
            checkpoint_size=int(size),
        )  # fmt: skip
    peak_kb = peak_memory_kb()
    print(json.dumps({"status": result.status, "error": result.error, "peak_kb": peak_kb}))


if __name__ == "__main__":
    asyncio.run(main())
