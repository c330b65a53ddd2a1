"""plan: what would lie where and move, before anything runs."""

import pytest
import tensorflow.compat.v1 as tf
from absl import flags

from distmnist import plan
from distmnist.cluster import cluster
from distmnist.common import cli, registry
from distmnist.common.names import STRATEGIES
from distmnist.exchange import traffic as traffic_lib


def run(capsys, set_flags, *words):
  """Returns the lines of a plan."""
  set_flags(*words)
  plan.main()
  return capsys.readouterr().out.splitlines()


@pytest.mark.slow
def test_a_plan_names_shards_places_and_times(capsys, set_flags):
  lines = run(capsys, set_flags, '--num_ps=2', '--num_workers=4', '--mbits=100')
  assert lines[0] == 'async_sgd, 2 ps, 4 workers; mlp on mnist'
  assert [line.split() for line in lines[1:6]] == [
    ['variable', 'shape', 'ps', 'bytes'],
    ['hidden1/weights/part_0', '392', 'x', '100', '1', '156,800'],
    ['hidden1/weights/part_1', '392', 'x', '100', '0', '156,800'],
    ['hidden1/biases/part_0', '100', '1', '400'],
    ['softmax/weights/part_0', '100', 'x', '10', '0', '4,000'],
  ]
  # Including an int64 for the global step.
  assert lines[7] == (
    'bytes held: ps 0 160,808, ps 1 157,240 (largest / mean 1.01)'
  )
  assert lines[8] == (
    'bytes a step: each worker pulls 318,040 and pushes 318,040'
  )
  # ps 0 sends 160,800 bytes to each of four workers, 12.5 MB a second.
  assert lines[9:] == [
    '100 Mbit/s: 51.46 ms a step at least, 19.4 steps/s a worker',
    '  the links of ps 0 are the narrowest; 50.89 ms by a ps more, 25.73 ms by'
    ' half the bytes',
  ]


@pytest.mark.slow
@pytest.mark.parametrize(
  'words, secs',
  [
    # A worker pulls 318,040 bytes and then pushes as many, at 12.5 MB a second.
    (['--num_ps=2', '--num_workers=3'], 0.0508864),
    # The ps gets those of three, while it sends as many.
    (['--num_ps=1', '--num_workers=3'], 0.0763296),
    # Without a ps what comes and what goes do so at the same time: 2 (n - 1)/n
    # times the bytes of the model.
    (
      ['--num_ps=0', '--num_workers=3', '--strategy=ring_allreduce'],
      0.033924,
    ),
  ],
)
def test_the_least_time_is_that_of_a_worker_or_of_a_ps(
  capsys, set_flags, words, secs
):
  lines = run(capsys, set_flags, '--mbits=100', *words)
  (line,) = [line for line in lines if 'at least' in line]
  assert line.startswith(f'100 Mbit/s: {1000 * secs:.2f} ms a step at least')


@pytest.mark.slow
def test_hosts_may_be_given_instead(capsys, set_flags):
  lines = run(capsys, set_flags, '--ps_hosts=a:1', '--worker_hosts=b:1,c:1,d:1')
  assert lines[0].startswith('async_sgd, 1 ps, 3 workers')


@pytest.mark.parametrize(
  'words, pulled, pushed',
  [
    (['--strategy=downpour', '--n_fetch=2', '--n_push=5'], 159020, 63608),
    (['--strategy=ring_allreduce', '--num_ps=0'], 424053, 424053),
    (['--strategy=agn', '--communication_period=10'], 31804, 31804),
    (['--strategy=sync_sgd', '--wire_dtype=bfloat16'], 159020, 159020),
  ],
)
@pytest.mark.slow
def test_each_rule_moves_what_it_moves(
  capsys, set_flags, words, pulled, pushed
):
  lines = run(capsys, set_flags, '--num_workers=3', *words)
  [line] = [line for line in lines if line.startswith('bytes a step')]
  assert line == (
    f'bytes a step: each worker pulls {pulled:,} and pushes {pushed:,}'
  )


@pytest.mark.slow
def test_it_is_told_in_which_way_a_mean_is_taken(capsys, set_flags):
  words = '--num_ps=0', '--num_workers=3', '--strategy=ring_allreduce'
  lines = run(capsys, set_flags, *words)
  [line] = [line for line in lines if 'bucket' in line]
  assert line.startswith(
    '1 bucket of 318,040 bytes: worker j adds up chunk j of all and sends the '
    'mean to all, in two hops'
  )


