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

if [[ $# -lt 2 || ! -f $1 || $2 != -- ]]; then
  echo "usage: $0 HOSTS_FILE -- <flags of train>" >&2
  exit 2
fi
root=$(cd "$(dirname "$0")/.." && pwd)
dir=${DIR:-$root} python=${PYTHON:-.venv/bin/python} logs=${LOGS:-logs}
mkdir -p "$logs"
exec 3>&1

roles=() addresses=() hosts=()
while read -r role address host || [[ -n $role ]]; do
  [[ -z $role || $role == '#'* ]] && continue
  if [[ ! "$role $address $host" =~ ^(ps|worker)\ [^\ ]+:[0-9]+\ [^\ #]*$ ]]; then
    echo "$0: $1: expected '(ps|worker) ADDRESS:PORT [SSH_HOST]', not" \
      "'$role $address $host'" >&2
    exit 2
  fi
  roles+=("$role") addresses+=("$address") hosts+=("${host:-${address%:*}}")
done <"$1"
if [[ "${roles[*]}" != *worker* ]]; then
  echo "$0: $1: expected a worker" >&2
  exit 2
fi
shift 2

list_hosts() { # JOB: its addresses, with commas
  local found=() i
  for i in "${!roles[@]}"; do
    [[ ${roles[i]} == "$1" ]] && found+=("${addresses[i]}")
  done
  (IFS=, && echo "${found[*]}")
}
cluster=("--ps_hosts=$(list_hosts ps)" "--worker_hosts=$(list_hosts worker)")

# It gives up on a host that is not there, or is no more.
ssh=(ssh -n -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=5
  -o ServerAliveCountMax=3)
# On its host, the process of task number I is in this file.
run=$$-$RANDOM-$RANDOM
pid_file() { echo "/tmp/distmnist-$run-$1.pid"; }
tasks=()
end_all() {
  local i
  trap '' INT TERM
  for i in "${!tasks[@]}"; do
    kill -0 "${tasks[i]}" 2>/dev/null || continue
    # It may be starting.
    "${ssh[@]}" "${hosts[i]}" "i=0
      until [ -s $(pid_file "$i") ] || [ \$i = 50 ]; do
        i=\$((i + 1)); sleep 0.2; done
      kill \$(cat $(pid_file "$i"))" &
  done
  wait
}
trap end_all EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

start() { # I INDEX <flags of train>
  local command=("$python" -m distmnist.train "--job_name=${roles[$1]}"
    "--task_index=$2" "${cluster[@]}" "${@:3}") file
  file=$(pid_file "$1")
  # In a session of its own, Ctrl-C does not end ssh before its task.
  exec setsid "${ssh[@]}" "${hosts[$1]}" "cd $(printf %q "$dir") || exit
    $(printf '%q ' "${command[@]}") & echo \$! >$file
    wait \$!; code=\$?; rm $file; exit \$code"
}
declare -A next=([ps]=0 [worker]=0)
for i in "${!roles[@]}"; do
  role=${roles[i]} index=${next[${roles[i]}]}
  next[$role]=$((index + 1))
  if [[ $role$index == worker0 ]]; then
    start "$i" "$index" "$@" >&3 2>&1 &
  else
    start "$i" "$index" "$@" >"$logs/${role}_$index.log" 2>&1 &
  fi
  tasks+=($!)
done

# All end by themselves, with 0; the first that fails ends the others.
for _ in "${tasks[@]}"; do
  wait -n || exit
done
