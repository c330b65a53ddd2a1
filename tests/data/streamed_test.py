"""streamed: what a reader reads, in place of arrays at hand."""

import re
import threading

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.data import data_order, streamed
from distmnist.readers import csv

ROWS = np.array([[10, 1, 2], [20, 3, 4]])


@pytest.fixture(autouse=True)
def _flags(set_flags):
  set_flags()


class Reader:
  """Twenty examples, each made of its number."""

  num_examples = 20

  def __init__(self):
    self.asked = []
    self.change = lambda x, y: (x, y)

  def read(self, indices):
    self.asked.append(indices.tolist())
    x = {'a': np.stack([indices, -indices], 1).astype(float), 'b': indices}
    return self.change(x, [f'example {i}' for i in indices])


def test_it_has_the_examples_of_its_reader():
  examples = streamed.Streamed(Reader())
  assert examples.num_examples == 20 and examples.blocks is None
  assert examples.spec.x == {
    'a': tf.TensorSpec([2], tf.float32),
    'b': tf.TensorSpec([], tf.int64),
  }
  assert examples.spec.y == tf.TensorSpec([], tf.string)
  part = examples.slice(18, 25)
  assert part.x['a'].tolist() == [[18, -18], [19, -19]]
  assert part.y.tolist() == [b'example 18', b'example 19']


def test_no_examples_are_none_and_nothing_is_read():
  reader = Reader()
  examples = streamed.Streamed(reader)
  part = examples.slice(0, 0)
  assert part.num_examples == 0 and part.x['a'].shape == (0, 2)
  assert reader.asked == [[0]]


def test_a_batch_that_was_announced_is_read_once():
  reader = Reader()
  examples = streamed.Streamed(reader)
  rows = np.array([[0, 5, 3], [2, 7, 1]])
  examples.announce(rows)
  with tf.Graph().as_default(), tf.Session() as session:
    row = tf.placeholder(tf.int64, [3])
    batch = examples.pack(streamed.build_batch(examples, row))
    assert batch.x['a'].shape == [2, 2] and batch.y.shape == [2]
    for given in rows:
      found = session.run(tuple(batch), {row: given})
      assert found[0]['b'].tolist() == given[1:].tolist()
      assert found[1].tolist() == [b'example %d' % i for i in given[1:]]
  assert reader.asked == [[0], [5, 3, 7, 1]]


@pytest.mark.parametrize(
  'change, named',
  [
    (lambda x, y: x, 'dict'),
    (
      lambda x, y: ({'a': x['a'][:, :1], 'b': x['b']}, y),
      'float32 [1], int64 [], string [] where example 0 is float32 [2]',
    ),
    (
      lambda x, y: ({name: a[:1] for name, a in x.items()}, y[:1]),
      '1 examples for 2 numbers',
    ),
    (
      lambda x, y: ({**x, 'a': np.full([2, 2], np.nan)}, y),
      'example 1',
    ),
  ],
)
def test_what_no_graph_can_take_is_named(change, named):
  reader = Reader()
  examples = streamed.Streamed(reader)
  reader.change = change
  with pytest.raises(streamed.ReadError, match=re.escape(named)):
    examples.slice(1, 3)


def test_blocks_are_those_of_the_reader():
  reader = Reader()
  reader.block_sizes, reader.window = [8, 12], 3
  assert streamed.Streamed(reader).blocks == data_order.Blocks([8, 12], 3)
  reader.block_sizes = [8, 8]
  with pytest.raises(ValueError, match='16 examples, but the reader has 20'):
    streamed.Streamed(reader)


def test_a_reader_without_examples_is_refused():
  reader = Reader()
  reader.num_examples = 0
  with pytest.raises(ValueError, match='has no examples'):
    streamed.Streamed(reader)
  reader.num_examples = 20.5
  with pytest.raises(ValueError, match='num_examples .* 20.5'):
    streamed.Streamed(reader)


def test_a_file_is_no_reader():
  with open(__file__, encoding='utf-8') as file:
    assert not streamed.is_reader(file)
  assert streamed.is_reader(Reader())


def test_others_are_told_by_the_reader():
  def identify(name):
    reader = Reader()
    reader.identify = lambda: name
    return b''.join(
      bytes(part) for part in streamed.Streamed(reader).identify()
    )

  assert identify(b'a') == identify(b'a') != identify(b'b')


def test_what_failed_in_a_step_is_noted_while_somebody_asks():
  reader = Reader()
  examples = streamed.Streamed(reader)
  reader.read = lambda indices: 1 / 0
  with streamed.noted_failures() as before:
    pass
  with streamed.noted_failures() as outer:
    assert outer == []
    for _ in range(2):
      with (
        streamed.noted_failures() as inner,
        pytest.raises(streamed.ReadError),
      ):
        examples.take(np.array([0, 1, 2]))
      assert [type(error) for error in inner] == [ZeroDivisionError]
  assert len(outer) == 2 and before == []


