"""restart: what a training begins with."""

import os

import numpy as np
import pytest

from distmnist.common import cli
from distmnist.logdir import (
  checkpoints,
  report,
  run_data,
  run_flags,
  saving,
  worker_records,
)
from distmnist.logdir import restart as restart_lib
from distmnist.problems import images
from distmnist.storage import paths
from distmnist.watching import metrics_file
from tests.logdir.checkpoints_test import save, truncate


def make_again(restart):
  """What a recovery later in the training begins with."""
  restart.go_on()
  return restart.find()


IMAGES = '9 images with checksum 0123abcd'


def make_restart(set_flags, logdir, resume, diverged=()):
  set_flags(f'--resume={resume}')
  restart = restart_lib.from_flags(str(logdir), 10)
  restart.check(
    lambda path: 'the loss is nan' if path in diverged else None,
    IMAGES,
    images.flags_of_meaning(),
  )
  restart.prepare()
  return restart


def test_auto_begins_with_the_latest(set_flags, tmp_path, tf_session):
  path = save(tmp_path, w=[2])
  restart = make_restart(set_flags, tmp_path, 'auto')
  assert restart.find() == path
  assert not restart.is_finished()
  assert make_again(restart) == path
  restart = make_restart(set_flags, tmp_path, 'auto')
  save(tmp_path, step=10, w=[2])
  assert restart.is_finished()


def test_other_images_than_those_of_the_run_are_named(
  set_flags, tmp_path, monkeypatch, logged
):
  save(tmp_path, w=[2])

  def find_said(resume='auto'):
    logged.clear()
    make_restart(set_flags, tmp_path, resume)
    return list(logged)

  assert find_said() == []  # Of an older version, which kept nothing.
  run_data.write(str(tmp_path), IMAGES)
  assert find_said() == []
  run_data.write(str(tmp_path), '8 images with checksum 00000000')
  assert find_said() == [
    f'--logdir={tmp_path} has a run that learnt from 8 images with checksum'
    ' 00000000, and here are 9 images with checksum 0123abcd: its files have'
    ' changed, or --data_dir is another'
  ]
  with monkeypatch.context() as patch:
    patch.setenv('DISTMNIST_ATTEMPT', '2')
    assert find_said() == []
  assert not any('learnt from' in line for line in find_said('never'))


def test_never_moves_the_earlier_run_aside(set_flags, tmp_path):
  path = save(tmp_path, w=[2])
  (tmp_path / 'metrics' / 'worker_0').mkdir(parents=True)
  (tmp_path / 'logs').mkdir()
  restart = make_restart(set_flags, tmp_path, 'never')
  assert restart.find() is None
  [aside] = tmp_path.glob('earlier_*')
  assert (aside / os.path.basename(f'{path}.index')).exists()
  assert (aside / 'metrics' / 'worker_0').exists()
  left = {p.parent for p in tmp_path.rglob('*') if p.is_file()}
  assert left == {aside}
  assert (tmp_path / 'logs').exists()


def test_the_lives_of_a_run_that_left_no_checkpoint_are_of_another(
  set_flags, tmp_path, monkeypatch
):
  def write_life(num_steps):
    (tmp_path / 'train.flags').write_text('--model=mlp')
    stats = report.WorkerStats(0, num_steps, examples=num_steps, life='a')
    metrics_file.Writer(str(tmp_path), 'worker 0', 'a').write(
      'sample', state='training', **stats.to_fields()
    )
    return worker_records.read(str(tmp_path))

  write_life(0)
  make_restart(set_flags, tmp_path, 'auto')  # Nothing was made yet.
  assert not list(tmp_path.glob('earlier_*'))
  lives = write_life(1)
  with monkeypatch.context() as patch:
    patch.setenv('DISTMNIST_ATTEMPT', '2')  # It may have been killed too soon.
    make_restart(set_flags, tmp_path, 'auto')
    assert worker_records.read(str(tmp_path)) == lives
  make_restart(set_flags, tmp_path, 'auto')
  [aside] = tmp_path.glob('earlier_*')
  assert worker_records.read(str(aside)) == lives
  assert worker_records.read(str(tmp_path)) == []
  save(tmp_path, w=[2])
  lives = write_life(1)
  make_restart(set_flags, tmp_path, 'auto')
  assert worker_records.read(str(tmp_path)) == lives


def test_never_goes_on_once_the_launcher_starts_the_task_again(
  set_flags, tmp_path, monkeypatch
):
  path = save(tmp_path, w=[2])
  monkeypatch.setenv('DISTMNIST_ATTEMPT', '2')
  assert make_restart(set_flags, tmp_path, 'never').find() == path


