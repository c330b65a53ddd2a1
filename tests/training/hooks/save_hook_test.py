"""save_hook: when the chief saves, and what it does when it cannot."""

import errno
import os
import threading
import types

import pytest
import tensorflow.compat.v1 as tf

from distmnist.common import cli, console, files, partial_names
from distmnist.logdir import checkpoint_reader, checkpoints, saving
from distmnist.tables import table_saver
from distmnist.training.hooks import save_hook


class Others:
  """One ps that wants a checkpoint, or none."""

  def __init__(self):
    self.is_wanted = False
    self.confirmed = []

  def is_save_wanted(self):
    return self.is_wanted

  def confirm_save(self, step):
    self.is_wanted = False
    self.confirmed.append(step)


def find_save_threads():
  return [t for t in threading.enumerate() if t.name == 'save']


class SlowSaver(table_saver.TableSaver):
  """Saves beside the steps, but only while `may_save` is set."""

  def __init__(self):
    super().__init__('/cpu:0')
    self.goes_beside = True
    self.may_save = threading.Event()
    self.may_save.set()
    self.threads = []

  def save(self, session, path):
    self.threads.append(threading.current_thread())
    assert self.may_save.wait(60)
    return super().save(session, path)

  def wait(self):
    """Waits for the save that is under way."""
    self.may_save.set()
    for thread in find_save_threads():
      thread.join(60)


class Chief:
  """A SaveHook on a session whose global step the test sets."""

  def __init__(
    self,
    session,
    folder,
    now,
    save_steps=None,
    saver=None,
    unsaved=None,
    begins=True,
  ):
    self.session, self.now, self.folder = session, now, folder
    self.global_step = tf.train.get_global_step()
    self.steps = types.SimpleNamespace(last={'global_step': 0})
    self.others, self.lines = Others(), []
    self.has_signal = False
    self.center = types.SimpleNamespace(
      saver=saver or table_saver.TableSaver('/cpu:0'),
      is_whole=lambda session: True,
    )
    console.print_logs(self.lines.append)
    self.hook = save_hook.SaveHook(
      self.steps,
      self.global_step,
      self.center,
      saving.CheckpointWriter(str(folder), 5),
      60.0,
      save_steps,
      self.others,
      may_end_partial=lambda: self.has_signal,
      unsaved=unsaved,
    )
    if begins:
      self.hook.after_create_session(session, None)

  def run_to(self, step, secs=1.0):
    self.now[0] += secs
    self.session.run(self.global_step.assign(step))
    self.steps.last['global_step'] = step
    self.hook.after_run(types.SimpleNamespace(session=self.session), None)

  @property
  def saved(self):
    paths = checkpoints.list_checkpoints(str(self.folder))
    return [int(path.rpartition('-')[2]) for path in reversed(paths)]


@pytest.fixture
def now(monkeypatch):
  clock = [1000.0]
  monkeypatch.setattr(save_hook.time, 'monotonic', lambda: clock[0])
  return clock


@pytest.fixture
def session(tf_session):
  tf.train.get_or_create_global_step()
  tf_session.run(tf.global_variables_initializer())
  return tf_session


@pytest.fixture
def disk(monkeypatch):
  """Has `is_full`, which makes each save fail."""
  state, sync = types.SimpleNamespace(is_full=False), files.sync

  def sync_or_fail(path):
    if state.is_full:
      raise OSError(errno.ENOSPC, 'No space left on device')
    sync(path)

  monkeypatch.setattr(files, 'sync', sync_or_fail)
  return state


@pytest.mark.slow
def test_it_saves_at_the_start_at_intervals_and_at_the_end(
  session, tmp_path, now
):
  chief = Chief(session, tmp_path, now, save_steps=10)
  for step in (5, 10, 15):
    chief.run_to(step)
  assert chief.saved == [0, 10]
  chief.run_to(16, secs=61.0)
  assert chief.saved == [0, 10, 16]
  chief.run_to(17)
  chief.hook.save_last(session)
  assert chief.saved == [0, 10, 16, 17]


