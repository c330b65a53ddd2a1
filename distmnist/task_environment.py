"""Who is who, and who am I, where environment variables say it.

TF_CONFIG         JSON, as Kubeflow's TFJob, Vertex AI and others set it: the
                  hosts of each job, and which task this is. Its chief (or
                  master) is worker 0 here, and its workers come after it;
                  without one its worker 0 is the chief. An evaluator is no
                  part of the cluster. One trainer without a ps needs no
                  address: it is one process.
DISTMNIST_NUM_PS  set for all tasks of a Slurm step, which Slurm's own variables
                  describe: the first so many are ps, the others workers. The
                  tasks of a host serve on the ports from DISTMNIST_FIRST_PORT
                  (2222) on, in their order.

Pure: functions of the variables, given as a dict.
"""

import contextlib
import dataclasses
import ipaddress
import json
import re
import reprlib

from distmnist import cli, tasks

TF_CONFIG = 'TF_CONFIG'
NUM_PS = 'DISTMNIST_NUM_PS'
FIRST_PORT = 'DISTMNIST_FIRST_PORT'
# The first one that is set counts.
NAMES = (TF_CONFIG, NUM_PS)

_JOBS = 'chief', 'master', 'ps', 'worker', 'evaluator'
_TF_CONFIG_EXAMPLE = (
  '{"cluster": {"ps": ["host:port"], "worker": ["host:port"]}, '
  '"task": {"type": "worker", "index": 0}}'
)
# More than anybody has, less than would fill the memory.
_MAX_TASKS = 10_000
_MAX_NAME_CHARS = 255
_HOSTLIST_TOKEN = re.compile(r'\[([^\[\]]*)\]|([^\[\],]+)|(,)|.', re.DOTALL)

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 60


@dataclasses.dataclass(frozen=True)
class Identity:
  """Who is who, and which of them this task is.

  Attributes:
    told_by: str, who says so.
    ps_hosts, worker_hosts: tuples of 'host:port'; both empty for one process.
    evaluator_hosts: tuple of str, as far as they are named.
    job_name: 'ps', 'worker' or 'evaluator'.
    task_index: int, the index within the job.
    chief_title: 'chief' or 'master', if worker 0 is called so there, else ''.
  """

  told_by: str
  ps_hosts: tuple = ()
  worker_hosts: tuple = ()
  evaluator_hosts: tuple = ()
  job_name: str = 'worker'
  task_index: int = 0
  chief_title: str = ''


def find(environ):
  """Returns those of NAMES that are set in `environ` (dict), list of str."""
  return [name for name in NAMES if environ.get(name, '').strip()]


def read(environ):
  """Returns the Identity that `environ` (dict) describes, or None.

  Raises:
    cli.UsageError: what is set cannot be understood, or does not fit.
  """
  found = find(environ)
  if not found:
    return None
  if found[0] == TF_CONFIG:
    return read_tf_config(environ[TF_CONFIG])
  return read_slurm(environ)


def check_address(address, where, more=''):
  """Checks that `address`, a str, is host:port.

  Args:
    address: str.
    where: str, who has it, for the error.
    more: str, likewise, at its end.

  Raises:
    cli.UsageError: no host, or a port out of 1..65535.
  """
  host, _, port = address.rpartition(':')
  is_ipv6 = host.startswith('[') and host.endswith(']')
  if (
    not host
    or re.search(r'[\s/@]', host)
    or not host.isprintable()
    or (':' in host and not is_ipv6)
  ):
    raise cli.UsageError(f'{where}: {address!r} is not host:port{more}')
  if not re.fullmatch('[0-9]{1,5}', port) or not 1 <= int(port) <= 65535:
    raise cli.UsageError(
      f'{where}: the port of {address!r} is not a number from 1 to 65535'
    )


def check_differ(addresses):
  """Raises cli.UsageError if two of `addresses`, host:port, are the same."""
  seen = {}
  for address in addresses:
    key = _normalize(address)
    if key not in seen:
      seen[key] = address
      continue
    first = seen[key]
    also = '' if first == address else f', also as {first},'
    raise cli.UsageError(
      f'{address}{also} is given to two tasks: each needs its own'
    )


def _normalize(address):
  """Returns (host, port) of 'host:port', the same for all its spellings."""
  host, _, port = address.rpartition(':')
  host = host.strip('[]').lower().rstrip('.')
  with contextlib.suppress(ValueError):
    host = str(ipaddress.ip_address(host))
  if host in ('localhost', '::1'):
    host = '127.0.0.1'
  return host, int(port)


