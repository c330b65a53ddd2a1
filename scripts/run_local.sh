#!/usr/bin/env bash
# A cluster on this machine, by plain commands: read it, copy it, change it.
#
#   scripts/run_local.sh [NUM_PS [NUM_WORKERS]] -- <flags of train>
#
# The chief's lines are on the screen, those of the others in $LOGS (./logs).
# Ctrl-C ends all: the chief saves. Ports are counted from $PORT (2222), on
# 127.0.0.1; $PYTHON is that of .venv. `python -m distmnist.launch` does more: it
# restarts tasks, too.
set -euo pipefail

numbers=()
while [[ $# -gt 0 && $1 != -- ]]; do
  numbers+=("$1")
  shift
done
if [[ $# -eq 0 || ${#numbers[@]} -gt 2 || ${numbers[*]} == *[!0-9\ ]* ]]; then
  echo "usage: $0 [NUM_PS [NUM_WORKERS]] -- <flags of train>" >&2
  exit 2
fi
shift
num_ps=${numbers[0]:-1} num_workers=${numbers[1]:-2}
port=${PORT:-2222} logs=${LOGS:-logs}
root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-$root/.venv/bin/python}
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
mkdir -p "$logs"

# list_hosts NUMBER FIRST_PORT: 127.0.0.1:2222,127.0.0.1:2223,...
list_hosts() {
  local hosts=() i
  for ((i = 0; i < $1; i++)); do hosts+=("127.0.0.1:$(($2 + i))"); done
  (IFS=, && echo "${hosts[*]}")
}
cluster=(
  "--ps_hosts=$(list_hosts "$num_ps" "$port")"
  "--worker_hosts=$(list_hosts "$num_workers" $((port + num_ps)))"
)

end_all() {
  # shellcheck disable=SC2046
  kill $(jobs -p) 2>/dev/null || true
  wait
}
trap end_all EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

start() { # JOB INDEX <flags of train>
  "$python" -m distmnist.train --job_name="$1" --task_index="$2" \
    "${cluster[@]}" "${@:3}" &
}
for ((i = 0; i < num_ps; i++)); do
  start ps "$i" "$@" >"$logs/ps_$i.log" 2>&1
done
for ((i = 1; i < num_workers; i++)); do
  start worker "$i" "$@" >"$logs/worker_$i.log" 2>&1
done
start worker 0 "$@"

# All end by themselves, with 0; the first that fails ends the others.
for ((i = 0; i < num_ps + num_workers; i++)); do
  wait -n || exit
done
