#!/usr/bin/env bash
# Tests distmnist with the oldest and the newest Python and TensorFlow that it
# supports, each pair in an environment of its own under .venv-matrix/; about
# two minutes a pair, and as long to install it.
#
#   scripts/matrix.sh [pytest arguments]    default: a selection of quick tests
#   PAIRS='python3.10=2.20 python3.13=2.21' scripts/matrix.sh
set -euo pipefail
cd "$(dirname "$0")/.."
pairs=${PAIRS:-python3.10=2.16 python3.11=2.21 python3.13=2.21}
tests=("$@")
if [[ $# == 0 ]]; then
  tests=(tests/runtime_test.py tests/tf_internals_test.py tests/train_test.py
    tests/nn/optimizers_test.py tests/cluster/repeated_runs_test.py
    tests/strategies/{battery,sync_sgd,easgd}_test.py
    tests/exchange/{center,copies,ring,rounds,steps} tests/tables/row_*_test.py
    tests/training/problems/keras_model_test.py -m 'not slow')
fi
failed=()
for pair in $pairs; do
  base=${pair%=*} version=${pair#*=}
  folder=.venv-matrix/${base##*/}-$version
  echo "$0: $base and TensorFlow $version"
  if ! [[ -f $folder/installed ]]; then
    "$base" -m venv "$folder"
    "$folder/bin/python" -m pip install --quiet --disable-pip-version-check \
      "tensorflow==$version.*" "tensorboard<=$version.99" -e '.[test]'
    touch "$folder/installed"
  fi
  "$folder/bin/python" -m pytest -q "${tests[@]}" || failed+=("$pair")
done
if [[ ${#failed[@]} -gt 0 ]]; then
  echo "$0: failed with: ${failed[*]}" >&2
  exit 1
fi
