"""Code in the documents: all of it compiles, and what is marked `<!-- run -->` runs."""

from __future__ import annotations

import ast
import asyncio
import inspect
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from commandbus import CommandBus
from tests.docs.markdown import ROOT, Block, blocks, documents

PYTHON = [block for path in documents() for block in blocks(path, "python")]
#: The README's example is a whole program; test_examples runs it.
RUN_HERE = [path for path in documents() if any(block.is_run for block in blocks(path))]

TABLES = """
create table orders (id uuid primary key, paid boolean not null default false);
create table ledger (payment uuid primary key, amount int not null);
"""


def compiled(block: Block) -> Any:
    # Lines are counted as in the document, so that a traceback leads to the place.
    text = "\n" * (block.line - 1) + block.text
    return compile(text, str(block.path), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)


@pytest.mark.parametrize("block", PYTHON, ids=lambda block: block.name)
def test_every_python_block_compiles(block: Block) -> None:
    compiled(block)


def test_enough_is_run_to_mean_something() -> None:
    run = [block for path in documents() for block in blocks(path) if block.is_run]

    assert {block.language for block in run} == {"python", "sql"}
    assert len(run) >= 20
    # What is not run says why: a whole program, a pytest file, a server of its own.
    assert {block.path.name for block in PYTHON if not block.is_run} == {
        "README.md", "brokers.md", "django.md", "embedded.md", "fastapi.md", "flask.md",
        "litestar.md", "shards.md", "sqlalchemy.md", "testing.md", "tutorial.md",
    }  # fmt: skip


@pytest.fixture
async def names(bus: CommandBus, dsn: str, empty_dsn: str) -> AsyncIterator[dict[str, Any]]:
    """What docs/guides/README.md promises to every snippet."""
    parts = conninfo_to_dict(dsn)
    address: dict[str, Any] = {key: parts[key] for key in ("host", "port", "user", "password")}
    address["database"] = parts["dbname"]

    async def connect(*_: Any, **__: Any) -> Any:
        return await psycopg.AsyncConnection.connect(dsn)

    engine = create_async_engine("postgresql+psycopg://", async_creator=connect, poolclass=NullPool)
    async with asyncpg.create_pool(**address, min_size=0, max_size=2) as pool:
        yield {
            "__name__": "snippet", "asyncio": asyncio, "bus": bus, "dsn": dsn, "engine": engine,
            "asyncpg_pool": pool, "queue_dsn": empty_dsn,
        }  # fmt: skip
    await engine.dispose()


@pytest.mark.parametrize("path", RUN_HERE, ids=lambda path: str(path.relative_to(ROOT)))
async def test_marked_blocks_run_one_after_the_other(
    path: Path, names: dict[str, Any], conn: psycopg.AsyncConnection[Any]
) -> None:
    await conn.execute(TABLES)
    await conn.execute("select commandbus.ensure_domain('payments')")
    for block in blocks(path):
        if block.is_run and block.language == "sql":
            await conn.execute(block.text.encode())
        elif block.is_run:
            result = eval(compiled(block), names)
            if inspect.isawaitable(result):
                await asyncio.wait_for(result, 60)
