import faulthandler
import os
import signal
import socket
import subprocess
import sys

import pytest

from distmnist.common import names, signals
from tests.support.paths import PYTHONPATH

ALL = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.fixture(autouse=True)
def earlier():
  """What the handlers from before have been told, a list of int.

  At the end everything is as pytest had it.
  """
  told = []
  signums = (*ALL, signal.SIGUSR1)
  handlers = [signal.signal(n, lambda n, _: told.append(n)) for n in signums]
  wakeup_fd = signal.set_wakeup_fd(-1)
  yield told
  signal.set_wakeup_fd(wakeup_fd)
  for signum, handler in zip(signums, handlers, strict=True):
    signal.signal(signum, handler)


@pytest.fixture
def pair():
  reader, writer = socket.socketpair()
  writer.setblocking(False)
  with reader, writer:
    yield reader, writer


@pytest.mark.parametrize(
  ('signum', 'name', 'exit_code'),
  [
    (signal.SIGINT, 'SIGINT', 130),
    (signal.SIGTERM, 'SIGTERM', 143),
    (signal.SIGHUP, 'SIGHUP', 129),
  ],
)
def test_a_signal_is_raised_where_it_comes(earlier, signum, name, exit_code):
  with pytest.raises(signals.SignalError) as caught, signals.raising():
    signal.raise_signal(signum)
  assert caught.value.signum == signum
  assert (caught.value.name, caught.value.exit_code) == (name, exit_code)
  assert earlier == []
  for each in ALL:  # The handlers from before are back.
    signal.raise_signal(each)
  assert earlier == ALL


def test_no_handler_of_errors_takes_a_signal_for_one():
  assert not issubclass(signals.SignalError, Exception)


def test_the_second_is_raised_as_the_first_and_the_third_is_not():
  came = []
  with signals.raising():
    for signum in ALL:
      try:
        signal.raise_signal(signum)
        came.append(None)
      except signals.SignalError as error:
        came.append(error.signum)
  assert came == [signal.SIGINT, signal.SIGINT, None]


def test_what_is_ignored_stays_so():
  signal.signal(signal.SIGHUP, signal.SIG_IGN)
  collected = []
  with signals.raising():
    signal.raise_signal(signal.SIGHUP)
  with signals.collecting(collected):
    signal.raise_signal(signal.SIGHUP)
  assert collected == []
  assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


def test_signals_are_collected_for_a_while(earlier):
  collected = []
  with signals.collecting(collected):
    for signum in (signal.SIGTERM, signal.SIGINT):
      signal.raise_signal(signum)
  assert collected == [signal.SIGTERM, signal.SIGINT]
  assert earlier == []
  signal.raise_signal(signal.SIGTERM)
  assert earlier == [signal.SIGTERM]
  assert len(collected) == 2


def test_signals_of_one_stop_are_one_and_each_ctrl_c_counts(monkeypatch):
  now = 100.0
  monkeypatch.setattr(signals.time, 'monotonic', lambda: now)
  collected = []
  with signals.collecting(collected):
    for signum in (signal.SIGHUP, signal.SIGHUP, signal.SIGTERM):
      signal.raise_signal(signum)
    assert collected == [signal.SIGHUP]
    signal.raise_signal(signal.SIGINT)
    assert collected == [signal.SIGHUP, signal.SIGINT]
    now += signals.ONE_STOP_SECS
    signal.raise_signal(signal.SIGTERM)
  assert collected == [signal.SIGHUP, signal.SIGINT, signal.SIGTERM]


def test_a_ctrl_c_that_is_passed_on_as_well_is_one(monkeypatch):
  now = 100.0
  monkeypatch.setattr(signals.time, 'monotonic', lambda: now)
  collected = []
  with signals.collecting(collected):
    signal.raise_signal(signal.SIGINT)
    now += signals.ONE_KEY_SECS / 2
    signal.raise_signal(signal.SIGINT)
    assert collected == [signal.SIGINT]
    now += signals.ONE_KEY_SECS
    signal.raise_signal(signal.SIGINT)
  assert collected == [signal.SIGINT, signal.SIGINT]


def test_after_an_error_they_are_no_longer_collected(earlier):
  collected = []
  with pytest.raises(ValueError), signals.collecting(collected):
    raise ValueError
  signal.raise_signal(signal.SIGTERM)
  assert (collected, earlier) == ([], [signal.SIGTERM])


def test_each_collected_signal_is_a_byte_to_wake_a_select(pair):
  reader, writer = pair
  collected = []
  with signals.collecting(collected, writer.fileno()):
    signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGINT)
  assert reader.recv(9) == bytes([signal.SIGTERM, signal.SIGINT])
  assert collected == [signal.SIGTERM, signal.SIGINT]
  assert signal.set_wakeup_fd(-1) == -1


def test_who_was_woken_before_is_woken_again(pair):
  reader, writer = pair
  signal.set_wakeup_fd(writer.fileno())
  with signals.collecting([]):
    signal.raise_signal(signal.SIGTERM)
  signal.raise_signal(signal.SIGINT)
  assert reader.recv(9) == bytes([signal.SIGINT])
  assert signal.set_wakeup_fd(-1) == writer.fileno()


