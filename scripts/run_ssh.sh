#!/usr/bin/env bash
# Runs a cluster over ssh, one task a line of a hosts file:
#
#   scripts/run_ssh.sh [--dry_run] hosts.txt -- <flags of train>
#
#   # hosts.txt; the order counts, the first worker is the chief
#   ps     10.0.0.1          # port 2222
#   worker 10.0.0.2:2300
#   worker me@10.0.0.3
#
# Tasks of one host need different ports. Each host has the package in the
# same folder and a key that lets us in without a password. From outside:
#   DISTMNIST_DIR     folder on the hosts to run in (this checkout's path)
#   DISTMNIST_PYTHON  Python on the hosts (DIR/.venv/bin/python, else python3)
#   DISTMNIST_LOGS    folder here for one log a task (a new temporary one)
#
# The first task that fails ends the others and gives the exit code; Ctrl-C
# ends them all, workers first. No task outlives this script. Needs bash 5.1.
set -uo pipefail

# A worker leaves by force after 8 s (distmnist/preemption.py).
readonly WORKER_GRACE_SECS=9 PS_GRACE_SECS=2 PS_LEAVE_SECS=10

usage_error() {
  echo "run_ssh.sh: error: $*" >&2
  exit 2
}

say() { echo "run_ssh.sh: $*" >&2; }

join() {
  local IFS=,
  echo "$*"
}

# ---- The command line ----
dry_run=false
if [[ ${1-} == --dry_run ]]; then
  dry_run=true
  shift
fi
hosts_file=${1-}
[[ -n $hosts_file && ${2-} == -- ]] ||
  usage_error 'expected [--dry_run] hosts.txt -- <flags of train>'
shift 2
train_flags=("$@")
for flag in "${train_flags[@]}"; do
  case $flag in
    --job_name* | --task_index* | --ps_hosts* | --worker_hosts*)
      usage_error "${flag%%=*} is the launcher's to set: leave it out" ;;
  esac
done

