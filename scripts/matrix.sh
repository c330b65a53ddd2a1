#!/usr/bin/env bash
# Tests distmnist with the oldest and the newest Python and TensorFlow that it
# supports, each pair in an environment of its own under .venv-matrix/.
#
#   scripts/matrix.sh [pytest arguments]    default: the quick tests
#   PAIRS='python3.10=2.20 python3.13=2.21' scripts/matrix.sh
set -euo pipefail
cd "$(dirname "$0")/.."
[[ $# -gt 0 ]] || set -- -m 'not slow'
pairs=${PAIRS:-python3.10=2.16 python3.11=2.21 python3.13=2.21}
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
  "$folder/bin/python" -m pytest -q "$@" || failed+=("$pair")
done
if [[ ${#failed[@]} -gt 0 ]]; then
  echo "$0: failed with: ${failed[*]}" >&2
  exit 1
fi
