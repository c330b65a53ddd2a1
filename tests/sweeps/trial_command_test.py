"""The command of a trial: what it has, and what it must not have."""

import pytest
from absl.testing import flagsaver

from distmnist import sweep
from distmnist.common import cli
from distmnist.sweeps import local_backend, trial_command, trials
from tests.support import sweeps

SECRETS = (
  '--launcher=spark',
  '--master=yarn',
  '--spark_conf=spark.ssl.keyPassword=hunter2',
  '--spark_conf=spark.hadoop.fs.s3a.secret.key=hunter3',
  '--spark_conf=spark.ssl.keyStore=/home/me/store',
)
SPARK = '--launcher=spark', '--master=yarn'


def test_the_trials_share_the_cores(set_flags, monkeypatch):
  monkeypatch.setattr(
    local_backend.os, 'sched_getaffinity', lambda _: range(12)
  )

  def threads(num_parallel, *flags):
    set_flags(
      *('--num_ps=0', '--num_workers=1', f'--parallel={num_parallel}', *flags)
    )
    words = ['a=' + ','.join(map(str, range(num_parallel)))]
    spec = sweep.make_spec(words, ['--a=x'])
    command = sweep.make_command(spec)
    first = trials.make_trials(spec.combinations, 'x')[0]
    return command.make(first, 0)

  alone = threads(1)
  assert alone[:3] == ['python', '-m', 'distmnist.train']
  assert '--intra_op_parallelism_threads=12' in alone
  # What a word names comes after what was given.
  assert alone.index('--a=x') < alone.index('--a=0')
  assert alone[-2:] == ['--logdir=x/01/run', '--resume=auto']
  assert '--intra_op_parallelism_threads=3' in threads(4)
  assert '--intra_op_parallelism_threads=1' in threads(99)
  assert 'threads' not in ' '.join(threads(2, '--launcher=ssh'))
  launched = threads(
    *(2, '--num_ps=1', '--num_workers=3', '--max_restarts=2', '--gpus=0'),
    '--launcher=local',
  )
  assert '--intra_op_parallelism_threads=2' in launched
  assert launched[2 : launched.index('--')] == [
    *('distmnist.launch', '--launcher=local', '--max_restarts=2'),
    *('--num_ps=1', '--num_workers=3'),
    *('--module=distmnist.train', '--logs_dir=x/01/logs'),
  ]


def find_launch_flags(set_flags, *words):
  set_flags('--num_ps=0', '--num_workers=1', *words)
  return sweep.make_command(sweep.make_spec(['a=1,2'], [])).launch_flags


@pytest.mark.parametrize(
  ('words', 'message'),
  [
    # Without a check here they would have no effect on a single process.
    (['--hosts=a,b'], '--hosts is for --launcher=ssh, and this is'),
    (['--min_workers=1'], '--min_workers=1 does not fit --num_ps=0'),
    (['--live_table=on'], '--live_table=on is not for a sweep'),
    (['--launcher=kubernetes'], '--launcher=kubernetes is not for a sweep'),
    (
      ['--launcher=slurm', '--noslurm_wait'],
      '--noslurm_wait is not for a sweep, which waits for each trial',
    ),
  ],
)
def test_flags_of_launch_that_no_trial_could_heed_are_refused(
  set_flags, words, message
):
  with pytest.raises(cli.UsageError) as error:
    find_launch_flags(set_flags, *words)
  assert message in str(error.value)


def test_trials_that_run_at_the_same_time_have_ports_of_their_own(set_flags):
  set_flags('--num_ps=1', '--num_workers=2', '--launcher=ssh', '--hosts=a,b:7')
  spec = sweep.make_spec(['a=1,2'], [])
  command = sweep.make_command(spec)
  first, second = trials.make_trials(spec.combinations, 'x')
  assert '--hosts=a,b:7' in command.make(first, 0)
  assert '--hosts=a:2230,b:15' in command.make(second, 0, slot=2)


def test_trials_of_slurm_may_have_to_wait(set_flags):
  for launcher, logs_dir in ('slurm', 'x/01/logs'), ('ssh', ''):
    set_flags('--num_ps=0', '--num_workers=1', f'--launcher={launcher}')
    spec = sweep.make_spec(['a=1'], [])
    (trial,) = trials.make_trials(spec.combinations, 'x')
    assert sweep.make_command(spec).find_logs_dir(trial) == logs_dir


