"""A run again, in a new log directory: launch --like=LOGDIR.

What is taken over: of train all flags, as train.flags has them, defaults
included; of the launcher what it was given; the number of ps and workers; the
threads of each task. Flags that are given besides win. What is of that run
alone is left out: roles, hosts and ports, its folders, what its later lives
resumed from.
"""

from __future__ import annotations

import itertools
import logging
import os
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from absl import flags

from distmnist.common import cli, command_line, files, help_text, versions
from distmnist.common.names import TRAIN
from distmnist.launching import cluster_flags, jobs, train_flags
from distmnist.logdir import run_flags
from distmnist.storage import paths, urls
from distmnist.watching import metrics_file, run_state

FLAGS = flags.FLAGS
_log = logging.getLogger(__name__)

_LIKE = flags.DEFINE_string(
  'like',
  None,
  'The log directory of a run that is to be made again: with its cluster, '
  'launcher, flags and threads, but what is given besides. Its own new log '
  "directory is train's --logdir, by default LIKE_2, LIKE_3, ...",
)

# Of launch: what names hosts and ports, or is of one launch alone.
_NOT_OF_LAUNCH = (
  *('like', 'logs_dir', 'dry_run', 'help', 'helpfull'),
  *('hosts', 'ray_address', 'master', 'metrics_port', 'kube_name'),
)
# Of train: the role of the chief, and what is of one life alone.
_NOT_OF_TRAIN = (
  *jobs.CLUSTER_FLAGS,
  *('logdir', 'report_file', 'resume', 'help', 'helpfull'),
)
# A negative value is none.
_FLAG = re.compile(r'--?[^\W\d]')
_THREADS = 'intra_op_parallelism_threads', 'inter_op_parallelism_threads'
_SHAPE = 'launcher', 'num_ps', 'num_workers'
# How long a run is: who gives one of them does not want the others' limit.
_LENGTHS = 'epochs', 'train_steps', 'train_secs'


class Launch(NamedTuple):
  """The flags and the cores of a launch.

  Attributes:
    train_flags: for every task, without --flagfile.
    launch_flags: of launch itself, as its record keeps them: secrets hidden.
    num_cores: of this machine, which the workers share; None for all that are
      there, or if `train_flags` say how many threads a task has.
  """

  train_flags: list[str]
  launch_flags: list[str]
  num_cores: int | None = None


def from_flags(given: list[str]) -> Launch:
  """Returns what is launched: what is given, and with --like the run's rest.

  The flags of launch that are taken over become the defaults of this process.

  Args:
    given: the flags of train, without --flagfile.

  Raises:
    cli.UsageError: there is no such run, it is another user's, or its log
      directory would be that of the new run.
  """
  launch_flags = [
    cluster_flags.hide_secret(word)
    for module, its_flags in FLAGS.flags_by_module_dict().items()
    if help_text.is_ours(module)
    for flag in its_flags
    if flag.present and flag.name not in _NOT_OF_LAUNCH
    for word in cluster_flags.make_words(flag)
  ]
  if not _LIKE.value:
    return Launch(given, launch_flags)
  logdir = urls.expand(_LIKE.value)
  _check_owner(logdir)
  lines, _ = metrics_file.read_state(logdir)
  state = run_state.RunState().take(lines)
  launcher, changes = state.launcher or {}, run_flags.read_changes(logdir)
  kept = _read_flags(logdir, launcher)
  num_ps, num_workers = _count(launcher.get('tasks'), kept)
  earlier = _drop(launcher.get('launch_flags', []), _SHAPE)
  _say_secrets(earlier, launch_flags)
  taken = [
    *itertools.filterfalse(cluster_flags.is_secret, earlier),
    f'--launcher={launcher.get("launcher", "local")}',
    *(f'--num_ps={num_ps}', f'--num_workers={num_workers}'),
  ]
  _set_defaults(taken)
  if not state.launcher:
    _say_unknown(logdir)
  new = command_line.find_value(given, 'logdir') or paths.choose_next(logdir)
  if urls.normalize(urls.expand(new)) == urls.normalize(logdir):
    raise cli.UsageError(
      f'--like={_LIKE.value} and --logdir={new} are one folder: give the new '
      'run another --logdir, or none'
    )
  _log.info(f'a run like that in {logdir}, in {new}')
  _say_differences(logdir, state, changes)
  words = _drop(kept, _NOT_OF_TRAIN) + _find_beginning(kept, changes)
  words, num_cores = _settle_threads(words, launcher.get('flags', kept))
  words = _drop(words, _find_idle(words)) + _find_problem(logdir, kept)
  names = _find_names(_join(given))
  names |= {*_LENGTHS} if names & {*_LENGTHS} else set()
  own = [] if 'logdir' in names else [f'--logdir={new}']
  replaced = {name for name in _find_names(launch_flags) if not _is_multi(name)}
  return Launch(
    [*_drop(words, names), *own, *given],
    [*_drop(taken, replaced), *launch_flags],
    num_cores,
  )


