"""Metrics of checkpoints on test or other data, with no cluster.

  python -m distmnist.evaluate --logdir=logs/run

evaluates the latest checkpoint of a run. The model and data set are those the
run was started with; flags given here override them.
"""

from __future__ import annotations

import distmnist.runtime  # noqa: F401  TensorFlow, quiet and in graph mode.

# isort: split
import functools

from absl import flags

from distmnist.common import cli, console
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
  'split',
  None,
  ['test', 'validation', 'train'],
  'What to evaluate on; by default the test data, without any the validation '
  'data, and without these the training data.',
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
      return evaluation.Evaluator(problem, _load_split(problem)[1])

    line = saved_run.use_checkpoint(
      lambda: saved_run.find_checkpoint(logdir, check.find),
      lambda path: evaluator_lib.describe(
        make_evaluator(), path, _load_split(problem)[0]
      ),
    )
    print(line)
    return
  split_name, split = _load_split(problem)
  evaluator = evaluation.Evaluator(problem, split)
  # The run's own flag, unless it is given here.
  secs_to_wait = evaluator_lib.timeout_secs_from_flags()
  for path in evaluator_lib.follow(logdir, secs_to_wait):
    if line := evaluator_lib.describe_new(evaluator, path, split_name):
      print(line, flush=True)


def run() -> None:
  cli.run(main, first_flags=_FIRST_FLAGS, prepare=saved_problem.import_named)


def _make_check(problem: problem_lib.Problem) -> divergence.CheckpointCheck:
  if problem.is_custom:
    return divergence.CheckpointCheck(problem, _load_split(problem)[1])
  # Check before loading the images, which may need a download.
  return divergence.without_data(problem, images.image_shape())


@functools.cache
def _load_split(
  problem: problem_lib.Problem,
) -> tuple[str, problem_data.Examples]:
  """Returns the name and the examples of what to evaluate on."""
  name = _SPLIT.value
  if name is None:
    return problem_data.load_judge(problem)
  if name == 'train':
    return name, problem_data.load_train_split(problem)
  if (split := problem_data.load_split(problem, name)) is None:
    empty = f'--split={name} is empty'
    if problem.is_custom:
      raise problem.error(f'{empty}: load({name!r}) gave no examples')
    raise cli.UsageError(f'{empty}: --validation_images=0')
  return name, split


if __name__ == '__main__':
  run()