def test_what_was_restored_is_not_written_again(session, tmp_path, now):
  Chief(session, tmp_path, now)
  before = {p.name: p.stat().st_mtime_ns for p in tmp_path.iterdir()}
  Chief(session, tmp_path, now)
  assert {p.name: p.stat().st_mtime_ns for p in tmp_path.iterdir()} == before


@pytest.mark.slow
def test_a_save_that_fails_is_said_and_tried_again(
  session, tmp_path, now, disk
):
  chief = Chief(session, tmp_path, now, save_steps=10)
  disk.is_full = True
  chief.run_to(10)
  [line] = chief.lines
  assert 'No space left on device; make room there' in line
  assert line.endswith('; the training goes on, next try in 2 s')
  chief.run_to(11)
  assert len(chief.lines) == 1
  chief.run_to(12, secs=2.0)
  assert chief.lines[1].endswith('next try in 4 s')
  disk.is_full = False
  chief.run_to(13, secs=5.0)
  assert chief.saved == [0, 13]
  # What comes after counts anew.
  disk.is_full = True
  chief.run_to(23)
  assert chief.lines[2].endswith('next try in 2 s')


@pytest.mark.slow
def test_after_many_failures_the_training_ends(session, tmp_path, now, disk):
  chief = Chief(session, tmp_path, now, save_steps=1)
  disk.is_full = True
  for step in range(1, 6):
    chief.run_to(step, secs=100.0)
  with pytest.raises(cli.RunError, match='room.*; given up after 6 tries$'):
    chief.run_to(6, secs=100.0)


def test_the_training_goes_on_if_the_first_one_fails_for_what_may_pass(
  session, tmp_path, now, disk, monkeypatch
):
  chief = Chief(session, tmp_path, now)
  for path in tmp_path.iterdir():
    path.unlink()
  chief.hook._writer = saving.CheckpointWriter(str(tmp_path), 5)
  disk.is_full = True
  chief.hook.after_create_session(session, None)
  [line] = chief.lines
  assert line.endswith('; the training goes on, next try in 2 s')
  disk.is_full = False
  chief.run_to(3, secs=3.0)
  assert chief.saved == [3]

  def refuse(path):
    raise OSError(errno.EACCES, 'Permission denied')

  monkeypatch.setattr(files, 'sync', refuse)
  session.run(chief.global_step.assign(5))
  with pytest.raises(saving.SaveError, match='Permission denied'):
    chief.hook.after_create_session(session, None)


def test_a_ps_that_waits_hears_of_what_is_saved_alone(
  session, tmp_path, now, disk
):
  chief = Chief(session, tmp_path, now)
  chief.others.is_wanted = disk.is_full = True
  chief.run_to(3)
  assert chief.others.confirmed == []
  disk.is_full = False
  chief.run_to(4, secs=3.0)
  assert chief.others.confirmed == [4]
  assert chief.saved == [0, 4]


def test_what_is_not_saved_is_known_at_any_time(session, tmp_path, now, disk):
  chief = Chief(session, tmp_path, now, save_steps=10)
  assert chief.hook.find_unsaved() is None
  chief.run_to(5)
  assert chief.hook.find_unsaved() == (
    f'step 5 is not saved: the newest checkpoint is {tmp_path}/model.ckpt-0'
  )
  chief.run_to(10)
  assert chief.hook.find_unsaved() is None
  disk.is_full = True
  chief.run_to(20)
  assert 'step 20 is not saved' in chief.hook.find_unsaved()
  with pytest.raises(saving.SaveError):
    chief.hook.save_last(session)
  assert f'{tmp_path}/model.ckpt-10' in chief.hook.find_unsaved()
  disk.is_full = False
  chief.hook.save_last(session)
  assert chief.hook.find_unsaved() is None


