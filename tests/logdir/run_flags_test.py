"""run_flags: the flags of a run in its folder."""

import types

import pytest
from absl import flags

from distmnist.logdir import run_flags
from distmnist.problems import images


def test_flags_that_were_kept_can_be_given_again(set_flags, tmp_path):
  set_flags('--model=dnn', '--hidden_units=30,20', '--validation_images=7')
  run_flags.write(str(tmp_path))
  set_flags('--model=cnn', '--validation_images=5')
  set_flags(*run_flags.read(str(tmp_path)))
  assert images.describe().startswith('dnn on ')
  found = {flag.name: flag.value for flag in run_flags.ours()}
  assert found['hidden_units'] == ['30', '20']
  assert found['validation_images'] == 7


def test_the_folder_of_the_run_is_none_of_the_flags_kept(set_flags, tmp_path):
  set_flags(f'--logdir={tmp_path}', '--model=cnn', '--hidden_units=30,20')
  run_flags.write(str(tmp_path))
  kept = run_flags.read(str(tmp_path))
  assert {'--model=cnn', '--hidden_units=30,20'} < set(kept)
  assert not [word for word in kept if word.startswith('--logdir')]
  assert [p.name for p in tmp_path.iterdir()] == ['train.flags']


def test_flags_of_libraries_are_not_ours(set_flags):
  set_flags()
  names = {flag.name for flag in run_flags.ours()}
  assert {'logdir', 'model', 'help'} < names
  assert not {'verbosity', 'cli_test_count'} & names


def test_the_flags_of_the_program_itself_are_ours(set_flags, monkeypatch):
  """absl files the flags of __main__ under the path of the program."""
  set_flags()
  flag = types.SimpleNamespace(name='a flag')
  modules = {'/x/train.py': [flag], 'absl.logging': ['another']}
  monkeypatch.setattr('sys.argv', ['/x/train.py'])
  monkeypatch.setattr(
    type(run_flags.FLAGS), 'flags_by_module_dict', lambda self: modules
  )
  assert run_flags.ours() == [flag]


def test_what_a_run_does_not_read_is_not_kept(set_flags, tmp_path, monkeypatch):
  monkeypatch.setattr(run_flags, '_unread', set())
  set_flags('--model=cnn', '--hidden_units=30,20')
  run_flags.leave_out(['model'])
  run_flags.write(str(tmp_path))
  kept = run_flags.read(str(tmp_path))
  assert '--hidden_units=30,20' in kept
  assert not [word for word in kept if word.startswith('--model=')]


@pytest.mark.parametrize(
  'words, found',
  [
    ([], None),
    (['--run_flags_wide'], ('--norun_flags_wide', '--run_flags_wide')),
    (['--run_flags_name=a'], ('no --run_flags_name', '--run_flags_name=a')),
    (
      ['--run_flags_many=8', '--run_flags_many=5'],
      (
        '--run_flags_many=8 --run_flags_many=4',
        '--run_flags_many=8 --run_flags_many=5',
      ),
    ),
  ],
)
def test_a_change_is_found_whatever_the_kind_of_flag(
  set_flags, tmp_path, words, found
):
  kinds = (
    (flags.DEFINE_multi_integer, 'run_flags_many', [8, 4]),
    (flags.DEFINE_bool, 'run_flags_wide', False),
    (flags.DEFINE_string, 'run_flags_name', None),
  )
  names = [name for _, name, _ in kinds]
  for define, name, default in kinds:
    if name not in flags.FLAGS:
      define(name, default, '', module_name='distmnist.tests')
  set_flags()
  run_flags.write(str(tmp_path))
  set_flags(*words)
  assert run_flags.find_changed(str(tmp_path), names) == found


def test_what_changes_from_life_to_life_is_kept_with_its_step(
  set_flags, tmp_path
):
  logdir = str(tmp_path)
  set_flags('--learning_rate=0.05', '--worker_hosts=a:1,b:1')
  assert run_flags.find_changes(logdir) == {}
  run_flags.write(logdir)
  # Other ports, another task, another way to begin and end: the same run.
  words = '--worker_hosts=a:2,b:2', '--task_index=1', '--resume=never'
  set_flags('--learning_rate=0.05', *words, '--stop_grace_secs=9')
  run_flags.write(logdir, 10)
  assert run_flags.read_changes(logdir) == []
  words = '--learning_rate=0.01', '--worker_hosts=a:2,b:2,c:2', '--history'
  set_flags(*words)
  first = {
    'num_workers': ['2', '3'],
    'history': ['false', 'true'],
    'learning_rate': ['0.05', '0.01'],
  }
  assert run_flags.find_changes(logdir) == first
  run_flags.write(logdir, 20)
  run_flags.write(logdir, 30)
  set_flags(*words, '--clip_norm=1')
  run_flags.write(logdir, 40)
  second = {'clip_norm': [None, '1.0']}
  assert run_flags.read_changes(logdir) == [
    {'step': 20, 'changes': first},
    {'step': 40, 'changes': second},
  ]
  assert (
    run_flags.describe_changes(second | {'learning_rate': ['0.05', '0.01']})
    == '--clip_norm none -> 1.0, --learning_rate 0.05 -> 0.01'
  )


def test_a_life_killed_amid_its_first_step_is_kept_once(set_flags, tmp_path):
  set_flags('--learning_rate=0.05')
  run_flags.write(str(tmp_path))
  before = (tmp_path / 'train.flags').read_text()
  set_flags('--learning_rate=0.01')
  run_flags.write(str(tmp_path), 20)
  (tmp_path / 'train.flags').write_text(before)
  run_flags.write(str(tmp_path), 20)
  assert len(run_flags.read_changes(str(tmp_path))) == 1
