"""round_entry: which are among the first R of a round, told by its token."""

import concurrent.futures

import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster as cluster_lib
from distmnist.exchange.rounds import round_entry

LIFE = round_entry.LIFE
NUM_WORKERS = 3


class Desk:
  """The entry of each worker to rounds of R of them, run in one session."""

  def __init__(
    self, session, num_contributions, step=0, num_workers=NUM_WORKERS
  ):
    self._session = session
    self.global_step = tf.get_variable(
      'global_step', initializer=tf.constant(step, tf.int64)
    )
    hosts = ('p:1',), tuple(f'w{i}:1' for i in range(num_workers))
    entries = [
      round_entry.Entry(
        cluster_lib.make_cluster(*hosts, 'worker', i),
        num_contributions,
        self.global_step,
      )
      for i in range(num_workers)
    ]
    self.entry = entries[0]
    # Of a contribution that has come: the local_step that the accumulators got.
    self._applied = tf.get_variable(
      'applied', initializer=tf.constant(0, tf.int64)
    )
    self._prepared = tf.get_variable(
      'prepared', initializer=tf.zeros([2], tf.int64)
    )
    self._own_token = tf.placeholder(tf.int64, [])
    self._contributions = []
    for entry in entries:
      staleness, ops = entry.contribute(self._own_token, self._apply)
      self._contributions.append([staleness, tf.group(*ops)])
    self._token = self.entry.read_token()
    self._begin = self.entry.begin_life(self._prepare)
    if not self.entry.is_lock_step:
      self._complete = self.entry.is_complete()
      self._close = self.entry.build_full()
    session.run(tf.global_variables_initializer())

  def _apply(self, local_step):
    return [self._applied.assign(local_step, read_value=False)]

  def _prepare(self, token):
    # The token of a worker that begins in the middle of this.
    now = self.entry.read_token()
    return self._prepared.assign([token, now], read_value=False)

  def contribute(self, worker, token):
    """Returns (staleness, local_step that was applied)."""
    staleness, _ = self._session.run(
      self._contributions[worker], {self._own_token: token}
    )
    return int(staleness), int(self._session.run(self._applied))

  def begin_life(self):
    """Returns (token, [token prepared, token of one that began then])."""
    token = int(self._session.run(self._begin))
    return token, self._session.run(self._prepared).tolist()

  def read_token(self):
    return int(self._session.run(self._token))

  def is_complete(self):
    return bool(self._session.run(self._complete))

  def close(self):
    self._session.run(self._close)


@pytest.mark.slow
def test_a_token_tells_life_and_step(tf_session):
  desk = Desk(tf_session, num_contributions=2, step=7)
  assert desk.read_token() == 7
  tokens = [desk.begin_life()[0] for _ in range(3)]
  assert tokens == [LIFE + 7, 2 * LIFE + 7, 3 * LIFE + 7]
  assert desk.read_token() == 3 * LIFE + 7
  steps = tf_session.run(round_entry.step_of(tf.constant(tokens, tf.int64)))
  assert steps.tolist() == [7, 7, 7]


@pytest.mark.slow
@pytest.mark.parametrize('num_contributions', [2, 3])
def test_nobody_begins_in_a_life_before_it_is_prepared(
  tf_session, num_contributions
):
  desk = Desk(tf_session, num_contributions, step=4)
  assert desk.begin_life() == (LIFE + 4, [LIFE + 4, 4])
  assert desk.begin_life() == (2 * LIFE + 4, [2 * LIFE + 4, LIFE + 4])


@pytest.mark.slow
def test_the_first_contributions_are_in_and_later_ones_are_too_old(tf_session):
  desk = Desk(tf_session, num_contributions=2)
  token, _ = desk.begin_life()
  assert desk.contribute(0, token) == (0, token)
  assert desk.contribute(1, token) == (0, token)
  # Though the global_step is 0 still: the round has what it needs.
  assert desk.read_token() == token
  assert desk.contribute(2, token) == (1, -1)
  # The next round is open, for any that has its token.
  assert desk.contribute(2, token + 1) == (0, token + 1)
  assert desk.contribute(0, token + 1) == (0, token + 1)
  assert desk.contribute(1, token) == (2, -1)
  assert desk.contribute(1, token + 1) == (1, -1)


