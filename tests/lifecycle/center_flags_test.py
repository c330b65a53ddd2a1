"""center_flags: whose center it is, and whether it is whole."""

import pytest
import tensorflow.compat.v1 as tf

from distmnist.common import cli
from distmnist.lifecycle import center_flags


@pytest.fixture
def make(make_cluster):
  """Returns make() -> (CenterFlags, missing, session) of a new chief."""
  cluster = make_cluster(2, 1)
  sessions = []

  def make():
    with tf.Graph().as_default():
      flags = center_flags.CenterFlags(cluster.worker(0))
      missing = flags.build_missing()
      sessions.append(
        tf.Session(cluster.servers[0].target, config=cluster.session_config(0))
      )
    return flags, missing, sessions[-1]

  yield make
  for session in sessions:
    session.close()


@pytest.mark.slow
@pytest.mark.parametrize('run', ['abc', ''])
def test_the_next_chief_of_a_training_takes_its_center_over(make, run):
  flags, missing, session = make()
  assert len(session.run(missing)) == 2
  flags.raise_all(session, run)
  flags, missing, session = make()
  assert len(session.run(missing)) == 0
  flags.check_run(session, run)


@pytest.mark.slow
@pytest.mark.parametrize('first, second', [('abc', 'abd'), ('abc', '')])
def test_the_center_of_another_training_is_refused(make, first, second):
  flags, _, session = make()
  flags.raise_all(session, first)
  flags, _, session = make()
  with pytest.raises(cli.RunError, match='^the ps still hold the center of an'):
    flags.check_run(session, second)
  # A center that was made anew is the new one's.
  flags.raise_all(session, second)
  flags.check_run(session, second)
