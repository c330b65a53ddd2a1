"""The learning curve: what workers and the chief wrote, by steps and epochs."""

import math
import os

import pytest

from distmnist.watching import learning_curve, metrics_file


@pytest.fixture
def folder(tmp_path):
  return str(tmp_path)


def make_writer(folder, index, life='a'):
  return metrics_file.Writer(folder, f'worker {index}', life, host='h', pid=1)


def write_means(writer, step, epoch, steps, first=None, **metrics):
  more = {'first_epoch': first} if first else {}
  writer.write(
    'means', step=step, epoch=epoch, **more, steps=steps, metrics=metrics
  )


def look(folder):
  curve = learning_curve.Curve(folder)
  curve.look()
  return curve


def test_an_epoch_has_the_mean_over_the_steps_of_all_workers(folder):
  first, second = make_writer(folder, 0), make_writer(folder, 1)
  write_means(first, 5, 1, 5, loss=4.0, accuracy=0.1)
  write_means(first, 10, 1, 5, loss=2.0)
  write_means(second, 10, 1, 10, loss=1.0, accuracy=0.4)
  write_means(second, 20, 2, 10, loss=0.5, accuracy=0.5)
  assert look(folder).find_history() == {
    'loss': [2.0, 0.5],
    'accuracy': [pytest.approx((5 * 0.1 + 10 * 0.4) / 15), 0.5],
  }


def test_epochs_that_share_a_line_share_its_means(folder):
  writer = make_writer(folder, 0)
  write_means(writer, 10, 1, 10, loss=4.0)
  write_means(writer, 15, 2, 5, loss=3.0)
  write_means(writer, 40, 4, 15, first=2, loss=1.0)
  for step, loss in (21, 0.75), (28, 0.5), (39, 0.25):
    writer.write(
      'evaluation', split='validation', step=step, metrics={'loss': loss}
    )
  history = look(folder).find_history()
  assert history['loss'] == [4.0, 2.0, 1.0, 1.0]
  assert history['val_loss'] == pytest.approx(
    [math.nan, 0.75, 0.5, 0.25], nan_ok=True
  )


def test_of_validations_the_nearest_to_the_end_of_an_epoch_counts(folder):
  writer = make_writer(folder, 0)
  for epoch in range(1, 5):
    write_means(writer, 10 * epoch, epoch, 10, loss=1 / epoch)
  for step, loss in (4, 9.0), (11, 1.5), (22, 1.25), (26, 7.0), (41, 0.5):
    found = {'loss': loss, 'auc': None if step > 40 else 0.75}
    writer.write('evaluation', split='validation', step=step, metrics=found)
  writer.write('evaluation', split='test', step=40, metrics={'loss': 3.0})
  history = look(folder).find_history()
  assert list(history) == ['loss', 'val_loss', 'val_auc']
  assert history['val_loss'] == pytest.approx(
    [1.5, 1.25, 7.0, 0.5], nan_ok=True
  )
  assert history['val_auc'] == pytest.approx(
    [0.75, 0.75, 0.75, math.nan], nan_ok=True
  )


def test_an_epoch_without_a_validation_has_nan(folder):
  writer = make_writer(folder, 0)
  for epoch in 1, 2:
    write_means(writer, 10 * epoch, epoch, 10, loss=1.0)
  writer.write('evaluation', split='validation', step=20, metrics={'loss': 2.0})
  history = look(folder).find_history()
  assert history['val_loss'] == pytest.approx([math.nan, 2.0], nan_ok=True)


def test_points_are_means_over_workers(folder):
  writers = [make_writer(folder, i) for i in range(2)]
  for i in range(1, 4):
    for index, writer in enumerate(writers):
      write_means(writer, 10 * i + index, 1, 5, loss=i + index)
  curve = look(folder)
  assert curve.find_points() == [(11, 1.5), (21, 2.5), (31, 3.5)]
  assert curve.find_points('accuracy') == curve.find_points('val_loss') == []


def test_local_steps_between_two_exchanges_are_one_point(folder):
  writer = make_writer(folder, 0)
  for step, loss in (0, 4.0), (0, 2.0), (1, 1.0):
    write_means(writer, step, 1, 1, loss=loss)
  assert look(folder).find_points() == [(0, 3.0), (1, 1.0)]


