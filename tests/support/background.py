"""Programs in the background, and whether what they started is gone."""

import re
import subprocess
import time

import psutil

# Far more than anything takes where nothing else wants the cores.
DEADLINE_SECS = 200
# Lines of the launcher that give the pids of tasks.
PIDS = re.compile(
  r'^distmnist\.launch: (pids on .*|[\w ]+ is pid \d+ now)\n', re.M
)


def wait_until(is_so, describe, timeout_secs=DEADLINE_SECS):
  """Returns once is_so(); fails with describe() if that takes too long."""
  deadline = time.monotonic() + timeout_secs
  while not is_so():
    assert time.monotonic() < deadline, describe()
    time.sleep(0.01)


def has_ended(process):
  """Whether a psutil.Process is gone, or a zombie."""
  # An orphan may stay a zombie until a slow init reaps it.
  try:
    return process.status() == psutil.STATUS_ZOMBIE
  except psutil.NoSuchProcess:
    return True


def assert_gone(processes, timeout_secs=DEADLINE_SECS):
  def find_alive():
    return [process for process in processes if not has_ended(process)]

  wait_until(lambda: not find_alive(), find_alive, timeout_secs)


def assert_ps_left_last(folder):
  """Of the tasks worker0, worker1 and ps0, which were told to leave."""
  left = {
    name: (folder / f'{name}.left').stat().st_mtime_ns
    for name in ('worker0', 'worker1', 'ps0')
  }
  assert left['ps0'] == max(left.values()), left


def last_line(text):
  return text.splitlines()[-1]


class Running:
  """A program in the background; its end is the end of all that it started.

  Attributes:
    process: subprocess.Popen.
    stderr: path of what it has written there.
  """

  def __init__(self, folder, command, stdout=subprocess.DEVNULL, **how):
    """
    Args:
      folder: path, where tasks touch their files.
      command: list of str.
      stdout, **how: for subprocess.Popen.
    """
    self.folder, self.stderr = folder, folder / 'stderr'
    with open(self.stderr, 'w') as stderr:
      self.process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        **how,
      )

  def __enter__(self):
    return self

  def __exit__(self, *_):
    if self.process.poll() is None:
      self.process.kill()
    self.process.communicate()

  def wait_until(self, is_so, timeout_secs=DEADLINE_SECS):
    """Returns once is_so(), which must be before the program's end."""

    def is_so_by_now():
      has_ended = self.process.poll() is not None  # Before the last look.
      if is_so():
        return True
      assert not has_ended, self.stderr.read_text()
      return False

    wait_until(is_so_by_now, self.stderr.read_text, timeout_secs)

  def wait_for_files(self, *names):
    paths = [self.folder / name for name in names]
    self.wait_until(lambda: all(path.exists() for path in paths))
    return paths

  def wait_for(self, *names):
    """Waits for touched files; returns the tasks that have touched them."""
    paths = self.wait_for_files(*names)
    return [psutil.Process(int(path.read_text())) for path in paths]

  def wait_for_words(self, words):
    """Waits until the program has written `words` to its stderr."""
    self.wait_until(lambda: words in self.stderr.read_text())

  def all_processes(self, tasks=()):
    """Those of this program, tasks elsewhere, and the parents of these."""
    return [
      *psutil.Process(self.process.pid).children(recursive=True),
      *(task.parent() for task in tasks),
      *tasks,
    ]

  def send(self, signum):
    self.process.send_signal(signum)


class Here:
  """A folder to launch from.

  A subclass has `folder`, `env` ({name: value}) and `command`, which takes the
  words after the flags and the flags, and returns a list of str.
  """

  def run(self, *words, **flags):
    """Launches, and waits for the end; returns what subprocess.run does."""
    return subprocess.run(
      self.command(*words, **flags),
      cwd=self.folder,
      env=self.env,
      stdin=subprocess.DEVNULL,
      capture_output=True,
      text=True,
      timeout=200,
    )

  def words_to(self, do):
    """Returns the words that tell support/fake_train.py what to do."""
    return '--', f'--do={do}', f'--folder={self.folder}'

  def do(self, do, **flags):
    return self.run(*self.words_to(do), **flags)

  def start(self, do, *words, **flags):
    command = self.command(*self.words_to(do), *words, **flags)
    return Running(self.folder, command, cwd=self.folder, env=self.env)

  def log(self, name):
    return (self.folder / 'logs' / f'{name}.log').read_text()