def test_what_failed_elsewhere_is_noted_too():
  """At the door, in an evaluation, in the check of a checkpoint."""
  reader = Reader()
  examples = streamed.Streamed(reader)
  reader.identify = lambda: 'text'
  with streamed.noted_failures() as failures:
    with pytest.raises(streamed.ReadError, match=r'identify\(\) gave str'):
      list(examples.identify())
    reader.read = lambda indices: 1 / 0
    with pytest.raises(streamed.ReadError):
      examples.slice(0, 3)
  assert 'identify()' in str(failures[0])
  assert isinstance(failures[1], ZeroDivisionError)


@pytest.mark.parametrize('error', [StopIteration, SystemExit, MemoryError])
def test_what_a_reader_raises_is_its_failure_and_no_end(error):
  """TensorFlow takes StopIteration for the end of the data."""
  reader = Reader()
  examples = streamed.Streamed(reader)

  def fail(indices):
    raise error

  reader.read = fail
  rows = np.array([[0, 1, 2]])
  examples.announce(rows)
  with (
    streamed.noted_failures() as failures,
    pytest.raises(streamed.ReadError, match=error.__name__),
  ):
    examples.take(rows[0])
  assert [type(failure) for failure in failures] == [error]


@pytest.mark.parametrize('base', [Reader, csv.Reader])
def test_a_reader_may_use_its_memory_again(base):
  buffer = np.zeros([40], np.float32)

  class Reusing(base):
    num_examples = 40

    def __init__(self):
      pass

    def read(self, indices):
      found = buffer[: len(indices)]
      found[:] = indices
      return found, indices

  examples = streamed.Streamed(Reusing())
  first, second = np.array([[0, 5, 3]]), np.array([[2, 7, 1]])
  for rows in (first, second):
    examples.announce(rows)
  examples.take(second[0])  # Both are read by now.
  assert examples.take(first[0])[0].tolist() == [5, 3]


def test_a_window_has_a_block():
  reader = Reader()
  reader.block_sizes, reader.window = [20], 0
  with pytest.raises(ValueError, match='^the window of the reader is 0: expec'):
    streamed.Streamed(reader)


class Read:
  """Reads a number as its square; `may` holds it back until it is set."""

  def __init__(self):
    self.asked = []
    self.may = threading.Event()
    self.may.set()

  def __call__(self, indices):
    self.may.wait(60)
    self.asked.append(indices.tolist())
    return [indices**2, indices[:, np.newaxis]]


def take(ahead, row):
  squares, column = ahead.take(np.array(row))
  assert column.shape == (len(row) - 1, 1)
  return squares.tolist()


def test_the_batches_of_a_run_are_read_at_once():
  read = Read()
  ahead = streamed.ReadAhead(read, 1)
  ahead.announce(ROWS)
  ahead.announce(ROWS)
  assert take(ahead, ROWS[1]) == [9, 16]
  assert take(ahead, ROWS[0]) == [1, 4]
  assert read.asked == [[1, 2, 3, 4]]


def test_what_was_not_announced_is_read_when_it_is_asked_for():
  read = Read()
  ahead = streamed.ReadAhead(read, 1)
  # Another place: other draws, though the examples are the same.
  ahead.announce(ROWS)
  assert take(ahead, [11, 1, 2]) == [1, 4]
  assert sorted(read.asked) == [[1, 2], [1, 2, 3, 4]]


def test_a_run_that_is_longer_than_was_announced_is_announced_anew():
  read = Read()
  ahead = streamed.ReadAhead(read, 1)
  ahead.announce(ROWS[:1])
  ahead.announce(ROWS)
  assert take(ahead, ROWS[1]) == [9, 16]


def test_what_was_announced_in_vain_is_forgotten():
  read = Read()
  read.may.clear()
  ahead = streamed.ReadAhead(read, 1)
  for place in range(6):
    ahead.announce(np.array([[place, place, place]]))
  read.may.set()
  assert take(ahead, [5, 5, 5]) == [25, 25]
  # The first had begun; of the others the last three were still wanted.
  assert [numbers[0] for numbers in read.asked] == [0, 3, 4, 5]
  assert take(ahead, [1, 1, 1]) == [1, 1]


def test_an_error_is_that_of_who_asks():
  def read(indices):
    raise OSError('gone')

  ahead = streamed.ReadAhead(read, 1)
  ahead.announce(ROWS)
  with pytest.raises(OSError, match='gone'):
    ahead.take(ROWS[0])
