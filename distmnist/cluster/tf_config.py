"""TF_CONFIG: the cluster as Kubeflow, Vertex AI and Estimators give it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from distmnist.cluster import addresses
from distmnist.cluster.identity import TF_CONFIG, Identity, short
from distmnist.common import cli

_JOBS = 'chief', 'master', 'ps', 'worker', 'evaluator'


_TF_CONFIG_EXAMPLE = (
  '{"cluster": {"ps": ["host:port"], "worker": ["host:port"]}, '
  '"task": {"type": "worker", "index": 0}}'
)


def read_tf_config(text: str) -> Identity:
  """Returns the Identity that the value of TF_CONFIG describes.

  Raises:
    cli.UsageError: it is not such JSON, leaves tasks out or contradicts itself.
  """
  try:
    config = json.loads(text)
  except (ValueError, RecursionError) as error:
    raise _bad_config(
      f'{short.repr(text)} is not JSON ({error}): expected {_TF_CONFIG_EXAMPLE}'
    ) from error
  if not isinstance(config, dict):
    raise _bad_config(
      f'{short.repr(config)} is not an object: expected {_TF_CONFIG_EXAMPLE}'
    )
  if config.get('sparseCluster') is not None:
    raise _bad_config(
      'sparseCluster names only some of the tasks, but each needs to know all: '
      'expected cluster; with a TFJob, set enableDynamicWorker to false'
    )
  jobs = _read_jobs(_get_object(config, 'cluster'))
  chief_alias = next((t for t in ('chief', 'master') if jobs[t]), '')
  workers = jobs['chief'] + jobs['master'] + jobs['worker']
  job, index = _read_task(_get_object(config, 'task'), jobs)
  if job in ('chief', 'master'):
    job = 'worker'
  elif job == 'worker' and chief_alias:
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
    chief_alias,
  )


def _bad_config(problem: str) -> cli.UsageError:
  return cli.UsageError(
    f'TF_CONFIG: {problem}; correct it, or give hosts by flags, which override '
    'it'
  )


def _get_object(config: Mapping[str, Any], name: str) -> dict[str, Any]:
  """Returns config[name]; an empty one if it is missing."""
  value = config.get(name)
  if value is None:
    return {}
  if not isinstance(value, dict):
    raise _bad_config(
      f'{name} is {short.repr(value)}: expected an object, as in '
      f'{_TF_CONFIG_EXAMPLE}'
    )
  return value


def _read_jobs(cluster: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
  """Returns {job: addresses} for each of _JOBS."""
  for job in cluster:
    if job not in _JOBS:
      raise _bad_config(
        f'the cluster has a job {short.repr(job)}: expected {_list(_JOBS)}'
      )
  jobs = {job: _read_hosts(job, cluster.get(job)) for job in _JOBS}
  if jobs['chief'] and jobs['master']:
    raise _bad_config(
      'the cluster has a chief and a master, which are the same: expected one '
      'of them'
    )
  for job in 'chief', 'master':
    if len(jobs[job]) > 1:
      raise _bad_config(
        f'the cluster has {len(jobs[job])} hosts for {job}: expected one'
      )
  if jobs['ps'] and not (jobs['chief'] or jobs['master'] or jobs['worker']):
    raise _bad_config(
      'the cluster has a ps, but no task that trains: expected a worker or a '
      'chief'
    )
  seen: dict[tuple[str, int], str] = {}
  for job in _JOBS[:-1]:
    for i, address in enumerate(jobs[job]):
      key = addresses.normalize(address)
      if key in seen:
        raise _bad_config(
          f'{seen[key]} and {job} {i} are both at {address}: each needs an '
          'address of its own'
        )
      seen[key] = f'{job} {i}'
  return jobs


def _read_hosts(job: str, given: Any) -> tuple[str, ...]:
  """Returns the addresses of a job, a tuple of str."""
  if given is None:
    return ()
  if isinstance(given, dict):
    numbers = {_read_index(key, f'a key of {job}'): key for key in given}
    if sorted(numbers) != list(range(len(given))):
      raise _bad_config(
        f'of {job} the cluster has only {short.repr(sorted(numbers))}, but '
        'each task needs to know all: expected a list, or all numbers from 0 up'
      )
    given = [given[numbers[i]] for i in range(len(given))]
  if not isinstance(given, list):
    raise _bad_config(
      f'{job} is {short.repr(given)}: expected a list of "host:port"'
    )
  for i, address in enumerate(given):
    if not isinstance(address, str):
      raise _bad_config(
        f'{job} {i} is at {short.repr(address)}: expected "host:port"'
      )
    # An evaluator serves nowhere.
    if job != 'evaluator':
      addresses.check_address(address, f'TF_CONFIG: {job} {i} of the cluster')
  return tuple(given)


def _read_task(
  task: Mapping[str, Any], jobs: Mapping[str, tuple[str, ...]]
) -> tuple[str, int]:
  """Returns (job, index), which of `jobs` this task is, as it is called there.

  If the cluster is empty, no task needs to be named.
  """
  job, is_alone = task.get('type'), not any(jobs.values())
  if is_alone and job in (None, ''):
    return 'worker', 0
  named = [name for name in _JOBS if jobs[name]]
  if not isinstance(job, str) or job not in _JOBS:
    expected = _list(dict.fromkeys([*named, 'evaluator']))
    what = 'is missing' if job is None else f'is {short.repr(job)}'
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


def _read_index(value: Any, what: str) -> int:
  """Returns `value` as an int >= 0: some systems write numbers as strings."""
  if isinstance(value, str) and re.fullmatch('[0-9]{1,9}', value):
    return int(value)
  if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
    return value
  given = 'missing' if value is None else short.repr(value)
  raise _bad_config(f'{what} is {given}: expected a whole number from 0 on')


def _list(names: Iterable[object]) -> str:
  return ', '.join(map(str, names))