def test_before_its_first_session_nothing_of_earlier_attempts_is_saved(
  session, tmp_path, now
):
  chief = Chief(session, tmp_path, now, unsaved='lost', begins=False)
  assert chief.hook.find_unsaved() == 'lost'
  chief.hook.after_create_session(session, None)
  assert chief.hook.find_unsaved() is None


def test_without_a_log_directory_nothing_is_to_be_saved(session, tmp_path, now):
  chief = Chief(session, tmp_path, now)
  chief.hook._writer = None
  chief.run_to(5)
  assert chief.hook.find_unsaved() is None


def test_the_chief_goes_on_while_large_tables_are_saved(session, tmp_path, now):
  saver = SlowSaver()
  chief = Chief(session, tmp_path, now, saver=saver)
  assert chief.saved == [0]  # The first one is waited for.
  saver.may_save.clear()
  chief.run_to(1, secs=61.0)
  # However long it takes, there is one at a time.
  for step in (2, 3):
    chief.run_to(step, secs=100.0)
  assert chief.saved == [0]
  # It ends with the process, however long its disk takes.
  assert [thread.daemon for thread in find_save_threads()] == [True]
  assert 'step 3 is not saved' in chief.hook.find_unsaved()
  saver.wait()
  assert chief.saved == [0, 1]
  # The next one is due that long after its end.
  chief.run_to(4, secs=59.0)
  chief.run_to(5, secs=2.0)
  saver.wait()
  assert chief.saved == [0, 1, 5]
  assert [t is threading.main_thread() for t in saver.threads] == [
    *(True, False, False)
  ]


def test_a_save_beside_the_steps_that_fails_is_tried_again(
  session, tmp_path, now, disk
):
  saver = SlowSaver()
  chief = Chief(session, tmp_path, now, 10, saver)
  disk.is_full = True
  chief.run_to(10)
  saver.wait()
  assert chief.lines == []
  chief.run_to(11)
  [line] = chief.lines
  assert line.endswith('; the training goes on, next try in 2 s')
  disk.is_full = False
  chief.run_to(12)
  assert len(saver.threads) == 2
  chief.run_to(13, secs=2.0)
  saver.wait()
  assert chief.saved == [0, 13]


def test_the_last_save_comes_after_the_one_that_goes_on(session, tmp_path, now):
  saver = SlowSaver()
  chief = Chief(session, tmp_path, now, 10, saver)
  saver.may_save.clear()
  chief.run_to(10)
  chief.run_to(12)
  threading.Timer(0.05, saver.may_save.set).start()
  chief.hook.save_last(session)
  assert chief.saved == [0, 10, 12]
  assert chief.hook.find_unsaved() is None


def test_a_ps_that_waits_is_told_of_a_save_of_after_its_question(
  session, tmp_path, now
):
  saver = SlowSaver()
  chief = Chief(session, tmp_path, now, 10, saver)
  saver.may_save.clear()
  chief.run_to(10)
  chief.others.is_wanted = True
  chief.run_to(11)
  saver.wait()
  assert chief.others.confirmed == []
  chief.run_to(12)
  assert chief.others.confirmed == [12]
  assert chief.saved == [0, 10, 12]


def test_before_a_restore_no_save_goes_on(session, tmp_path, now, disk):
  saver = SlowSaver()
  chief = Chief(session, tmp_path, now, 10, saver)
  saver.may_save.clear()
  disk.is_full = True
  chief.run_to(10)
  threading.Timer(0.05, saver.may_save.set).start()
  chief.hook.end_beside()
  assert not find_save_threads() and chief.saved == [0]
  chief.hook.end_beside()


def test_what_is_not_of_one_update_is_not_saved_at_the_end(
  session, tmp_path, now
):
  chief = Chief(session, tmp_path, now)
  chief.run_to(4)
  chief.center.is_whole = lambda asked: asked is not session
  chief.hook.save_last(session)
  assert chief.saved == [0]
  assert 'an update ahead of the others' in chief.lines[-1]
  assert 'step 4 is not saved: the newest' in chief.hook.find_unsaved()


