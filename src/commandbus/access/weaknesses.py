"""What is weak about the tokens in use: for the doctor, and for the log of a service."""

from __future__ import annotations

from typing import TYPE_CHECKING, LiteralString

from commandbus.access.peppers import HASH_BYTES, Peppers
from commandbus.upkeep.findings import Finding, finding_of

if TYPE_CHECKING:
    from commandbus.database.gateway import Session

#: The SQLSTATE of a role without the right to read a table.
MAY_NOT_READ = "42501"

# By the fingerprint of the pepper, '' for hashes of releases that wrote none: how many, and the
# ids of those that may do everything for ever.
TOKENS_IN_USE: LiteralString = (
    "select encode(substring(t.secret_hash for greatest(octet_length(t.secret_hash) - %s, 0)),"
    " 'hex'), count(*), array_agg(t.token_id order by t.token_id)"
    " filter (where t.expires_at is null and 'admin' = any (t.scopes))"
    " from {schema}.command_bus_api_token t"
    " where t.revoked_at is null and (t.expires_at is null or t.expires_at > now())"
    " group by 1 order by 1"
)


async def token_findings(session: Session, peppers: Peppers) -> list[Finding]:
    """What there is to say of the live tokens."""
    rows, state = await session.try_rows(TOKENS_IN_USE, (HASH_BYTES,))
    if state == MAY_NOT_READ:  # then they are none of its business
        return []
    if state is not None:
        return [finding_of("CHECK_FAILED", None, 1, [f"tokens: SQLSTATE {state}"])]
    counts = {mark: count for mark, count, _ in rows}
    findings = []
    unmarked = counts.pop("", 0)
    if unknown := sorted(peppers.unknown(set(counts))):
        examples = [f"{counts[mark]:,} with the pepper {mark}" for mark in unknown]
        number = sum(counts[mark] for mark in unknown)
        findings.append(finding_of("TOKEN_PEPPER", None, number, examples))
    if unmarked and peppers.accepts_unpeppered:
        examples = [f"{unmarked:,} of an earlier release"]
        findings.append(finding_of("TOKEN_UNPEPPERED", None, unmarked, examples))
    if endless := [token_id for *_, ids in rows for token_id in ids or ()]:
        findings.append(finding_of("TOKEN_ENDLESS", None, len(endless), endless))
    return findings
