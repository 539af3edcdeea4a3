"""The documentation site: `make docs` builds it into build/site. Not part of the package."""
