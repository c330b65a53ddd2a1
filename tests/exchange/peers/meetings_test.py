"""What a worker meets, and the thread that answers its steps."""

import collections
import types

import pytest
import tensorflow.compat.v1 as tf

from distmnist.exchange.peers import meetings


def test_each_other_node_is_as_likely():
  for worker in range(3):
    found = collections.Counter(
      meetings.choose(worker, number, 3) for number in range(1, 3001)
    )
    assert set(found) == {meetings.CENTER, 0, 1, 2} - {worker}
    assert [*found.values()] == pytest.approx([1000] * 3, abs=100)


def test_the_workers_do_not_draw_alike():
  drawn = [[meetings.choose(i, n, 9) for n in range(20)] for i in range(9)]
  assert len(set(map(tuple, drawn))) == 9


def test_one_worker_has_the_center_alone():
  assert {meetings.choose(0, n, 1) for n in range(9)} == {meetings.CENTER}


class Trial:
  """The steps of worker 0, which meets what `meet` says."""

  def __init__(self, cluster, monkeypatch, meet):
    self._cluster = cluster
    monkeypatch.setattr(meetings.Meetings, 'meet', meet)
    member = cluster.worker(0)
    with tf.Graph().as_default() as self._graph:
      with tf.device(member.cpu_device):
        copies = types.SimpleNamespace(
          num_bytes=0,
          variables=[],
          make_counter=lambda value, name: tf.Variable(
            tf.cast(value, tf.int64), name=name, use_resource=True
          ),
        )
        self.number = tf.placeholder(tf.int64, ())
      made = meetings.Meetings(member, copies)
      self.met = made.build_meeting(self.number)
      self.wanted = made._wanted.enqueue(self.number)
      self.visits = made.take_visits()
      self.visit = made.num_visits.assign_add(1)
      self._begin = tf.global_variables_initializer()
    self.hook, self.coord = made.hook(), tf.train.Coordinator()

  def make_session(self):
    config = self._cluster.session_config(0)
    session = tf.Session(self._cluster.servers[0].target, self._graph, config)
    session.run(self._begin)
    return session

  def ask(self, session, number):
    options = tf.RunOptions(timeout_in_ms=20_000)
    return session.run(self.met, {self.number: number}, options=options)


@pytest.mark.slow
def test_a_step_is_told_whom_its_worker_has_met(make_cluster, monkeypatch):
  trial = Trial(make_cluster(1, 2), monkeypatch, lambda _, number: number + 5)
  session = trial.make_session()
  trial.hook.after_create_session(session, trial.coord)
  assert [trial.ask(session, number) for number in (1, 2, 3)] == [6, 7, 8]
  for _ in range(2):
    session.run(trial.visit)
  assert [session.run(trial.visits) for _ in range(2)] == [2, 0]
  session.run(trial.wanted, {trial.number: 1})  # A step that is broken off.
  session.close()
  # A new session gets no answer of the one before.
  session = trial.make_session()
  trial.hook.after_create_session(session, trial.coord)
  assert trial.ask(session, 2) == 7
  trial.hook.end(session)


@pytest.mark.slow
def test_an_exchange_that_fails_for_unknown_reasons_ends_the_session(
  make_cluster, monkeypatch
):
  def fail(_, number):
    raise RuntimeError(f'exchange {number}')

  trial = Trial(make_cluster(1, 2), monkeypatch, fail)
  session = trial.make_session()
  trial.hook.after_create_session(session, trial.coord)
  with pytest.raises((tf.errors.OpError, RuntimeError)):
    trial.ask(session, 1)
  assert trial.coord.should_stop()
  with pytest.raises(RuntimeError, match='exchange 1'):
    trial.coord.join()
