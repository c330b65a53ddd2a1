"""schedule: how much is read and done, by --epochs, --train_steps and R."""

import re

import pytest

from distmnist.cluster import cluster as cluster_lib
from distmnist.common import cli, registry
from distmnist.common.names import STRATEGIES
from distmnist.strategies import async_sgd
from distmnist.training import schedule


class Towers(cluster_lib.Cluster):
  """Stands for a worker with four GPUs."""

  @property
  def tower_devices(self):
    return [f'/device:GPU:{i}' for i in range(4)]


def plan(num_images=1000, name='async_sgd', num_workers=3):
  """Returns the Plan of a rule, by the flags; nothing is started."""
  hosts = tuple(f'w{i}:1' for i in range(num_workers))
  member = cluster_lib.make_cluster(('p:1',), hosts, 'worker', 0)
  rule = registry.load(STRATEGIES, name).make(member)
  return schedule.make_plan(member, rule, num_images)


@pytest.mark.parametrize(
  'words, last_step',
  [
    ([], 10),  # One epoch.
    (['--epochs=2.5'], 25),
    (['--epochs=0.001'], 1),  # At least one.
    # 11, and not 12 as by the float that is next to 1.1.
    (['--epochs=1.1'], 11),
    (['--epochs=1.11'], 12),
    (['--train_steps=7'], 7),
    (['--train_steps=70'], 70),
    # Whichever comes first.
    (['--train_steps=7', '--epochs=2'], 7),
    (['--train_steps=70', '--epochs=2'], 20),
    (['--train_secs=3', '--epochs=2'], 20),
    (['--train_secs=3'], 10**9),  # The chief ends it.
    (['--batch_size=300'], 4),
    (['--batch_size=1000'], 1),
  ],
)
def test_the_last_step_is_by_epochs_or_steps(set_flags, words, last_step):
  set_flags(*words)
  assert plan().last_step == last_step


@pytest.mark.parametrize(
  'words, last_step, said',
  [
    (['--train_secs=3'], None, 'for 3 s'),
    (['--train_steps=7'], 7, '7 global steps'),
    (['--train_steps=1000000000'], 10**9, '1000000000 global steps'),
    (['--train_secs=0.5', '--epochs=2'], 20, '20 global steps or 0.5 s'),
  ],
)
def test_an_end_that_only_time_makes_is_no_step(
  set_flags, words, last_step, said
):
  set_flags(*words)
  dealing = plan().dealing
  assert dealing.known_last_step == last_step
  assert (dealing.begun_at(5).known_last_step is None) == (last_step is None)
  assert schedule.describe_end(plan()) == said


@pytest.mark.parametrize(
  'words, first',
  [
    (['--train_steps=70', '--epochs=2'], ['--epochs=2', '--train_steps=70']),
    (['--train_steps=7', '--epochs=2'], ['--train_steps=7', '--epochs=2']),
    (['--train_steps=20', '--epochs=2'], []),
    (['--epochs=2'], []),
  ],
)
def test_of_two_ends_it_says_which_is_first(set_flags, words, first):
  set_flags(*words)
  said = schedule.describe_end(plan())
  assert re.findall(r'--\w+=\d+', said) == first


def test_a_checkpoint_before_the_first_possible_end_is_not_read(set_flags):
  set_flags('--epochs=2')
  nowhere = '/nowhere/model.ckpt-19'
  assert not plan().is_last(nowhere, 19, False)
  with pytest.raises(cli.RunError, match='/nowhere/model.ckpt-19'):
    plan().is_last(nowhere, 20, False)


def test_an_epoch_is_of_all_workers_or_of_each(set_flags):
  set_flags('--epochs=2')
  shared = plan()
  assert (shared.num_images, shared.images_per_epoch) == (1000, 1000)
  assert (shared.last_step, shared.dealing.has_own_streams) == (20, False)
  set_flags('--epochs_over=dataset')
  own = plan()
  assert (own.num_images, own.images_per_epoch) == (1000, 3000)
  assert (own.last_step, own.dealing.has_own_streams) == (60, True)


@pytest.mark.parametrize(
  'words, images_per_update, last_step, unit, pushes, is_lock_step',
  [
    (['async_sgd'], 100, 60, 1, 1, False),
    (['agn', '--communication_period=4'], 400, 15, 4, 1, False),
    (['downpour', '--n_push=5', '--n_fetch=2'], 500, 12, 5, 1, False),
    (['sync_sgd'], 300, 20, 1, 3, True),
    # One backup worker: a push may come too late.
    (['sync_sgd', '--replicas_to_aggregate=2'], 200, 30, 1, 2, False),
    (['sagn', '--communication_period=2'], 600, 10, 2, 3, True),
  ],
)
def test_an_update_takes_in_what_the_rule_says(
  set_flags, words, images_per_update, last_step, unit, pushes, is_lock_step
):
  name, *words = words
  set_flags('--epochs=6', *words)
  found = plan(name=name)
  dealing = found.dealing
  assert (found.images_per_update, found.last_step) == (
    images_per_update,
    last_step,
  )
  assert dealing.num_workers == 3
  assert (dealing.batches_per_push, dealing.pushes_per_step) == (unit, pushes)
  assert dealing.is_lock_step == is_lock_step


def test_one_worker_whose_push_is_an_update_is_in_lock_step(set_flags):
  set_flags()
  assert plan(num_workers=1).dealing.is_lock_step
  assert not plan(num_workers=2).dealing.is_lock_step


def test_the_batch_of_a_step_is_that_of_all_its_slices(set_flags):
  set_flags('--batch_size=10', '--gradient_accumulation=5', '--epochs=2')
  found = plan(num_workers=1)
  assert (found.batch_size, found.slice_size, found.num_slices) == (50, 10, 5)
  assert (found.images_per_update, found.last_step) == (50, 40)
  member = Towers()
  found = schedule.make_plan(member, async_sgd.make(member), 1000)
  assert (found.batch_size, found.slice_size) == (200, 40)


def test_a_batch_on_each_gpu_is_held_against_the_training_set(set_flags):
  set_flags('--batch_size=100')
  rule = async_sgd.make(Towers())
  with pytest.raises(
    cli.UsageError,
    match='^--batch_size=100 on each of 4 GPUs is larger than the 399 .* rat',
  ):
    schedule.make_plan(Towers(), rule, 399, 'ratings')
  assert schedule.make_plan(Towers(), rule, 400).last_step == 1


def test_more_workers_than_examples_are_refused(set_flags):
  set_flags('--batch_size=1')
  with pytest.raises(
    cli.UsageError, match='^3 workers share 2 training images: take at most 2'
  ):
    plan(num_images=2)
  set_flags('--batch_size=1', '--epochs_over=dataset')
  plan(num_images=2)  # Each has them all.


def test_a_step_of_more_images_than_can_be_counted_is_refused(set_flags):
  set_flags('--communication_period=9223372036854775807')
  message = '^a global step of 9223372036854775807 batches would have more imag'
  with pytest.raises(cli.UsageError, match=message):
    plan(name='agn')
