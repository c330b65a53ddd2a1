"""saved_run: the flags and the checkpoint of a run that is over."""

import functools
import os
import pathlib
import shutil

import pytest

from distmnist.common import cli
from distmnist.logdir import logdirs, run_flags, saved_run
from distmnist.problems import images
from tests.logdir.checkpoints_test import save


@pytest.fixture
def run(set_flags, tmp_path, monkeypatch):
  """A run of a cnn, with steps 3 and 12 and step 3 as the best."""
  monkeypatch.setattr('sys.argv', ['test'])
  folder = tmp_path / 'run'
  (folder / 'best').mkdir(parents=True)
  set_flags('--model=cnn', '--dataset=synthetic')
  logdirs.make(str(folder))
  run_flags.write(str(folder))
  for step in (3, 12):
    save(str(folder), step=step, w=[2])
  save(str(folder / 'best'), step=3, w=[2])
  set_flags('--model=mlp', '--dataset=mnist')
  return folder


@pytest.mark.parametrize(
  'words, expected',
  [
    (['--logdir={run}'], '{run}/model.ckpt-12'),
    (['--logdir={run}', '--checkpoint=3'], '{run}/model.ckpt-3'),
    (['--logdir={run}', '--checkpoint=best'], '{run}/best/model.ckpt-3'),
    (['--checkpoint={run}/model.ckpt-3'], '{run}/model.ckpt-3'),
    (['--checkpoint={run}/best/model.ckpt-3'], '{run}/best/model.ckpt-3'),
  ],
)
def test_a_checkpoint_comes_with_the_flags_of_its_run(
  set_flags, run, words, expected
):
  set_flags(*(word.format(run=run) for word in words))
  logdir = saved_run.logdir_from_flags()
  assert logdir == str(run)
  assert saved_run.find_checkpoint(logdir) == expected.format(run=run)
  saved_run.take_flags(logdir)
  assert images.describe() == 'cnn on synthetic'


def test_the_command_line_wins_over_the_flags_of_the_run(
  set_flags, run, monkeypatch
):
  words = [f'--logdir={run}', '--model=dnn']
  monkeypatch.setattr('sys.argv', ['test', *words])
  set_flags(*words)
  # A problem that the flags name is imported before they are parsed.
  known = []
  saved_run.take_flags(
    str(run), prepare=lambda words: known.append((words, images.describe()))
  )
  assert images.describe() == 'dnn on synthetic'
  [(given, before)] = known
  assert before == 'dnn on mnist'
  assert given[-2:] == words and '--dataset=synthetic' in given


def test_a_checkpoint_taken_out_of_its_run_has_the_flags_given(
  set_flags, run, tmp_path
):
  for file in run.glob('model.ckpt-12.*'):
    shutil.copy(file, tmp_path)
  path = str(tmp_path / 'model.ckpt-12')
  set_flags(f'--checkpoint={path}', '--model=dnn')
  logdir = saved_run.logdir_from_flags()
  saved_run.take_flags(logdir)
  assert images.describe() == 'dnn on mnist'
  assert saved_run.find_checkpoint(logdir) == path


def test_a_checkpoint_in_this_very_folder_needs_no_path(
  set_flags, run, monkeypatch
):
  monkeypatch.chdir(run)
  set_flags('--checkpoint=model.ckpt-3')
  logdir = saved_run.logdir_from_flags()
  saved_run.take_flags(logdir)
  assert images.describe() == 'cnn on synthetic'
  assert saved_run.find_checkpoint(logdir) == 'model.ckpt-3'


def find_divergence(path):
  return 'the loss computed from it is nan' if path.endswith('-12') else None


def test_what_has_diverged_is_named_and_the_one_before_it_taken(
  set_flags, run, logged
):
  set_flags(f'--logdir={run}')
  found = saved_run.find_checkpoint(str(run), find_divergence)
  assert found == f'{run}/model.ckpt-3'
  assert logged == [
    f'checkpoint {run}/model.ckpt-12 is of a training that has diverged, and'
    ' not used: the loss computed from it is nan'
  ]


def test_what_has_diverged_is_taken_where_it_is_asked_for(
  set_flags, run, logged
):
  set_flags(f'--logdir={run}', '--checkpoint=12')
  found = saved_run.find_checkpoint(str(run), find_divergence)
  assert found == f'{run}/model.ckpt-12'
  assert logged == [
    f'checkpoint {found} is of a training that has diverged: the loss'
    ' computed from it is nan'
  ]


def test_all_that_have_diverged_are_no_checkpoint(set_flags, run):
  set_flags(f'--logdir={run}')
  with pytest.raises(
    cli.RunError, match='or name one that has diverged by --checkpoint$'
  ):
    saved_run.find_checkpoint(str(run), lambda path: 'its loss is nan')


@pytest.mark.parametrize('which', ['7', 'best'])
def test_without_a_logdir_a_run_is_asked_for(set_flags, which):
  set_flags(f'--checkpoint={which}')
  with pytest.raises(cli.UsageError, match='^--logdir is missing: the dir'):
    saved_run.logdir_from_flags()


