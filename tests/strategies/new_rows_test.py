"""Tables whose rows are made, under the rules that train them."""

import functools

import numpy as np
import pytest

from distmnist.exchange.tables import table_saver
from distmnist.strategies import async_sgd
from tests.support import tables


@functools.cache
def train_alone(optimizer, widths):
  return tables.train_alone(
    async_sgd.make, optimizer, widths, tables.build_by_keys
  )


def assert_alike(found, expected):
  names = {'a/rows', 'a/keys', 'b/rows', 'b/keys', 'w'}
  assert found.keys() == expected.keys() == names
  for name, value in expected.items():
    np.testing.assert_allclose(found[name], value, atol=1e-5, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('num_ps', 'num_workers', 'widths', 'optimizer'),
  [
    (*shape, name)
    for shape, names in (
      ((1, 1, (3, 3)), ('adagrad',)),
      ((2, 2, (3, 1)), ('adagrad', 'adam', 'ftrl')),
      ((3, 3, (3, 3)), ('sgd',)),
      ((1, 3, (3, 3)), ('momentum',)),
      ((1, 2, (3, 1)), ('nesterov', 'rmsprop')),
    )
    for name in names
  ],
)
def test_lock_step_is_one_process_on_the_whole_batch(
  make_cluster, num_ps, num_workers, widths, optimizer
):
  cluster = make_cluster(num_ps, num_workers)
  found = tables.train(
    cluster, tables.make_lock_step, optimizer, widths, tables.build_by_keys
  )
  assert_alike(found, train_alone(optimizer, widths))


@pytest.mark.slow
def test_a_checkpoint_of_two_ps_is_trained_on_with_three(
  make_cluster, set_flags, tmp_path
):
  set_flags()

  def build(member):
    rule = async_sgd.make(member)
    model = tables.Model(
      *(member, rule, 'adagrad', tables.BATCH), build=tables.build_by_keys
    )
    return model, table_saver.TableSaver('/cpu:0', slice_bytes=2000)

  def step_and_read(session, model):
    session.run(model.update.train_op, model.feed(1))
    return model.read(session)

  saved, restored = tables.save_on_two_ps_and_restore_on_three(
    make_cluster, build, step_and_read, f'{tmp_path}/model'
  )
  assert_alike(restored, saved)


@pytest.mark.slow
@pytest.mark.parametrize('rule', tables.ASYNCHRONOUS)
def test_a_worker_that_is_never_stale_is_as_one_process(
  make_cluster, set_flags, rule
):
  set_flags()
  found = tables.train(
    make_cluster(2, 1), rule.make, 'adagrad', (3, 3), tables.build_by_keys
  )
  assert_alike(found, train_alone('adagrad', (3, 3)))