# ---- The hosts file: the spec of the cluster is built once, here ----
[[ -f $hosts_file && -r $hosts_file ]] || usage_error "cannot read $hosts_file"
ps_logins=() ps_hosts=() worker_logins=() worker_hosts=()
line_number=0
declare -A seen=()
while read -r line || [[ -n $line ]]; do
  line_number=$((line_number + 1))
  read -r job login rest <<<"${line%%#*}"
  [[ -n $job ]] || continue
  where="$hosts_file line $line_number"
  [[ $job == ps || $job == worker ]] && [[ -n $login && -z $rest ]] ||
    usage_error "$where: expected 'ps HOST[:PORT]' or 'worker HOST[:PORT]'," \
      "got '$line'"
  port=2222
  if [[ $login == *:* ]]; then
    port=${login##*:}
    login=${login%:*}
  fi
  # A name that began with a dash would be an option of ssh.
  [[ $login =~ ^([A-Za-z0-9_.][A-Za-z0-9_.-]*@)?[A-Za-z0-9_.][A-Za-z0-9_.-]*$ ]] ||
    usage_error "$where: '$login' is no host"
  [[ $port =~ ^[1-9][0-9]{0,4}$ ]] && ((port <= 65535)) ||
    usage_error "$where: '$port' is no port: expected 1 to 65535"
  address=${login##*@}:$port
  [[ -z ${seen[$address]-} ]] ||
    usage_error "$where: $address is taken by line ${seen[$address]}"
  seen[$address]=$line_number
  if [[ $job == ps ]]; then
    ps_logins+=("$login") ps_hosts+=("$address")
  else
    worker_logins+=("$login") worker_hosts+=("$address")
  fi
done <"$hosts_file"
((${#worker_hosts[@]})) || usage_error "$hosts_file names no worker"

# ---- The commands ----
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
dir=${DISTMNIST_DIR:-$root}
python=${DISTMNIST_PYTHON:-python3}
if [[ -z ${DISTMNIST_PYTHON-} && -x $root/.venv/bin/python ]]; then
  python=.venv/bin/python
fi
cluster=()
if ((${#ps_hosts[@]})); then
  cluster+=("--ps_hosts=$(join "${ps_hosts[@]}")")
fi
cluster+=("--worker_hosts=$(join "${worker_hosts[@]}")")

# Quotes words for any POSIX shell: printf %q writes $'...', which only bash
# reads, and the login shell over there is not ours to choose.
quote() {
  local word quoted=()
  for word in "$@"; do
    if [[ ! $word =~ ^[A-Za-z0-9_@%+=:,./-]+$ ]]; then
      word="'${word//\'/\'\\\'\'}'"
    fi
    quoted+=("$word")
  done
  echo "${quoted[*]}"
}

# The command of task $2 of job $1, quoted for the shell of its host.
task_command() {
  local who=("--job_name=$1" "--task_index=$2" "${cluster[@]}")
  # One worker without a ps is no cluster.
  if ((${#ps_hosts[@]} + ${#worker_hosts[@]} == 1)); then
    who=()
  fi
  quote "$python" -m distmnist.train "${who[@]}" "${train_flags[@]}"
}

# What a host runs for the command $1. Signals come as names, a line each, and
# the end of stdin says that we are gone, even by kill -9 or a cut cable: then
# the task is told to leave, and killed if it does not.
remote_script() {
  cat <<END
cd $(quote "$dir") || exit 1
exec 3<&0
$1 </dev/null 3<&- &
task=\$!
{
  while read -r name <&3; do kill -s "\$name" \$task; done
  kill -s TERM \$task; sleep $WORKER_GRACE_SECS; kill -s KILL \$task
} </dev/null >/dev/null 2>&1 &
watcher=\$!
exec 3<&-
wait \$task
code=\$?
kill \$watcher
exit \$code
END
}

if $dry_run; then
  for i in "${!ps_hosts[@]}"; do
    quote ssh "${ps_logins[i]}" "cd $(quote "$dir") && $(task_command ps "$i")"
  done
  for i in "${!worker_hosts[@]}"; do
    quote ssh "${worker_logins[i]}" \
      "cd $(quote "$dir") && $(task_command worker "$i")"
  done
  exit 0
fi

# ---- The tasks that run, by the pid of their ssh ----
declare -A names=() stdins=()
failed= failed_code=0 is_stopping=false
num_signals=0 num_noticed=0 first_signal= nudge=

logs=${DISTMNIST_LOGS:-}
[[ -n $logs ]] || logs=$(mktemp -d "${TMPDIR:-/tmp}/distmnist_logs_XXXXXX")
mkdir -p "$logs" || usage_error "no folder for the logs: $logs"
fifos=$(mktemp -d)
trap 'rm -rf "$fifos"' EXIT

start() {
  local job=$1 index=$2 login=$3 log=$logs/$1_$2.log fifo=$fifos/$1_$2 fd
  local script
  script=$(remote_script "$(task_command "$job" "$index")")
  mkfifo "$fifo"
  (
    # The terminal's signals are ours to pass on, in the right order.
    trap '' INT HUP
    # Only the script itself may keep the others' stdin open.
    for fd in "${stdins[@]}"; do exec {fd}>&-; done
    # The chief's lines are shown, all others' are in their logs only.
    if [[ $job$index == worker0 ]]; then
      exec > >(tee -a "$log") 2>&1
    else
      exec >>"$log" 2>&1
    fi
    exec ssh -o BatchMode=yes -o ServerAliveInterval=15 "$login" \
      "sh -c $(quote "$script")" <"$fifo"
  ) &
  exec {fd}>"$fifo"
  names[$!]="$job $index" stdins[$!]=$fd
}

# Sets pids to those of the tasks of job $1 that run; fails if none does. By a
# variable: bash may lose a signal that comes during a $(command).
find_running() {
  local pid
  pids=()
  for pid in "${!names[@]}"; do
    [[ ${names[$pid]} == "$1 "* ]] && pids+=("$pid")
  done
  ((${#pids[@]}))
}

# Sends the signal $1 to all tasks of job $2.
pass_on() {
  local pid
  find_running "$2"
  for pid in "${pids[@]}"; do
    # Its ssh may be gone, which the next wait says.
    { echo "$1" >&"${stdins[$pid]}"; } 2>/dev/null
  done
}

is_disturbed() {
  ((num_signals > num_noticed)) || { [[ -n $failed ]] && ! $is_stopping; }
}

# Waits for the tasks of job $1, $2 seconds at most ('': for ever); returns
# early, with 1, on a failure or a signal.
wait_for() {
  local timer='' ended code fd
  if [[ -n $2 ]]; then
    sleep "$2" &
    timer=$!
  fi
  while find_running "$1" && ! is_disturbed; do
    # Interrupted by a signal, wait leaves `ended` unset.
    wait -n -p ended "${!names[@]}" $timer $nudge
    code=$? nudge=
    if [[ -n ${ended-} && $ended == "$timer" ]]; then
      timer=
      break
    elif [[ -n ${names[${ended:-none}]-} ]]; then
      if ((code)) && [[ -z $failed ]] && ! $is_stopping; then
        failed=${names[$ended]} failed_code=$code
      fi
      fd=${stdins[$ended]}
      exec {fd}>&-
      unset "names[$ended]" "stdins[$ended]"
    fi
  done
  if [[ -n $timer ]]; then
    kill "$timer"
    wait "$timer" 2>/dev/null
  fi
  ! find_running "$1"
}

# Ends all tasks by the signal $1, the workers first: their last checkpoint
# needs the ps. Who stays, or all on a second signal, is killed.
stop() {
  local job secs other
  is_stopping=true
  num_noticed=$((num_signals > 0))
  for job in worker ps; do
    secs=$WORKER_GRACE_SECS
    [[ $job == ps ]] && secs=$PS_GRACE_SECS
    pass_on "$1" "$job"
    wait_for "$job" "$secs" && continue
    for other in worker ps; do
      [[ $other == "$job" ]] || is_disturbed || continue
      pass_on KILL "$other"
    done
    num_noticed=$((num_signals + 1))
    if ! wait_for "$job" 2; then
      say "no answer from ${#pids[@]} host(s): ssh ended instead"
      kill "${pids[@]}"
    fi
  done
}

on_signal() {
  num_signals=$((num_signals + 1))
  first_signal=${first_signal:-$1}
  # A signal that comes just before `wait` would not interrupt it, but a child
  # that has ended makes it return at once.
  : &
  nudge=$!
}
trap : PIPE # who writes to an ssh that has gone is told by the next wait
for signal in INT TERM HUP; do
  # shellcheck disable=SC2064
  trap "on_signal $signal" "$signal"
done

say "${#ps_hosts[@]} ps and ${#worker_hosts[@]} worker(s), logs in $logs"
for i in "${!ps_hosts[@]}"; do start ps "$i" "${ps_logins[i]}"; done
for i in "${!worker_hosts[@]}"; do start worker "$i" "${worker_logins[i]}"; done

wait_for worker '' && wait_for ps $PS_LEAVE_SECS
find_running ps
late=${#pids[@]}
case $first_signal in
  INT) stop INT ;;
  *) stop TERM ;;
esac

# ---- The root cause last ----
if [[ -n $failed ]]; then
  log=$logs/${failed/ /_}.log
  say "the last lines of $failed:"
  tail -n 10 "$log" | sed 's/^/  | /' >&2
  job=${failed% *} index=${failed#* }
  [[ $job == ps ]] && address=${ps_hosts[index]} || address=${worker_hosts[index]}
  say "error: $failed ($address) failed first: exit code $failed_code; log: $log"
  exit "$failed_code"
elif [[ -n $first_signal ]]; then
  say "stopped by SIG$first_signal, logs in $logs"
  exit $((128 + $(kill -l "$first_signal")))
elif ((late)); then
  say "error: $late ps still ran ${PS_LEAVE_SECS} s after the last worker had" \
    "ended: stopped; logs in $logs"
  exit 1
fi
