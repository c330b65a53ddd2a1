"""best: the best checkpoint, through crashes and restarts."""

import errno
import shutil

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.common import files
from distmnist.logdir import best, checkpoints, saving


def note(kept, step, accuracy):
  values = {'w': np.full(3, step, 'f'), 'global_step': np.int64(step)}
  return kept.note(values, step, {'accuracy': accuracy, 'loss': 1 - accuracy})


def read(kept):
  reader = tf.train.load_checkpoint(kept.path)
  return reader.get_tensor('w').tolist(), reader.get_tensor('global_step')


def describe(kept):
  return kept.step, kept.value, kept.num_worse


def test_the_best_is_kept_and_no_other(tmp_path):
  kept = best.Best(str(tmp_path))
  assert describe(kept) == (None, None, 0)
  found = [note(kept, s, a) for s, a in [(10, 0.5), (20, 0.8), (30, 0.7)]]
  assert found == [True, True, False]
  assert describe(kept) == (20, 0.8, 1)
  assert read(kept) == ([20.0] * 3, 20)
  assert checkpoints.list_checkpoints(str(tmp_path)) == [kept.path]


@pytest.mark.slow
def test_a_new_life_goes_on_from_it(tmp_path):
  kept = best.Best(str(tmp_path))
  for step, accuracy in [(10, 0.1), (20, 1 / 3), (30, 0.2), (40, 0.3)]:
    note(kept, step, accuracy)
  again = best.Best(str(tmp_path))
  assert describe(again) == (20, 1 / 3, 2)
  assert best.count_worse(str(tmp_path), 'accuracy') == 2
  assert not note(again, 50, 0.3)
  again = best.Best(str(tmp_path))
  assert describe(again) == (20, 1 / 3, 3)
  assert read(again) == ([20.0] * 3, 20)
  assert note(again, 60, 0.4)
  assert describe(best.Best(str(tmp_path))) == (60, 0.4, 0)
  assert best.count_worse(str(tmp_path), 'accuracy') == 0
  assert best.count_worse(str(tmp_path / 'none'), 'accuracy') == 0


def test_one_that_somebody_has_removed_no_longer_counts(tmp_path, logged):
  folder = tmp_path / 'best'
  kept = best.Best(str(folder))
  for step, accuracy in [(10, 0.8), (20, 0.7)]:
    note(kept, step, accuracy)
  shutil.rmtree(folder)
  assert note(kept, 30, 0.6)
  assert describe(kept) == (30, 0.6, 0)
  assert read(kept) == ([30.0] * 3, 30)
  shutil.rmtree(folder)
  kept.forget_removed()
  assert describe(kept) == (None, None, 0) and kept.path is None
  assert len(logged) == 2
  assert 'the best checkpoint, was removed by somebody' in logged[0]


def test_all_metrics_are_kept_and_another_judge_begins_to_count_anew(tmp_path):
  folder = str(tmp_path)
  kept = best.Best(folder)
  for step, accuracy in [(10, 0.75), (20, 0.5)]:
    note(kept, step, accuracy)
  again = best.Best(folder, metric='loss', sign=-1)
  assert again.metrics == {'accuracy': 0.75, 'loss': 0.25}
  assert describe(again) == (10, 0.25, 0)
  assert best.count_worse(folder, 'loss') == 0
  assert best.count_worse(folder, 'accuracy') == 1
  assert not note(again, 30, 0.5)
  assert note(again, 40, 0.875)
  assert describe(best.Best(folder, metric='loss', sign=-1)) == (40, 0.125, 0)


@pytest.mark.parametrize('is_new_life', [False, True])
def test_steps_that_are_done_again_count_once(tmp_path, is_new_life):
  kept = best.Best(str(tmp_path))
  for step, accuracy in [(10, 0.8), (20, 0.7), (30, 0.6)]:
    note(kept, step, accuracy)
  # The training was set back to step 5.
  for step, accuracy, num_worse in [(10, 0.8, 0), (20, 0.7, 1), (30, 0.6, 2)]:
    if is_new_life:
      kept = best.Best(str(tmp_path))
    note(kept, step, accuracy)
    assert describe(kept) == (10, 0.8, num_worse)


