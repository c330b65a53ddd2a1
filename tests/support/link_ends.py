"""One end of a connection between Spark's driver and an agent, for tests."""

import queue
import socket

from distmnist.spark import links


class End:
  """A links.Link whose messages wait until the test reads them.

  Attributes:
    link: links.Link.
    is_open: whether the other end is there, as far as was read.
  """

  def __init__(self, link=None):
    self.link = link
    self.is_open = True
    # Not a SimpleQueue: in Python 3.10, its get() may pass its time limit and
    # wait for ever.
    self._heard = queue.Queue()

  @classmethod
  def of_agent(cls, host, port, secret):
    """Returns the end of an agent that has met the driver."""
    end = cls()
    end.link = links.connect(host, port, secret, end.hear)
    return end

  @classmethod
  def of_driver(cls, listener, secret, secs):
    """Returns the end of a driver that has met whoever connects next.

    Raises:
      OSError: that one does not know the secret.
    """
    end = cls(links.Link(listener.accept()[0]))
    try:
      end.link.meet(secret, True, secs)
    except OSError:
      end.close()
      raise
    end.link.listen(end.hear)
    return end

  def hear(self, link, message):
    self._heard.put(message)

  def send(self, **message):
    self.link.send(**message)

  def close(self):
    self.is_open = False
    self.link.close()

  def receive(self, secs=0.0):
    """Returns the messages that have come; waits up to `secs` for the first."""
    messages = []
    try:
      while self.is_open:
        message = self._heard.get(timeout=0 if messages else secs)
        if message is None:
          self.close()
        else:
          messages.append(message)
    except queue.Empty:
      pass
    return messages


def make_pair():
  """Returns both ends of a connection by TCP, as sockets."""
  with socket.create_server(('127.0.0.1', 0)) as listener:
    ours = socket.create_connection(listener.getsockname())
    return ours, listener.accept()[0]