def read_tf_config(text):
  """Returns the Identity that the value of TF_CONFIG (str) describes.

  Raises:
    cli.UsageError: it is no such JSON, leaves tasks out, contradicts itself.
  """
  try:
    config = json.loads(text)
  except (ValueError, RecursionError) as error:
    raise _bad_config(
      f'{_short.repr(text)} is not JSON ({error}): expected '
      f'{_TF_CONFIG_EXAMPLE}'
    ) from error
  if not isinstance(config, dict):
    raise _bad_config(
      f'{_short.repr(config)} is not an object: expected {_TF_CONFIG_EXAMPLE}'
    )
  if config.get('sparseCluster') is not None:
    raise _bad_config(
      'sparseCluster names only a part of the tasks, and each needs to know '
      'all: expected cluster; with a TFJob set enableDynamicWorker to false'
    )
  jobs = _read_jobs(_get_object(config, 'cluster'))
  chief_title = next((t for t in ('chief', 'master') if jobs[t]), '')
  workers = jobs['chief'] + jobs['master'] + jobs['worker']
  job, index = _read_task(_get_object(config, 'task'), jobs)
  if job in ('chief', 'master'):
    job = 'worker'
  elif job == 'worker' and chief_title:
    index += 1
  if len(workers) == 1 and not jobs['ps']:
    workers = ()
  return Identity(
    TF_CONFIG,
    jobs['ps'],
    workers,
    jobs['evaluator'],
    job,
    index,
    chief_title,
  )


def _bad_config(problem):
  return cli.UsageError(
    f'TF_CONFIG: {problem}; correct it, or give hosts by flags, which win over '
    'it'
  )


def _get_object(config, name):
  """Returns config[name], a dict; an empty one for what is not there."""
  value = config.get(name)
  if value is None:
    return {}
  if not isinstance(value, dict):
    raise _bad_config(
      f'{name} is {_short.repr(value)}: expected an object, as in '
      f'{_TF_CONFIG_EXAMPLE}'
    )
  return value


def _read_jobs(cluster):
  """Returns {job: tuple of addresses} for each of _JOBS."""
  for job in cluster:
    if job not in _JOBS:
      raise _bad_config(
        f'the cluster has a job {_short.repr(job)}: expected {_list(_JOBS)}'
      )
  jobs = {job: _read_hosts(job, cluster.get(job)) for job in _JOBS}
  if jobs['chief'] and jobs['master']:
    raise _bad_config(
      'the cluster has a chief and a master, which is the same: expected one '
      'of them'
    )
  for job in 'chief', 'master':
    if len(jobs[job]) > 1:
      raise _bad_config(
        f'the cluster has {len(jobs[job])} hosts for {job}: expected one'
      )
  if jobs['ps'] and not (jobs['chief'] or jobs['master'] or jobs['worker']):
    raise _bad_config(
      'the cluster has a ps, but nobody who trains: expected a worker or a '
      'chief'
    )
  seen = {}
  for job in _JOBS[:-1]:
    for i, address in enumerate(jobs[job]):
      key = _normalize(address)
      if key in seen:
        raise _bad_config(
          f'{seen[key]} and {job} {i} are both at {address}: each needs an '
          'address of its own'
        )
      seen[key] = f'{job} {i}'
  return jobs


def _read_hosts(job, given):
  """Returns the addresses of a job, a tuple of str."""
  if given is None:
    return ()
  if isinstance(given, dict):
    numbers = {_read_index(key, f'a key of {job}'): key for key in given}
    if sorted(numbers) != list(range(len(given))):
      raise _bad_config(
        f'of {job} the cluster has {_short.repr(sorted(numbers))} alone, and '
        'each task needs to know all: expected a list, or all numbers from 0 on'
      )
    given = [given[numbers[i]] for i in range(len(given))]
  if not isinstance(given, list):
    raise _bad_config(
      f'{job} is {_short.repr(given)}: expected a list of "host:port"'
    )
  for i, address in enumerate(given):
    if not isinstance(address, str):
      raise _bad_config(
        f'{job} {i} is at {_short.repr(address)}: expected "host:port"'
      )
    # An evaluator serves nowhere.
    if job != 'evaluator':
      check_address(address, f'TF_CONFIG: {job} {i} of the cluster')
  return tuple(given)


