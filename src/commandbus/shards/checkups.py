"""The doctor over shards: what each database says of itself, as one diagnosis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from commandbus.shards.call import Call, ask_all
from commandbus.shards.reads import DOCTOR_SECONDS
from commandbus.upkeep.checks import CheckRun, LastCheck
from commandbus.upkeep.findings import EXAMPLES, Diagnosis, Finding, finding_of, worst_first


async def diagnosis(call: Call) -> Diagnosis:
    """What is found on all shards, the worst first; a shard that is missing is a finding."""
    seen = await ask_all(call.sharded, call.on, deadline=DOCTOR_SECONDS)
    return merged(seen.found, seen.missing)


def merged(found: Mapping[str, Diagnosis], missing: Mapping[str, str]) -> Diagnosis:
    """One diagnosis of those of the shards."""
    findings = [
        of_shard(each, name) for name, diagnosis in found.items() for each in diagnosis.findings
    ]
    if missing:
        findings.append(finding_of("SHARD_MISSING", None, len(missing), sorted(missing)))
    facts = [diagnosis.facts for diagnosis in found.values()]
    told: dict[str, Any] = {
        **facts[0],
        "database": ", ".join(f"{name}: {each.facts['database']}" for name, each in found.items()),
        "database_bytes": sum(each["database_bytes"] for each in facts),
        "server_version": ", ".join(sorted({str(each["server_version"]) for each in facts})),
        "shards": {name: dict(each.facts) for name, each in found.items()},
    }
    since = [diagnosis.since for diagnosis in found.values()]
    known = [each for each in since if each is not None]
    return Diagnosis(
        worst_first(findings),
        # The latest of them: only what is newer was looked at everywhere.
        max(known) if known else None,
        told,
        tuple(f"{text} (shard {name})" for name, each in found.items() for text in each.unknown),
        tuple(repair for diagnosis in found.values() for repair in diagnosis.repairs),
    )


def of_shard(finding: Finding, name: str) -> Finding:
    """What is about a database as a whole names its shard."""
    if finding.domain is not None:
        return finding
    return replace(finding, examples=(f"shard {name}", *finding.examples)[:EXAMPLES])


async def last(call: Call) -> LastCheck:
    """What was found last on each shard. Its number is that of no run: repairs are of one shard."""
    seen = await ask_all(call.sharded, call.on)
    return LastCheck(
        _one_run({name: each.last for name, each in seen.found.items()}, seen.missing),
        _one_run({name: each.newer for name, each in seen.found.items()}, {}),
    )


async def start(call: Call) -> CheckRun:
    """Begin to examine all shards that answer."""
    seen = await ask_all(call.sharded, call.on)
    found = _one_run(dict(seen.found), seen.missing)
    if found is None:
        raise AssertionError("ask_all gives an answer or raises")
    return found


def _one_run(runs: Mapping[str, CheckRun | None], missing: Mapping[str, str]) -> CheckRun | None:
    known = {name: run for name, run in runs.items() if run is not None}
    if not known:
        return None
    newest = max(known.values(), key=lambda run: run.started_at)
    ends = [run.finished_at for run in known.values()]
    findings = [of_shard(each, name) for name, run in known.items() for each in run.findings]
    if missing:
        findings.append(finding_of("SHARD_MISSING", None, len(missing), sorted(missing)))
    results = [run.result for run in known.values() if run.result is not None]
    result = {
        "findings": [asdict(each) for each in worst_first(findings)],
        "repairs": [each for result in results for each in result.get("repairs", ())],
        "since": max((each["since"] for each in results if each.get("since")), default=None),
    }
    errors = [f"shard {name}: {run.error}" for name, run in known.items() if run.error]
    return replace(
        newest,
        run_id=0,
        finished_at=None if None in ends else max(each for each in ends if each is not None),
        error="; ".join(errors) or None,
        result=result if results else None,
        is_running=any(run.is_running for run in known.values()),
    )


async def well_since(call: Call) -> Any:
    """Since when nothing was found anywhere."""
    answers = list((await call.everywhere()).found.values())
    return None if None in answers else max(answers)


async def chores(call: Call) -> list[Any]:
    """The chores of all shards, each with its shard."""
    seen = await call.everywhere()
    return [
        each if each.domain is not None else replace(each, name=f"{each.name} (shard {name})")
        for name, found in seen.found.items()
        for each in found
    ]


async def settings_overview(call: Call) -> Any:
    """The settings of the shard that has what belongs to no domain, and says that it is one."""
    name = call.sharded.map.home_shard
    found = await call.at(name)
    return replace(found, database=f"{found.database} (shard {name})")


async def who_answers(call: Call) -> dict[str, bool]:
    """Whether each shard does; who scrapes sees no names of missing ones beside the figures."""
    seen = await call.sharded.everywhere(lambda bus: bus.check())
    return {name: name in seen.found for name in call.sharded.map.shards}
