"""The table and results.csv."""

import csv

from distmnist.sweeps import groups, table, trials
from tests.support.trials import make_repeats, make_three_trials, make_trial


def test_the_table_is_as_a_person_reads_it():
  assert table.format_lines(groups.by_trial(make_three_trials())) == [
    'trial  learning_rate  strategy  validation    test    loss  updates  secs'
    '  state   cause',
    '   03              1  ssp           0.9500  0.5000  0.2500      100   1.2'
    '  done    -',
    '   01            0.1  easgd         0.9000  0.5000  0.2500      100   1.2'
    '  done    -',
    '   02           0.01  easgd              -       -       -        -   1.2'
    f'  failed  a cause, "quoted", {41 * "x"}...',
  ]


def test_the_csv_has_all_of_it(tmp_path):
  three_trials = make_three_trials()
  path = tmp_path / 'results.csv'
  table.write_csv(groups.by_trial(three_trials), str(path))
  with open(path, newline='') as file:
    rows = list(csv.DictReader(file))
  assert [row['trial'] for row in rows] == ['03', '01', '02']
  assert rows[0]['validation'] == '0.9500' and rows[2]['test'] == ''
  assert rows[2]['cause'] == three_trials[1].cause
  assert [p.name for p in tmp_path.iterdir()] == ['results.csv']


def test_a_huge_loss_is_short():
  found = make_trial(1, trials.DONE, 0.5)
  found.result['final_loss'] = 1.33e30
  header, row = table.make_rows(groups.by_trial([found]))
  assert row[header.index('loss')] == '1.330e+30'


def test_speeds_are_in_a_column_of_their_own():
  found = [make_trial(i, trials.DONE, None) for i in (1, 2)]
  for trial, speed in zip(found, (999.6, 54321.4), strict=True):
    trial.result.update(judged_by='+examples_per_sec', examples_per_sec=speed)
  header, best, worst = table.make_rows(groups.by_trial(found))
  assert header[3:5] == ['examples_per_sec', 'test']
  assert best[0] == '02' and best[3:5] == ['54321', '0.5000']
  assert worst[3] == '1000'


COSTS = {
  'staleness_mean': 0.5,
  'bytes_pulled': 2_000_000,
  'bytes_pushed': 1_000_000,
  'examples': 55_000,
  'examples_per_sec': 1234.5,
}


def test_a_row_has_the_mean_of_its_seeds_their_deviation_and_their_number():
  found = make_repeats((0.9, 0.8), (0.7, None), **COSTS)
  found[1].results[0]['global_step'] = 300
  header, best, second = table.make_rows(groups.by_combination(found))
  best, second = (dict(zip(header, row, strict=True)) for row in (best, second))
  assert (best['trials'], best['rate'], best['n']) == ('01-02', '0.1', '2')
  # The mean of 0.9 and 0.8, and 0.1 / sqrt(2).
  assert (best['validation'], best['validation_std']) == ('0.8500', '0.0707')
  assert (best['test'], best['test_std']) == ('0.5000', '0.0000')
  assert (best['updates'], best['MB'], best['staleness']) == (
    '200',
    '3',
    '0.50',
  )
  assert (best['examples'], best['examples_per_sec']) == ('55000', '1234')
  assert (second['n'], second['validation_std']) == ('1', '')
  assert second['state'] == '1 done, 1 waiting'
  line = table.format_lines(groups.by_combination(found))[1]
  assert '0.8500 ± 0.0707' in line


def test_a_row_of_each_trial_has_its_seed():
  found = make_repeats((0.9, 0.8), (0.7, 0.6))
  header, *rows = table.make_rows(groups.by_trial(found))
  assert header[:4] == ['trial', 'rate', 'seed', 'validation']
  assert [row[:3] for row in rows[:2]] == [
    ['01', '0.1', '0'],
    ['02', '0.1', '1'],
  ]
  assert 'n' not in header
