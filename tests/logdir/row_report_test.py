"""row_report: what a run says of the rows of its tables."""

import collections

from distmnist.logdir import report, row_report


def make_stats(worker, local_steps, **rows):
  stats = report.WorkerStats(worker, local_steps=local_steps)
  stats.rows.update({f'rows/{name}': n for name, n in rows.items()})
  return stats


LIVES = [
  make_stats(
    *(0, 2),
    **{'ids': 200, 'different': 60, 'of_ps_0': 40, 'of_ps_1': 20},
    bytes_of_user=3_000_000,
  ),
  make_stats(1, 2, ids=200, different=40, of_ps_0=40, bytes_of_ad=500_000),
  report.WorkerStats(2),  # It made no step.
]


def test_a_step_is_one_of_all_workers_in_the_mean():
  assert row_report.compose(LIVES) == {
    'ids_per_step': 100,
    'rows_per_step': 25,
    'share_different': 0.25,
    'bytes_by_table': {'user': 3_000_000, 'ad': 500_000},
    'rows_by_ps': [80, 20],
  }


def test_it_is_three_lines():
  assert list(row_report.format_lines(row_report.compose(LIVES))) == [
    ('rows a step', '100 ids, of which 25 (25%) are different'),
    ('rows by ps', 'ps 0 80%, ps 1 20%'),
    ('tables', 'user 3.0 MB, ad 0.5 MB'),
  ]


def test_of_many_tables_the_largest_are_named():
  many = {f'bytes_of_{i}': i * 1_000_000 for i in range(8)}
  found = row_report.compose([make_stats(0, 1, ids=1, different=1, **many)])
  [*_, (label, text)] = row_report.format_lines(found)
  assert label == 'tables'
  assert text == '7 7.0 MB, 6 6.0 MB, 5 5.0 MB, 4 4.0 MB, 3 3.0 MB, and 3 more'


def test_without_tables_nothing_is_said():
  assert row_report.compose([report.WorkerStats(0, local_steps=3)]) is None
  assert list(row_report.format_lines(None)) == []


def test_counts_survive_the_trip_through_json():
  message = LIVES[0].to_message()
  found = report.WorkerStats.from_message(message)
  assert found.rows == LIVES[0].rows
  del message['rows']  # As from an earlier version.
  assert report.WorkerStats.from_message(message).rows == collections.Counter()
