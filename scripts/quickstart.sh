#!/usr/bin/env bash
# From a fresh clone to a test accuracy: one ps and two workers on this machine.
#
#   scripts/quickstart.sh [train flags]
#
# Uses MNIST if it is found or can be downloaded, else synthetic digits.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/environment.sh
make_environment

if [[ -z ${DISTMNIST_DATA_DIR:-} && -d ../shared/data/mnist ]]; then
  export DISTMNIST_DATA_DIR=../shared/data
fi
dataset=mnist
if ! "$python" -m distmnist.train --download_only --dataset=mnist; then
  echo "$0: no MNIST here: training on the synthetic digits instead"
  dataset=synthetic
fi
logdir=logs/quickstart-$(date +%Y%m%d-%H%M%S)
"$python" -m distmnist.launch --num_ps=1 --num_workers=2 -- \
  --flagfile=configs/quickstart.flags --dataset="$dataset" \
  --logdir="$logdir" "$@"
