"""The roles of the tasks of a Slurm step."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from distmnist.cluster.addresses import MAX_NAME_CHARS, check_address
from distmnist.cluster.identity import (
  FIRST_PORT,
  NUM_EVALUATORS,
  NUM_PS,
  Identity,
  short,
)
from distmnist.common import cli
from distmnist.common import names as names_lib
from distmnist.common.names import MAX_TASKS

_HOSTLIST_TOKEN = re.compile(r'\[([^\[\]]*)\]|([^\[\],]+)|(,)|.', re.DOTALL)


def read_slurm(environ: Mapping[str, str]) -> Identity:
  """Returns the Identity of a task of a Slurm step from `environ`.

  Raises:
    cli.UsageError: this is no such task, or the variables do not fit.
  """
  num_ps = _read_number(environ, NUM_PS)
  if not (environ.get('SLURM_PROCID') and environ.get('SLURM_STEP_ID')):
    raise cli.UsageError(
      f'{NUM_PS}={num_ps} is set, but this is not a task of a Slurm step, '
      'which has SLURM_PROCID and SLURM_STEP_ID: start it with srun, or unset '
      f'{NUM_PS}'
    )
  first_port = _read_number(environ, FIRST_PORT, names_lib.FIRST_PORT)
  task = _read_number(environ, 'SLURM_PROCID')
  nodes, counts, total, names = _read_nodes(environ)
  total_name, nodes_name = names
  if task >= total:
    raise cli.UsageError(
      f'SLURM_PROCID={task}, but {total_name}={total}: expected less'
    )
  num_evaluators = _read_number(environ, NUM_EVALUATORS, 0)
  num_members = total - num_evaluators
  if num_ps >= num_members:
    evaluators = f' and {NUM_EVALUATORS}={num_evaluators}'
    raise cli.UsageError(
      f'{NUM_PS}={num_ps}{evaluators if num_evaluators else ""}: no worker is '
      f'left among {total} tasks ({total_name}): ask srun for more with '
      '--ntasks, or set fewer ps'
    )
  last_port = first_port + max(counts) - 1
  if not 1 <= first_port <= last_port <= 65535:
    raise cli.UsageError(
      f'{FIRST_PORT}={first_port} gives {max(counts)} tasks on a host ports up '
      f'to {last_port}: expected ports from 1 to 65535'
    )
  places = [(n, i) for n, count in enumerate(counts) for i in range(count)]
  _check_place(environ, task, places)
  addresses = [f'{nodes[n]}:{first_port + i}' for n, i in places]
  for address in addresses:
    check_address(address, nodes_name)
  if len(set(nodes)) < len(nodes):
    raise cli.UsageError(
      f'{nodes_name}={short.repr(environ[nodes_name])} names a host twice'
    )
  addresses = addresses[:num_members] if num_members > 1 else []
  job, index = ('ps', task) if task < num_ps else ('worker', task - num_ps)
  if task >= num_members:
    job, index = 'evaluator', task - num_members
  return Identity(
    'Slurm',
    tuple(addresses[:num_ps]),
    tuple(addresses[num_ps:]),
    job_name=job,
    task_index=index,
  )


def _read_nodes(
  environ: Mapping[str, str],
) -> tuple[list[str], list[int], int, tuple[str, str]]:
  """Returns where the tasks of a step are.

  Returns:
    (nodes, counts, total, names): the host names, the numbers of tasks on each,
    the number of all tasks, and the names of the variables that have `total`
    and `nodes`.

  Raises:
    cli.UsageError: the variables contradict each other.
  """
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
      'expected the same tasks in each; start them with srun, which sets them'
    )
  return nodes, counts, total, (total_name, nodes_name)


def _check_place(
  environ: Mapping[str, str], task: int, places: Sequence[tuple[int, int]]
) -> None:
  """Checks that this task is where a block distribution would put it.

  Args:
    task: its number in the step.
    places: (index of the node, index on the node) of each task, by number.
  """
  names = 'SLURM_NODEID', 'SLURM_LOCALID'
  found = [
    _read_number(environ, n, places[task][i]) for i, n in enumerate(names)
  ]
  if tuple(found) != places[task]:
    raise cli.UsageError(
      f'SLURM_PROCID={task} is task {found[1]} of node {found[0]}, expected '
      f'task {places[task][1]} of node {places[task][0]}: deal the tasks out '
      'node by node, with srun --distribution=block'
    )


def expand_nodes(text: str, name: str = 'SLURM_JOB_NODELIST') -> list[str]:
  """Returns the hosts of a node list such as 'n[01-03,7],gpu5'.

  A number is padded to the width of the first in its range. If a name has
  several brackets, the last one changes fastest.

  Args:
    name: the variable that has it.

  Raises:
    cli.UsageError: it is not such a list, or names too many.
  """

  def refuse(problem: str) -> cli.UsageError:
    return cli.UsageError(
      f'{name}={short.repr(text)}: {problem}; expected hosts such as '
      'node[01-03,07],gpu5'
    )

  hosts: list[str] = []
  names = ['']
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
      raise refuse(f'{short.repr(token[0])} is not understood')
    if len(names[0]) + len(choices[0]) > MAX_NAME_CHARS:
      raise refuse(f'a name has more than {MAX_NAME_CHARS} characters')
    if len(hosts) + len(names) * len(choices) > MAX_TASKS:
      raise refuse(f'that is more than {MAX_TASKS:,} hosts')
    names = [start + choice for start in names for choice in choices]
  return hosts


def _expand_ranges(text: str) -> list[str] | None:
  """Returns the numbers of '01-03,7', as they are written; None if malformed.

  The list may be cut off above MAX_TASKS.
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
    last = min(last, first + MAX_TASKS)
    numbers += [f'{n:0{width}}' for n in range(first, last + 1)]
    if len(numbers) > MAX_TASKS:
      break
  return numbers


def expand_counts(text: str, name: str = 'SLURM_TASKS_PER_NODE') -> list[int]:
  """Returns the tasks on each node: [2, 2, 2, 1] for '2(x3),1'.

  Raises:
    cli.UsageError: `text` is malformed, or has too many tasks.
  """
  counts, total = [], 0
  for part in text.split(','):
    match = re.fullmatch(r'([0-9]{1,9})(?:\(x([0-9]{1,9})\))?', part)
    if not match or not int(match[1]):
      raise cli.UsageError(
        f'{name}={short.repr(text)}: {short.repr(part)} is not understood; '
        'expected tasks on each host, such as 2(x3),1'
      )
    total += int(match[1]) * int(match[2] or 1)
    if total > MAX_TASKS:
      raise cli.UsageError(
        f'{name}={short.repr(text)}: that is more than {MAX_TASKS:,} tasks'
      )
    counts += [int(match[1])] * int(match[2] or 1)
  return counts


def _choose(environ: Mapping[str, str], *names: str) -> str:
  """Returns the first of `names` that is set."""
  for name in names:
    if environ.get(name):
      return name
  raise cli.UsageError(
    f'{NUM_PS} is set, but neither {" nor ".join(names)} is: start the tasks '
    f'with srun, which sets them, or unset {NUM_PS}'
  )


def _read_number(
  environ: Mapping[str, str], name: str, default: int | None = None
) -> int:
  """Returns the value of a variable, an int >= 0, or `default` if not set."""
  text = environ.get(name, '').strip()
  if not text and default is not None:
    return default
  if not re.fullmatch('[0-9]{1,9}', text):
    raise cli.UsageError(
      f'{name}={short.repr(text)}: expected a whole number from 0 on'
    )
  return int(text)
