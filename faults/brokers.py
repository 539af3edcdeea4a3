"""Brokers for fault runs: on loopback, each in a folder of its own, as an ordinary account.

The programs come from the packages nats-server and rabbitmq-server of the system. Everything here
blocks.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from commandbus.embedded.account import child_environment, choose_account

PATIENCE_SECONDS = 60.0
#: Not the wrapper in sbin, which insists on root or on an account of its own.
RABBITMQ = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")


def steady_port() -> int:
    """A port that no outgoing connection is given: a broker that is down finds it free again."""
    while True:
        port = random.SystemRandom().randrange(15_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class Broker:
    """A server that can be killed and started again on the same port, with the same data."""

    def __init__(self, folder: Path) -> None:
        self._account = choose_account(folder)
        self.folder = folder
        self.data = folder / "data"
        for each in (folder, self.data):
            self._account.make_folders(each)
            self._account.own(each)
        self.port = steady_port()
        self._process: subprocess.Popen[bytes] | None = None

    @staticmethod
    def missing() -> str:
        """What this machine lacks for it; nothing if all is there."""
        raise NotImplementedError

    @property
    def url(self) -> str:
        """Where it listens."""
        raise NotImplementedError

    def command(self) -> list[str]:
        """What is started."""
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        """Beside the usual one."""
        return {}

    def start(self) -> None:
        """Start; returns when it listens."""
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603  (no shell; fixed programs)
                self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**child_environment(), "HOME": str(self.folder), **self.environment()},
                **self._account.popen_options(),
            )  # fmt: skip
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self._listens():
            assert time.monotonic() < deadline, (self.folder / "log").read_text()[-2_000:]
            assert self._process.poll() is None, (self.folder / "log").read_text()[-2_000:]
            time.sleep(0.05)
        time.sleep(0.1)
        # Who listens may be another one, that was quicker with this port.
        assert self._process.poll() is None, (self.folder / "log").read_text()[-2_000:]

    def kill(self) -> None:
        """As a crash of the process does: nothing is written any more."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """End it for good."""
        self.kill()

    def own(self, path: Path) -> None:
        """Give a file to the account of the server."""
        self._account.own(path)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


class NatsServer(Broker):
    """nats-server with JetStream."""

    @staticmethod
    def missing() -> str:
        """Whether the program is there."""
        found = shutil.which("nats-server")
        return "" if found else "there is no nats-server here; install the package nats-server"

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"nats://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        """With its files in our folder."""
        program = str(shutil.which("nats-server"))
        return [program, "-a", "127.0.0.1", "-p", str(self.port), "-js", "-sd", str(self.data)]


class RabbitServer(Broker):
    """A RabbitMQ node with its own name, ports, folder and epmd."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._ports = (steady_port(), steady_port())
        self._names: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """With a daemon of names of our own: the one that a node starts would stay for ever."""
        if self._names is None:
            self._names = subprocess.Popen(  # noqa: S603  (no shell; a fixed program)
                [str(shutil.which("epmd")), "-port", str(self._ports[1]), "-address", "127.0.0.1"],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                env=child_environment(), **self._account.popen_options(),
            )  # fmt: skip
        super().start()

    @staticmethod
    def missing() -> str:
        """Whether the program is there."""
        if RABBITMQ.exists() and shutil.which("epmd"):
            return ""
        return "there is no RabbitMQ here; install the package rabbitmq-server"

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    def command(self) -> list[str]:
        """The program itself."""
        return [str(RABBITMQ)]

    def environment(self) -> dict[str, str]:
        """Nothing of it is shared with another node on this machine."""
        distribution, names = self._ports
        return {
            "RABBITMQ_NODENAME": f"cb{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_MNESIA_BASE": str(self.data),
            "RABBITMQ_LOG_BASE": str(self.folder),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq"),
            "RABBITMQ_CONF_ENV_FILE": str(self.folder / "rabbitmq-env.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "plugins"),
            "RABBITMQ_PID_FILE": str(self.folder / "pid"),
            "ERL_EPMD_PORT": str(names),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }

    def stop(self) -> None:
        """The node, and its daemon of names."""
        self.kill()
        if self._names is not None:
            self._names.kill()
            self._names.wait()


BROKERS: dict[str, type[Broker]] = {"nats": NatsServer, "rabbitmq": RabbitServer}