@pytest.fixture
def reader():
  handlers = [(n, signal.getsignal(n)) for n in signals.STOPS]
  reader = signals.Reader(*signals.STOPS)
  yield reader
  for signum, handler in handlers:
    signal.signal(signum, handler)
  # Until then its writer is the process's wakeup fd.
  signal.set_wakeup_fd(-1)
  reader.reader.close()
  reader._writer.close()


def test_a_reader_reads_the_numbers(earlier, reader):
  assert reader.fileno() == reader.reader.fileno()
  signal.raise_signal(signal.SIGUSR1)
  signal.raise_signal(signal.SIGTERM)
  assert reader.read() == [signal.SIGUSR1, signal.SIGTERM]
  assert earlier == []


def test_a_notice_that_comes_again_is_not_passed_on_as_a_second_stop(
  earlier, reader
):
  signal.raise_signal(signal.SIGUSR1)
  assert reader.read() == [signal.SIGUSR1]
  for signum in (signal.SIGUSR2, signal.SIGTERM, signal.SIGXCPU):
    signal.raise_signal(signum)
  assert reader.read() == [signal.SIGTERM]


def test_a_signal_that_c_code_handles_is_the_user_s():
  signal.signal(signal.SIGUSR1, signal.SIG_DFL)
  faulthandler.register(signal.SIGUSR1)
  try:
    assert signal.SIGUSR1 not in signals.find_heeded()
    assert signal.SIGUSR2 in signals.find_heeded()
  finally:
    faulthandler.unregister(signal.SIGUSR1)
  assert signal.SIGUSR1 in signals.find_heeded()


def test_a_ctrl_c_ends_the_process_until_it_is_raised_again():
  signal.signal(signal.SIGINT, signal.default_int_handler)
  signals.end_on_ctrl_c()
  assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
  signals.raise_on_ctrl_c()
  assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
  signal.signal(signal.SIGINT, signal.SIG_IGN)  # As nohup leaves it.
  signals.end_on_ctrl_c()
  signals.raise_on_ctrl_c()
  assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_after_nohup_a_closed_terminal_is_not_heeded(earlier):
  assert signal.SIGHUP in signals.find_heeded()
  signal.signal(signal.SIGHUP, signal.SIG_IGN)
  assert signal.SIGHUP not in signals.find_heeded()


def test_a_signal_wakes_who_waits(earlier):
  received = []
  with signals.waking(received) as wake:
    wake.settimeout(60)
    signal.raise_signal(signal.SIGTERM)
    assert wake.recv(1) == bytes([signal.SIGTERM])
  assert received == [signal.SIGTERM]
  signal.raise_signal(signal.SIGTERM)
  assert earlier == [signal.SIGTERM]


def test_the_notices_of_schedulers_are_signals_that_ask_to_end_once():
  for signum in signals.NOTICES:
    signal.signal(signum, signal.SIG_DFL)
  collected = []
  with signals.collecting(collected):
    for signum in (*signals.NOTICES, signal.SIGINT):
      signal.raise_signal(signum)
  assert collected == [signals.NOTICES[0], signal.SIGINT]
  with pytest.raises(signals.SignalError) as caught, signals.raising():
    signal.raise_signal(signal.SIGXCPU)
  assert caught.value.exit_code == 152
  assert signal.getsignal(signal.SIGXCPU) == signal.SIG_DFL


def test_a_notice_that_the_user_s_code_handles_is_not_heeded(earlier):
  assert signal.SIGUSR1 not in signals.find_heeded()
  collected = []
  with signals.collecting(collected):
    signal.raise_signal(signal.SIGUSR1)
  assert (collected, earlier) == ([], [signal.SIGUSR1])


def test_a_task_is_told_by_a_signal_that_any_program_knows():
  told = {n: signals.choose_passed_on(n) for n in signals.STOPS}
  assert told.pop(signal.SIGINT) == signal.SIGINT
  assert set(told.values()) == {signal.SIGTERM}


_CTRL_C = """
import signal
import distmnist
from distmnist.common import cli
def main():
  signal.raise_signal(signal.SIGINT)
if {is_early}:
  main()
cli.run(main)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
  'names_set, is_early, code',
  [
    (
      (),
      True,
      -signal.SIGINT,
    ),  # A script that is none of a launcher's: a traceback.
    ((names.LAUNCH_ID,), True, -signal.SIGINT),
    ((names.LAUNCH_ID,), False, 130),
    ((names.LAUNCH_ID, names.ATTEMPT), False, -signal.SIGINT),
  ],
)
def test_a_ctrl_c_amid_an_import_ends_a_launched_script_at_once(
  tmp_path, names_set, is_early, code
):
  script = tmp_path / 'mine.py'
  script.write_text(_CTRL_C.format(is_early=is_early))
  done = subprocess.run(
    [sys.executable, script],
    env={**os.environ, 'PYTHONPATH': PYTHONPATH}
    | dict.fromkeys(names_set, '2'),
    capture_output=True,
    text=True,
    timeout=200,
  )
  assert (done.returncode, 'Traceback' in done.stderr) == (code, not names_set)
