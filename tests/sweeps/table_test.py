"""The table and results.csv."""

import csv

from distmnist.sweeps import table, trials
from tests.support.trials import make_three_trials, make_trial


def test_the_table_is_as_a_person_reads_it():
  assert table.format_lines(make_three_trials()) == [
    'trial  learning_rate  strategy  validation    test    loss  steps  secs'
    '  state   cause',
    '   03              1  ssp           0.9500  0.5000  0.2500    100   1.2'
    '  done    -',
    '   01            0.1  easgd         0.9000  0.5000  0.2500    100   1.2'
    '  done    -',
    '   02           0.01  easgd              -       -       -      -   1.2'
    f'  failed  a cause, "quoted", {41 * "x"}...',
  ]


def test_the_csv_has_all_of_it(tmp_path):
  three_trials = make_three_trials()
  path = tmp_path / 'results.csv'
  table.write_csv(three_trials, str(path))
  with open(path, newline='') as file:
    rows = list(csv.DictReader(file))
  assert [row['trial'] for row in rows] == ['03', '01', '02']
  assert rows[0]['validation'] == '0.9500' and rows[2]['test'] == ''
  assert rows[2]['cause'] == three_trials[1].cause
  assert [p.name for p in tmp_path.iterdir()] == ['results.csv']


def test_a_huge_loss_is_short():
  found = make_trial(1, trials.DONE, 0.5)
  found.result['final_loss'] = 1.33e30
  assert table.make_rows([found])[1][-5] == '1.330e+30'


def test_speeds_are_in_a_column_of_their_own():
  found = [make_trial(i, trials.DONE, None) for i in (1, 2)]
  for trial, speed in zip(found, (999.6, 54321.4), strict=True):
    trial.result.update(judged_by='+images_per_sec', images_per_sec=speed)
  header, best, worst = table.make_rows(found)
  assert header[3:5] == ['images_per_sec', 'test']
  assert best[0] == '02' and best[3:5] == ['54321', '0.5000']
  assert worst[3] == '1000'
