"""Test metrics of checkpoints, with no cluster.

  python -m distmnist.evaluate --logdir=logs/run

evaluates the latest checkpoint of a run. The model and data set are those the
run was started with; flags given here override them.
"""

import distmnist.runtime  # noqa: F401  TensorFlow, quiet and in graph mode.

# isort: split
import functools

from absl import flags

from distmnist.common import cli, console
from distmnist.data import split as split_lib
from distmnist.logdir import saved_run
from distmnist.problems import images
from distmnist.training import divergence, evaluation
from distmnist.training import evaluator as evaluator_lib
from distmnist.training.problems import problem as problem_lib
from distmnist.training.problems import (
  problem_data,
  problem_errors,
  saved_problem,
)

_CONTINUOUS = flags.DEFINE_bool(
  'continuous', False, 'Evaluate each new checkpoint until the run has ended.'
)
_SPLIT = flags.DEFINE_enum(
  'split', 'test', ['test', 'validation', 'train'], 'What to evaluate on.'
)

# What --help explains.
_FIRST_FLAGS = 'logdir', 'checkpoint', 'split', 'continuous', 'problem'


def main() -> None:
  with problem_errors.explained():
    evaluate()


def evaluate() -> None:
  """Prints the metrics of a checkpoint, or of each new one."""
  console.print_logs(console.print_to_stderr)
  # A continuous evaluator may be started before the run.
  logdir, problem = saved_problem.load(
    evaluator_lib.timeout_secs_from_flags() if _CONTINUOUS.value else 0
  )
  if not _CONTINUOUS.value:
    check = _make_check(problem)

    @functools.cache  # Called only if there is a checkpoint.
    def make_evaluator() -> evaluation.Evaluator:
      return evaluation.Evaluator(problem, _load_split(problem))

    line = saved_run.use_checkpoint(
      lambda: saved_run.find_checkpoint(logdir, check.find),
      lambda path: evaluator_lib.describe(make_evaluator(), path, _SPLIT.value),
    )
    print(line)
    return
  evaluator = evaluation.Evaluator(problem, _load_split(problem))
  # The run's own flag, unless it is given here.
  secs_to_wait = evaluator_lib.timeout_secs_from_flags()
  for path in evaluator_lib.follow(logdir, secs_to_wait):
    if line := evaluator_lib.describe_new(evaluator, path, _SPLIT.value):
      print(line, flush=True)


def run() -> None:
  cli.run(main, first_flags=_FIRST_FLAGS, prepare=saved_problem.import_named)


def _make_check(problem: problem_lib.Problem) -> divergence.CheckpointCheck:
  if problem.is_custom:
    return divergence.CheckpointCheck(problem, _load_split(problem))
  # Check before loading the images, which may need a download.
  return divergence.without_data(problem, images.image_shape())


@functools.cache
def _load_split(problem: problem_lib.Problem) -> split_lib.Split:
  if _SPLIT.value == 'test':
    return problem_data.load_test_split(problem)
  train, validation = problem_data.load_training_splits(problem)
  split = train if _SPLIT.value == 'train' else validation
  if not split.num_examples:
    empty = '--split=validation is empty'
    if problem.is_custom:
      raise problem.error(f"{empty}: load('validation') gave no examples")
    raise cli.UsageError(f'{empty}: --validation_images=0')
  return split


if __name__ == '__main__':
  run()