@pytest.mark.parametrize('resume', ['never', 'best'])
def test_what_resume_says_holds_until_the_run_has_begun(
  set_flags, tmp_path, monkeypatch, resume
):
  """A chief may be killed before it has done what --resume says, or after."""
  save(tmp_path, step=9, w=[2])
  if resume == 'best':
    resume = tmp_path / 'best'
    save(resume, step=5, w=[2])
  monkeypatch.setenv('DISTMNIST_LAUNCH_ID', 'second')
  monkeypatch.setenv('DISTMNIST_ATTEMPT', '2')
  found = make_restart(set_flags, tmp_path, resume).find()
  if resume == 'never':
    assert found is None
  else:
    [path] = tmp_path.glob('earlier_*/best')
    assert found == checkpoints.path_of_step(path, 5)
  # Killed before its first checkpoint, and then after it.
  assert make_restart(set_flags, tmp_path, resume).find() == found
  path = save(tmp_path, step=6, w=[2])
  assert make_restart(set_flags, tmp_path, resume).find() == path
  monkeypatch.setenv('DISTMNIST_LAUNCH_ID', 'third')
  if resume == 'never':
    assert make_restart(set_flags, tmp_path, resume).find() is None


class Killed(BaseException):
  """Stands for kill -9."""


def kill_after(num_calls, monkeypatch):
  """Has the chief killed in place of a rename."""
  left, real = [True] * num_calls, paths.rename

  def rename(*names):
    if not left:
      raise Killed
    left.pop()
    real(*names)

  monkeypatch.setattr(paths, 'rename', rename)


@pytest.mark.parametrize('by_launcher', [False, True])
@pytest.mark.parametrize('num_moved', range(7))
def test_a_move_that_a_kill_cuts_short_is_completed(
  set_flags, tmp_path, monkeypatch, num_moved, by_launcher
):
  for step in (100, 900, 1000):
    save(tmp_path, step=step, w=[2])
  (tmp_path / 'metrics' / 'worker_1').mkdir(parents=True)
  (tmp_path / 'metrics' / 'worker_1' / 'before').touch()
  if by_launcher:
    monkeypatch.setenv('DISTMNIST_LAUNCH_ID', 'second')
  with monkeypatch.context() as patch, pytest.raises(Killed):
    kill_after(num_moved, patch)
    make_restart(set_flags, tmp_path, tmp_path)
  if by_launcher:
    monkeypatch.setenv('DISTMNIST_ATTEMPT', '2')
  # Another task of this launch has begun to write.
  (tmp_path / 'metrics' / 'worker_1').mkdir(parents=True, exist_ok=True)
  restart = make_restart(set_flags, tmp_path, tmp_path)
  [aside] = tmp_path.glob('earlier_*')
  assert restart.find() == str(aside / 'model.ckpt-1000')
  assert checkpoints.find_damage(restart.find()) is None
  assert len(list(aside.glob('model.ckpt-*.index'))) == 3
  assert not list(tmp_path.glob('model.ckpt-*'))
  assert (aside / 'metrics' / 'worker_1' / 'before').exists()
  # Once it is complete, the same command by hand begins another run.
  if not by_launcher:
    save(tmp_path, step=1100, w=[2])
    again = make_restart(set_flags, tmp_path, tmp_path)
    assert checkpoints.read_step(again.find()) == 1100


def test_a_move_that_was_cut_short_does_not_count_for_another_start(
  set_flags, tmp_path, monkeypatch
):
  for step in (100, 900):
    save(tmp_path, step=step, w=[2])
  with monkeypatch.context() as patch, pytest.raises(Killed):
    kill_after(1, patch)
    make_restart(set_flags, tmp_path, tmp_path)
  found = make_restart(set_flags, tmp_path, 'auto').find()
  assert found == str(tmp_path / 'model.ckpt-900')
  assert not (tmp_path / 'distmnist-files' / 'begin.json').exists()


@pytest.mark.parametrize('is_folder', [False, True])
@pytest.mark.parametrize('is_own', [False, True])
def test_a_path_is_what_the_training_begins_with(
  set_flags, tmp_path, tf_session, is_folder, is_own
):
  logdir, other = tmp_path / 'run', tmp_path / 'other'
  logdir.mkdir()
  other.mkdir()
  save(logdir, step=5, w=[2])
  path = save(logdir if is_own else other, step=9, w=[2])
  given = os.path.dirname(path) if is_folder else path
  restart = make_restart(set_flags, logdir, given)
  found = restart.find()
  assert checkpoints.read_step(found) == 9
  # What the training has saved itself comes before it from then on.
  own = save(logdir, step=12, w=[2])
  assert make_again(restart) == own


