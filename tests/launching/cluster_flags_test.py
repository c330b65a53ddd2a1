import pytest
from absl import flags

from distmnist.common import cli, refusals
from distmnist.launching import cluster_flags


def check(launcher='local', logdir=None):
  """As launch does, before it starts anything."""
  cluster_flags.check_launcher_flags(launcher)
  refusals.refuse(
    cluster_flags.REFUSALS,
    launcher=launcher,
    num_ps=cluster_flags.NUM_PS.value,
    num_workers=cluster_flags.NUM_WORKERS.value,
    logdir=logdir,
  )


@pytest.mark.parametrize(
  'word',
  [
    *('--module=train.py', '--module=mine/train', '--num_ps=10001'),
    *('--num_workers=10001', '--restart_window_secs=-1', '--min_workers=0'),
  ],
)
def test_what_is_out_of_bounds_is_refused(set_flags, word):
  name, value = word.removeprefix('--').split('=')
  with pytest.raises(flags.IllegalFlagValueError, match=f'{name}={value}: '):
    set_flags(word)


def test_ten_thousand_tasks_of_a_kind_are_allowed(set_flags):
  set_flags('--num_ps=10000', '--num_workers=10000', '--min_workers=10000')
  check()


@pytest.mark.parametrize(
  ('words', 'launcher', 'said'),
  [
    (
      ['--min_workers=1', '--num_ps=0'],
      'ssh',
      '--min_workers=1 does not fit --num_ps=0 --num_workers=2: expected a ps,'
      ' and at most --num_workers',
    ),
    (
      ['--min_workers=1'],
      'slurm',
      '--min_workers=1 is for --launcher=local and ssh, and this is'
      ' --launcher=slurm: leave it out',
    ),
    (
      ['--restart_window_secs=1'],
      'kubernetes',
      '--restart_window_secs=1 is for --launcher=local and ssh, and this is'
      ' --launcher=kubernetes: leave it out',
    ),
  ],
)
def test_restart_flags_that_do_not_fit_are_refused(
  set_flags, words, launcher, said
):
  set_flags(*words)
  with pytest.raises(cli.UsageError) as caught:
    check(launcher)
  assert str(caught.value) == said


@pytest.mark.parametrize('launcher', ['local', 'ssh'])
def test_restart_flags_that_fit_pass(set_flags, launcher):
  set_flags('--min_workers=2', '--restart_window_secs=1', '--max_restarts=9')
  check(launcher)


def test_only_slurm_may_be_told_not_to_wait(set_flags):
  set_flags()
  assert cluster_flags.find_no_wait('slurm') is None
  set_flags('--noslurm_wait')
  assert cluster_flags.find_no_wait('slurm') == '--noslurm_wait'
  assert cluster_flags.find_no_wait('local') is None


def test_an_evaluator_needs_a_launcher_that_can_and_a_logdir(set_flags):
  set_flags('--evaluator')
  check('local', 'run')
  check('kubernetes', None)
  check('slurm', 'run')
  with pytest.raises(cli.UsageError, match='--job_name=evaluator --logdir'):
    check('spark', 'run')
  with pytest.raises(cli.UsageError, match='give a --logdir to train'):
    check('ssh', None)
