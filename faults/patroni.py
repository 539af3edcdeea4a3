"""A cluster of three PostgreSQL servers under Patroni, with etcd, all on this machine.

Patroni comes from PyPI, in an environment of its own (`make build/venv-patroni/.installed`), etcd
from the package etcd-server of the system, PostgreSQL from the embedded binaries. All of it runs as
an ordinary account. Everything here blocks.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from commandbus.embedded import find_binaries
from commandbus.embedded.account import Account, child_environment, choose_account
from commandbus.embedded.binaries import binaries_for
from commandbus.embedded.folder import home_directory
from faults.servers import free_port

#: Where `make` installs Patroni.
PATRONI = Path(__file__).resolve().parent.parent / "build" / "venv-patroni" / "bin" / "patroni"
#: A failover takes the time of the leader's key, and a busy machine takes its time too.
PATIENCE_SECONDS = 120.0
#: The least that Patroni allows, in seconds.
TTL_SECONDS = 20
NODES = 3


class ClusterError(Exception):
    """The cluster does not do what it should."""


def missing_parts() -> str:
    """What a cluster needs and this machine lacks; nothing if all is there."""
    if not PATRONI.exists():
        return "there is no Patroni here; run `make build/venv-patroni/.installed`"
    if shutil.which("etcd") is None:
        return "there is no etcd here; install the package etcd-server"
    return ""


@dataclass(eq=False)
class Node:
    """One server and its Patroni."""

    name: str
    folder: Path
    port: int
    api: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def data(self) -> Path:
        """Where the server has its data."""
        return self.folder / "data"

    def server_pids(self) -> list[int]:
        """The postmaster, then its children."""
        try:
            postmaster = int((self.data / "postmaster.pid").read_text().split()[0])
        except (OSError, ValueError, IndexError):
            return []
        return [postmaster, *_children_of(postmaster)]

    def pids(self) -> list[int]:
        """Patroni, and the processes of the server."""
        assert self.process is not None
        return [self.process.pid, *_children_of(self.process.pid), *self.server_pids()]


class Cluster:
    """Three nodes, of which one leads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._etcd: subprocess.Popen[bytes] | None = None
        self._etcd_ports = (free_port(), free_port())
        self._account: Account = choose_account(folder)
        self._make(folder)
        self.nodes = [
            Node(f"node{number}", folder / f"node{number}", free_port(), free_port())
            for number in range(1, NODES + 1)
        ]

    # -- life

    def start(self) -> None:
        """Start all; returns when one leads and another follows in step."""
        self._start_etcd()
        binaries = binaries_for(self._account, find_binaries(), home_directory)
        for node in self.nodes:
            self._make(node.folder)
            configuration = node.folder / "patroni.json"
            configuration.write_text(json.dumps(self._configuration(node, binaries.bin_directory)))
            self._account.own(configuration)
            node.process = self._spawn([str(PATRONI), str(configuration)], node.folder / "log")
            if node is self.nodes[0]:
                # The others would wait for it with long pauses.
                self._until(lambda: self.leader() is not None, "the first server does not lead")
        self.until_whole()

    def _make(self, folder: Path) -> None:
        self._account.make_folders(folder)
        self._account.own(folder)

    def _start_etcd(self) -> None:
        client, peer = (f"http://127.0.0.1:{port}" for port in self._etcd_ports)
        command = [
            str(shutil.which("etcd")), "--data-dir", str(self._folder / "etcd"),
            "--listen-client-urls", client, "--advertise-client-urls", client,
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
            "--initial-cluster", f"default={peer}",
        ]  # fmt: skip
        self._etcd = self._spawn(command, self._folder / "etcd.log")
        self._until(lambda: _is_open(self._etcd_ports[0]), "etcd does not start")

    def _spawn(self, command: list[str], log: Path) -> subprocess.Popen[bytes]:
        with log.open("wb") as output:
            return subprocess.Popen(  # noqa: S603  (no shell; fixed programs)
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                env={**child_environment(), "HOME": str(self._folder)},
                **self._account.popen_options(),
            )  # fmt: skip

    def _configuration(self, node: Node, binaries: Path) -> dict[str, Any]:
        return {
            "scope": "storm",
            "name": node.name,
            "restapi": {
                "listen": f"127.0.0.1:{node.api}", "connect_address": f"127.0.0.1:{node.api}",
            },
            "etcd3": {"host": f"127.0.0.1:{self._etcd_ports[0]}"},
            "bootstrap": {
                "dcs": {
                    "ttl": TTL_SECONDS, "loop_wait": 2, "retry_timeout": 3,
                    # A server that was killed is not waited for.
                    "primary_start_timeout": 0,
                    "synchronous_mode": True,
                    "postgresql": {"use_pg_rewind": True, "parameters": {
                        "max_connections": 250, "shared_buffers": "64MB", "wal_log_hints": "on",
                        "wal_keep_size": "512MB",
                    }},
                },
                "initdb": [{"encoding": "UTF8"}, {"locale": "C"}, "no-sync"],
            },
            "postgresql": {
                "listen": f"127.0.0.1:{node.port}", "connect_address": f"127.0.0.1:{node.port}",
                "data_dir": str(node.data), "bin_dir": str(binaries),
                "pgpass": str(node.folder / "pgpass"),
                "authentication": {
                    "superuser": {"username": "postgres"},
                    "replication": {"username": "replicator"},
                    "rewind": {"username": "rewinder"},
                },
                "pg_hba": [
                    "local all all trust",
                    "host all all 127.0.0.1/32 trust",
                    "host replication all 127.0.0.1/32 trust",
                ],
                "parameters": {"unix_socket_directories": str(node.folder)},
            },
        }  # fmt: skip

    def remove(self) -> None:
        """Stop all and throw the data away."""
        for node in self.nodes:
            if node.process is not None:
                for pid in reversed(node.pids()):
                    _signal(pid, signal.SIGKILL)
                node.process.wait()
        if self._etcd is not None:
            self._etcd.kill()
            self._etcd.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    # -- what it looks like

    def dsn(self, database: str) -> str:
        """All addresses, of which the client takes the one that accepts writes."""
        return make_conninfo(
            "",
            host=",".join("127.0.0.1" for _ in self.nodes),
            port=",".join(str(node.port) for node in self.nodes),
            user="postgres",
            dbname=database,
            sslmode="disable",
            gssencmode="disable",
            connect_timeout="3",
            target_session_attrs="read-write",
        )

    def leader(self, but: Node | None = None) -> Node | None:
        """The node whose server takes a commit right now."""
        for node in self.nodes:
            if node is not but and _takes_commits(node.port):
                return node
        return None

    def until_whole(self) -> Node:
        """Wait until one leads, one is in step with it, and the third follows."""

        def whole() -> Node | None:
            leader = self.leader()
            return leader if leader is not None and _is_followed(leader) else None

        found: Node = self._until(whole, "the cluster does not become whole")
        return found

    # -- what is done to it; each returns when it began, and when a leader accepted writes again

    def kill(self) -> tuple[float, float]:
        """SIGKILL the processes of the leading server."""
        leader = self.until_whole()
        began = time.monotonic()
        for pid in leader.server_pids():
            _signal(pid, signal.SIGKILL)
        self._until(lambda: self.leader(but=leader), "nobody leads after a kill")
        return began, time.monotonic()

    def switch_over(self) -> tuple[float, float]:
        """Ask the leader to hand over, as before maintenance."""
        leader = self.until_whole()
        body = json.dumps({"leader": leader.name}).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{leader.api}/switchover", body, {"Content-Type": "application/json"}
        )
        began = time.monotonic()
        # It answers when it has handed over, or cannot.
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:  # noqa: S310
            answer.read()
        self._until(lambda: self.leader(but=leader), "nobody leads after a switchover")
        return began, time.monotonic()

    def freeze(self) -> Node:
        """SIGSTOP the leader, with its Patroni, as a machine stands still."""
        leader = self.until_whole()
        for pid in leader.pids():
            _signal(pid, signal.SIGSTOP)
        return leader

    def until_replaced(self, frozen: Node) -> float:
        """Wait until another one leads."""
        self._until(lambda: self.leader(but=frozen), "nobody takes the place of a frozen leader")
        return time.monotonic()

    def thaw(self, node: Node) -> None:
        """Let it go on; it finds that it leads no more."""
        for pid in reversed(node.pids()):
            _signal(pid, signal.SIGCONT)

    def _until(self, condition: Callable[[], Any], message: str) -> Any:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            if found := condition():
                return found
            time.sleep(0.05)
        raise ClusterError(f"{message}; the logs are in {self._folder}")