def _read_task(task, jobs):
  """Returns (job, index), which of `jobs` this task is, as it is called there.

  Where the cluster is empty nobody has to say who he is.
  """
  job, is_alone = task.get('type'), not any(jobs.values())
  if is_alone and job in (None, ''):
    return 'worker', 0
  named = [name for name in _JOBS if jobs[name]]
  if not isinstance(job, str) or job not in _JOBS:
    expected = _list(dict.fromkeys([*named, 'evaluator']))
    what = 'is missing' if job is None else f'is {_short.repr(job)}'
    raise _bad_config(f'the type of the task {what}: expected {expected}')
  index = task.get('index')
  if index is None and is_alone:
    index = 0
  index = _read_index(index, f'the index of the task, a {job},')
  size = len(jobs[job])
  if job == 'evaluator' and not size:
    return job, index  # Vertex AI does not list it.
  if is_alone and job != 'ps':
    size = 1
  if index >= size:
    counts = _list(f'{len(jobs[name])} {name}' for name in named) or 'no task'
    raise _bad_config(
      f'the task is {job} {index}, but the cluster has {counts}: expected one '
      'of these, counted from 0'
    )
  return job, index


def _read_index(value, what):
  """Returns `value` as an int >= 0: some systems write numbers as strings."""
  if isinstance(value, str) and re.fullmatch('[0-9]{1,9}', value):
    return int(value)
  if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
    return value
  given = 'missing' if value is None else _short.repr(value)
  raise _bad_config(f'{what} is {given}: expected a whole number from 0 on')


def _list(names):
  return ', '.join(map(str, names))


def read_slurm(environ):
  """Returns the Identity of a task of a Slurm step by `environ`, a dict.

  Raises:
    cli.UsageError: this is no such task, or the variables do not fit.
  """
  num_ps = _read_number(environ, NUM_PS)
  if not (environ.get('SLURM_PROCID') and environ.get('SLURM_STEP_ID')):
    raise cli.UsageError(
      f'{NUM_PS}={num_ps} is set, but this is no task of a Slurm step, which '
      f'has SLURM_PROCID and SLURM_STEP_ID: start it by srun, or unset {NUM_PS}'
    )
  first_port = _read_number(environ, FIRST_PORT, tasks.FIRST_PORT)
  task = _read_number(environ, 'SLURM_PROCID')
  total_name = _choose(environ, 'SLURM_STEP_NUM_TASKS', 'SLURM_NTASKS')
  nodes_name = _choose(environ, 'SLURM_STEP_NODELIST', 'SLURM_JOB_NODELIST')
  counts_name = _choose(
    environ, 'SLURM_STEP_TASKS_PER_NODE', 'SLURM_TASKS_PER_NODE'
  )
  total = _read_number(environ, total_name)
  nodes = expand_nodes(environ[nodes_name], nodes_name)
  counts = expand_counts(environ[counts_name], counts_name)
  if len(nodes) != len(counts) or sum(counts) != total:
    raise cli.UsageError(
      f'{nodes_name} names {len(nodes)} hosts and {counts_name} has '
      f'{sum(counts)} tasks on {len(counts)}, but {total_name} is {total}: '
      'expected the same tasks in each; start them by srun, which sets them'
    )
  if task >= total:
    raise cli.UsageError(
      f'SLURM_PROCID={task}, but {total_name}={total}: expected less'
    )
  if num_ps >= total:
    raise cli.UsageError(
      f'{NUM_PS}={num_ps} leaves no worker among {total} tasks '
      f'({total_name}): ask srun for more by --ntasks, or set fewer ps'
    )
  last_port = first_port + max(counts) - 1
  if not 1 <= first_port <= last_port <= 65535:
    raise cli.UsageError(
      f'{FIRST_PORT}={first_port} gives {max(counts)} tasks of a host the '
      f'ports to {last_port}: expected ports from 1 to 65535'
    )
  places = [(n, i) for n, count in enumerate(counts) for i in range(count)]
  _check_place(environ, task, places)
  addresses = [f'{nodes[n]}:{first_port + i}' for n, i in places]
  for address in addresses:
    check_address(address, nodes_name)
  if len(set(nodes)) < len(nodes):
    raise cli.UsageError(
      f'{nodes_name}={_short.repr(environ[nodes_name])} names a host twice'
    )
  if total == 1:
    addresses = []
  job, index = ('ps', task) if task < num_ps else ('worker', task - num_ps)
  return Identity(
    'Slurm',
    tuple(addresses[:num_ps]),
    tuple(addresses[num_ps:]),
    job_name=job,
    task_index=index,
  )


