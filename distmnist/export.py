"""Writes a SavedModel from a checkpoint, whatever cluster has written that.

  python -m distmnist.export --logdir=logs/run --export_dir=logs/model

takes the latest checkpoint of a run. The model and data set, or the --problem,
are those that the run was started with; flags given here override them. The
SavedModel needs no cluster and no distmnist. It serves images as bytes, see
serving/saved_model.py for its signature, and a --problem as its `spec` and
`serve` say. `python -m distmnist.predict` runs it.
"""

import distmnist.runtime  # noqa: F401  TensorFlow, quiet and in graph mode.

# isort: split
import functools

import tensorflow.compat.v1 as tf

from distmnist.common import cli, console
from distmnist.data import split
from distmnist.lifecycle import restoring
from distmnist.logdir import checkpoints, saved_run
from distmnist.problems import images
from distmnist.serving import saved_model
from distmnist.tables import key_map
from distmnist.training import averages, divergence
from distmnist.training.problems import problem as problem_lib
from distmnist.training.problems import problem_spec, saved_problem


def main() -> None:
  console.print_logs(console.print_to_stderr)
  export_dir = saved_model.export_dir_from_flags()
  saved_model.check_free(export_dir)
  logdir, problem = saved_problem.load()
  checks = []  # The weights are checked for being finite in any case.
  if not problem.is_custom:
    shape = images.image_shape()
    checks = [divergence.without_data(problem, shape).find]
  find_spec = functools.cache(problem_spec.find)

  def write(path: str) -> tuple:
    step, spec = checkpoints.read_step(path), find_spec(problem)
    return step, spec, *export(problem, spec, path, export_dir)

  step, spec, inputs, outputs, num_bytes = saved_run.use_checkpoint(
    lambda: saved_run.find_checkpoint(logdir, *checks), write
  )
  taken = split.describe_specs(inputs)
  given = split.describe_specs(outputs)
  served = f'{taken} -> {given}'
  if not problem.is_custom:
    height, width, channels = spec.shape
    num_classes = outputs['probabilities'].shape[1]
    served = (
      f'images [n, {height}, {width}, {channels}] -> {num_classes} classes'
    )
  print(
    f'step {step}  {problem.describe()}, {served}, '
    f'{num_bytes / 1e6:,.1f} MB  {export_dir}'
  )


def export(
  problem: problem_lib.Problem, spec: object, path: str, export_dir: str
) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor], int]:
  """Writes the SavedModel of a checkpoint.

  The graph is built anew, as for an evaluation: no shards, no device, no
  optimizer, and batch norm uses its averages.

  Args:
    problem: what was trained.
    spec: nest of tf.TensorSpec of one example's x.
    path: of the checkpoint.
    export_dir: new or empty.

  Returns:
    (inputs, outputs, bytes written), tensors [n, ...] by name.

  Raises:
    cli.UsageError: the problem cannot be served, see problem_spec.build.
    cli.RunError: the checkpoint is not whole or is of another model, or the
      SavedModel cannot be written.
  """
  # Nothing is computed: a GPU may be in use by the training.
  config = tf.ConfigProto(device_count={'GPU': 0})
  with problem_lib.open_graph(), tf.Session(config=config) as session:
    inputs, outputs = problem_spec.build(problem, spec)
    variables = _find_variables(outputs)
    restoring.Restorer(averages.name_all(variables)).restore(session, path)
    key_map.fill(session)
    saver = tf.train.Saver(variables)
    key_map.fill_when_loaded()
    num_bytes = saved_model.write(export_dir, session, saver, inputs, outputs)
  return inputs, outputs, num_bytes


def _find_variables(outputs: dict[str, tf.Tensor]) -> list[tf.Variable]:
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
    first_flags=('logdir', 'export_dir', 'checkpoint'),
    prepare=saved_problem.import_named,
  )


if __name__ == '__main__':
  run()
