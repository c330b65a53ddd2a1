"""A checkpoint of any rule, written with p ps, loads with q."""

import itertools

import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster
from distmnist.lifecycle import restoring
from tests.strategies import battery_test

RULES = [name for name in battery_test.RULES if name != 'ring_allreduce']
# What makes a rule keep more on the ps, and optimizers with other slots.
FLAGS = {'dc_asgd': ['--dc_adaptive'], 'easgd': ['--easgd_momentum=0.9']}
OPTIMIZERS = {'agn': 'lamb', 'drop_stale': 'lars', 'sync_sgd': 'ftrl'}


def build(name, optimizer, num_ps):
  """Builds worker 0's graph of a rule in the default graph.

  Returns:
    (session, saver, variables): all of the graph in this process, each
    variable with random values of its own.
  """
  member = cluster.make_cluster(
    tuple(f'localhost:{7000 + i}' for i in range(num_ps)),
    ('localhost:7100', 'localhost:7101'),
    'worker',
    0,
    start_timeout_secs=60,
  )
  with tf.Graph().as_default():
    battery_test.build(name, member, optimizer)
    variables = tf.global_variables()
    fill = tf.group(
      *(
        v.assign(tf.cast(tf.random.uniform(v.shape, 1, 1000), v.dtype))
        for v in variables
      ),
      name='fill',
    )
    saver_def = tf.train.Saver().as_saver_def()
    wanted = saver_def.save_tensor_name.partition(':')[0]
    graph_def = tf.graph_util.extract_sub_graph(
      tf.get_default_graph().as_graph_def(),
      [wanted, saver_def.restore_op_name, fill.name],
    )
  for node in graph_def.node:
    node.device = ''
  tf.import_graph_def(graph_def, name='')
  saver = tf.train.Saver(saver_def=saver_def)
  session = tf.Session()
  session.run(fill.name)
  return session, saver, variables


def read(path):
  """Returns {name: whole value as a list} of a checkpoint."""
  reader = tf.train.load_checkpoint(path)
  return {
    name: reader.get_tensor(name).tolist()
    for name in reader.get_variable_to_shape_map()
  }


@pytest.mark.daily(but=['agn', 'bmuf', 'dc_asgd', 'easgd', 'sync_sgd'])
@pytest.mark.slow
@pytest.mark.parametrize('name', RULES)
def test_a_checkpoint_of_any_number_of_ps_loads_on_any_other(
  name, set_flags, tmp_path
):
  set_flags(*FLAGS.get(name, []))
  optimizer = OPTIMIZERS.get(name, 'adam')
  made, saved = {}, {}
  # That shards fit each other is tested in lifecycle/restoring_test.py.
  for num_ps in (1, 2, 3) if name == 'easgd' else (1, 3):
    with tf.Graph().as_default():
      made[num_ps] = session, saver, _ = build(name, optimizer, num_ps)
      saved[num_ps] = saver.save(
        session, str(tmp_path / f'{num_ps}'), write_meta_graph=False
      )
  for num_saved, num_found in itertools.permutations(saved, 2):
    session, saver, variables = made[num_found]
    with session.graph.as_default():
      restoring.Restorer(variables).check(saved[num_saved])
    saver.restore(session, saved[num_saved])
    again = saver.save(
      session,
      str(tmp_path / f'{num_saved}{num_found}'),
      write_meta_graph=False,
      write_state=False,
    )
    assert read(again) == read(saved[num_saved])
  for session, _, _ in made.values():
    session.close()
