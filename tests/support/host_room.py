"""A host of Spark's executors, with the test in place of the agents."""

import signal
import threading
import time

from distmnist.launching import host as host_lib
from distmnist.launching import jobs
from distmnist.spark import executor_host
from tests.support import link_ends

TASKS = jobs.make_tasks(['e-0:1'], ['e-1:1', 'e-2:1'], [])
NAMES = [task.name for task in TASKS]
STOP = {'stop': signal.SIGTERM}
# What is sent may take a while to arrive, even on this machine.
DEADLINE_SECS = 120


class FakeJob:
  """In place of a spark_job.Job; ends when the test says so."""

  def __init__(self):
    self.error = None
    self.has_ended = self.is_cancelled = False
    self.is_started = self.is_gone = self.is_ours = False

  def start(self):
    self.is_started = True

  def cancel(self):
    self.is_ours = True

  def end(self):
    self.is_gone = True

  def explain(self):
    return str(self.error)


class Room:
  """A host, the jobs that it submits, and the agents that report to it."""

  def __init__(self, folder, start_secs=600.0):
    self.shown, self.jobs, self.opened = [], [], []
    self.folder = folder
    self.num_waits = 0
    self.host = executor_host.ExecutorHost(
      TASKS,
      *(self.make_job, self.wait_for_slots, ('start', start_secs)),
      *({'spark.driver.host': '127.0.0.1'}, self.show),
    )
    self.events = []
    self._is_closed = False

  def close(self):
    if not self._is_closed:
      self._is_closed = True
      self.host.__exit__()

  def make_job(self, attempt, contact, on_end):
    (_, self.port), self.secret = contact['driver'], contact['secret']
    self.jobs.append(FakeJob())
    return self.jobs[-1]

  def wait_for_slots(self):
    self.num_waits += 1

  def show(self, name, line):
    self.shown.append((name, line))

  def start_all(self):
    for name in NAMES:
      log = str(self.folder / f'{name}.log')
      self.host.start(host_lib.Request(name, [], {}, log))

  def connect(self, secret=None):
    """Returns the link_ends.End of an agent, which the host has met.

    Raises:
      OSError: the host does not know the secret.
    """
    secret = self.secret if secret is None else secret
    found = []

    def meet():
      try:
        found.append(link_ends.End.of_agent('127.0.0.1', self.port, secret))
      except OSError as error:
        found.append(error)

    threading.Thread(target=meet).start()
    self.turn_until(lambda: found)
    if isinstance(found[0], OSError):
      raise found[0]
    self.opened += found
    return found[0]

  def greet(self, name, attempt=1, **other):
    connection = self.connect()
    hello = {
      'hello': name,
      'attempt': attempt,
      'address': f'127.0.0.1:{2222 + NAMES.index(name)}',
      'executor': '127.0.0.1 (pid 7)',
    }
    connection.send(**{**hello, **other})
    return connection

  def join(self, name, attempt=1):
    connection = self.greet(name, attempt)
    self.turn_until(lambda: name in self.host._peers)
    return connection

  def join_all(self, attempt=1):
    """Starts all tasks, and has their agents come; returns these by name."""
    self.start_all()
    agents = {name: self.join(name, attempt) for name in NAMES}
    for agent in agents.values():
      assert self.read(agent) == [{'go': True}]
    return agents

  def turn_until(self, is_so):
    # One thread is the host and all the agents.
    deadline = time.monotonic() + DEADLINE_SECS
    while not is_so():
      assert time.monotonic() < deadline
      self.events += self.host.poll(0.01)

  def next_event(self):
    self.turn_until(lambda: self.events)
    return self.events.pop(0)

  def read(self, agent, num_messages=1):
    """What the host has said to an agent since, as a list.

    Waits for `num_messages`; more may have come.
    """
    messages = []

    def is_enough():
      messages.extend(agent.receive())
      return len(messages) >= num_messages

    self.turn_until(is_enough)
    for _ in range(3):
      self.events += self.host.poll(0.01)
    return messages + agent.receive()

  def read_to_the_end(self, agent):
    """What the host has said until it closed the connection, as a list."""
    messages = []

    def is_closed():
      messages.extend(agent.receive())
      return not agent.is_open

    self.turn_until(is_closed)
    return messages
