"""The results of runs: kept in a file as they come, shown as a table at the end."""

from __future__ import annotations

import hashlib
import json
import random
import time
import tomllib
from argparse import Namespace
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from tests.mutants.forks import ROOT, Verdict

FOLDER = ROOT / ".mutants"
EQUIVALENT = Path(__file__).with_name("equivalent.toml")


class AnyMutant(Protocol):
    @property
    def file(self) -> str: ...
    @property
    def place(self) -> str: ...
    @property
    def key(self) -> str: ...


M = TypeVar("M", bound=AnyMutant)


def equivalents(language: str) -> dict[str, str]:
    """Key -> why no test can tell this mutant from the original, or none needs to."""
    table = tomllib.loads(EQUIVALENT.read_text(encoding="utf-8")).get(language, {})
    return {str(key): str(reason) for key, reason in table.items()}


def chosen(mutants: Sequence[M], options: Namespace) -> list[M]:
    """What the options ask for."""
    found = list(mutants)
    if options.files:
        order = options.files.split(",")
        unknown = set(order) - {m.file for m in mutants}
        if unknown:
            raise SystemExit(f"no mutants in {', '.join(sorted(unknown))}; see --list")
        found = sorted((m for m in found if m.file in order), key=lambda m: order.index(m.file))
    if options.only:
        found = [m for m in found if m.place == options.only]
        if not found:
            raise SystemExit(f"no mutant at {options.only}; see --list")
    if options.sample and options.sample < len(found):
        found = random.Random(options.seed).sample(found, options.sample)
    return found


class Results:
    """What is known of each mutant, by its key and content."""

    def __init__(self, language: str) -> None:
        self.path = FOLDER / f"{language}.json"
        self._kept: dict[str, dict[str, Any]] = (
            json.loads(self.path.read_text(encoding="utf-8")) if self.path.exists() else {}
        )
        self._began = time.monotonic()
        self.counts: Counter[tuple[str, str]] = Counter()
        self.survivors: list[str] = []
        self._recent: list[str] = []

    @staticmethod
    def digest(text: str) -> str:
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def was_killed(self, mutant: AnyMutant, digest: str) -> bool:
        return self.known(mutant, digest, None) == "killed"

    def known(self, mutant: AnyMutant, digest: str, asked: str | None) -> str | None:
        """How it ended before: killed, or survived if the same tests were asked."""
        kept = self._kept.get(f"{mutant.file} {mutant.key}")
        if kept is None or kept["digest"] != digest:
            return None
        outcome = str(kept["outcome"])
        is_worth = outcome == "killed" or (asked is not None and kept.get("asked") == asked)
        return outcome if is_worth else None

    def add(
        self, mutant: AnyMutant, digest: str, verdict: Verdict, asked: str | None = None
    ) -> None:
        name = f"{mutant.file} {mutant.key}"
        self._recent.append(name)
        self._kept[name] = {
            "place": mutant.place, "outcome": verdict.outcome, "by": verdict.by,
            "seconds": round(verdict.seconds, 1), "tests": verdict.tests, "digest": digest,
            "asked": asked,
        }  # fmt: skip
        self._write()

    def are_good(self) -> None:
        """What was added so far can be trusted."""
        self._recent.clear()

    def forget_recent(self) -> None:
        """What was added since cannot."""
        for name in self._recent:
            self._kept.pop(name, None)
        self._write()

    def _write(self) -> None:
        FOLDER.mkdir(exist_ok=True)
        self.path.write_text(json.dumps(self._kept, indent=1), encoding="utf-8")

    def count(self, mutant: AnyMutant, outcome: str) -> None:
        self.counts[mutant.file, outcome] += 1
        if outcome in {"survived", "invalid"}:
            self.survivors.append(f"{mutant.place}  {mutant.key}")

    def is_over(self, minutes: float | None) -> bool:
        return minutes is not None and time.monotonic() - self._began > minutes * 60

    def show(self) -> None:
        """The table, and what survived."""
        outcomes = ["killed", "equivalent", "survived", "invalid", "not begun"]
        print(f"\n{'file':20}" + "".join(f"{outcome:>12}" for outcome in [*outcomes, "score"]))
        for file in dict.fromkeys(file for file, _ in self.counts):
            self._line(file, [self.counts[file, outcome] for outcome in outcomes])
        totals = [
            sum(n for (_, o), n in self.counts.items() if o == outcome) for outcome in outcomes
        ]
        self._line("all", totals)
        for survivor in self.survivors:
            print(f"  not killed: {survivor}")
        seconds = time.monotonic() - self._began
        print(f"{sum(totals)} mutants in {seconds / 60:.1f} minutes")

    @staticmethod
    def _line(name: str, numbers: Sequence[int]) -> None:
        killed, equivalent = numbers[:2]
        tried = sum(numbers[:-1]) - equivalent
        score = f"{killed / tried:11.1%}" if tried else ""
        print(f"{name:20}" + "".join(f"{number:12}" for number in numbers) + f" {score}")
