#!/usr/bin/env bash
# Every update rule on the same work, one cluster of two workers after another:
# one table and one plot, in results/strategies. Every rule trains for 3 epochs
# with each of 3 seeds. On two cores that takes 100 minutes. Finished runs are
# kept: after an interruption, start it again.
#
#   scripts/reproduce_table.sh [--out=FOLDER] [--seeds=N] [--epochs=N] [--busy] \
#       [CONFIG ...] [-- train flags]
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/environment.sh
make_environment plots

if [[ -z ${DISTMNIST_DATA_DIR:-} && -d ../shared/data/mnist ]]; then
  export DISTMNIST_DATA_DIR=../shared/data
fi
exec "$python" benchmarks/strategies.py "$@"
