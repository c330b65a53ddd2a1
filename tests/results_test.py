"""results: who is best, and what is written of it."""

import csv

import pytest

from distmnist import results, trials


def make_trial(number, state, *validation, test=0.5, **combination):
  values = [
    {
      'validation_accuracy': v,
      'test_accuracy': test,
      'final_cost': 0.25,
      'global_step': 100 * (rung + 1),
    }
    for rung, v in enumerate(validation)
  ]
  combination = combination or {'learning_rate': '0.1', 'strategy': 'ssp'}
  return trials.Trial(
    number, f'{number:02}', combination, 'x', state, 1.25, '', values
  )


def names(found):
  return [trial.number for trial in found]


def test_the_best_is_first_and_the_diverged_last():
  found = [
    make_trial(1, trials.DIVERGED, 0.99),
    make_trial(2, trials.FAILED),
    make_trial(3, trials.STOPPED),
    make_trial(4, trials.DONE, 0.7),
    make_trial(5, trials.DROPPED, 0.95),
    make_trial(6, trials.DONE, 0.6, 0.8),
    make_trial(7, trials.DONE, 0.8),
  ]
  # Trial 6 has come further than all others.
  assert names(results.rank(found)) == [6, 5, 7, 4, 3, 2, 1]


def test_the_test_accuracy_decides_where_one_has_no_other():
  found = [
    make_trial(1, trials.DONE, 0.9, test=0.1),
    make_trial(2, trials.DONE, 0.8, test=0.2),
  ]
  assert names(results.rank(found)) == [1, 2]
  found.append(make_trial(3, trials.DONE, None, test=0.15))
  assert names(results.rank(found)) == [2, 3, 1]
  assert names(results.choose(found, 0, 2)) == [2, 3]


def test_a_rung_chooses_by_its_own_results_and_the_first_of_equals():
  found = [
    make_trial(1, trials.DROPPED, 0.5),
    make_trial(2, trials.DONE, 0.7, 0.1),
    make_trial(3, trials.DIVERGED, 0.9),
    make_trial(4, trials.FAILED),
    make_trial(5, trials.DONE, 0.7),
  ]
  assert names(results.choose(found, 0, 3)) == [3, 2, 5]
  assert names(results.choose(found, 1, 3)) == [2]


@pytest.fixture
def some():
  lost = make_trial(2, trials.FAILED, learning_rate='0.01', strategy='easgd')
  lost.cause = 'a cause, "quoted", ' + 60 * 'x'
  return [
    make_trial(1, trials.DONE, 0.9, learning_rate='0.1', strategy='easgd'),
    lost,
    make_trial(3, trials.DONE, 0.95, learning_rate='1', strategy='ssp'),
  ]


def test_the_table_is_as_a_person_reads_it(some):
  assert results.format_table(some) == [
    'trial  learning_rate  strategy  validation    test    cost  steps  secs'
    '  state   cause',
    '   03              1  ssp           0.9500  0.5000  0.2500    100   1.2'
    '  done    -',
    '   01            0.1  easgd         0.9000  0.5000  0.2500    100   1.2'
    '  done    -',
    '   02           0.01  easgd              -       -       -      -   1.2'
    f'  failed  a cause, "quoted", {41 * "x"}...',
  ]


def test_the_csv_has_all_of_it(some, tmp_path):
  path = tmp_path / 'results.csv'
  results.write_csv(some, str(path))
  with open(path, newline='') as file:
    rows = list(csv.DictReader(file))
  assert [row['trial'] for row in rows] == ['03', '01', '02']
  assert rows[0]['validation'] == '0.9500' and rows[2]['test'] == ''
  assert rows[2]['cause'] == some[1].cause
  assert [p.name for p in tmp_path.iterdir()] == ['results.csv']


def test_a_huge_cost_is_short():
  found = make_trial(1, trials.DONE, 0.5)
  found.result['final_cost'] = 1.33e30
  assert results.make_rows([found])[1][-5] == '1.330e+30'


@pytest.mark.slow
def test_the_plot_has_a_panel_a_flag(some, tmp_path):
  figure_lib = pytest.importorskip('matplotlib.figure', reason='extra plots')
  figure = figure_lib.Figure()
  results._draw(figure, some)
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
  results.write_plot(some, str(path))
  assert path.read_bytes().startswith(b'\x89PNG')


@pytest.mark.slow
def test_many_numbers_have_a_scale():
  figure_lib = pytest.importorskip('matplotlib.figure', reason='extra plots')
  figure = figure_lib.Figure()
  found = [
    make_trial(i, trials.DONE, 0.5, rate=str(10.0**-i), size=str(i))
    for i in range(9)
  ]
  results._draw(figure, found)
  rate, size = figure.axes
  assert (rate.get_xscale(), size.get_xscale()) == ('log', 'linear')
  labels = [t.get_text() for t in rate.get_xticklabels()]
  assert labels == ['1e-08', '1e-07', '1e-05', '0.001', '0.1', '1']
  assert not rate.get_xticklabels(minor=True)
  assert sorted(line.get_xdata()[0] for line in size.lines) == list(range(9))


@pytest.mark.slow
def test_who_was_dropped_is_pale_and_who_failed_is_counted():
  figure_lib = pytest.importorskip('matplotlib.figure', reason='extra plots')
  figure = figure_lib.Figure()
  found = [
    make_trial(1, trials.DONE, 0.9, rate='1'),
    make_trial(2, trials.DROPPED, 0.5, rate='2'),
    make_trial(3, trials.FAILED, rate='3'),
    make_trial(4, trials.FAILED, rate='3'),
  ]
  results._draw(figure, found)
  assert figure.get_suptitle().endswith(
    '2 of 4 trials, 2 failed or diverged (x); pale: 1 dropped by halving, after'
    ' fewer steps'
  )
  (rate,) = figure.axes
  assert [text.get_text() for text in rate.texts] == [' 2']
  pale = [line.get_alpha() for line in rate.lines if line.get_marker() == 'o']
  assert sorted(pale) == [0.35, 0.8]


@pytest.mark.slow
@pytest.mark.parametrize('number', [1, 3, 4, 7])
def test_any_number_of_flags_can_be_drawn(tmp_path, number):
  pytest.importorskip('matplotlib', reason='extra plots')
  flags = {f'flag_{i}': str(i) for i in range(number)}
  path = tmp_path / 'results.png'
  results.write_plot([make_trial(1, trials.DONE, 0.5, **flags)], str(path))
  results.write_plot([make_trial(1, trials.FAILED, **flags)], str(path))
  assert path.stat().st_size > 1000
