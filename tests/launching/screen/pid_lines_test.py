"""The line of pids, which a launch prints once all have begun."""

from distmnist.launching.screen.pid_lines import PidLines


def test_all_are_told_in_one_line_once_all_have_begun(caplog):
  lines = PidLines(['fork server', 'ps 0'])
  lines.note('ps 0', 12, 1)
  lines.note('data', 13, 1)
  assert caplog.messages == []
  lines.note('fork server', 11, 1)
  assert caplog.messages == ['pids on this machine: ps 0 12, fork server 11']


def test_a_restart_has_a_line_of_its_own(caplog):
  lines = PidLines(['ps 0'])
  lines.note('ps 0', 12, 1)
  lines.note('ps 0', 13, 2)
  assert caplog.messages[1:] == ['ps 0 is pid 13 now']


def test_of_many_some_are_told_and_how_to_find_the_others(caplog):
  lines = PidLines(f'worker {i}' for i in range(20))
  for i in range(20):
    lines.note(f'worker {i}', i, 1)
  assert caplog.messages[0].endswith(
    "worker 15 15, 4 more: pgrep -af '^distmnist '"
  )
