"""The desk of a driver, with the test in the place of the agents."""

import signal
import socket
import time

from distmnist.spark import desk, handshake
from distmnist.spark import messages as messages_lib

SECRET = 'secret'
NAMES = ['ps 0', 'worker 0', 'worker 1']
STOP = {'stop': signal.SIGTERM}
# What is sent may take its time to arrive, on this machine too.
DEADLINE_SECS = 60


class Room:
  """A desk and who reports to it."""

  def __init__(self, folder):
    self.shown = []
    self.folder = folder
    self.desk = desk.Desk('127.0.0.1', SECRET, NAMES, str(folder), self.show)
    self.desk.begin()
    self.opened = []

  def show(self, name, line):
    self.shown.append((name, line))

  def connect(self, secret=SECRET):
    connection = messages_lib.Connection(
      socket.create_connection(('127.0.0.1', self.desk.port))
    )
    self.opened.append(connection)
    (message,) = self.read(connection)
    agent = handshake.Agent(secret)
    connection.send(**agent.answer(message))
    if secret == SECRET:
      (message,) = self.read(connection)
      assert agent.is_driver(message)
      connection.secure(agent.key, 'agent', 'driver')
    return connection

  def greet(self, name, attempt=1, **other):
    connection = self.connect()
    hello = {
      'hello': name,
      'attempt': attempt,
      'address': '127.0.0.1:2222',
      'executor': '127.0.0.1 (pid 7)',
    }
    connection.send(**{**hello, **other})
    return connection

  def join(self, name, attempt=1):
    connection = self.greet(name, attempt)
    self.turn_until(lambda: name not in self.desk.missing)
    return connection

  def join_all(self, attempt=1):
    return {name: self.join(name, attempt) for name in NAMES}

  def turn_until(self, is_so):
    # One thread is the desk and all who speak with it.
    deadline = time.monotonic() + DEADLINE_SECS
    while not is_so():
      assert time.monotonic() < deadline
      self.desk.turn(0.01)

  def read(self, agent, num_messages=1):
    """What the desk has said to an agent since, as a list.

    Waits for as many messages; more may have come.
    """
    messages = []

    def is_enough():
      messages.extend(agent.receive())
      return len(messages) >= num_messages

    self.turn_until(is_enough)
    for _ in range(3):
      self.desk.turn(0.01)
    return messages + agent.receive()

  def read_to_the_end(self, agent):
    """What the desk has said until it closed the connection, as a list."""
    messages = []

    def is_closed():
      messages.extend(agent.receive())
      return not agent.is_open

    self.turn_until(is_closed)
    return messages