def test_its_help_has_no_flags_that_change_no_plan():
  # As it does with the flags of this process.
  shown = {name for name in flags.FLAGS if plan.is_shown(name)}
  assert {'num_ps', 'launcher', 'ps_hosts', 'batch_size', 'mbits'} <= shown
  assert not {n for n in shown if n.startswith(('kube_', 'slurm_', 'ssh_'))}
  assert not {'max_restarts', 'live_table', 'isolate'} & shown


@pytest.mark.slow
def test_one_process_moves_nothing(capsys, set_flags):
  lines = run(capsys, set_flags, '--num_ps=0', '--num_workers=1')
  assert lines[0] == 'async_sgd, 0 ps, 1 worker; mlp on mnist'
  assert lines[-1] == 'one process: nothing moves'


@pytest.mark.slow
@pytest.mark.parametrize('name', registry.names(STRATEGIES))
def test_a_plan_agrees_with_what_a_step_says(set_flags, name):
  """The mean of what the steps themselves count, over one period."""
  set_flags('--communication_period=3', f'--strategy={name}')
  num_ps = 0 if name == 'ring_allreduce' else 1
  hosts = ('p:1',) * num_ps, ('w0:1', 'w1:1')
  member = cluster.make_cluster(*hosts, 'worker', 1)
  rule = registry.load(STRATEGIES, name).make(member)
  with tf.Graph().as_default():
    with tf.device(member.device_setter()):
      step = tf.train.get_or_create_global_step()
      with rule.scope():
        w = tf.get_variable('w', [10])
      loss = tf.reduce_sum(tf.convert_to_tensor(w) ** 2)
      update = rule.minimize(loss, make_sgd, step)
    traffic = traffic_lib.compute_traffic(
      member, rule, update, tf.trainable_variables()
    )
    for planned, counted, period in (
      (traffic.pulled, update.bytes_pulled, rule.pull_period),
      (traffic.pushed, update.bytes_pushed, rule.push_period),
    ):
      whole = 40 if isinstance(counted, int) else find_bytes(counted)
      # What bypasses the ps is exchanged by another worker, too.
      mean = (2 - rule.share_with_ps) * whole / period
      assert planned == pytest.approx(mean)


def make_sgd(is_local=False, rate_factor=None):
  return tf.train.GradientDescentOptimizer(0.1)


def find_bytes(tensor):
  """Returns the number that a step counts for an exchange of its own."""
  if tensor.op.type == 'AddV2':  # Those begun by others are added.
    tensor = tensor.op.inputs[0]
  [number] = [
    int(tf.get_static_value(x))
    for x in tensor.op.inputs
    if x.dtype == tf.int64 and tf.get_static_value(x)
  ]
  return number


_WORDS = """
import numpy as np
import tensorflow.compat.v1 as tf
from absl import flags
from distmnist.nn import layers

def load(split):
  return np.array(['a', 'b'] * 5), np.zeros(10, np.float32)

def build(x, is_training):
  given = tf.lookup.KeyValueTensorInitializer(['a', 'b'], [0, 1])
  ids = tf.lookup.StaticHashTable(given, 0).lookup(x)
  return layers.embedding(ids, NUM_ROWS, 2, 'words')[:, 0]

def loss(y, outputs):
  return (y - outputs) ** 2
"""


@pytest.mark.slow
def test_the_rows_of_words_are_measured_and_a_wrong_id_is_named(
  capsys, set_flags, tmp_path
):
  words = '--num_ps=1', '--num_workers=1', '--batch_size=5'
  path = tmp_path / 'right.py'
  path.write_text(f'NUM_ROWS = 2\n{_WORDS}')
  lines = run(capsys, set_flags, *words, f'--problem={path}')
  assert any('rows a step: 5 ids, of which 2' in line for line in lines)
  assert not any('validation' in line for line in lines)
  # 2 x 2 numbers and as many of Adagrad, and an int64 for the global step.
  words_of_run = '--optimizer=adagrad', '--validation_steps=9', *words
  lines = run(capsys, set_flags, *words_of_run, f'--problem={path}')
  assert (
    'each validation (--validation_steps) fetches all that a checkpoint holds '
    'to worker 0: 40 bytes, of which 32 are sparse tables and what the '
    'optimizer keeps beside them'
  ) in lines
  path = tmp_path / 'wrong.py'
  path.write_text(f'NUM_ROWS = 1\n{_WORDS}')
  message = 'the table words has rows 0 to 0, and none of'
  with pytest.raises(cli.RunError, match=message):
    run(capsys, set_flags, *words, f'--problem={path}')
