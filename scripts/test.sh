#!/usr/bin/env bash
# Makes .venv, checks style and imports, and runs the tests.
#
#   scripts/test.sh [pytest arguments]      scripts/test.sh -m "not slow"
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/environment.sh
make_environment test

"$python" -m ruff check .
"$python" -m ruff format --check .
"${python%/*}/lint-imports" --no-cache
"${python%/*}/shellcheck" --severity=warning -x scripts/*.sh
exec "$python" -m pytest "$@"
