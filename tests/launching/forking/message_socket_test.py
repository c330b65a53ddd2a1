import selectors

import pytest

from distmnist.launching.forking import message_socket


@pytest.fixture
def ends():
  with (
    selectors.DefaultSelector() as here,
    selectors.DefaultSelector() as there,
  ):
    ours, theirs = message_socket.make_pair()
    with ours, theirs:
      yield [
        (message_socket.MessageSocket(ours, here), here),
        (message_socket.MessageSocket(theirs, there), there),
      ]


def read_all(end, selector):
  """Does what the selector says until nothing is left to do."""
  found = []
  while ready := selector.select(0):
    [(_, events)] = ready
    if events & selectors.EVENT_WRITE:
      end.flush()
    if events & selectors.EVENT_READ:
      found.append(end.receive()['number'])
    elif events == selectors.EVENT_WRITE:
      break
  return found


def test_both_ends_send_more_than_the_kernel_keeps(ends):
  for end, _ in ends:
    for number in range(2000):
      end.send({'number': number})  # returns at once
  received = [[], []]
  while any(len(numbers) < 2000 for numbers in received):
    for numbers, (end, selector) in zip(received, ends, strict=True):
      numbers += read_all(end, selector)
  assert received == [list(range(2000))] * 2


def test_nothing_to_read_is_told_from_the_end(ends):
  (ours, _), (theirs, _) = ends
  with pytest.raises(BlockingIOError):
    ours.receive()
  theirs.close()
  assert ours.receive() is None
  ours.send({'number': 1})  # nobody is there: of no effect


def test_a_message_that_no_kernel_takes_is_refused(ends):
  with pytest.raises(ValueError, match='bytes, more than 131072'):
    ends[0][0].send({'text': 'x' * message_socket.MAX_BYTES})
  ends[0][0].send({'text': 'x' * (message_socket.MAX_BYTES - 100)})
