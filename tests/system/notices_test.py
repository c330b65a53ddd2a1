"""What a scheduler sends before it kills: all saves, as on SIGTERM."""

import signal

import pytest

from distmnist.common import signals
from distmnist.logdir import checkpoints
from tests.support.runner import wait_for_line

_TRAIN = '--dataset=synthetic', '--model=softmax', '--train_steps=10000000'


@pytest.mark.daily(but=['10'])
@pytest.mark.slow
@pytest.mark.parametrize('signum', signals.NOTICES)
def test_a_process_saves_what_it_has_trained(tasks, tmp_path, signum):
  logdir = tmp_path / 'run'
  task = tasks.start(tmp_path / 'log', *_TRAIN, f'--logdir={logdir}')
  wait_for_line(task, 'step 1/')
  tasks.signal(task, signum)
  assert tasks.wait(task) == [128 + signum]
  saved = checkpoints.find_latest(str(logdir))
  assert checkpoints.parse_step(saved) > 0, task.output
  assert f'{signal.Signals(signum).name}: saving and stopping' in task.output
