"""Curves of a sweep, from what its trials have written."""

import pytest

from distmnist.sweeps import curves, groups
from distmnist.watching import metrics_file
from tests.support.trials import make_repeats


def make_groups(folder, values_of_seeds, **losss):
  """Returns a group whose trials were validated at steps 10 and 20.

  Args:
    folder: path.
    values_of_seeds: for each seed the two accuracies.
    losss: {'step': loss}.
  """
  finals = tuple(values[-1] for values in values_of_seeds)
  found = make_repeats(finals, examples=2000, global_step=20)
  for trial, values in zip(found, values_of_seeds, strict=True):
    trial.folder = str(folder / trial.name)
    (folder / trial.name / 'run').mkdir(parents=True)
    writer = metrics_file.Writer(trial.logdir, 'worker 0', 'a', host='h', pid=1)
    for step, loss in losss.items():
      means = {'step': int(step[1:]), 'epoch': 1, 'steps': 3}
      writer.write('means', **means, metrics={'loss': loss})
    for step, value in zip((10, 20), values, strict=False):
      writer.write(
        'evaluation', split='validation', step=step, metrics={'accuracy': value}
      )
  return groups.by_combination(found)


def test_the_mean_of_the_seeds_is_over_examples(tmp_path):
  found = make_groups(tmp_path, [(0.4, 0.6), (0.6, 0.8)])
  what, (curve,) = curves.read(found, 'validation_accuracy')
  assert what == 'validation_accuracy'
  # Each update stands for 100 examples.
  assert (curve.examples[0], curve.examples[-1]) == (1000, 2000)
  assert curve.means[:: len(curve.means) - 1] == pytest.approx([0.5, 0.7])
  assert curve.deviations[0] == pytest.approx(0.02**0.5)


def test_one_seed_has_no_band(tmp_path):
  _, (curve,) = curves.read(
    make_groups(tmp_path, [(0.4, 0.6)]), 'validation_accuracy'
  )
  assert set(curve.deviations) == {None}


LOSSES = {'_1': 2.0, '_4': 1.5, '_8': 1.2, '_11': 1.0, '_20': 0.5}


def test_without_validations_it_is_the_loss(tmp_path):
  found = make_groups(tmp_path, [(0.4,), (0.6,)], **LOSSES)
  what, (curve,) = curves.read(found, 'validation_accuracy')
  assert what == 'loss'
  assert (curve.examples[0], curve.means[0], curve.means[-1]) == (100, 2, 0.5)


def test_of_a_few_points_there_is_no_curve(tmp_path):
  found = make_groups(tmp_path, [(0.4,)], _1=2.0, _20=1.0)
  assert curves.read(found, 'validation_accuracy')[1] == []
