"""The HTTP service: a face of CommandBus. It translates and decides nothing.

Reading order: `app` (how it is put together), `auth` (who the caller is, and what it may do),
`problems` (the response to each error), `budgets`, `protection` and `bodies` (limits of each caller
and request), `waiting`, `connections`, `schemas`, `routes`.
"""

from commandbus.extras import extra

with extra("api", "commandbus.http"):
    from commandbus.http.app import create_app, create_router
    from commandbus.http.auth.authenticators import Authenticator, NoAuth
    from commandbus.http.auth.json_web_tokens import JwtAuth
    from commandbus.http.auth.tokens import TokenAuth
    from commandbus.http.settings import HttpSettings

__all__ = [
    "Authenticator",
    "HttpSettings",
    "JwtAuth",
    "NoAuth",
    "TokenAuth",
    "create_app",
    "create_router",
]
