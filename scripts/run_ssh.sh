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
#   DISTMNIST_PYTHON  Python on the hosts (.venv/bin/python in that folder)
#   DISTMNIST_LOGS    folder here for one log a task (a new temporary one)
#
# The first task that fails ends the others and gives the exit code. Ctrl-C
# ends them all, workers first; once more leaves at once, and the hosts end
# their tasks within 9 s. No task outlives this script. Needs bash 5.1.
set -uo pipefail

say() { echo "run_ssh.sh: $*" >&2; }
usage_error() { say "error: $*"; exit 2; }

# ---- The command line and the hosts file ----
dry_run=false
if [[ ${1-} == --dry_run ]]; then dry_run=true; shift; fi
hosts_file=${1-}
[[ -n $hosts_file && ${2-} == -- ]] ||
  usage_error 'expected [--dry_run] hosts.txt -- <flags of train>'
[[ -f $hosts_file && -r $hosts_file ]] || usage_error "cannot read $hosts_file"
shift 2
for flag in "$@"; do
  [[ ! $flag =~ ^--?(job_name|task_index|ps_hosts|worker_hosts)(=|$) ]] ||
    usage_error "${flag%%=*} is the launcher's to set: leave it out"
done

ps_logins=() ps_hosts=() worker_logins=() worker_hosts=() line_number=0
declare -A seen=()
host_pattern='^([A-Za-z0-9_.][A-Za-z0-9_.-]*@)?[A-Za-z0-9_.][A-Za-z0-9_.-]*$'
while read -r line || [[ -n $line ]]; do
  line_number=$((line_number + 1))
  read -r job login rest <<<"${line%%#*}"
  [[ -n $job ]] || continue
  where="$hosts_file line $line_number"
  [[ $job =~ ^(ps|worker)$ && -n $login && -z $rest ]] ||
    usage_error "$where: expected 'ps HOST[:PORT]' or 'worker HOST[:PORT]'," \
      "got '$line'"
  port=2222
  [[ $login == *:* ]] && port=${login##*:} login=${login%:*}
  # A name that began with a dash would be an option of ssh.
  [[ $login =~ $host_pattern ]] || usage_error "$where: '$login' is no host"
  [[ $port =~ ^[1-9][0-9]{0,4}$ ]] && ((port <= 65535)) ||
    usage_error "$where: '$port' is no port: expected 1 to 65535"
  address=${login##*@}:$port
  [[ -z ${seen[$address]-} ]] ||
    usage_error "$where: $address is taken by line ${seen[$address]}"
  seen[$address]=$line_number
  declare -n logins=${job}_logins hosts=${job}_hosts
  logins+=("$login") hosts+=("$address")
done <"$hosts_file"
((${#worker_hosts[@]})) || usage_error "$hosts_file names no worker"

# ---- The commands ----
# For any POSIX shell: printf %q writes $'...', which only bash reads.
quote() {
  local word
  for word in "$@"; do
    [[ $word =~ ^[A-Za-z0-9_@%+=:,./-]+$ ]] || word="'${word//\'/\'\\\'\'}'"
    printf '%s ' "$word"
  done
}

dir=${DISTMNIST_DIR:-$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)}
cluster=()
if ((${#ps_hosts[@]} + ${#worker_hosts[@]} > 1)); then
  IFS=, eval 'cluster=("--ps_hosts=${ps_hosts[*]}"
    "--worker_hosts=${worker_hosts[*]}")'
fi
train_flags=("$@")

task_command() { # JOB INDEX
  local who=()
  ((${#cluster[@]})) && who=("--job_name=$1" "--task_index=$2" "${cluster[@]}")
  quote "${DISTMNIST_PYTHON:-.venv/bin/python}" -m distmnist.train \
    "${who[@]}" "${train_flags[@]}"
}

# What a host runs. The end of its stdin says that we want the task to leave,
# or are gone ourselves, be it by kill -9 or a cut cable.
remote_script() { # COMMAND
  cat <<END
cd $(quote "$dir") || exit 1
exec 3<&0
$1 </dev/null 3<&- &
task=\$!
{ cat <&3; kill -TERM \$task; sleep 9; kill -KILL \$task; } >/dev/null 2>&1 &
watcher=\$!
exec 3<&-
wait \$task
code=\$?
kill \$watcher
exit \$code
END
}

if $dry_run; then
  for job in ps worker; do
    declare -n logins=${job}_logins
    for i in "${!logins[@]}"; do
      quote ssh "${logins[i]}" "cd $(quote "$dir")&& $(task_command $job "$i")"
      echo
    done
  done
  exit 0
fi

# ---- Start ----
logs=${DISTMNIST_LOGS:-$(mktemp -d "${TMPDIR:-/tmp}/distmnist_logs_XXXXXX")}
mkdir -p "$logs" || usage_error "no folder for the logs: $logs"
fifos=$(mktemp -d)
trap 'rm -rf "$fifos"' EXIT
# All ssh of a job read one pipe; this script alone holds it open.
mkfifo "$fifos/ps" "$fifos/worker"
exec {ps_alive}<>"$fifos/ps" {worker_alive}<>"$fifos/worker"
end_workers() {
  [[ -z $worker_alive ]] || exec {worker_alive}>&-
  worker_alive=
}
end_ps() {
  [[ -z $ps_alive ]] || exec {ps_alive}>&-
  ps_alive=
}

declare -A names=()
start() { # JOB INDEX LOGIN
  local log=$logs/$1_$2.log script
  script=$(remote_script "$(task_command "$1" "$2")")
  (
    # The terminal's signals are ours to pass on, in the right order.
    trap '' INT HUP
    exec {ps_alive}>&- {worker_alive}>&-
    if [[ $1$2 == worker0 ]]; then
      exec > >(tee -a "$log") 2>&1 # the chief's lines are shown
    else
      exec >>"$log" 2>&1
    fi
    exec ssh -o BatchMode=yes -o ServerAliveInterval=15 "$3" \
      "sh -c $(quote "$script")"
  ) <"$fifos/$1" &
  names[$!]="$1 $2"
}

# ---- Wait: the first failure or signal ends the workers, then the ps ----
signal='' failed='' code=0
on_signal() { # NAME EXIT_CODE
  [[ -z $signal ]] || exit "$2"
  signal=$1
  ((code)) || code=$2
  end_workers
}
trap 'on_signal SIGINT 130' INT
trap 'on_signal SIGTERM 143' TERM
trap 'on_signal SIGHUP 129' HUP

say "${#ps_hosts[@]} ps and ${#worker_hosts[@]} worker(s), logs in $logs"
for i in "${!ps_hosts[@]}"; do start ps "$i" "${ps_logins[i]}"; done
for i in "${!worker_hosts[@]}"; do start worker "$i" "${worker_logins[i]}"; done

timer=''
while ((${#names[@]})); do
  if [[ " ${names[*]}" != *' worker '* ]]; then
    # The ps leave by themselves once the workers are done, or are told to.
    [[ -z $signal$failed ]] || end_ps
    [[ -n $timer ]] || { sleep 10 & timer=$!; }
  fi
  # A signal interrupts `wait`, and `ended` is then not set.
  wait -n -p ended "${!names[@]}" $timer
  ended_code=$?
  if [[ -n $timer && ${ended-} == "$timer" ]]; then
    [[ -n $signal$failed ]] || say 'error: a ps still ran after 10 s: stopped'
    ((code)) || code=1
    timer=''
    end_ps
  elif [[ -n ${ended-} ]]; then
    if ((ended_code)) && [[ -z $signal$failed ]]; then
      failed=${names[$ended]} code=$ended_code
      end_workers
    fi
    unset "names[$ended]"
  fi
done
[[ -z $timer ]] || kill "$timer" 2>/dev/null

# ---- The root cause last ----
if [[ -n $failed ]]; then
  job=${failed% *} index=${failed#* } log=$logs/${failed/ /_}.log
  declare -n hosts=${job}_hosts
  say "the last lines of $failed:"
  tail -n 10 "$log" | sed 's/^/  | /' >&2
  say "error: $failed (${hosts[index]}) failed first: exit code $code; log: $log"
elif [[ -n $signal ]]; then
  say "stopped by $signal, logs in $logs"
fi
exit "$code"
