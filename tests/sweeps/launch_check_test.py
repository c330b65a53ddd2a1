"""What no trial of a sweep could launch is refused once, at the door."""

import pytest

from distmnist import sweep
from distmnist.common import cli
from distmnist.sweeps import launch_check

SPARK = '--launcher=spark', '--master=yarn'


def make_command():
  return sweep.make_command(sweep.make_study(['a=1,2'], []))


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
    launch_check.check(make_command(), sweep_dir)
  assert message in str(error.value)


def test_what_can_be_launched_is_accepted_in_silence(set_flags, capfd):
  words = '--launcher=ssh', '--hosts=a,b'
  set_flags('--num_ps=1', '--num_workers=2', *words)
  launch_check.check(make_command(), '/shared')
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
    launch_check.check(make_command(), '/shared')
  set_flags(*words, '--dry_run')
  launch_check.check(make_command(), '/shared')