def test_what_was_lost_with_a_center_does_not_count(folder):
  write_means(make_writer(folder, 0), 10, 1, 10, loss=4.0)
  write_means(make_writer(folder, 0), 30, 2, 20, loss=8.0)
  write_means(make_writer(folder, 0, 'b'), 20, 2, 10, loss=2.0)
  assert look(folder).find_history() == {'loss': [4.0, 2.0]}


def test_it_grows_and_forgets_what_was_moved_aside(folder):
  curve = learning_curve.Curve(folder)
  assert not curve.look() and curve.epoch == 0 and curve.find_history() == {}
  writer = make_writer(folder, 0)
  write_means(writer, 1, 1, 1, loss=4.0)
  assert curve.look() and curve.find_points() == [(1, 4.0)]
  assert not curve.look()
  writer.write('sample', state='training')
  assert not curve.look()
  path = metrics_file.path_of(folder, 'worker 0')
  with open(path, 'a') as file:
    file.write('{"kind": "means", "time": 17')  # Still being written.
  assert not curve.look()
  write_means(writer, 2, 1, 1, loss=3.0)
  assert curve.look() and curve.find_points() == [(1, 4.0), (2, 3.0)]
  os.replace(path, f'{path}.old')
  assert curve.look() and curve.find_points() == []
  write_means(writer, 1, 1, 1, loss=7.0)
  assert curve.look() and curve.find_points() == [(1, 7.0)]


def test_a_loss_that_is_not_finite_is_left_out(folder):
  writer = make_writer(folder, 0)
  write_means(writer, 1, 1, 1, loss=math.inf, accuracy=0.5)
  write_means(writer, 2, 1, 1, loss=1.0, accuracy=0.5)
  assert look(folder).find_history() == {'loss': [1.0], 'accuracy': [0.5]}


@pytest.mark.slow
def test_without_a_folder_there_is_an_empty_picture():
  pytest.importorskip('matplotlib')
  curve = learning_curve.Curve(None)
  assert not curve.look() and curve.find_history() == {}
  assert curve._repr_png_().startswith(b'\x89PNG')


@pytest.mark.slow
def test_it_is_drawn_with_its_validation(folder):
  pytest.importorskip('matplotlib')
  writer = make_writer(folder, 0)
  for step in 1, 2, 3:
    write_means(writer, step, 1, 1, loss=1 / step, accuracy=step / 4)
  writer.write('evaluation', split='validation', step=3, metrics={'loss': 2.0})
  curve = look(folder)
  axes = curve.plot()
  assert [[*map(float, line.get_ydata())] for line in axes.lines] == [
    *([1.0, 0.5, 0.3333333], [2.0])
  ]
  # Each step of a short run is a tick, and no half one.
  assert all(tick == int(tick) for tick in axes.get_xticks())
  assert curve.plot(axes, 'accuracy') is axes and len(axes.lines) == 3
  assert axes._repr_png_().startswith(b'\x89PNG')
  assert curve.draw('step 3').startswith(b'\x89PNG')


def test_a_metric_of_validations_alone_is_drawn(folder):
  pytest.importorskip('matplotlib')
  writer = make_writer(folder, 0)
  for step in 1, 2:
    write_means(writer, step, 1, 1, loss=1 / step)
    found = {'loss': 1.0, 'auc': step / 4}
    writer.write('evaluation', split='validation', step=step, metrics=found)
  curve = look(folder)
  for name in 'auc', 'val_auc':
    axes = curve.plot(name=name)
    assert [[*line.get_ydata()] for line in axes.lines] == [[0.25, 0.5]]
  assert len(curve.plot(name='val_loss').lines) == 1


def test_a_metric_that_there_is_not_is_refused_with_those_there_are(folder):
  pytest.importorskip('matplotlib')
  write_means(make_writer(folder, 0), 1, 1, 1, loss=1.0, mae=0.5)
  for name in 'nope', 'val_nope':
    with pytest.raises(
      ValueError, match=f"'{name}': expected one of loss, mae"
    ):
      look(folder).plot(name=name)
  with pytest.raises(ValueError, match="'nope'"):
    learning_curve.Curve(None).plot(name='nope')
