#!/usr/bin/env bash
# Makes .venv, checks the style and runs the tests.
#
#   scripts/test.sh [pytest arguments]      scripts/test.sh -m "not slow"
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/environment.sh
make_environment test

"$python" -m ruff check .
"$python" -m ruff format --check .
exec "$python" -m pytest "$@"
