"""A request to stop from elsewhere beside the signals of this task."""

import signal
import subprocess
import sys

import pytest

# Says what it has done so far, and does what it is told, a letter a line.
PROGRAM = """
import os, signal, sys, time
from distmnist.cluster import stop_request
from distmnist.common import cli, console, signals
console.print_logs(console.Console().say)
signals.ONE_STOP_SECS = {one_stop_secs}
stop = stop_request.StopRequest({grace_secs})
stop.on_request(lambda: print('called back', flush=True))
for line in sys.stdin:
  if line == 'r\\n':
    stop.request(signal.SIGTERM)
  elif line == 'g\\n':
    stop.give_up(cli.LostError('worker 1 is gone'))
  elif line == 'p\\n':
    stop.give_up(cli.PassingError('ps 0 does not answer'))
  elif line == 'u\\n':
    stop.note_unsaved(lambda: 'step 9 is not saved')
  elif line == 'b\\n':
    print('blocked', flush=True)
    os.read(os.pipe()[0], 1)
  elif line == 'f\\n':
    os.set_blocking(1, False)
    try:
      while True:
        os.write(1, b'full')
    except BlockingIOError:
      os.set_blocking(1, True)
    print('full', file=sys.stderr, flush=True)
    print('more', flush=True)  # It holds the lock of stdout for ever.
  elif line == 'k\\n':
    stop.wake()
  elif line == 'e\\n':
    cli.run(lambda: stop.end(), argv=['x'])
  elif line.startswith('n'):
    os.kill(os.getpid(), int(line[1:]))
  elif line == 'h\\n':
    for number in signal.SIGUSR1, signal.SIGALRM, signal.SIGWINCH:
      signal.signal(number, lambda n, _: print('mine', n, flush=True))
  elif line == 'a\\n':
    signal.set_wakeup_fd(-1)
    stop.listen_again()
  elif line == 'w\\n':
    print('waiting', flush=True)
    try:
      stop.wait(60)
    except stop_request.StoppedError:
      print('no more waiting', flush=True)
  else:
    while line == 'l\\n':  # The thread may have read the first late.
      time.sleep(signals.ONE_STOP_SECS)
      os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)
  print(stop.is_requested and stop.exit_code, flush=True)
"""
LINE = 'SIGTERM: saving and stopping'


@pytest.fixture
def start():
  """Returns start(grace_secs, one_stop_secs) -> Popen of PROGRAM."""
  started = []

  def start(grace_secs=60, one_stop_secs=1):
    program = PROGRAM.format(grace_secs=grace_secs, one_stop_secs=one_stop_secs)
    process = subprocess.Popen(
      [sys.executable, '-c', program],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
    )
    started.append(process)
    return process

  yield start
  for process in started:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
      pipe.close()


def tell(process, letter):
  process.stdin.write(f'{letter}\n')
  process.stdin.flush()


def read_until(process, text):
  """Returns the output up to the end of a line with `text` in it.

  Two threads print, and may break into each other's lines.
  """
  found = ''
  for line in process.stdout:
    found += line
    if text in line:
      return found
  raise AssertionError(f'no {text!r} in {found}')


@pytest.mark.slow
def test_a_wake_is_no_request(start):
  process = start()
  tell(process, 'k')
  read_until(process, 'called back')
  tell(process, 'e')
  assert process.wait(60) == 0


@pytest.mark.slow
def test_a_request_is_like_a_signal(start):
  process = start(grace_secs=1)
  tell(process, 'r')
  found = read_until(process, 'not done 1 s after SIGTERM: stopping at once')
  for text in (f'{LINE}, with all tasks', 'called back', '143'):
    assert text in found
  assert process.wait(60) == 143


@pytest.mark.slow
def test_the_signal_that_follows_a_request_is_the_first(start):
  process = start()
  tell(process, 'r')
  read_until(process, '143')
  tell(process, 's')
  # It is alive and answers.
  assert 'at once' not in read_until(process, '143')
  tell(process, 'l')
  read_until(process, 'a second signal: stopping at once')
  assert process.wait(60) == 143


@pytest.mark.slow
def test_signals_within_a_second_are_one(start):
  process = start(one_stop_secs=60)
  tell(process, 's')
  read_until(process, 'called back')
  tell(process, 's')
  # It is alive and answers.
  assert 'at once' not in read_until(process, '143')
  process.stdin.close()
  assert process.wait(60) == 0


@pytest.mark.slow
def test_a_signal_after_a_second_is_another(start):
  process = start()
  tell(process, 's')
  read_until(process, 'called back')
  tell(process, 'l')
  read_until(process, 'a second signal: stopping at once')
  assert process.wait(60) == 143


@pytest.mark.slow
def test_a_request_that_follows_a_signal_is_nothing_new(start):
  process = start()
  tell(process, 's')
  assert f'{LINE}; once more stops at once' in read_until(process, 'called')
  tell(process, 'r')
  assert 'at once' not in read_until(process, '143')
  process.stdin.close()
  assert process.wait(60) == 0


