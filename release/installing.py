"""The small core: what it weighs, how quickly it starts. And the README's first screen, typed."""

from __future__ import annotations

import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import time
from importlib.metadata import distributions
from pathlib import Path

from release.tools import (
    ROOT,
    CheckError,
    Result,
    clean_environment,
    new_environment,
    pip,
    run,
    site_packages,
    write_constraints,
)

MEGABYTE = 1_000_000
#: What a new environment has before anything is installed.
SEEDED = {"pip", "setuptools"}
MAX_DOWNLOAD_MB = 8
MAX_UNPACKED_MB = 30
#: CPU in seconds.
MAX_HELP, MAX_QUICK = 0.4, 0.15
#: `import commandbus`, and `from commandbus import CommandBus`, in imports of asyncio. The bar of
#: the second is 2, too; a tenth more is left to neighbours.
MAX_IMPORT, MAX_BUS = 2.0, 2.2


def install(target: Path, wheel: Path, extra: str | None = None) -> Path:
    """An environment with the wheel and locked versions of what it asks for; returns its folder.

    The files that pip downloaded are beside it, in `<extra>-wheels`.
    """
    name = extra or "core"
    wheels = target / f"{name}-wheels"
    shutil.rmtree(wheels, ignore_errors=True)
    home = new_environment(target / name)
    wanted = f"{wheel}[{extra}]" if extra else str(wheel)
    constraints = write_constraints(target / "constraints.txt")
    pip(home, "download", "--only-binary", ":all:", "-c", constraints, "-d", wheels, wanted)
    pip(home, "install", "--no-index", "--find-links", wheels, "-c", constraints, wanted)
    return home


def sizes(target: Path, home: Path, name: str) -> tuple[float, float, float]:
    """Megabytes that were downloaded, that were unpacked, and of bytecode that pip then wrote."""
    download = sum(file.stat().st_size for file in (target / f"{name}-wheels").iterdir())
    # By what each package says that it installed: what venv puts there itself is not ours.
    files = [
        Path(str(file.locate()))
        for package in distributions(path=[str(site_packages(home))])
        if package.name not in SEEDED
        for file in package.files or ()
    ]
    bytecode = sum(file.stat().st_size for file in files if file.suffix == ".pyc")
    whole = sum(file.stat().st_size for file in files)
    return download / MEGABYTE, (whole - bytecode) / MEGABYTE, bytecode / MEGABYTE


def check_sizes(target: Path, home: Path) -> list[Result]:
    """The core is small."""
    download, unpacked, bytecode = sizes(target, home, "core")
    if download > MAX_DOWNLOAD_MB or unpacked > MAX_UNPACKED_MB:
        raise CheckError(f"the core is {download:.1f} MB to download, {unpacked:.1f} MB unpacked")
    return [
        Result("core, to download", f"{download:.1f} MB", f"≤ {MAX_DOWNLOAD_MB} MB"),
        Result("core, unpacked", f"{unpacked:.1f} MB", f"≤ {MAX_UNPACKED_MB} MB"),
        Result("core, bytecode beside it", f"{bytecode:.1f} MB", "-"),
    ]


# -- how quickly it starts


def cpu_seconds(*words: str | Path) -> float:
    """The least CPU of seven runs: neighbours make a run longer, never shorter."""
    spent = []
    for _ in range(7):
        before = _of_children()
        subprocess.run(
            [str(word) for word in words],
            stdout=subprocess.DEVNULL,
            env=clean_environment(),
            check=True,
        )
        spent.append(_of_children() - before)
    return min(spent)


def _of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)  # os.times() counts in steps of 10 ms
    return used.ru_utime + used.ru_stime


def check_start(core: Path, full: Path) -> list[Result]:
    """The program and the package start quickly."""
    python = core / "bin" / "python"
    alone = cpu_seconds(python, "-c", "import asyncio")
    imports = [
        ("import commandbus", MAX_IMPORT),
        ("from commandbus import CommandBus", MAX_BUS),
    ]
    measured = [
        ("commandbus --version", cpu_seconds(core / "bin/commandbus", "--version"), MAX_QUICK),
        ("commandbus health", cpu_seconds(core / "bin/commandbus", "health", "--help"), MAX_QUICK),
        ("commandbus --help", cpu_seconds(full / "bin/commandbus", "--help"), MAX_HELP),
    ]
    rows = []
    for statement, limit in imports:
        ratio = cpu_seconds(python, "-c", statement) / alone
        if ratio > limit:
            raise CheckError(f"{statement} takes {ratio:.2f} times what asyncio takes")
        rows.append(Result(f"{statement}, against asyncio", f"{ratio:.2f}", f"≤ {limit:g}"))
    for what, seconds, bar in measured:
        if seconds > bar:
            raise CheckError(f"{what} takes {seconds:.2f} s of CPU, more than {bar}")
        rows.append(Result(what, f"{seconds:.2f} s of CPU", f"≤ {bar} s"))
    return rows


# -- the README's first screen


def first_screen() -> list[str]:
    """The commands of the first block of the README, without what is said beside them."""
    found = re.search(r"(?:^    \S.*\n)+", (ROOT / "README.md").read_text(), re.M)
    assert found is not None
    return [re.split(r"\s{2,}", line.strip())[0] for line in found[0].splitlines()]


def type_first_screen(home: Path, target: Path) -> list[Result]:
    """Type it in an environment that has the wheel; the install line was tried by then."""
    folder = target / "home"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    env = clean_environment(
        PATH=f"{home / 'bin'}:{os.environ['PATH']}", COMMANDBUS_HOME=str(folder), HOME=str(folder)
    )
    rows = []
    for line in first_screen():
        words = shlex.split(line)
        if "pip" in words:
            if '".[all]"' not in line:
                raise CheckError(f"the README installs something else than all extras: {line}")
            continue
        begun = time.monotonic()
        if "up" in words:
            _run_until_up(words, env)
        else:
            run(*words, cwd=folder, env=env)
        rows.append(Result(f"README: {line}", f"worked, {time.monotonic() - begun:.0f} s"))
    if not rows:
        raise CheckError("the README's first block has no command to try")
    program = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert program is not None
    said = run(home / "bin" / "python", "-c", program[1], cwd=folder, env=env)
    if said.strip() not in (ROOT / "README.md").read_text():
        raise CheckError(f"the README's example printed {said!r}")
    return [*rows, Result("README: the example", f"printed {said.strip()}")]


def _run_until_up(words: list[str], env: dict[str, str]) -> None:
    """Start something that runs until it is stopped, and stop it once it says that it is up."""
    started = subprocess.Popen(words, env=env, stdout=subprocess.PIPE, text=True)
    try:
        assert started.stdout is not None
        said = []
        for line in started.stdout:
            said.append(line)
            if "Stop with Ctrl-C" in line:
                break
        started.send_signal(signal.SIGINT)
        if started.wait(60) != 0 or "is up" not in "".join(said):
            raise CheckError(f"{' '.join(words)} ended with {started.returncode}: {''.join(said)}")
    finally:
        started.kill()
        started.wait()
