"""A host of tasks without a process: the test says what ends, and when."""

from distmnist.launching import host as host_lib


class FakeHost(host_lib.Host):
  """Notes what it is asked for.

  Attributes:
    started: list of (name, variables beyond the host's).
    sent: list of (name, signal).
    ends: list of [(name, code), ...], or of HostDiedError, a turn each; then
      nothing more happens.
    num_restarts: int.
  """

  name = 'fake host'
  pid = 7

  def __init__(self, ends=()):
    super().__init__()
    self.is_ready = True
    self.started = []
    self.sent = []
    self.ends = list(ends)
    self.num_restarts = 0
    self.is_open = self.is_killed = False

  def __enter__(self):
    self.is_open = True
    return self

  def __exit__(self, *error):
    self.is_open = False

  def start(self, request):
    self.started.append((request.name, request.env))

  def signal(self, names, signum):
    self.sent += [(name, signum) for name in names]
    # What is told to end does so in the next turn.
    self.ends.append([(name, -signum) for name in names])

  def poll(self, timeout_secs=None):
    end = self.ends.pop(0) if self.ends else []
    if isinstance(end, Exception):
      raise end
    return end

  def kill(self):
    self.is_killed = True

  def restart(self):
    self.num_restarts += 1
