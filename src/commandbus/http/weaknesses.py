"""What is allowed and weak in the settings of a service: said in its log when it starts."""

from __future__ import annotations

from commandbus.http.settings import HttpSettings


def weaknesses_of(settings: HttpSettings) -> list[str]:
    """One sentence each, with what to do."""
    found = []
    if settings.auth == "none":
        found.append(
            "no authentication: everybody on this machine may do everything; use --auth token"
        )
    if settings.metrics_public:
        found.append(
            "/metrics needs no token, and names domains and batch types; unset "
            "COMMANDBUS_HTTP_METRICS_PUBLIC unless the network protects it"
        )
    if "*" in (part.strip() for part in settings.trusted_proxies.split(",")):
        found.append(
            "everybody is taken for a trusted proxy: each client can name any address as its own, "
            "and connections are not limited; name the proxies in COMMANDBUS_HTTP_TRUSTED_PROXIES"
        )
    if settings.auth == "jwt" and not settings.jwt_issuer:
        found.append(
            "JWTs of any issuer that has the key are accepted; set COMMANDBUS_HTTP_JWT_ISSUER"
        )
    return found
