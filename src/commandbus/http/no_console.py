"""What a browser sees where the console would be, of a service over several databases."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

router = APIRouter(include_in_schema=False)

#: Its paths; they need no caller, and show nothing.
PATHS = frozenset({"/console", "/console/{rest}"})
#: The page is for people; whatever asks for it must not take it for the console.
_STATUS = 501
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>No console here - commandbus</title></head>
<body><main><h1>There is no console here</h1>
<p>This service works on several databases, by a map of shards, and the console shows one.</p>
<p>Start a service for the shard that you want to look at, with its address:
<code>commandbus serve --dsn ADDRESS</code>. Over all shards there are the command line
(<code>commandbus top --map FILE</code>, <code>commandbus list --map FILE</code>) and the HTTP
API.</p></main></body></html>
"""


@router.get("/console")
@router.get("/console/{rest:path}")
async def no_console() -> HTMLResponse:
    """Say that there is no console, and what there is."""
    return HTMLResponse(_PAGE, _STATUS)