def _read_flags(logdir: str, launcher: dict[str, Any]) -> list[str]:
  """Returns the flags of train of a run.

  One that ended before its first step has kept none: then they are those that
  its launcher was given.
  """
  try:
    return [word for word in run_flags.read(logdir) if word]
  except cli.RunError as error:
    if launcher:
      return _join(launcher['flags'])
    raise cli.UsageError(f'--like={_LIKE.value}: {error}') from error


def _join(words: list[str]) -> list[str]:
  """Returns flags as one word each, --name=value for --name value."""
  joined: list[str] = []
  needs_value = False
  for word in words:
    is_flag = bool(_FLAG.match(word))
    if needs_value and not is_flag:
      joined[-1] += f'={word}'
    else:
      joined.append(word)
    needs_value = is_flag and '=' not in word
  return joined


def _find_idle(words: list[str]) -> set[str]:
  """Returns the names of flags that say nothing: they are as by default.

  So are those that this version of train has not, which is told. Those of a
  script, or of a problem's other files, are not known here, and stay.
  """
  if cluster_flags.MODULE.value != TRAIN:
    return set()
  removed, as_default = train_flags.find_idle(words)
  if command_line.find_value(words, 'problem'):
    return as_default
  for name in removed:
    _log.info(f'--{name} is left out: this version of train has no such flag')
  return removed | as_default


def _settle_threads(
  words: list[str], given: list[str]
) -> tuple[list[str], int | None]:
  """Returns `words` without threads that a launcher has chosen, and num_cores.

  On this machine it gives a ps others than a worker, and will do so again.

  Args:
    words: of the chief.
    given: what its user gave.
  """
  threads = command_line.find_value(words, _THREADS[0])
  is_given = any(command_line.find_value(given, name) for name in _THREADS)
  if not threads or is_given or cluster_flags.LAUNCHER.value != 'local':
    return words, None
  num_cores = int(threads) * cluster_flags.NUM_WORKERS.value
  return _drop(words, _THREADS), num_cores


def _find_names(words: Iterable[str]) -> set[str]:
  """Returns the names of the flags among `words`, of a Boolean without `no`."""
  named = filter(_FLAG.match, words)
  names = {word.lstrip('-').partition('=')[0] for word in named}
  return names | {name.removeprefix('no') for name in names}


def explain_flagfile(words: Iterable[str]) -> str | None:
  """Returns what to do instead of --flagfile=LOGDIR/train.flags, or None.

  Args:
    words: the flags of train, as they were given.
  """
  path = command_line.find_value(list(words), 'flagfile') or ''
  folder = os.path.dirname(path)
  if path != run_flags.path_in(folder):
    return None
  return f'to make that run again: --like={folder or "."} before the --'


def _check_owner(logdir: str) -> None:
  """Refuses a run of another user's: what its flags name would run as this."""
  told = run_flags.path_in(logdir), metrics_file.path_of(logdir, 'launcher')
  if other := files.find_other_owner(logdir, *told):
    path, uid = other
    raise cli.UsageError(
      f'--like={_LIKE.value}: {path} belongs to another user (uid {uid}), and '
      'what its flags name would run as you: read it, copy the folder, and give'
      ' the copy'
    )