def _check_place(environ, task, places):
  """Checks that this task is where tasks dealt out in blocks would be.

  Args:
    environ: dict.
    task: int, its number in the step.
    places: list of (index of the node, index on the node), by number.
  """
  names = 'SLURM_NODEID', 'SLURM_LOCALID'
  found = [
    _read_number(environ, n, places[task][i]) for i, n in enumerate(names)
  ]
  if tuple(found) != places[task]:
    raise cli.UsageError(
      f'SLURM_PROCID={task} is task {found[1]} of node {found[0]}, expected '
      f'task {places[task][1]} of node {places[task][0]}: deal the tasks out '
      'node by node, by srun --distribution=block'
    )


def expand_nodes(text, name='SLURM_JOB_NODELIST'):
  """Returns the hosts of a node list such as 'n[01-03,7],gpu5', list of str.

  A number is as wide as the first one of its range. With several brackets in
  a name the last one changes fastest.

  Args:
    text: str.
    name: str, the variable that has it.

  Raises:
    cli.UsageError: it is not such a list, or names too many.
  """

  def refuse(problem):
    return cli.UsageError(
      f'{name}={_short.repr(text)}: {problem}; expected hosts such as '
      'node[01-03,07],gpu5'
    )

  hosts, names = [], ['']
  for token in _HOSTLIST_TOKEN.finditer(text + ','):
    brackets, plain, comma = token.groups()
    if comma:
      if not names[0]:
        raise refuse('a name is empty')
      hosts += names
      names = ['']
      continue
    if brackets is not None:
      choices = _expand_ranges(brackets)
    else:
      choices = [plain] if plain else None
    if not choices:
      raise refuse(f'{_short.repr(token[0])} is not understood')
    if len(names[0]) + len(choices[0]) > _MAX_NAME_CHARS:
      raise refuse(f'a name has more than {_MAX_NAME_CHARS} characters')
    if len(hosts) + len(names) * len(choices) > _MAX_TASKS:
      raise refuse(f'that is more than {_MAX_TASKS:,} hosts')
    names = [start + choice for start in names for choice in choices]
  return hosts


def _expand_ranges(text):
  """Returns the numbers of '01-03,7' as a list of str; None if it is not so.

  It may be cut off above _MAX_TASKS.
  """
  numbers = []
  for part in text.split(','):
    match = re.fullmatch('([0-9]{1,18})(?:-([0-9]{1,18}))?', part)
    if not match:
      return None
    first, last = int(match[1]), int(match[2] or match[1])
    if last < first:
      return None
    width = len(match[1])
    last = min(last, first + _MAX_TASKS)
    numbers += [f'{n:0{width}}' for n in range(first, last + 1)]
    if len(numbers) > _MAX_TASKS:
      break
  return numbers


def expand_counts(text, name='SLURM_TASKS_PER_NODE'):
  """Returns the tasks of each node by '2(x3),1', here [2, 2, 2, 1].

  Raises:
    cli.UsageError: it is not so, or they are too many.
  """
  counts, total = [], 0
  for part in text.split(','):
    match = re.fullmatch(r'([0-9]{1,9})(?:\(x([0-9]{1,9})\))?', part)
    if not match or not int(match[1]):
      raise cli.UsageError(
        f'{name}={_short.repr(text)}: {_short.repr(part)} is not understood; '
        'expected tasks on each host, such as 2(x3),1'
      )
    total += int(match[1]) * int(match[2] or 1)
    if total > _MAX_TASKS:
      raise cli.UsageError(
        f'{name}={_short.repr(text)}: that is more than {_MAX_TASKS:,} tasks'
      )
    counts += [int(match[1])] * int(match[2] or 1)
  return counts


def _choose(environ, *names):
  """Returns the first of `names` that is set."""
  for name in names:
    if environ.get(name):
      return name
  raise cli.UsageError(
    f'{NUM_PS} is set, but neither {" nor ".join(names)} is: start the tasks '
    f'by srun, which sets them, or unset {NUM_PS}'
  )


def _read_number(environ, name, default=None):
  """Returns the value of a variable, an int >= 0, or `default` if not set."""
  text = environ.get(name, '').strip()
  if not text and default is not None:
    return default
  if not re.fullmatch('[0-9]{1,9}', text):
    raise cli.UsageError(
      f'{name}={_short.repr(text)}: expected a whole number from 0 on'
    )
  return int(text)
