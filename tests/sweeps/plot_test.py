"""The picture of a sweep."""

import pytest

from distmnist.sweeps import groups, plot, trials
from tests.support.trials import make_repeats, make_three_trials, make_trial

pytestmark = pytest.mark.slow


def read_title(figure):
  return ' '.join(figure.get_suptitle().split())


def test_the_plot_has_a_panel_a_flag(tmp_path):
  figure_lib = pytest.importorskip('matplotlib.figure', reason='extra plots')
  figure = figure_lib.Figure()
  three_trials = make_three_trials()
  plot._draw(figure, groups.by_trial(three_trials))
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
  assert read_title(figure) == (
    'validation accuracy, %: 2 of 3 trials, 1 failed or diverged (x)'
  )
  plot.write(groups.by_trial(three_trials), str(tmp_path / 'results'))
  found = {path.suffix: path.read_bytes() for path in tmp_path.iterdir()}
  assert found['.png'].startswith(b'\x89PNG')
  assert found['.pdf'].startswith(b'%PDF')
  assert b'<svg' in found['.svg'] and len(found) == 3


def test_many_numbers_have_a_scale():
  figure_lib = pytest.importorskip('matplotlib.figure', reason='extra plots')
  figure = figure_lib.Figure()
  found = [
    make_trial(i, trials.DONE, 0.5, rate=str(10.0**-i), size=str(i))
    for i in range(9)
  ]
  plot._draw(figure, groups.by_trial(found))
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
  plot._draw(figure, groups.by_trial(found))
  assert read_title(figure).endswith(
    '2 of 4 trials, 2 failed or diverged (x); pale: 1 dropped by halving, after'
    ' fewer steps'
  )
  (rate,) = figure.axes
  assert [text.get_text() for text in rate.texts] == [' 2']
  pale = [line.get_alpha() for line in rate.lines if line.get_marker() == 'o']
  assert sorted(pale) == [0.35, 0.8]


@pytest.mark.daily(but=['1'])
@pytest.mark.parametrize('number', [1, 7])
def test_any_number_of_flags_can_be_drawn(tmp_path, number):
  pytest.importorskip('matplotlib', reason='extra plots')
  flags = {f'flag_{i}': str(i) for i in range(number)}
  for trial in (
    make_trial(1, trials.DONE, 0.5, **flags),
    make_trial(1, trials.FAILED, **flags),
  ):
    plot.write(groups.by_trial([trial]), str(tmp_path / 'results'))
  assert (tmp_path / 'results.png').stat().st_size > 1000


def test_each_seed_is_a_dot_beside_the_mean_and_its_bar():
  figure_lib = pytest.importorskip('matplotlib.figure', reason='extra plots')
  figure = figure_lib.Figure()
  plot._draw(
    figure, groups.by_combination(make_repeats((0.9, 0.8), (0.7, 0.7)))
  )
  (rate,) = figure.axes
  dots = [line for line in rate.lines if line.get_marker() == 'o']
  heights = sorted(round(float(line.get_ydata()[0]), 1) for line in dots)
  assert heights == [70, 70, 70, 80, 85, 90]
  (best,) = [
    bar for bar in rate.containers if round(float(bar[0].get_ydata()[0])) == 85
  ]
  ((low, high),) = best[2][0].get_segments()
  assert (round(low[1], 2), round(high[1], 2)) == (77.93, 92.07)
  assert '2 seeds each' in read_title(figure)
