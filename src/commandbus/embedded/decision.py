"""Whether to launch a server, to adopt the one that runs, or to replace it.

A server is never judged by a pid alone: `running` was found by its command line and start time.

    no live server of this cluster                    launch
    live, but its pid file is broken (it will end
      itself within a minute) or how it was started
      is unknown                                      replace
    live, offers what is asked                        adopt
    live, does not offer it, and no other uses it     replace
    live, does not offer it, and others use it        adopt, or refuse if TCP is missing
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Mapping

from commandbus.embedded.folder import ServerRecord
from commandbus.embedded.processes import Process
from commandbus.errors import EmbeddedServerError

log = logging.getLogger(__name__)


class Decision(enum.Enum):
    """What to do about the server of a data folder."""

    LAUNCH = enum.auto()
    ADOPT = enum.auto()
    REPLACE = enum.auto()


def decide(
    *,
    running: Process | None,
    pid_in_file: int | None,
    record: ServerRecord | None,
    tcp_port: int | None,
    settings: Mapping[str, str],
    is_alone: bool,
) -> Decision:
    """Choose from the table above; nothing is done here."""
    if running is None:
        return Decision.LAUNCH
    if record is None or pid_in_file != running.pid:
        return Decision.REPLACE
    has_port = tcp_port is None or (record.has_tcp and record.port == tcp_port)
    if has_port and settings.items() <= record.settings.items():
        return Decision.ADOPT
    if is_alone:
        return Decision.REPLACE
    if not has_port:
        raise EmbeddedServerError(
            f"the running server does not listen on port {tcp_port} and others use it; "
            "stop them first, or leave out tcp_port"
        )
    log.warning("the running server has other settings and is in use; ours wait for a restart")
    return Decision.ADOPT