@pytest.mark.parametrize('is_higher', [False, True])
def test_a_crash_before_the_old_one_is_dropped(tmp_path, is_higher):
  note(best.Best(str(tmp_path)), 20, 0.5)
  note(best.Best(str(tmp_path / 'x')), 30 if is_higher else 10, 0.6)
  for path in (tmp_path / 'x').glob('model.ckpt-*'):
    path.rename(tmp_path / path.name)
  (tmp_path / 'x' / 'checkpoint').unlink()
  kept = best.Best(str(tmp_path))
  assert describe(kept) == (30 if is_higher else 10, 0.6, 0)
  note(kept, 40, 0.7)
  assert checkpoints.list_checkpoints(str(tmp_path)) == [kept.path]


def test_what_cannot_be_read_is_named_and_begins_anew(tmp_path, logged):
  kept = best.Best(str(tmp_path))
  note(kept, 10, 0.5)
  note(kept, 20, 0.4)
  (tmp_path / 'worse_steps.json').write_text('[')
  assert describe(best.Best(str(tmp_path))) == (10, 0.5, 0)
  data = tmp_path / 'model.ckpt-10.data-00000-of-00001'
  data.write_bytes(b'')
  assert describe(best.Best(str(tmp_path)))[0] is None
  assert f'{kept.path} was the best checkpoint, and is not' in logged[0]


def test_a_best_of_an_earlier_version_says_nothing_of_itself(tmp_path):
  values = {'global_step': np.int64(7)}
  saving.CheckpointWriter(str(tmp_path), 1).save_values(values, 7)
  assert describe(best.Best(str(tmp_path))) == (None, None, 0)


def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch):
  kept = best.Best(str(tmp_path))
  note(kept, 10, 0.5)

  def fail(*args):
    raise OSError(errno.ENOSPC, 'No space left on device')

  with monkeypatch.context() as patch:
    patch.setattr(files, 'sync', fail)
    with pytest.raises(saving.SaveError, match='No space left'):
      note(kept, 20, 0.6)
    patch.setattr(files, 'replacing', fail)
    with pytest.raises(saving.SaveError, match='No space left'):
      note(kept, 20, 0.4)
  assert describe(kept) == describe(best.Best(str(tmp_path))) == (10, 0.5, 0)


def test_without_a_folder_nothing_is_written():
  kept = best.Best()
  note(kept, 10, 0.5)
  note(kept, 20, 0.4)
  assert describe(kept) == (10, 0.5, 1)
  assert kept.path is None


def test_before_there_is_a_best_one_is_counted_as_well(tmp_path):
  folder = str(tmp_path / 'best')
  kept = best.Best(folder)
  for step in (10, 20):
    assert not note(kept, step, float('nan'))
  assert describe(kept) == (None, None, 2)
  assert note(best.Best(folder), 30, 0.5)


@pytest.mark.slow
def test_a_cut_outlives_what_is_better_and_is_decided_anew_after_it(tmp_path):
  kept = best.Best(str(tmp_path))

  def note_all(*found):
    for step, accuracy in found:
      values = {'global_step': np.int64(step)}
      kept.note(values, step, {'accuracy': accuracy}, patience=2, num_cuts=3)

  def find_cuts(of):
    """Returns the first steps at which the cuts after the third are due."""
    due = [[s for s in range(100) if of.has_cut(n, s)] for n in (3, 4, 5)]
    return [steps[0] for steps in due if steps]

  note_all((10, 0.5), (20, 0.4), (30, 0.4), (40, 0.6), (50, 0.4), (60, 0.4))
  assert find_cuts(kept) == find_cuts(best.Best(str(tmp_path))) == [30, 60]
  kept.go_back_to(55)
  assert describe(kept) == (40, 0.6, 1)
  assert find_cuts(kept) == find_cuts(best.Best(str(tmp_path))) == [30]
  kept.go_back_to(25)
  note_all((30, 0.4), (40, 0.6), (57, 0.4), (67, 0.4))
  assert find_cuts(kept) == [30, 67]
  note_all((70, 0.7))
  assert find_cuts(best.Best(str(tmp_path))) == [30, 67]