def test_a_single_process_with_an_evaluator_is_launched(set_flags):
  assert find_launch_flags(set_flags) is None
  assert find_launch_flags(set_flags, '--evaluator') == ['--evaluator']


def test_flags_of_spark_are_for_its_runner_too(set_flags):
  spark = '--runner=spark', '--master=local-cluster[1,1,1024]'
  assert find_launch_flags(set_flags, *spark) is None


@pytest.mark.slow
def test_a_dry_run_shows_no_secret(tmp_path):
  done = sweeps.run_fresh(tmp_path, 'a=1', *SECRETS, '--dry_run')
  assert done.returncode == 0, done.stderr
  assert 'hunter' not in done.stdout + done.stderr
  for word in (
    '--spark_conf=spark.ssl.keyPassword=...',
    '--spark_conf=spark.hadoop.fs.s3a.secret.key=...',
    '--spark_conf=spark.ssl.keyStore=/home/me/store',
  ):
    assert f' {word} ' in done.stdout


@pytest.fixture
def launch_flags():
  sweep.FLAGS.unparse_flags()
  with flagsaver.flagsaver():
    sweep.FLAGS(['sweep', *SECRETS])
    yield


def test_no_secret_is_in_the_command_of_a_trial(launch_flags):
  spec = sweep.make_spec(['a=1'], [])
  command = sweep.make_command(spec)
  (trial,) = trials.make_trials(spec.combinations, 'x')
  made = command.make(trial, 0, '/own/file')
  assert made[3:7] == [
    *('--flagfile=/own/file', '--launcher=spark', '--master=yarn'),
    '--spark_conf=spark.ssl.keyStore=/home/me/store',
  ]
  assert command.secrets == list(SECRETS[2:4])


def make_command():
  return sweep.make_command(sweep.make_spec(['a=1,2'], []))


@pytest.mark.parametrize(
  ('words', 'sweep_dir', 'message'),
  [
    (['--launcher=ssh'], '/shared', '--launcher=ssh needs --hosts'),
    (['--launcher=ssh', '--hosts=a,b'], '/shared', 'names 2 hosts for 1 task'),
    (['--launcher=command'], '/shared', '--launcher=command needs --template'),
    (['--launcher=spark'], '/shared', '--master is missing'),
    (['--launcher=slurm'], None, '--sweep_dir is missing: give a folder that'),
    (
      [*SPARK, '--spark_conf=spark.ssl.keyPassword=a #b'],
      '/shared',
      '--spark_conf=spark.ssl.keyPassword=...: a trial gets a secret in a flag',
    ),
  ],
)
def test_what_no_trial_could_launch_is_refused(
  set_flags, words, sweep_dir, message
):
  set_flags('--num_ps=0', '--num_workers=1', *words)
  with pytest.raises(cli.UsageError) as error:
    trial_command.check_launcher(make_command(), sweep_dir)
  assert message in str(error.value)


def test_what_can_be_launched_is_accepted_in_silence(set_flags, capfd):
  words = '--launcher=ssh', '--hosts=a,b'
  set_flags('--num_ps=1', '--num_workers=2', *words)
  trial_command.check_launcher(make_command(), '/shared')
  assert capfd.readouterr() == ('', '')


@pytest.mark.parametrize(
  'words, message',
  [
    (['--launcher=ssh', '--hosts=a'], 'no ssh on this machine: install'),
    (['--launcher=slurm'], 'no sbatch on this machine: start this on a'),
    (
      ['--launcher=command', '--template=nosuchsub {script}'],
      'no nosuchsub on this machine, which --template=',
    ),
  ],
)
def test_a_missing_client_is_told_once_and_a_dry_run_needs_none(
  set_flags, tmp_path, monkeypatch, words, message
):
  (tmp_path / 'sh').symlink_to('/bin/sh')
  monkeypatch.setenv('PATH', str(tmp_path))
  words = '--num_ps=0', '--num_workers=1', *words
  set_flags(*words)
  with pytest.raises(cli.UsageError, match=f'^{message}'):
    trial_command.check_launcher(make_command(), '/shared')
  set_flags(*words, '--dry_run')
  trial_command.check_launcher(make_command(), '/shared')