def test_a_center_taken_over_amid_an_update_is_saved_after_it(
  session, tmp_path, now
):
  chief = Chief(session, tmp_path, now)
  session.run(chief.global_step.assign(4))
  chief.center.is_whole = lambda asked: False
  chief.hook.after_create_session(session, None)
  assert chief.saved == [0]
  chief.run_to(5)
  assert chief.saved == [0, 5]
  # What is saved already is of one update.
  chief.hook.after_create_session(session, None)
  chief.run_to(6)
  assert chief.saved == [0, 5]


class PartialSaver(table_saver.TableSaver):
  """Leaves out a variable while it has a base, as with touched rows."""

  base = None

  def __init__(self):
    super().__init__('/cpu:0')

  def forget_base(self):
    self.base = None

  def save(self, session, path):
    if not self.base:
      super().save(session, path)
      self.base = os.path.basename(path)
      return None
    save = tf.raw_ops.SaveV2(
      prefix=path,
      tensor_names=[partial_names.name_base(self.base), 'global_step'],
      shape_and_slices=['', ''],
      tensors=[
        read_hash(os.path.dirname(os.path.dirname(path)), self.base),
        tf.train.get_global_step(),
      ],
    )
    session.run(save)
    return self.base


def read_hash(folder, base):
  with open(f'{folder}/{base}.index', 'rb') as file:
    return partial_names.compute_hash(file.read())


def find_bases(chief):
  """Returns {step: that of the base or None} of the checkpoints."""
  paths = checkpoints.list_checkpoints(str(chief.folder))
  bases = [checkpoint_reader.find_base(path) for path in paths]
  step = checkpoints.parse_step
  return {
    step(path): base and step(base)
    for path, base in zip(paths, bases, strict=True)
  }


@pytest.fixture
def partial_chief(session, tmp_path, now):
  return Chief(session, tmp_path, now, save_steps=10, saver=PartialSaver())


def test_the_last_checkpoint_is_whole(partial_chief):
  partial_chief.run_to(10)
  assert find_bases(partial_chief) == {0: None, 10: 0}
  partial_chief.run_to(12)
  partial_chief.hook.save_last(partial_chief.session)
  assert find_bases(partial_chief) == {0: None, 10: 0, 12: None}


def test_the_last_one_is_whole_though_its_step_was_saved(partial_chief):
  partial_chief.run_to(10)
  partial_chief.hook.save_last(partial_chief.session)
  assert find_bases(partial_chief) == {0: None, 10: None}
  assert not list(partial_chief.folder.glob('*part*'))


@pytest.mark.slow
def test_after_a_signal_the_last_one_may_be_partial(partial_chief):
  partial_chief.run_to(12)
  partial_chief.has_signal = True
  partial_chief.run_to(13)
  partial_chief.hook.save_last(partial_chief.session)
  assert find_bases(partial_chief) == {0: None, 12: 0, 13: 0}


@pytest.mark.slow
def test_after_a_failed_save_the_next_is_whole(partial_chief, disk):
  disk.is_full = True
  partial_chief.run_to(10)
  disk.is_full = False
  partial_chief.run_to(11, secs=3.0)
  partial_chief.run_to(21)
  assert find_bases(partial_chief) == {0: None, 11: None, 21: 11}


def test_without_its_base_the_next_is_whole(partial_chief):
  checkpoints.remove(f'{partial_chief.folder}/model.ckpt-0')
  partial_chief.run_to(10)
  assert find_bases(partial_chief) == {10: None}


def test_a_ps_that_waits_is_told_of_no_save_that_has_failed(
  session, tmp_path, now, disk
):
  saver = SlowSaver()
  chief = Chief(session, tmp_path, now, 10, saver)
  disk.is_full = True
  chief.run_to(10)
  saver.wait()
  chief.others.is_wanted = True
  chief.run_to(11)
  assert chief.others.confirmed == [] and len(chief.lines) == 1
  disk.is_full = False
  chief.run_to(12, secs=3.0)
  assert chief.others.confirmed == [12]