@pytest.mark.slow
def test_a_worker_is_in_a_round_once_and_with_spare_tokens_more_often(
  tf_session,
):
  desk = Desk(tf_session, num_contributions=2)
  token, _ = desk.begin_life()
  assert desk.contribute(2, token) == (0, token)
  assert desk.contribute(2, token) == (1, -1)
  assert desk.contribute(0, token) == (0, token)
  assert desk.contribute(2, token + 1) == (0, token + 1)
  # The same step of another life is another round.
  token, _ = desk.begin_life()
  assert desk.contribute(2, token) == (0, token)
  with tf.Graph().as_default(), tf.Session() as session:
    desk = Desk(session, num_contributions=4)
    token, _ = desk.begin_life()
    for worker in 0, 1, 1, 2:
      assert desk.contribute(worker, token) == (0, token)
    assert desk.contribute(1, token) == (1, -1)


@pytest.mark.slow
def test_a_new_life_drops_what_was_given_before_it(tf_session):
  desk = Desk(tf_session, num_contributions=2, step=5)
  old, _ = desk.begin_life()
  assert desk.contribute(0, old) == (0, old)
  new, _ = desk.begin_life()
  assert desk.contribute(1, old) == (1, -1)
  # The contribution of the old life takes no other's place.
  assert desk.contribute(0, new) == (0, new)
  assert desk.contribute(1, new) == (0, new)
  assert desk.contribute(2, new) == (1, -1)


@pytest.mark.slow
@pytest.mark.parametrize('num_contributions', [2, 4])
def test_a_round_is_complete_until_it_is_counted(tf_session, num_contributions):
  desk = Desk(tf_session, num_contributions)
  token, _ = desk.begin_life()
  for i in range(num_contributions):
    assert not desk.is_complete()
    assert desk.contribute(i % NUM_WORKERS, token) == (0, token)
  assert desk.is_complete()
  tf_session.run(desk.global_step.assign_add(1))
  assert not desk.is_complete()


@pytest.mark.slow
def test_once_a_life_is_closed_nothing_more_enters_it(tf_session):
  desk = Desk(tf_session, num_contributions=2)
  token, _ = desk.begin_life()
  assert desk.contribute(0, token) == (0, token)
  desk.close()
  assert desk.contribute(1, token) == (1, -1)
  assert not desk.is_complete()
  token, _ = desk.begin_life()
  assert desk.contribute(1, token) == (0, token)


def test_where_all_give_no_lock_tells_who_is_in(tf_session):
  desk = Desk(tf_session, num_contributions=3)
  assert desk.entry.is_lock_step
  given = tf.constant(LIFE + 2, tf.int64)
  staleness, [applied] = desk.entry.contribute(given, lambda step: [step])
  assert staleness is None
  assert applied is given
  assert not any(
    op.name.startswith('entry_lock')
    for op in tf.get_default_graph().get_operations()
  )


@pytest.mark.slow
@pytest.mark.parametrize('num_contributions', [1, 2])
def test_of_many_at_once_as_many_get_in_as_a_round_takes(
  tf_session, num_contributions
):
  desk = Desk(tf_session, num_contributions, num_workers=8)
  token, _ = desk.begin_life()
  with concurrent.futures.ThreadPoolExecutor(8) as threads:
    found = list(threads.map(lambda i: desk.contribute(i, token)[0], range(8)))
  assert sorted(found) == [0] * num_contributions + [1] * (
    8 - num_contributions
  )


@pytest.mark.parametrize(
  'staleness, own, new, expected',
  [
    # In lock-step the next token alone tells.
    (None, LIFE + 3, LIFE + 4, 0),
    (None, LIFE + 3, 2 * LIFE + 4, 0),
    (None, LIFE + 3, 2 * LIFE + 3, 1),
    # It got in, and its round was applied.
    (0, LIFE + 3, LIFE + 4, 0),
    (0, LIFE + 3, 2 * LIFE + 4, 0),
    # It got in, and a new chief began the round anew.
    (0, LIFE + 3, 2 * LIFE + 3, 1),
    # It has pushed ahead, and its round is not over.
    (0, LIFE + 3, LIFE + 3, 0),
    # It came too late, whatever came then.
    (2, LIFE + 3, LIFE + 5, 2),
    (2, LIFE + 3, 2 * LIFE + 3, 2),
  ],
)
def test_the_next_token_tells_what_became_of_a_contribution(
  tf_session, staleness, own, new, expected
):
  if staleness is not None:
    staleness = tf.constant(staleness, tf.int64)
  own, new = tf.constant(own, tf.int64), tf.constant(new, tf.int64)
  corrected = round_entry.correct(staleness, own, new)
  assert corrected.dtype == tf.int64
  assert tf_session.run(corrected) == expected
