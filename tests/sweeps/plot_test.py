"""The picture of a sweep."""

import pytest

from distmnist.sweeps import plot, trials
from tests.support.trials import make_three_trials, make_trial

pytestmark = pytest.mark.slow


def test_the_plot_has_a_panel_a_flag(tmp_path):
  figure_lib = pytest.importorskip('matplotlib.figure', reason='extra plots')
  figure = figure_lib.Figure()
  three_trials = make_three_trials()
  plot._draw(figure, three_trials)
  rate, strategy = figure.axes
  assert (rate.get_xlabel(), strategy.get_xlabel()) == (
    'learning_rate',
    'strategy',
  )
  assert [t.get_text() for t in rate.get_xticklabels()] == ['0.01', '0.1', '1']
  assert [t.get_text() for t in strategy.get_xticklabels()] == ['easgd', 'ssp']
  points = {
    (line.get_marker(), x, round(y, 1))
    for line in rate.lines
    for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)
  }
  # The cross lies on the axis: 0 is its place there, and no accuracy.
  assert points == {('o', 1, 90.0), ('o', 2, 95.0), ('x', 0, 0.0)}
  (cross,) = [line for line in rate.lines if line.get_marker() == 'x']
  assert cross.get_transform() == rate.get_xaxis_transform()
  assert figure.get_suptitle() == (
    'validation accuracy, %: 2 of 3 trials, 1 failed or diverged (x)'
  )
  path = tmp_path / 'results.png'
  plot.write(three_trials, str(path))
  assert path.read_bytes().startswith(b'\x89PNG')


def test_many_numbers_have_a_scale():
  figure_lib = pytest.importorskip('matplotlib.figure', reason='extra plots')
  figure = figure_lib.Figure()
  found = [
    make_trial(i, trials.DONE, 0.5, rate=str(10.0**-i), size=str(i))
    for i in range(9)
  ]
  plot._draw(figure, found)
  rate, size = figure.axes
  assert (rate.get_xscale(), size.get_xscale()) == ('log', 'linear')
  labels = [t.get_text() for t in rate.get_xticklabels()]
  assert labels == ['1e-08', '1e-07', '1e-05', '0.001', '0.1', '1']
  assert not rate.get_xticklabels(minor=True)
  assert sorted(line.get_xdata()[0] for line in size.lines) == list(range(9))


def test_who_was_dropped_is_pale_and_who_failed_is_counted():
  figure_lib = pytest.importorskip('matplotlib.figure', reason='extra plots')
  figure = figure_lib.Figure()
  found = [
    make_trial(1, trials.DONE, 0.9, rate='1'),
    make_trial(2, trials.DROPPED, 0.5, rate='2'),
    make_trial(3, trials.FAILED, rate='3'),
    make_trial(4, trials.FAILED, rate='3'),
  ]
  plot._draw(figure, found)
  assert figure.get_suptitle().endswith(
    '2 of 4 trials, 2 failed or diverged (x); pale: 1 dropped by halving, after'
    ' fewer steps'
  )
  (rate,) = figure.axes
  assert [text.get_text() for text in rate.texts] == [' 2']
  pale = [line.get_alpha() for line in rate.lines if line.get_marker() == 'o']
  assert sorted(pale) == [0.35, 0.8]


@pytest.mark.parametrize('number', [1, 7])
def test_any_number_of_flags_can_be_drawn(tmp_path, number):
  pytest.importorskip('matplotlib', reason='extra plots')
  flags = {f'flag_{i}': str(i) for i in range(number)}
  path = tmp_path / 'results.png'
  plot.write([make_trial(1, trials.DONE, 0.5, **flags)], str(path))
  plot.write([make_trial(1, trials.FAILED, **flags)], str(path))
  assert path.stat().st_size > 1000
