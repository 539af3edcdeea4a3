"""Headers of every page of the console."""

from __future__ import annotations

#: Asks for the regions of a page alone, as JSON.
REGIONS_HEADER = "x-console-regions"

#: Nothing comes from elsewhere, nothing runs that is not our one script, and markup is made by the
#: one function of it that holds the policy `console`. Not compressed: pages hold tokens of forms.
PAGE_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'; "
        "require-trusted-types-for 'script'; trusted-types console"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store, no-transform",
    "Vary": f"Cookie, Authorization, {REGIONS_HEADER}",
}
