"""Where the server's time goes, statement by statement, for us and for others.

    python -m benchmarks.statements --systems commandbus,pgqueuer,pgmq
    python -m benchmarks.statements --systems commandbus --only single

Three phases on a fresh database each: a bulk send, the drain of it, single sends. Statements are
counted with pg_stat_statements, those inside functions too; so a statement's time contains that of
the statements that it calls, which are marked as inner ones. Counting costs time itself: read the
shares, not the sums.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from benchmarks.entrants import ENTRANTS
from benchmarks.lab import Case, Lab, Size
from benchmarks.server import Server
from benchmarks.trial import Trial

#: Statements that take fewer microseconds a command are left out.
SMALLEST = 0.5
SINGLE_SENDS = 1_000
FOUND = """
select s.toplevel, s.calls, s.total_exec_time + s.total_plan_time, s.rows, s.wal_bytes,
       regexp_replace(s.query, '\\s+', ' ', 'g')
  from pg_stat_statements s join pg_database d on d.oid = s.dbid
 where d.datname = %s order by 3 desc
"""


@dataclass(frozen=True)
class Spent:
    """One statement of a phase, for each command."""

    is_inner: bool
    calls: float
    microseconds: float
    wal_bytes: float
    text: str


def _bulk(trial: Trial, commands: int) -> Callable[[], int]:
    sender = trial.process()

    def act() -> int:
        trial.bulk_send(sender, commands)
        return commands

    return act


def _drain(trial: Trial, commands: int) -> Callable[[], int]:
    trial.fill(commands)

    def act() -> int:
        trial.drain([trial.process()], commands)
        return commands

    return act


def _single(trial: Trial, commands: int) -> Callable[[], int]:
    sender = trial.process()
    sender.ask("senders", parallel=1, count=20)  # caches are warm

    def act() -> int:
        sender.ask("senders", parallel=1, count=min(commands, SINGLE_SENDS))
        return min(commands, SINGLE_SENDS)

    return act


#: The settings that a phase is measured with, and how it is made ready.
PHASES = {"bulk": ("defaults", _bulk), "drain": ("tuned", _drain), "single": ("sending", _single)}


def measured(lab: Lab, system: str, phase: str, commands: int) -> list[Spent]:
    """The statements of a phase, the most expensive first."""
    kind, prepare = PHASES[phase]
    entrant = ENTRANTS[system]
    with lab.trial(Case(system, entrant, getattr(entrant, kind))) as trial:
        database = str(conninfo_to_dict(trial.conninfo)["dbname"])
        with psycopg.connect(lab.server.superuser_dsn("postgres"), autocommit=True) as conn:
            for name, value in (("track", "all"), ("track_planning", "on")):
                conn.execute(
                    sql.SQL("alter database {} set {} = {}").format(
                        sql.Identifier(database), sql.Identifier("pg_stat_statements", name), value
                    )
                )
            act = prepare(trial, commands)
            conn.execute("select pg_stat_statements_reset()")
            done = act()
            return [
                Spent(not is_top, calls / done, spent * 1_000 / done, float(wal) / done, text)
                for is_top, calls, spent, _rows, wal, text in conn.execute(FOUND, (database,))
            ]


def show(title: str, found: Sequence[Spent]) -> None:
    """Print what is worth it."""
    total = sum(each.microseconds for each in found if not each.is_inner)
    print(f"\n{title}: {total:,.0f} µs a command in statements")
    for each in found:
        if each.microseconds >= SMALLEST:
            inner = "  " if each.is_inner else ""
            text = each.text if len(each.text) <= 100 else f"{each.text[:99]}…"
            print(
                f"  {each.microseconds:7.1f} µs  {each.calls:6.3f} calls  "
                f"{each.wal_bytes:6.0f} B of log  {inner}{text}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.statements", description=__doc__)
    parser.add_argument("--systems", default="commandbus")
    parser.add_argument("--only", default=",".join(PHASES), help="phases, separated by commas")
    parser.add_argument("--commands", type=int, default=20_000)
    options = parser.parse_args()
    named = {entrant.module: name for name, entrant in reversed(ENTRANTS.items())} | {
        name: name for name in ENTRANTS
    }
    with Server.opened() as server:
        lab = Lab(server, Size())
        try:
            for phase in options.only.split(","):
                for system in options.systems.split(","):
                    found = measured(lab, named[system], phase, options.commands)
                    show(f"{phase}, {named[system]}", found)
        finally:
            lab.close()


if __name__ == "__main__":
    main()
