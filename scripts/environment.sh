# shellcheck shell=bash
# Sourced by the other scripts: makes .venv once and leaves its Python in
# $python. Needs only a Python >= 3.10 (choose one with PYTHON=...).
#
#   make_environment [EXTRA]    EXTRA: an extra of setup.py, such as test

make_environment() {
  local extra=${1:+[$1]} base=${PYTHON:-python3} stamp
  local constraints=()
  python=.venv/bin/python
  if ! "$base" -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
    echo "$0: $base is no Python >= 3.10: set PYTHON to one" >&2
    exit 1
  fi
  # Some of these versions have no wheels for Python 3.10.
  if "$base" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    constraints=(-c constraints.txt)
  fi
  # Installs once per extra and state of these files: a second run is quick.
  stamp=.venv/installed-${1:-base}
  if [[ -f $stamp ]] && cat setup.py constraints.txt | cmp -s - "$stamp"; then
    return
  fi
  echo "$0: installing distmnist and TensorFlow into .venv (a minute or two)"
  [[ -x $python ]] || "$base" -m venv .venv
  "$python" -m pip install --quiet --disable-pip-version-check \
    "${constraints[@]}" -e ".$extra"
  cat setup.py constraints.txt >"$stamp"
}