def _count(tasks: list[str] | None, kept: list[str]) -> tuple[int, int]:
  """Returns how many ps and workers a run had.

  Args:
    tasks: their names, if a launcher has told them.
    kept: the flags of a run whose tasks were started by hand.
  """
  if tasks is not None:
    jobs_of = [name.split()[0] for name in tasks]
    return jobs_of.count('ps'), jobs_of.count('worker')
  hosts = [
    command_line.find_value(kept, f'{job}_hosts') for job in ('ps', 'worker')
  ]
  num_ps, num_workers = (len(h.split(',')) if h else 0 for h in hosts)
  return num_ps, max(1, num_workers)


def _set_defaults(words: list[str]) -> None:
  """Makes what an earlier launch was given the defaults of this one.

  What is given besides to a flag that takes several values comes after those.
  """
  values: dict[str, list[Any]] = {}
  for word in words:
    name, equals, value = word.removeprefix('--').partition('=')
    if not equals:  # A Boolean.
      name, value = (name, True) if name in FLAGS else (name[2:], False)
    if name not in FLAGS:
      raise cli.UsageError(f'--like={_LIKE.value} has {word}, unknown by now')
    values.setdefault(name, []).append(value)
  for name, found in values.items():
    flag = FLAGS[name]
    if _is_multi(name) and flag.present:
      flag.value = [*found, *(flag.value or ())]
    else:
      FLAGS.set_default(name, found if _is_multi(name) else found[-1])


def _is_multi(name: str) -> bool:
  """Whether launch has such a flag, and it takes several values."""
  return name in FLAGS and isinstance(FLAGS[name], flags.MultiFlag)


def _drop(words: Iterable[str], names: Iterable[str]) -> list[str]:
  """Returns `words`, each a --name=value or a Boolean, without those flags."""
  names = {*names}
  return [word for word in words if not names & _find_names([word])]


def _find_beginning(
  kept: list[str], changes: list[dict[str, Any]]
) -> list[str]:
  """Returns the --resume of the first life, if it names a checkpoint."""
  found = command_line.find_value(kept, 'resume')
  for change in reversed(changes):
    found = change['changes'].get('resume', [found])[0]
  return [] if found in (None, 'auto', 'never') else [f'--resume={found}']


def _find_problem(logdir: str, kept: list[str]) -> list[str]:
  """Returns a --problem that wins over the run's: the file as it was then."""
  named = command_line.find_value(kept, 'problem') or ''
  copy = os.path.join(logdir, run_flags.PROBLEM_FILE)
  if not named.endswith('.py') or not paths.exists(copy):
    return []
  if paths.have_same_bytes(os.path.expanduser(named), copy):
    return []
  _log.info(
    f'--problem={named} is not what it was, or not there: {copy} is taken; '
    f'give --problem={named} after the -- for the other'
  )
  return [f'--problem={copy}']


def _say_unknown(logdir: str) -> None:
  """Says what is taken where no launcher has left its record."""
  taken = [
    f'--{flag.name}={flag.value}'
    for flag in (cluster_flags.LAUNCHER, cluster_flags.MODULE)
    if not FLAGS[flag.name].present
  ]
  if taken:
    _log.info(
      f'{logdir} does not say what has launched its run, and of which module: '
      f'{" ".join(taken)} taken; give others before the --'
    )


def _say_secrets(earlier: list[str], given: list[str]) -> None:
  """Says which secrets the run had that are not given again.

  Args:
    earlier: flags of its launch.
    given: flags of this launch, their secrets hidden.
  """
  hidden = [
    cluster_flags.hide_secret(word)
    for word in earlier
    if cluster_flags.is_secret(word)
  ]
  if missing := [word for word in hidden if word not in given]:
    _log.info(
      f'a log directory keeps no secrets: give {" ".join(missing)} again, '
      'which that run had'
    )


def _say_differences(
  logdir: str, state: run_state.RunState, changes: list[dict[str, Any]]
) -> None:
  """Says why the numbers may be others than those of the run."""
  for change in changes:
    told = run_flags.describe_changes(change['changes'])
    _log.info(
      f'{logdir} has changed at step {change["step"]}: {told}; this run has the'
      ' later flags from the beginning'
    )
  chief = state.tasks.get('worker 0')
  then = (chief and chief.start or {}).get('versions', {})
  now = versions.find()
  different = [
    f'{name} {then[name]} -> {now.get(name, "none")}'
    for name in then
    if then[name] != now.get(name)
  ]
  if different:
    _log.info(f'since {logdir} these have changed: {", ".join(different)}')
