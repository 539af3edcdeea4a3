"""The HTTP service: a face of CommandBus. It translates and decides nothing.

Reading order: `app` (how it is put together), `security` (who may do what), `problems` (what is
said when something is wrong), `protection` (what stands before the app), `routes`.
"""

from commandbus.http.app import create_app
from commandbus.http.auth import Authenticator, NoAuth, TokenAuth
from commandbus.http.jwt_auth import JwtAuth
from commandbus.http.settings import HttpSettings

__all__ = ["Authenticator", "HttpSettings", "JwtAuth", "NoAuth", "TokenAuth", "create_app"]
