"""handshake: peers that know the secret, and peers that do not."""

import pytest

from distmnist.spark import handshake

SECRET = 'the secret of the run'


def meet(driver, agent):
  """Returns whether each has accepted the other."""
  reply = agent.answer({'challenge': driver.challenge})
  proof = driver.answer(reply)
  return bool(proof), agent.is_driver(proof or {})


def test_who_know_the_secret_accept_each_other_and_have_one_key():
  driver, agent = handshake.Driver(SECRET), handshake.Agent(SECRET)
  assert meet(driver, agent) == (True, True)
  assert driver.key == agent.key
  again = handshake.Driver(SECRET), handshake.Agent(SECRET)
  assert meet(*again) == (True, True)
  assert again[0].key != driver.key


@pytest.mark.parametrize('secrets', [(SECRET, 'other'), ('other', SECRET)])
def test_who_does_not_know_it_is_accepted_by_nobody(secrets):
  driver, agent = handshake.Driver(secrets[0]), handshake.Agent(secrets[1])
  assert meet(driver, agent) == (False, False)


@pytest.mark.parametrize(
  'change',
  [
    {'answer': None},
    {'answer': 'é'},
    {'answer': '\ud800'},
    {'answer': [1]},
    {'answer': SECRET},
    {'challenge': None},
    {'challenge': 'a' * 63},
    {'challenge': 'A' * 64},
    {'challenge': 'b' * 64},
  ],
)
def test_an_answer_that_is_not_whole_is_refused(change):
  driver, agent = handshake.Driver(SECRET), handshake.Agent(SECRET)
  reply = agent.answer({'challenge': driver.challenge})
  assert driver.answer({**reply, **change}) is None
  assert driver.answer(reply)


def test_what_was_heard_before_is_of_no_use():
  driver, agent = handshake.Driver(SECRET), handshake.Agent(SECRET)
  reply = agent.answer({'challenge': driver.challenge})
  assert handshake.Driver(SECRET).answer(reply) is None


def test_an_agent_does_not_take_its_own_answer_for_a_proof():
  agent = handshake.Agent(SECRET)
  reply = agent.answer({'challenge': handshake.Driver(SECRET).challenge})
  assert not agent.is_driver(reply)
