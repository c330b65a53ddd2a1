"""Meeting: who agrees on what, in threads on the servers of one process."""

import threading

import pytest
import tensorflow.compat.v1 as tf

from distmnist.common import cli
from distmnist.exchange.ring import meeting
from tests.support import in_process

FINGERPRINT = 5


class TooLongError(Exception):
  """The test waits no longer."""


class Member:
  """One worker, in a life of its own, that meets in a thread."""

  def __init__(self, cluster, index, fingerprint=FINGERPRINT):
    self.meeting = meeting.Meeting(
      cluster.worker(index), cluster.servers[index], fingerprint
    )
    self.missing = None
    self.is_over = threading.Event()

  def begin(self, step=None, is_left=True):
    """Begins to meet; returns the thread."""

    def look(missing):
      self.missing = missing
      if self.is_over.is_set():
        raise TooLongError

    def hold():
      pause = threading.Event().wait
      self.meeting.hold(step, is_left, look, pause)

    return in_process.start_thread(hold)

  def meet(self, *args):
    end(self.begin(*args))
    return self.meeting.agreement


def end(*threads):
  for thread in threads:
    thread.join(60)
    assert not thread.is_alive() and not thread.errors, thread.errors


@pytest.fixture
def cluster(make_cluster):
  found = make_cluster(0, 3)
  found.reset()
  return found


def meet(members, steps):
  """Returns the Agreement of all, which is the same on each."""
  end(*[m.begin(s) for m, s in zip(members, steps, strict=True)])
  first, *others = [member.meeting.agreement for member in members]
  assert all(other == first for other in others)
  return first


@pytest.mark.parametrize(
  ('steps', 'expected'),
  [
    ([None, None, None], (0, [1, 2], None)),
    ([None, 7, 7], (1, [0], 7)),
    ([6, 7, None], (1, [0, 2], 7)),
    ([7, 6, 7], (0, [1], 7)),
    ([0, 0, 0], (0, [], 0)),
    ([None, None, 0], (2, [0, 1], 0)),
  ],
)
def test_who_has_most_steps_gives_to_those_with_fewer(steps, expected):
  entries = [['life', 1, step, FINGERPRINT] for step in steps]
  found = meeting.agree('name', entries)
  assert (found.giver, found.takers, found.step) == expected


@pytest.mark.slow
def test_a_successor_gets_in_and_the_others_learn_of_it(cluster):
  members = [Member(cluster, i) for i in range(3)]
  first = meet(members, [None] * 3)
  assert [m.meeting.find_changed() for m in members] == [[]] * 3
  again = meet([members[0], Member(cluster, 1), members[2]], [4, None, 5])
  assert again.generation != first.generation
  assert (again.giver, again.takers, again.step) == (2, [0, 1], 5)
  assert again.find_new(first) == [1]
  # The one before it, which was suspended, say.
  assert members[1].meeting.find_changed() == [0, 1, 2]


@pytest.mark.slow
def test_none_goes_on_before_all_are_there(cluster):
  members = [Member(cluster, i) for i in range(3)]
  meet(members, [None] * 3)
  waiting = [members[i].begin(3) for i in (0, 2)]
  # The row of worker 1 is there, and is of the meeting before.
  for _ in range(50):
    threading.Event().wait(0.01)
    assert all(thread.is_alive() for thread in waiting)
  assert [members[i].missing for i in (0, 2)] == [[1]] * 2
  # It has not noticed yet that the others have left; then it has.
  assert members[1].meeting.find_changed() == [0, 2]
  end(members[1].begin(3), *waiting)


@pytest.mark.slow
def test_one_that_has_not_begun_need_not_meet_again(cluster):
  members = [Member(cluster, i) for i in range(3)]
  first = meet(members, [None] * 3)
  again = members[1].meet(None, False)
  assert again == first
  assert members[0].meeting.find_changed() == []


@pytest.mark.slow
def test_a_board_that_was_lost_is_written_again(cluster):
  members = [Member(cluster, i) for i in range(3)]
  first = meet(members, [None] * 3)
  tf.Session.reset(cluster.servers[0].target)
  assert members[1].meeting.find_changed() == [0, 1, 2]
  again = meet([Member(cluster, 0), *members[1:]], [None, 3, 3])
  assert again.find_new(first) == [0] and again.giver == 1


@pytest.mark.slow
def test_whose_place_was_taken_ends_and_leaves_the_row_alone(cluster):
  members = [Member(cluster, i) for i in range(3)]
  meet(members, [None] * 3)
  new = [members[0], Member(cluster, 1), members[2]]
  meet(new, [2, None, 2])
  late = members[1].begin(9)
  late.join(60)
  [error] = late.errors
  assert isinstance(error, cli.LostError)
  assert 'another process has become worker 1' in str(error)
  assert new[0].meeting.find_changed() == []


def test_what_ends_the_wait_comes_through(cluster):
  member = Member(cluster, 1)
  thread = member.begin()
  member.is_over.set()
  thread.join(60)
  [error] = thread.errors
  assert isinstance(error, TooLongError)


@pytest.mark.slow
def test_who_has_other_variables_is_refused(cluster):
  threads = [Member(cluster, i, FINGERPRINT + i // 2).begin() for i in range(3)]
  for thread in threads:
    thread.join(60)
    [error] = thread.errors
    assert isinstance(error, cli.RunError)
    assert 'have the same variables' in str(error)
