"""A person without a mouse: Tab, Enter, Space, and keys that type."""

from __future__ import annotations

from typing import Any

#: How often somebody presses Tab before they give up.
MOST = 120
_FOCUSED = """() => {
  const at = document.activeElement;
  const name = at.getAttribute("aria-label") || at.labels?.[0]?.textContent || at.textContent;
  return [at.tagName.toLowerCase(), (name || "").trim().replace(/\\s+/g, " "), at.id,
    at.matches(":focus-visible"), at.name ?? ""];
}"""


class Keyboard:
    """Moves the focus and presses keys; it never clicks."""

    def __init__(self, page: Any) -> None:
        self.page = page

    def focused(self) -> tuple[str, str, str, bool, str]:
        tag, name, element, is_visible, field = self.page.evaluate(_FOCUSED)
        return tag, name, element, is_visible, field

    def to(self, name: str, tag: str | None = None) -> None:
        """Tab to what begins with this name; what has the focus must show it."""
        seen = []
        for _ in range(MOST):
            self.page.keyboard.press("Tab")
            found, text, _, is_visible, _ = self.focused()
            seen.append(f"{found} {text[:40]}")
            if text.startswith(name) and (tag is None or tag == found):
                assert is_visible, f"{name} has the focus, and nobody sees it"
                return
        raise AssertionError(f"no Tab leads to {name!r}, only to {seen}")

    def to_field(self, field: str) -> None:
        """Tab to the field of a form that has this name."""
        for _ in range(MOST):
            self.page.keyboard.press("Tab")
            if self.focused()[4] == field:
                return
        raise AssertionError(f"no Tab leads to the field {field!r}")

    def type(self, text: str) -> None:
        self.page.keyboard.type(text)

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def follow(self, name: str, tag: str | None = None) -> None:
        """Tab there, press Enter, and wait for the page that comes."""
        self.to(name, tag)
        with self.page.expect_navigation():
            self.page.keyboard.press("Enter")

    def go(self, key: str) -> None:
        """`g`, then the key of a screen."""
        with self.page.expect_navigation():
            self.page.keyboard.press("g")
            self.page.keyboard.press(key)
