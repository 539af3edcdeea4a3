"""Write what the generator of the site needs into a folder: pages, settings, llms.txt.

python -m docsite build/docs
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from commandbus.http import create_app
from commandbus.testing import fake_bus
from docsite import reference, site
from docsite.links import ROOT, on_the_site, places


def pages() -> dict[str, str]:
    """Every page of the site by its place."""
    known = places()
    found = {
        place: on_the_site(name, (ROOT / name).read_text(encoding="utf-8"), known)
        for name, place in known.items()
    }
    found |= reference.python_pages()
    found["reference/cli.md"] = reference.cli_page()
    found["reference/http.md"] = reference.http_page(create_app(fake_bus()).openapi())
    return found


def write(folder: Path) -> int:
    """Write all of it; returns the number of pages."""
    found = pages()
    shutil.rmtree(folder / "pages", ignore_errors=True)
    for place, text in found.items():
        path = folder / "pages" / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    shutil.copytree(ROOT / "docs/images", folder / "pages/images")
    (folder / "pages" / "site.css").write_text(site.STYLE, encoding="utf-8")
    whole = "\n\n".join(found[place] for place in sorted(found))
    (folder / "pages" / "llms.txt").write_text(site.for_models(found), encoding="utf-8")
    (folder / "pages" / "llms-full.txt").write_text(whole, encoding="utf-8")
    (folder / "mkdocs.yml").write_text(site.settings(found), encoding="utf-8")
    return len(found)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    print(f"{write(target)} pages in {target}")
