"""Curves of a run that was killed and resumed, as TensorBoard reads them."""

import signal

import pytest
import tensorflow.compat.v1 as tf
from tensorboard.backend.event_processing import event_accumulator

from tests.support.runner import SMALL, wait_for_step

FLAGS = (
  *(*SMALL, '--batch_size=50', '--train_steps=800', '--summary_steps=10'),
  *('--validation_steps=40', '--log_secs=0'),
)


def read_curves(folder):
  """Returns {tag: list of (step, wall time)} that TensorBoard shows."""
  run = event_accumulator.EventAccumulator(
    str(folder), size_guidance={event_accumulator.SCALARS: 0}
  ).Reload()
  return {
    tag: [(event.step, event.wall_time) for event in run.Scalars(tag)]
    for tag in run.Tags()['scalars']
  }


@pytest.mark.slow
def test_curves_do_not_go_back_after_a_kill(tasks, tmp_path):
  """What was written beyond the checkpoint is dropped for what is made anew."""
  logdir = tmp_path / 'run'
  flags = [*FLAGS, f'--logdir={logdir}']
  task = tasks.start(tmp_path / 'killed', *flags, '--save_steps=150')
  wait_for_step(task, 240)
  tasks.signal(task, signal.SIGKILL)
  tasks.wait(task)
  saved = tf.train.latest_checkpoint(str(logdir))
  first_step = int(saved.rpartition('-')[2])
  runs = [logdir / 'metrics' / name for name in ('worker_0', 'validation')]
  worker = runs[0]
  before = {run: read_curves(run) for run in runs}
  begin = max(time for _, time in before[worker]['loss'])
  assert before[worker]['loss'][-1][0] > first_step
  again = tasks.run(tmp_path / 'again', *flags)
  assert again.code == 0, again.output
  for run in runs:
    for tag, points in read_curves(run).items():
      steps = [step for step, _ in points]
      assert steps == sorted(set(steps)), (run.name, tag)
      assert steps[-1] > 760
      # Up to the checkpoint what the killed process wrote, then what this did.
      assert all((time > begin) == (step > first_step) for step, time in points)
      kept = [point for point in before[run][tag] if point[0] <= first_step]
      assert points[: len(kept)] == kept