def test_a_run_that_is_not_there_is_waited_for_as_long_as_told(
  set_flags, run, monkeypatch
):
  set_flags(f'--logdir={run}')
  path = pathlib.Path(run, 'train.flags')
  content = path.read_text()
  path.unlink()
  with pytest.raises(cli.RunError, match='^no run of distmnist.train in'):
    saved_run.take_flags(str(run))
  # It begins while we wait.
  monkeypatch.setattr('time.sleep', lambda secs: path.write_text(content))
  saved_run.take_flags(str(run), timeout_secs=60)
  assert images.describe() == 'cnn on synthetic'


def test_a_problem_that_is_not_here_is_taken_from_the_run(
  run, tmp_path, monkeypatch
):
  def find(*given):
    saved = ['--problem=net.py']
    return saved_run._find_problem(saved, given, str(run))

  assert find() == 'net.py'
  (run / 'problem.py').touch()
  assert find() == f'{run}/problem.py'
  assert find('--problem=mine.py') is None
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'net.py').touch()
  assert find() == 'net.py'


@pytest.mark.skipif(os.geteuid() != 0, reason='only root can give a file away')
@pytest.mark.parametrize(
  'kept, kept_uid, is_refused',
  [
    ('w = 1', 0, False),  # As this user has trained with it.
    ('w = 2', 0, True),
    ('w = 1', 12345, True),
    (None, 0, True),
  ],
)
def test_another_users_file_runs_as_it_was_trained_with(
  run, tmp_path, monkeypatch, kept, kept_uid, is_refused
):
  theirs = tmp_path / 'theirs'
  theirs.mkdir()
  (theirs / 'net.py').write_text('w = 1')
  os.chown(theirs / 'net.py', 12345, 12345)
  if kept is not None:
    (run / 'problem.py').write_text(kept)
    os.chown(run / 'problem.py', kept_uid, kept_uid)
  for named, folder in (('net.py', theirs), (f'{theirs}/net.py', tmp_path)):
    monkeypatch.chdir(folder)
    find = functools.partial(saved_run._find_problem, [f'--problem={named}'])
    if is_refused:
      with pytest.raises(cli.UsageError, match=r'net.py belongs .*uid 12345'):
        find([], str(run))
    else:
      assert find([], str(run)) == named
    assert find([f'--problem={named}'], str(run)) is None
  # A store does not say whose run it has.
  with pytest.raises(cli.UsageError, match=r'net.py belongs .*uid 12345'):
    find([], 's3://bucket/run')
  os.chown(theirs / 'net.py', 0, 0)
  assert find([], str(run)) == named


def test_an_installed_problem_of_another_users_run_is_taken(
  set_flags, run, monkeypatch
):
  monkeypatch.setattr(saved_run.files, 'find_other_owner', lambda *_: ('x', 9))
  find = functools.partial(saved_run._find_problem, given=[], logdir=str(run))
  assert find(['--problem=clicks']) == 'clicks'
  assert find([]) is None
  with pytest.raises(cli.UsageError, match='x belongs to another user'):
    find(['--problem=antigravity'])


def test_flag_files_that_flags_of_a_run_name_hide_no_problem(
  set_flags, run, tmp_path, monkeypatch
):
  monkeypatch.setattr(saved_run.files, 'find_other_owner', lambda *_: ('x', 9))
  (tmp_path / 'more.flags').write_text('--problem=antigravity')
  with open(run / 'train.flags', 'a', encoding='utf-8') as file:
    file.write(f'--flagfile={tmp_path}/more.flags\n')
  set_flags()
  with pytest.raises(cli.UsageError, match='x belongs to another user'):
    saved_run.take_flags(str(run))


@pytest.mark.parametrize('which, is_named', [(None, False), ('12', True)])
def test_a_checkpoint_that_its_run_has_removed_is_replaced_by_the_next(
  set_flags, run, which, is_named
):
  set_flags(*([f'--checkpoint={which}'] if which else []))
  used = []

  def use(path):
    used.append(pathlib.Path(path).name)
    if len(used) == 1:
      for file in run.glob('model.ckpt-12.*'):
        file.unlink()
      save(str(run), step=14, w=[2])
      raise cli.RunError('it cannot be read')
    return path

  def find():
    return saved_run.find_checkpoint(str(run))

  if is_named:
    with pytest.raises(cli.RunError, match='it cannot be read'):
      saved_run.use_checkpoint(find, use)
    return
  assert saved_run.use_checkpoint(find, use) == f'{run}/model.ckpt-14'
  assert used == ['model.ckpt-12', 'model.ckpt-14']


def test_an_error_of_a_checkpoint_that_is_there_stays_one(set_flags, run):
  set_flags()

  def use(path):
    raise cli.RunError('of another model')

  with pytest.raises(cli.RunError, match='of another model'):
    saved_run.use_checkpoint(lambda: f'{run}/model.ckpt-12', use)
