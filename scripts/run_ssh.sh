#!/usr/bin/env bash
# A cluster on hosts with ssh, by plain commands: read it, copy it, change it.
#
#   scripts/run_ssh.sh HOSTS_FILE -- <flags of train>
#
# A line of HOSTS_FILE is one task, its address as the other tasks reach it and,
# if that is another name, what ssh calls the host; the first worker is the
# chief:
#
#   ps ps0:2222
#   worker w0:2222
#   worker 10.0.0.7:2222 me@w1
#
# On each host $DIR (this folder) holds distmnist, and $PYTHON is the one of its
# .venv. The chief's lines are on the screen, those of the others in $LOGS
# (./logs). Ctrl-C ends all: the chief saves. `python -m distmnist.launch
# --launcher=ssh` does more: it restarts tasks, too.
set -euo pipefail

if [[ $# -lt 2 || ! -r $1 || $2 != -- ]]; then
  echo "usage: $0 HOSTS_FILE -- <flags of train>" >&2
  exit 2
fi
root=$(cd "$(dirname "$0")/.." && pwd)
dir=${DIR:-$root} python=${PYTHON:-.venv/bin/python} logs=${LOGS:-logs}
mkdir -p "$logs"

roles=() addresses=() hosts=()
while read -r role address host || [[ -n $role ]]; do
  [[ -z $role || $role == '#'* ]] && continue
  roles+=("$role") addresses+=("$address") hosts+=("${host:-${address%:*}}")
done <"$1"
shift 2

list_hosts() { # JOB: its addresses, with commas
  local found=() i
  for i in "${!roles[@]}"; do
    [[ ${roles[i]} == "$1" ]] && found+=("${addresses[i]}")
  done
  (IFS=, && echo "${found[*]}")
}
cluster=("--ps_hosts=$(list_hosts ps)" "--worker_hosts=$(list_hosts worker)")

# A task's own process is in this file on its host, which ends it.
pid_file() { echo "/tmp/distmnist_${USER:-$UID}_${addresses[$1]}.pid"; }
tasks=()
end_all() {
  local i
  for i in "${!tasks[@]}"; do
    kill -0 "${tasks[i]}" 2>/dev/null &&
      ssh -n "${hosts[i]}" "kill \$(cat $(pid_file "$i"))" 2>/dev/null &
  done
  wait
}
trap end_all EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

declare -A next=([ps]=0 [worker]=0)
for i in "${!roles[@]}"; do
  role=${roles[i]} index=${next[${roles[i]}]}
  next[$role]=$((index + 1))
  command=("$python" -m distmnist.train "--job_name=$role"
    "--task_index=$index" "${cluster[@]}" "$@")
  output=$logs/${role}_$index.log
  [[ $role$index == worker0 ]] && output=/dev/stdout
  # In a session of its own, Ctrl-C does not end ssh before its task.
  setsid ssh -n "${hosts[i]}" "cd $(printf %q "$dir") &&
    echo \$\$ >$(pid_file "$i") && exec $(printf '%q ' "${command[@]}")" \
    >"$output" 2>&1 &
  tasks+=($!)
done

# All end by themselves, with 0; the first that fails ends the others.
for _ in "${tasks[@]}"; do
  wait -n || exit
done