def test_the_best_of_the_run_itself_is_followed_to_where_it_is_moved(
  set_flags, tmp_path, tf_session
):
  save(tmp_path, step=9, w=[2])
  save(tmp_path / 'best', step=5, w=[2])
  restart = make_restart(set_flags, tmp_path, str(tmp_path / 'best'))
  [aside] = tmp_path.glob('earlier_*')
  assert os.path.dirname(restart.find()) == str(aside / 'best')
  assert checkpoints.read_step(restart.find()) == 5
  # An earlier run stays where it is.
  restart = make_restart(set_flags, tmp_path, str(aside / 'best'))
  assert checkpoints.read_step(restart.find()) == 5


def test_a_path_that_is_not_whole_is_refused(set_flags, tmp_path):
  path = save(tmp_path, w=[2])
  truncate(f'{path}.data-00000-of-00001')
  with pytest.raises(cli.RunError, match=r'^--resume=.* is not whole: '):
    make_restart(set_flags, tmp_path / 'logdir', path)


def test_what_was_passed_over_is_moved_aside(tmp_path, logged):
  first, second = (save(tmp_path, step=step, w=[2]) for step in (3, 9))
  truncate(f'{second}.data-00000-of-00001')
  restart = restart_lib.Restart(str(tmp_path), 'auto', 10)
  assert restart.find() == first
  restart.go_on()
  [aside] = tmp_path.glob('passed_over_*')
  assert (aside / 'model.ckpt-9.index').exists()
  assert checkpoints.list_checkpoints(str(tmp_path))[-1] == first
  assert logged[-1] == f'what was passed over is now in {aside}'


def test_a_best_with_no_checkpoint_to_go_on_from_is_moved_aside(
  set_flags, tmp_path
):
  (tmp_path / 'best').mkdir()
  path = save(tmp_path, w=[2])
  make_restart(set_flags, tmp_path, 'auto')
  assert (tmp_path / 'best').exists()
  for name in 'index', 'meta', 'data-00000-of-00001':
    os.remove(f'{path}.{name}')
  make_restart(set_flags, tmp_path, 'auto')
  [aside] = tmp_path.glob('earlier_*')
  assert (aside / 'best').exists()


def test_a_checkpoint_that_has_diverged_is_passed_over(
  logged, set_flags, tmp_path
):
  first, second = (save(tmp_path, step=step, w=[2]) for step in (3, 9))
  restart = make_restart(set_flags, tmp_path, 'auto', [second])
  assert restart.find() == first
  assert logged == [
    f'checkpoint {second} is of a training that has diverged, and not used: '
    'the loss is nan'
  ]
  assert make_again(restart) == first
  assert checkpoints.list_checkpoints(str(tmp_path)) == [first]
  restart = make_restart(set_flags, tmp_path, 'auto', [first])
  with pytest.raises(cli.RunError, match='can be used: .* --resume=never'):
    restart.find()


@pytest.mark.parametrize('is_folder', [False, True])
def test_a_given_path_that_has_diverged_is_refused(
  set_flags, tmp_path, is_folder
):
  path = save(tmp_path, w=[2])
  with pytest.raises(
    cli.RunError, match='^--resume=.* diverged: the loss is nan|can be used'
  ):
    given = tmp_path if is_folder else path
    make_restart(set_flags, tmp_path / 'logdir', given, [path])


@pytest.mark.parametrize('number', [np.nan, -np.inf])
def test_numbers_that_are_not_finite_are_found(
  logged, set_flags, tmp_path, number
):
  """In an optimizer's slots, too, which no loss is computed from."""
  writer = saving.CheckpointWriter(str(tmp_path), 5)
  values = {'w': np.zeros(3), 'w/Momentum': np.zeros(3), 'n': np.arange(3)}
  writer.save_values(values | {'global_step': np.int64(3)}, 3)
  values['w/Momentum'] = np.array([0, number, 0])
  writer.save_values(values | {'global_step': np.int64(9)}, 9)
  restart = make_restart(set_flags, tmp_path, 'auto')
  assert checkpoints.read_step(restart.find()) == 3
  [line] = logged
  assert line.endswith(
    'and not used: w/Momentum has numbers that are not finite'
  )


