#!/usr/bin/env bash
# Runs a cluster on this machine:
#
#   scripts/run_local.sh [--num_ps=1] [--num_workers=2] -- <flags of train>
#
# All flags are those of `python -m distmnist.launch` (see --help).
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=python3
if [[ -x $root/.venv/bin/python ]]; then
  python=$root/.venv/bin/python
fi
# The caller's folder stays the current one: flags may name files in it.
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
exec "$python" -m distmnist.launch "$@"
