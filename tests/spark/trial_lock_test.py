"""The lock that a trial shares with its driver, and what is in the way."""

import fcntl

import pytest

from distmnist.spark import trial_lock


@pytest.mark.parametrize(
  ('word', 'why'),
  [
    ('ours', None),
    ('theirs', 'it has another one in its place'),
    ('locked', 'another sweep has it'),
    ('none', 'No such file or directory'),
  ],
)
def test_a_trial_needs_the_lock_that_it_shares_with_the_driver(
  tmp_path, word, why
):
  path = tmp_path / 'lock'
  if word != 'none':
    path.write_text('theirs' if word == 'theirs' else 'ours')
  lock = trial_lock.TrialLock(str(path))
  with open(tmp_path / ('lock' if word != 'none' else 'other'), 'a') as other:
    how = fcntl.LOCK_EX if word == 'locked' else fcntl.LOCK_SH
    fcntl.flock(other, how)
    assert lock.take('ours') == why
  if not why:
    # Held until it is closed.
    with open(path) as other, pytest.raises(BlockingIOError):
      fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
  lock.close()
  if not why:
    with open(path) as other:
      fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
