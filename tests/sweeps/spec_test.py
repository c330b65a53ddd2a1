"""What a sweep is asked: which flags are its own, and which are wrong."""

import dataclasses
import json

import pytest

from distmnist.common import cli
from distmnist.sweeps import spec


def make_spec(**settings):
  return spec.Spec(
    **{
      'words': ['batch_size=32'],
      'flags': ['--epochs=1'],
      'num_ps': 0,
      'num_workers': 1,
      'module': 'distmnist.train',
      **settings,
    }
  )


def test_json_holds_it():
  found = dataclasses.asdict(make_spec(random=3, repeats=2))
  assert json.loads(json.dumps(found)) == found


def test_its_trials_follow_from_what_was_asked():
  found = make_spec(words=['a=1,2', 'b=3,4'], halving=2)
  assert [*map(tuple, map(dict.values, found.combinations))] == [
    *(('1', '3'), ('1', '4'), ('2', '3'), ('2', '4'))
  ]
  assert (found.num_trials, len(found.rungs)) == (4, 3)
  zipped = make_spec(words=['a=1,2', 'b=3,4'], zip=True)
  assert zipped.combinations[0] == {'a': '1', 'b': '3'}
  assert zipped.rungs == [(2, '')]


def test_what_will_be_proposed_is_known_by_its_ends_alone():
  found = make_spec(
    words=['rate=1e-4..1', 'batch_size=16..64', 'optimizer=sgd,adam'],
    **{'random': 5, 'sampler': 'tpe'},
  )
  assert (found.num_trials, found.combinations) == (5, [])
  assert found.find_examples() == [
    {'rate': '0.0001', 'batch_size': '16', 'optimizer': 'sgd'},
    {'rate': '1.0', 'batch_size': '64', 'optimizer': 'adam'},
  ]


def test_one_worker_with_no_ps_is_no_cluster():
  assert not make_spec().is_cluster
  assert make_spec(num_ps=1).is_cluster
  assert make_spec(num_workers=2).is_cluster


def test_its_trials_have_the_grace_that_their_flags_say():
  assert make_spec(flags=['--stop_grace_secs=3']).stop_grace_secs == 3
  with pytest.raises(cli.UsageError, match='--stop_grace_secs=x'):
    assert make_spec(flags=['--stop_grace_secs=x']).stop_grace_secs


@pytest.mark.parametrize(
  'settings',
  [{'flags': ['--batch_size=0']}, {'words': ['batch_size=32,0']}],
)
def test_a_flag_that_is_wrong_by_itself_is_refused(settings):
  with pytest.raises(cli.UsageError, match='--batch_size=0'):
    make_spec(**settings).check_flags()
  # Another program has flags of its own.
  make_spec(module='fake_train', **settings).check_flags()


def test_what_the_sweep_gives_is_given_by_nobody_else():
  make_spec(words=['batch_size=1,2']).check_words()
  for settings in {'flags': ['--logdir=x']}, {'words': ['logdir=x']}:
    with pytest.raises(cli.UsageError, match='--logdir is not for a trial'):
      make_spec(**settings).check_words()
  with pytest.raises(cli.UsageError, match='--problem is not for a trial'):
    make_spec(words=['problem=a.py,b.py']).check_words()
  with pytest.raises(cli.UsageError, match='--best is not for a trial'):
    make_spec(words=['best=+accuracy,-loss']).check_words()


def test_a_seed_tells_trials_apart_and_is_not_searched():
  found = make_spec(words=['a=1,2'], flags=['--seed=7'], repeats=3)
  assert (found.num_combinations, found.num_trials) == (2, 6)
  assert found.seeds == [7, 8, 9]
  assert make_spec().seeds == [None]
  assert make_spec(repeats=2).seeds == [0, 1]
  with pytest.raises(cli.UsageError, match='--seed is not .* --repeats=3'):
    make_spec(words=['seed=1,2']).check_words()
  with pytest.raises(cli.UsageError, match='--seed=x: expected'):
    assert make_spec(flags=['--seed=x'], repeats=3).seeds


def test_what_is_drawn_follows_from_the_seed():
  def draw(*flags):
    return make_spec(
      words=['a=1..99'], flags=list(flags), random=5
    ).combinations

  assert draw() == draw('--seed=0') != draw('--seed=1')


def test_a_rung_counts_combinations():
  settings = {'words': ['a=1,2,3,4'], 'halving': 2, 'repeats': 3}
  assert [size for size, _ in make_spec(**settings).rungs] == [4, 2, 1]
