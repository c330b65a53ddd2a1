"""python -m distmnist.status, without a run."""

from distmnist import status
from distmnist.watching import metrics_file


def test_a_line_on_the_run_and_a_row_a_task(tmp_path, set_flags, capsys):
  set_flags(f'--logdir={tmp_path}')
  ps = metrics_file.Writer(str(tmp_path), 'ps 0', 'a', host='h', pid=1)
  ps.write('sample', state='serving', rss_bytes=2_000_000)
  status.main()
  first, heads, row = capsys.readouterr().out.splitlines()
  assert first == f'{tmp_path}: 1 of 1 tasks run'
  assert heads.startswith('task  state    step  examples/s')
  assert row.split() == ['ps', '0', 'serving', *'-----', '2', '0']
