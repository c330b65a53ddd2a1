"""sweeping: a sweep as a call, and its table as a report."""

import pytest

import distmnist
from distmnist.api import sweeping
from tests.api.training_test import SMALL


@pytest.mark.parametrize(
  'values, word',
  [
    ([0.1, 0.01], 'rate=0.1,0.01'),
    ('1e-4..1', 'rate=1e-4..1'),
    ([[300, 100], 50], 'rate=300,100;50'),
    ([[300, 100]], 'rate=300,100;'),
  ],
)
def test_choices_are_words(values, word):
  assert sweeping._make_word('rate', values) == word


def test_the_best_is_the_first_that_has_a_result():
  report = sweeping.SweepReport([{'state': 'dropped'}, {'state': 'failed'}])
  assert report.best is report[0]
  stopped = {'state': 'stopped', 'updates': None}
  for rows in ([], report[1:], [stopped]):
    with pytest.raises(ValueError, match='no trial of the sweep has a result'):
      sweeping.SweepReport(rows).best  # noqa: B018


def test_where_a_seed_of_each_has_diverged_there_is_no_best():
  row = {'state': '2 done, 1 diverged', 'updates': 9}
  with pytest.raises(ValueError, match='seed'):
    sweeping.SweepReport([row]).best  # noqa: B018


@pytest.mark.parametrize(
  'choices, mistake',
  [
    ({'rate': 0.1}, r"choices\['rate'\]=0.1: expected a list of values, such"),
    (['rate'], r"choices=\['rate'\]: expected the values of each flag"),
  ],
)
def test_choices_that_are_no_lists_are_named(choices, mistake):
  with pytest.raises(ValueError, match=mistake):
    distmnist.run_sweep(choices)


@pytest.mark.parametrize(
  'states, code, is_report',
  [
    (['done', 'diverged'], 0, True),
    (['done', 'failed'], 1, True),
    (['done', 'stopped'], 1, True),
    (['done', 'running'], 1, False),  # such as a full disk
    (['failed', 'waiting'], 1, False),
    (['done', 'done'], 1, False),  # of an earlier call
    (['done', 'stopped'], 130, False),
  ],
)
def test_a_sweep_that_fails_itself_has_no_report(
  tmp_path, states, code, is_report
):
  lines = ['trial,state,steps', *(f'01,{state},' for state in states)]
  (tmp_path / 'results.csv').write_text('\n'.join(lines))
  report = sweeping.read_report(str(tmp_path), {}, code)
  assert (report is not None) == is_report


@pytest.mark.parametrize(
  'settings, given',
  [
    ({'launcher': 'ssh', 'hosts': 'a,b'}, "launcher='ssh'"),
    ({'runner': 'spark', 'master': 'spark://a:7077'}, "runner='spark'"),
  ],
)
def test_other_hosts_need_a_folder(settings, given):
  with pytest.raises(ValueError, match=f'{given} without sweep_dir: expected'):
    distmnist.run_sweep({'units': [1, 2]}, **settings)


def test_a_row_has_the_names_and_values_that_were_given():
  choices = {'units': [[3, 1], 5], 'kind': ['1_0', '01'], 'rate': '1e-4..1'}
  row = {'trial': '01', 'units': '3,1', 'kind': '1_0', 'rate': '0.5'}
  row |= {'steps': '20', 'state': 'done', 'cause': ''}
  assert sweeping._read_row(row, choices) == {
    'trial': '01',
    'units': [3, 1],
    'kind': '1_0',
    'rate': 0.5,
    'steps': 20,
    'state': 'done',
    'cause': None,
  }


def test_with_repeats_each_trial_is_in_the_report(tmp_path):
  (tmp_path / 'results.csv').write_text(
    'trials,units,validation,validation_std,n,state\n'
    '01-02,8,0.5,0.1,2,"1 done, 1 failed"\n'
  )
  (tmp_path / 'trials.csv').write_text(
    'trial,units,seed,validation,state\n01,8,0,0.5,done\n02,8,1,,failed\n'
  )
  report = sweeping.read_report(str(tmp_path), {'units': [8]}, 1)
  (row,) = report
  assert (row['trials'], row['validation_std'], row['n']) == ('01-02', 0.1, 2)
  assert [trial['seed'] for trial in report.trials] == [0, 1]


@pytest.mark.daily
@pytest.mark.slow
def test_a_sweep_is_a_call(tmp_path):
  lines = []
  settings = {**SMALL, 'train_steps': 20, 'on_line': lines.append}
  report = distmnist.run_sweep(
    {'learning_rate': [0.01, 1e38]},
    parallel=2,
    sweep_dir=tmp_path / 'sweep',
    **settings,
  )
  assert [row['state'] for row in report] == ['done', 'diverged']
  assert report.best['learning_rate'] == 0.01
  assert 0 < report.best['validation'] < 1 and report.best['updates'] == 20
  assert any(' of 2: trial ' in line for line in lines), lines
  with pytest.raises(distmnist.Error, match='no_such'):
    distmnist.run_sweep({'no_such': [1, 2]}, **settings)
