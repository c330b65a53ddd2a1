"""Writes a SavedModel from a checkpoint, whatever cluster has written that.

  python -m distmnist.export --logdir=logs/run --export_dir=logs/model

takes the latest checkpoint of a run. The model and data set, or the --problem,
are those that the run was started with; flags given here override them. The
SavedModel needs no cluster and no distmnist. It serves images as bytes, see
serving/saved_model.py for its signature, and a --problem as its `spec` and
`serve` say. `python -m distmnist.predict` runs it.

  python -m distmnist.export --logdir=logs/run --export_dir=logs/delta \
      --since=logs/model

writes only what has changed since an earlier export, see serving/delta.py.
"""

from __future__ import annotations

import distmnist.runtime  # noqa: F401  TensorFlow, quiet and in graph mode.

# isort: split
import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow.compat.v1 as tf

from distmnist.common import cli, console
from distmnist.data import split
from distmnist.lifecycle import restoring
from distmnist.logdir import saved_run
from distmnist.problems import images
from distmnist.serving import delta_writer, saved_model
from distmnist.tables import key_map
from distmnist.training import averages, divergence
from distmnist.training.problems import problem as problem_lib
from distmnist.training.problems import problem_spec, saved_problem


def main() -> None:
  console.print_logs(console.print_to_stderr)
  export_dir = saved_model.export_dir_from_flags()
  saved_model.check_free(export_dir)
  logdir, problem = saved_problem.load()
  base = delta_writer.find_base(logdir)
  # The weights are checked for being finite in any case.
  checks: list[Callable[[str], str | None]] = []
  if not problem.is_custom:
    shape = images.image_shape()
    checks = [divergence.without_data(problem, shape).find]
  find_spec = functools.cache(problem_spec.find)

  def write(path: str) -> str:
    spec = find_spec(problem)
    record = delta_writer.describe(path)
    if base is None:
      found = export(problem, spec, path, export_dir, record)
      return _describe(problem, record, spec, *found, export_dir)
    changed = export_delta(problem, spec, path, export_dir, record, base)
    return _describe_delta(problem, base, record, *changed, export_dir)

  line = saved_run.use_checkpoint(
    lambda: saved_run.find_checkpoint(logdir, *checks), write
  )
  print(line)


def _describe(
  problem: problem_lib.Problem,
  record: Mapping[str, Any],
  spec: Any,
  inputs: Mapping[str, tf.Tensor],
  outputs: Mapping[str, tf.Tensor],
  num_bytes: int,
  export_dir: str,
) -> str:
  """Returns the line that says what was exported."""
  taken = split.describe_specs(inputs)
  given = split.describe_specs(outputs)
  served = f'{taken} -> {given}'
  if not problem.is_custom:
    height, width, channels = spec.shape
    num_classes = outputs['probabilities'].shape[1]
    served = (
      f'images [n, {height}, {width}, {channels}] -> {num_classes} classes'
    )
  return (
    f'step {record["step"]}  {problem.describe()}, {served}, '
    f'{num_bytes / 1e6:,.1f} MB  {export_dir}'
  )


def _describe_delta(
  problem: problem_lib.Problem,
  base: delta_writer.Base,
  record: Mapping[str, Any],
  variables: Mapping[str, Mapping[str, Any]],
  num_bytes: int,
  export_dir: str,
) -> str:
  """Returns the line that says what a delta has."""
  tables = [x for x in variables.values() if 'rows' in x and 'gone' not in x]
  has = ''
  if tables:
    changed = sum(table['rows'] for table in tables)
    rows = sum(table['shape'][0] for table in tables)
    has = f'{changed:,} of {rows:,} rows, '
  if gone := sum(about.get('gone', 0) for about in variables.values()):
    has += f'{gone:,} keys gone, '
  return (
    f'step {base.step} to {record["step"]}  {problem.describe()}, {has}'
    f'{num_bytes / 1e6:,.1f} MB  {export_dir}'
  )


def export(
  problem: problem_lib.Problem,
  spec: object,
  path: str,
  export_dir: str,
  record: dict[str, Any] | None = None,
) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor], int]:
  """Writes the SavedModel of a checkpoint.

  The graph is built anew, as for an evaluation: no shards, no device, no
  optimizer, and batch norm uses its averages.

  Args:
    problem: what was trained.
    spec: nest of tf.TensorSpec of one example's x.
    export_dir: new or empty.
    record: what the SavedModel says of itself, see delta_writer.describe.

  Returns:
    (inputs, outputs, bytes written), tensors [n, ...] by name.

  Raises:
    cli.UsageError: the problem cannot be served, see problem_spec.build.
    cli.RunError: the checkpoint is not whole or is of another model, or the
      SavedModel cannot be written.
  """
  with _open_session() as session:
    inputs, outputs = problem_spec.build(problem, spec)
    variables = _find_variables(outputs)
    restoring.Restorer(averages.name_all(variables)).restore(session, path)
    key_map.fill(session)
    saver = tf.train.Saver(variables)
    key_map.fill_when_loaded()
    num_bytes = saved_model.write(
      export_dir, session, saver, inputs, outputs, record
    )
  return inputs, outputs, num_bytes


def export_delta(
  problem: problem_lib.Problem,
  spec: object,
  path: str,
  export_dir: str,
  record: dict[str, Any],
  base: delta_writer.Base,
) -> tuple[dict[str, dict[str, Any]], int]:
  """Writes what has changed since an earlier state, see serving/delta.py.

  Args:
    problem, spec, path, export_dir, record: as of `export`.
    base: the earlier state.

  Returns:
    (what delta.json says of the variables, bytes written).

  Raises:
    cli.UsageError, cli.RunError: as by `export`, or the earlier state is not of
      this run, is later or is not whole.
  """
  delta_writer.check(base, path, record)
  with _open_session() as session:
    inputs, outputs = problem_spec.build(problem, spec)
    named = averages.name_all(_find_variables(outputs))

    def build_model(folder: str) -> None:
      saver = saved_model.NoVariables([*named.values()])
      key_map.fill_when_loaded()
      saved_model.build(folder, session, saver, inputs, outputs, record)

    return delta_writer.write(
      export_dir, base, path, record, named, build_model
    )


@contextlib.contextmanager
def _open_session() -> Iterator[tf.Session]:
  """Opens a session of a graph of its own."""
  # Nothing is computed: a GPU may be in use by the training.
  config = tf.ConfigProto(device_count={'GPU': 0})
  with problem_lib.open_graph(), tf.Session(config=config) as session:
    yield session


def _find_variables(outputs: Mapping[str, tf.Tensor]) -> list[tf.Variable]:
  """Returns the model's variables, and the global step if `outputs` need it."""
  global_step = tf.train.get_global_step()
  needed, left = set(), [tensor.op for tensor in outputs.values()]
  while left:
    op = left.pop()
    if op not in needed:
      needed.add(op)
      left += [tensor.op for tensor in op.inputs] + op.control_inputs
  return [
    v for v in tf.global_variables() if v is not global_step or v.op in needed
  ]


def run() -> None:
  cli.run(
    main,
    first_flags=('logdir', 'export_dir', 'checkpoint', 'since'),
    prepare=saved_problem.import_named,
  )


if __name__ == '__main__':
  run()