def connections_of(pids: Iterable[int], port: int) -> set[str]:
    """The connections to this port that these processes have, as Linux names them."""
    established = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "01" and int(fields[2].rpartition(":")[2], 16) == port:
            established.add(f"socket:[{fields[9]}]")
    found = set()
    for pid in pids:
        with suppress(OSError):
            for entry in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(OSError):
                    found.add(str(entry.readlink()))
    return found & established


def _takes_commits(port: int) -> bool:
    try:
        with psycopg.connect(_address(port, "read-write"), autocommit=True) as conn:
            conn.execute("select pg_current_xact_id()")
            return True
    except psycopg.Error:
        return False


def _is_followed(node: Node) -> bool:
    """Whether Patroni knows a standby in step, and another one: else it would not fail over."""
    try:
        address = f"http://127.0.0.1:{node.api}/cluster"
        with urllib.request.urlopen(address, timeout=2) as answer:
            members = json.load(answer)["members"]
    except (OSError, ValueError, KeyError):
        return False
    following = [each["role"] for each in members if each.get("state") == "streaming"]
    return len(following) >= NODES - 1 and "sync_standby" in following


def _address(port: int, attributes: str) -> str:
    return make_conninfo(
        "",
        host="127.0.0.1",
        port=port,
        user="postgres",
        dbname="postgres",
        connect_timeout=2,
        sslmode="disable",
        gssencmode="disable",
        target_session_attrs=attributes,
    )


def _is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _children_of(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, ValueError, IndexError):
                if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == pid:
                    found.append(int(entry.name))
    return found


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