@pytest.mark.parametrize(
  'changed',
  [
    *('--model=dnn', '--dataset=mnist', '--validation_images=7'),
    *('--synthetic_classes=3', '--synthetic_train_images=80'),
  ],
)
def test_a_run_of_another_model_or_data_set_is_refused(
  set_flags, tmp_path, changed
):
  name = changed.partition('=')[0]
  begun = '--dataset=synthetic', '--synthetic_train_images=60'
  set_flags(*begun)
  run_flags.write(str(tmp_path))
  path = save(tmp_path, w=[2])
  set_flags(*begun, changed)
  restart = restart_lib.from_flags(str(tmp_path), 10)
  with pytest.raises(
    cli.RunError, match=f'has a run with {name}=.*, but {changed} is given: '
  ):
    restart.check(lambda path: None, IMAGES, images.flags_of_meaning())
  # A new run may begin from its weights.
  set_flags(*begun, changed, f'--resume={tmp_path}')
  restart = restart_lib.from_flags(str(tmp_path), 10)
  restart.check(lambda path: None, IMAGES, images.flags_of_meaning())
  restart.prepare()
  assert os.path.basename(restart.find()) == os.path.basename(path)


def test_how_a_training_goes_on_may_change(set_flags, tmp_path):
  set_flags('--learning_rate=0.5', '--data_dir=a')
  run_flags.write(str(tmp_path))
  path = save(tmp_path, w=[2])
  set_flags('--learning_rate=0.1', '--optimizer=adam', '--data_dir=b')
  restart = restart_lib.from_flags(str(tmp_path), 10)
  restart.check(lambda path: None, IMAGES, images.flags_of_meaning())
  restart.prepare()
  assert restart.find() == path


def test_the_checkpoint_of_another_folder_is_another_runs(
  set_flags, tmp_path, tf_session
):
  theirs, ours = tmp_path / 'theirs', tmp_path / 'ours'
  theirs.mkdir()
  ours.mkdir()
  path = save(theirs, step=7, w=[2])
  asked = []

  def is_last(path, step, is_of_other_run):
    asked.append((path, is_of_other_run))
    return step >= 9

  set_flags(f'--resume={theirs}')
  restart = restart_lib.from_flags(str(ours), is_last)
  restart.check(lambda path: None, IMAGES, [])
  restart.prepare()
  assert restart.find() == path and restart.is_of_other_run
  assert not restart.is_finished() and asked == [(path, True)]
  own = save(ours, step=9, w=[2])
  assert restart.find() == own and not restart.is_of_other_run
  assert restart.is_finished() and asked[1:] == [(own, False)]
  # Its own folder: the training goes on as it would have.
  assert not list(ours.glob('earlier_*'))
  restart = make_restart(set_flags, ours, str(ours))
  assert restart.find() and not restart.is_of_other_run


@pytest.mark.parametrize(('last_step', 'looks_so'), [(7, True), (8, False)])
def test_a_run_looks_finished_by_the_name_of_its_last_checkpoint(
  tmp_path, last_step, looks_so
):
  assert not restart_lib.Restart(str(tmp_path), 'auto', 7).looks_finished()
  (tmp_path / 'model.ckpt-7.index').touch()
  (tmp_path / 'model.ckpt-7.data-00000-of-00001').touch()
  found = restart_lib.Restart(str(tmp_path), 'auto', last_step)
  assert found.looks_finished() == looks_so
  # Its chief was killed before it wrote a report.
  said = f'the run in --logdir={tmp_path} has ended at step 7'
  assert found.describe_end() == (said if looks_so else '')
  # The run that begins here moves that one aside.
  assert not restart_lib.Restart(str(tmp_path), 'never', 7).looks_finished()


def test_the_end_of_a_run_is_told_by_its_report(tmp_path):
  found = restart_lib.Restart(str(tmp_path), 'auto', 9)
  assert found.describe_end() == ''
  (tmp_path / 'report.json').write_text('{"global_step": 7}')
  said = f'the run in --logdir={tmp_path} has ended at step 7'
  assert found.describe_end() == said


def test_a_run_does_not_look_finished_if_its_last_checkpoint_is_damaged(
  tmp_path,
):
  (tmp_path / 'model.ckpt-7.index').write_bytes(b'?')
  (tmp_path / 'model.ckpt-7.data-00000-of-00001').touch()

  def is_last(path, step, is_of_other_run):
    del is_of_other_run
    return step >= checkpoints.read_step(path)

  found = restart_lib.Restart(str(tmp_path), 'auto', is_last)
  assert not found.looks_finished()
