"""The driver's copy of the tasks' logs."""

from distmnist.spark.received_logs import ReceivedLogs


def test_each_attempt_has_its_own_last_lines(tmp_path):
  logs = ReceivedLogs(str(tmp_path), ['ps 0', 'worker 0'])
  assert logs.path('worker 0') == f'{tmp_path}/worker_0.log'
  assert logs.last_lines('worker 0') == []
  logs.begin('worker 0', 0)
  logs.add('worker 0', ['one', '', 'two'])
  assert logs.last_lines('worker 0') == ['one', 'two']
  logs.begin('worker 0', 1)
  assert logs.last_lines('worker 0') == []
  logs.add('worker 0', ['three', 'four'])
  assert logs.last_lines('worker 0', 1) == ['four']
  assert (tmp_path / 'worker_0.log').read_text() == (
    'one\n\ntwo\n--- restart 1 ---\nthree\nfour\n'
  )
  assert not (tmp_path / 'ps_0.log').exists()