@pytest.mark.slow
def test_what_is_given_up_is_saved_too_and_has_the_code_of_its_error(start):
  process = start(grace_secs=1)
  tell(process, 'g')
  found = read_until(process, 'not done 1 s after giving up: stopping')
  for text in ('giving up: saving and stopping', 'called back'):
    assert text in found
  assert process.wait(60) == 3
  assert process.stderr.read() == 'error: worker 1 is gone\n'


@pytest.mark.slow
def test_a_signal_after_giving_up_is_the_first(start):
  process = start()
  tell(process, 'g')
  read_until(process, 'called back')
  tell(process, 's')
  tell(process, 'l')
  read_until(process, 'a second signal: stopping at once')
  assert process.wait(60) == 3


@pytest.mark.slow
@pytest.mark.parametrize('signum', [1, 2, 15])
def test_a_wait_ends_with_the_request(start, signum):
  process = start()
  tell(process, 'w')
  read_until(process, 'waiting')
  process.send_signal(signum)
  read_until(process, 'no more waiting')


@pytest.mark.slow
def test_a_save_that_is_not_done_in_time_has_a_code_of_its_own(start):
  process = start(grace_secs=1)
  tell(process, 'u')
  tell(process, 'b')
  read_until(process, 'blocked')
  process.send_signal(15)
  read_until(process, 'not done 1 s after SIGTERM: stopping at once')
  assert process.wait(60) == 75
  assert process.stderr.read() == 'error: step 9 is not saved\n'


@pytest.mark.slow
def test_it_ends_though_nobody_reads_what_it_says(start):
  process = start(grace_secs=1)
  tell(process, 'u')
  tell(process, 'b')
  read_until(process, 'blocked')
  process.stdout.close()
  process.stderr.close()
  process.send_signal(15)
  assert process.wait(60) == 75


@pytest.mark.slow
def test_it_ends_while_its_main_thread_waits_for_a_reader(start):
  process = start(grace_secs=1)
  tell(process, 'f')
  assert process.stderr.readline() == 'full\n'
  process.send_signal(15)
  assert process.wait(60) == 143


@pytest.mark.slow
def test_what_was_not_saved_is_said_at_an_end_in_order_too(start):
  process = start()
  tell(process, 'u')
  tell(process, 's')
  read_until(process, 'called back')
  tell(process, 'e')
  assert process.wait(60) == 75
  assert 'error: step 9 is not saved' in process.stderr.read()


@pytest.mark.slow
def test_what_is_given_up_keeps_its_code_and_says_what_is_lost(start):
  process = start()
  tell(process, 'u')
  tell(process, 'g')
  read_until(process, 'called back')
  tell(process, 'e')
  read_until(process, 'step 9 is not saved')
  assert process.wait(60) == 3
  assert 'error: worker 1 is gone' in process.stderr.read()


@pytest.mark.slow
def test_in_another_thread_than_the_main_one_it_is_one_line():
  program = (
    'import threading\n'
    'from distmnist.common import cli\n'
    'from distmnist.cluster import stop_request\n'
    'def main(): stop_request.StopRequest()\n'
    "work = lambda: cli.run(main, argv=['x'], leave=codes.append)\n"
    'codes = []\n'
    'thread = threading.Thread(target=work)\n'
    'thread.start(), thread.join()\n'
    'print(codes)\n'
  )
  done = subprocess.run(
    [sys.executable, '-c', program], capture_output=True, text=True
  )
  assert done.stdout == '[1]\n'
  (line,) = done.stderr.splitlines()
  assert 'error: a training has to run in the main thread, the ' in line


@pytest.mark.slow
@pytest.mark.parametrize('signum', [10, 12, 24])
def test_what_a_scheduler_sends_before_it_kills_asks_to_save(start, signum):
  process = start(one_stop_secs=0.2)
  name = signal.Signals(signum).name
  tell(process, f'n{signum}')
  read_until(process, f'{name}: saving and stopping; SIGTERM stops at once')
  read_until(process, 'called back')
  tell(process, f'n{signum}')  # Some come every second.
  tell(process, 'w')
  read_until(process, 'no more waiting')
  read_until(process, str(128 + signum))
  tell(process, 'l')
  read_until(process, 'a second signal: stopping at once')
  assert process.wait(60) == 128 + signum


@pytest.mark.slow
def test_a_signal_that_the_user_s_code_handles_is_his(start):
  process = start()
  tell(process, 'h')
  for signum in (10, 14, 28):
    tell(process, f'n{signum}')
    read_until(process, f'mine {signum}')
  tell(process, 'x')
  read_until(process, LINE)


@pytest.mark.slow
def test_a_descriptor_that_the_user_s_code_took_is_taken_back(start):
  process = start()
  tell(process, 'a')
  read_until(process, 'signal.set_wakeup_fd was called')
  tell(process, 'x')
  read_until(process, LINE)


@pytest.mark.slow
def test_what_may_pass_amid_the_work_is_worth_a_restart(start):
  process = start()
  tell(process, 'p')
  read_until(process, 'giving up: saving and stopping')
  read_until(process, 'called back')
  tell(process, 'e')
  assert process.wait(60) == 3
