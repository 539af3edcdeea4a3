#!/bin/sh
# Prints the newest Python that is here, that runs and is 3.12 or newer; nothing if there is none.
# Looked for: python3.N on the path, and the versions of pyenv, which need not be active.
set -u
best="" best_version=0
for candidate in \
    $(for minor in 12 13 14 15 16 17 18 19; do command -v "python3.$minor"; done) \
    "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.*/bin/python; do
    # A shim of pyenv is there even if its version is not active, and then does not run.
    version=$("$candidate" -c 'import ssl, sys, venv; print("%d%03d" % sys.version_info[:2])' 2>/dev/null) || continue
    if [ "$version" -ge 3012 ] && [ "$version" -gt "$best_version" ]; then
        best=$candidate best_version=$version
    fi
done
echo "$best"
