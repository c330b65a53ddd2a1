#!/usr/bin/env bash
# Makes .venv, checks style, imports and types, and runs the tests.
#
#   scripts/test.sh [pytest arguments]      scripts/test.sh -m "not slow"
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/environment.sh
make_environment test

"${python%/*}/pyright" --pythonpath "$python" & # Half a minute on one core.
types=$!
trap 'kill "$types" 2>/dev/null || true' EXIT
"$python" -m ruff check .
"$python" -m ruff format --check .
"${python%/*}/lint-imports" --no-cache
"${python%/*}/shellcheck" --severity=warning -x scripts/*.sh
wait "$types"
exec "$python" -m pytest "$@"
