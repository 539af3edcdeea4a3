"""How long the event loop was busy with one thing, in CPU time: other processes do not count."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Steps:
    longest = 0.0


@contextmanager
def measured_steps() -> Iterator[Steps]:
    """Measure each step of the loop in a block that begins and ends in another one."""
    steps, run = Steps(), asyncio.events.Handle._run

    def measured(handle: Any) -> Any:
        began = time.thread_time()
        try:
            return run(handle)
        finally:
            steps.longest = max(steps.longest, time.thread_time() - began)

    gc.collect()
    gc.disable()  # it looks at all that other tests have left
    asyncio.events.Handle._run = measured  # type: ignore[method-assign,assignment]
    try:
        yield steps
    finally:
        asyncio.events.Handle._run = run  # type: ignore[method-assign]
        gc.enable()
