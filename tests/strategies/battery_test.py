"""What every strategy does, whatever its rule: see transport/strategy.py.

The toy of the tutorials: c = a + b is to become 100, by squared loss.
"""

import importlib
import itertools
import re
import threading

import pytest
import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.cluster import cluster as cluster_lib
from distmnist.common import cli, registry
from distmnist.common.names import STRATEGIES
from distmnist.exchange.copies import periodic_exchange
from distmnist.exchange.steps import fused_steps, graph_warmup
from distmnist.lifecycle import liveness
from distmnist.lifecycle import session as session_lib
from distmnist.logdir import restart
from distmnist.nn import optimizers
from distmnist.training.hooks import stop_hook
from distmnist.transport import sharding, strategy
from tests.support import in_process, stepper
from tests.support.rule import place, read_traffic

RULES = registry.names(STRATEGIES)
each_strategy = pytest.mark.parametrize('name', RULES)
# Where a test starts a cluster, the quick tests do so for these alone.
QUICK = ('async_sgd',)


def each_in_time(names, quick):
  """Marks a test that has a `name`: the quick tests take those of `quick`."""
  return pytest.mark.parametrize(
    'name',
    [
      name if name in quick else pytest.param(name, marks=pytest.mark.slow)
      for name in names
    ],
  )


each_strategy_in_time = each_in_time(RULES, QUICK)


def find_class(name):
  """Returns the strategy.Strategy that the rule's file defines."""
  module = registry.load(STRATEGIES, name)
  [rule] = [
    each
    for each in vars(module).values()
    if isinstance(each, type) and issubclass(each, strategy.Strategy)
  ]
  return rule


def needs_ps(name):
  """Whether the center is on ps."""
  return find_class(name).needs_ps


def count_ps(name, num_ps):
  return num_ps if needs_ps(name) else 0


WITH_PS = [name for name in RULES if needs_ps(name)]
each_with_ps = pytest.mark.parametrize('name', WITH_PS)


def find_rule(name):
  """Returns the rule.Rule that the rule's own test declares."""
  test = importlib.import_module(f'tests.strategies.{name}_test')
  assert hasattr(test, 'RULE'), f'declare a RULE in {test.__file__}'
  return test.RULE


def each_case(field):
  """Gives a test `name` and `case`: what each RULE declares under `field`."""
  return pytest.mark.parametrize(
    'name, case',
    [
      pytest.param(
        name,
        case,
        marks=() if name in QUICK else pytest.mark.slow,
        id=f'{name}-{number}',
      )
      for name in WITH_PS
      for number, case in enumerate(getattr(find_rule(name), field))
    ],
  )


# The loss is (c / 100 - 1)^2, so that gradients are of the size of a model's.
RATE = 0.05 * 100**2


def build(name, member, optimizer='sgd', warmup=None):
  """Builds as train does; returns (rule, update, global_step, c)."""
  full = tf.constant(100.0)  # The only input.
  if warmup:
    full = warmup.hold_back(full)
  with tf.device(member.device_setter()):
    global_step = tf.train.get_or_create_global_step()
    rule = registry.load(STRATEGIES, name).make(member)
    with sharding.sharded(member.num_ps), rule.scope():
      zeros = tf.zeros_initializer()
      a = tf.convert_to_tensor(tf.get_variable('a', [2], initializer=zeros))
      b = tf.convert_to_tensor(tf.get_variable('b', [2], initializer=zeros))
    c = a + b
    loss = tf.reduce_sum((c / full - 1) ** 2)
    update = rule.minimize(loss, make_optimizers(optimizer, RATE), global_step)
    rule.hold_back([update.train_op])
  return rule, update, global_step, c


def make_optimizers(name, rate):
  """Returns what minimize takes: all optimizers are the same."""

  def make(is_local=False, rate_factor=None):
    del is_local
    factor = 1 if rate_factor is None else rate_factor
    return optimizers.make_optimizer(name, rate * factor)

  return make


def train(
  name,
  member,
  make_session,
  last_step,
  before_step=lambda: None,
  steps_per_run=1,
  leaves_out=True,
):
  """The loop of a worker; returns {c, global_step, local_steps}."""
  warmup = graph_warmup.Warmup(member.cpu_device)
  rule, update, global_step, c = build(name, member, warmup=warmup)
  stop, result, local_steps = in_process.NoStop(), {}, 0

  def read(session):
    c_v, step = session.run([c, global_step])
    result.update(c=c_v.tolist(), global_step=int(step))

  steps = fused_steps.Steps(
    {'global_step': update.train_op},
    steps_per_run,
    in_process.Countdown(last_step, member.num_workers, rule.push_period),
    periodic_exchange.get_all() if leaves_out else [],
    warmup=warmup if rule.needs_warmup else None,
  )
  all_hooks = [
    steps,
    *rule.hooks(stop),
    stop_hook.StopHook(steps, global_step, last_step, stop, lambda: False),
    in_process.AtEnd(read),
  ]
  with make_session(all_hooks) as session:
    while not session.should_stop():
      before_step()
      session.run([])
      local_steps += len(steps.done)
  return {**result, 'local_steps': local_steps}


def train_two(name, cluster, last_step, before_step=lambda index: None, **how):
  """Trains with two workers; returns what `train` does for each."""

  def work(index):
    return train(
      name,
      cluster.worker(index),
      lambda all_hooks: cluster.make_session(index, all_hooks),
      last_step,
      lambda: before_step(index),
      **how,
    )

  return cluster.run_workers(work)


def be_slow_as(slow):
  """Returns before_step(index): every fourth run of one worker is late."""
  runs = itertools.count()

  def before_step(index):
    if index == slow and next(runs) % 4 == 3:
      threading.Event().wait(0.02)  # A slow worker; nothing waits on this.

  return before_step


# Of others that wait: test_several_steps_a_run_make_the_same_training.
@pytest.mark.daily(but=['sync_sgd'])
@pytest.mark.slow
@each_strategy
def test_two_workers_learn_the_toy_and_end(make_cluster, set_flags, name):
  set_flags('--communication_period=2')
  cluster = make_cluster(count_ps(name, 1), 2)
  results = train_two(name, cluster, 100, be_slow_as(1))
  assert results[0]['c'] == pytest.approx([100, 100], abs=1)
  # A slow worker may find that the others have done it all.
  assert min(r['global_step'] for r in results) >= 100
  assert sum(r['local_steps'] for r in results) >= 100


@pytest.mark.daily(but=['ssp'])
@pytest.mark.slow
@each_strategy
def test_several_steps_a_run_make_the_same_training(
  make_cluster, set_flags, name
):
  set_flags('--communication_period=2')
  # And with two ps: test_two_workers_learn_the_toy_and_end has one.
  cluster = make_cluster(count_ps(name, 2), 2)
  # The chief is the slow one.
  results = train_two(name, cluster, 100, be_slow_as(0), steps_per_run=3)
  assert results[0]['c'] == pytest.approx([100, 100], abs=5)
  assert min(r['global_step'] for r in results) >= 100
  assert sum(r['local_steps'] for r in results) >= 100
  if name in ('sync_sgd', 'ring_allreduce', 'sagn', 'bmuf'):
    # As exact about the end as ever.
    assert all(r['global_step'] <= 101 for r in results)


def train_alone(name, last_step, **how):
  """Trains in this process, without a cluster; returns what `train` does."""
  member = cluster_lib.Cluster()

  def make_session(all_hooks):
    task = in_process.make_task(member)
    scaffold = session_lib.ClusterScaffold(
      task,
      restart.Restart(None, 'auto', 100),
      tf.train.Saver(),
      all_hooks,
    )
    return session_lib.make_session(
      task, scaffold, [liveness.LivenessHook(task), *all_hooks]
    )

  with tf.Graph().as_default():
    return train(name, member, make_session, last_step, **how)


@pytest.mark.slow
@each_strategy_in_time
def test_one_process_learns_the_toy(set_flags, name):
  set_flags('--communication_period=2')
  result = train_alone(name, last_step=100)
  assert result['c'] == pytest.approx([100, 100], abs=1)
  assert result['global_step'] == 100
  assert result['local_steps'] >= 100


WITH_EXCHANGES = [name for name in RULES if find_class(name).has_local_steps]


@pytest.mark.daily(but=['downpour'])
@pytest.mark.slow
@pytest.mark.parametrize('name', WITH_EXCHANGES)
def test_steps_without_their_exchange_make_the_same_training(set_flags, name):
  # Some runs are within a period, and some have the ends of two in them.
  for period, all_steps_per_run in ((3, (1, 2)), (2, (4,))):
    set_flags(
      f'--communication_period={period}', f'--n_push={period}', '--n_fetch=2'
    )
    expected = train_alone(name, last_step=12, leaves_out=False)
    assert expected['c'][0] > 10
    for steps_per_run in all_steps_per_run:
      result = train_alone(name, last_step=12, steps_per_run=steps_per_run)
      assert result == expected


@pytest.mark.slow
@each_strategy
def test_a_step_without_its_exchange_has_nothing_on_a_ps(set_flags, name):
  set_flags('--communication_period=3', '--n_push=3', '--n_fetch=3')
  with tf.Graph().as_default() as graph:
    rule, update, *_ = build(name, make_member(count_ps(name, 2), 0))
    exchanges = periodic_exchange.get_all()
    assert (rule.push_period, bool(exchanges)) in ((1, False), (3, True))
    if not exchanges:
      return
    tensors = {'global_step': update.train_op}
    steps = fused_steps.Steps(tensors, exchanges=exchanges)
    steps.before_run(None)
    assert steps.chosen_tensors() == [tensors]
    found = {}
    for count in (3, 4, 5):
      steps.num_local_steps = count
      chosen = [x.op.name for x in steps.before_run(None).fetches]
      part = tf.graph_util.extract_sub_graph(graph.as_graph_def(), chosen)
      found[count] = any('/job:ps' in node.device for node in part.node)
  assert found == {3: False, 4: False, 5: True}


class Watch(tf.train.SessionRunHook):
  """Keeps the values of all variables when a session has been made."""

  def after_create_session(self, session, coord):
    variables = tf.global_variables() + tf.local_variables()
    self.values = {v.name: session.run(v).tolist() for v in variables}


WARMED_UP = [name for name in RULES if find_class(name).needs_warmup]


def test_who_computes_with_a_copy_is_warmed_up_unless_all_wait():
  assert {'agn', 'dc_asgd', 'downpour', 'easgd'} <= {*WARMED_UP}
  assert not {'async_sgd', 'sync_sgd', 'sagn', 'bmuf'} & {*WARMED_UP}


@pytest.mark.daily(but=['dc_asgd'])
@pytest.mark.slow
@pytest.mark.parametrize('name', WARMED_UP)
def test_a_warmup_leaves_no_trace_and_the_pull_comes_after_it(
  make_cluster, set_flags, name
):
  set_flags('--communication_period=2')
  cluster = make_cluster(2, 2)
  member = cluster.worker(0)
  with tf.Graph().as_default():
    warmup = graph_warmup.Warmup(member.cpu_device)
    rule, update, global_step, c = build(name, member, 'adam', warmup)
    steps = fused_steps.Steps(
      {'global_step': update.train_op, 'staleness': update.staleness},
      2,
      in_process.Countdown(1),  # The run after the warm-up is of one step.
      periodic_exchange.get_all(),
      {'c': tf.reduce_sum(c)},
      warmup,
    )
    before, after = Watch(), Watch()
    hooks_in_order = before, steps, after, *rule.hooks(None)
    center = [v for v in tf.global_variables() if v.name[0] in 'ab']
    move = [v.assign(tf.fill(v.shape, 7.0)).op for v in center]
    with cluster.make_session(0, hooks_in_order) as session:
      assert after.values == before.values
      assert len(after.values) > 4
      # As if another had pushed meanwhile.
      session.run_step_fn(lambda step_context: step_context.session.run(move))
      session.run([])
  assert steps.last['c'] == 4 * 7
  assert steps.last['global_step'] in (0, 1)
  assert steps.last['staleness'] <= 0


def make_member(num_ps, index):
  """A worker of two; nothing is started."""
  ps_hosts = tuple(f'p{i}:1' for i in range(num_ps))
  return cluster_lib.make_cluster(ps_hosts, ('w0:1', 'w1:1'), 'worker', index)


@pytest.mark.slow
@each_in_time(WITH_PS, QUICK)
def test_every_center_variable_and_slot_sits_on_a_ps(set_flags, name):
  set_flags()
  found = []
  for index in range(2):
    with tf.Graph().as_default():
      build(name, make_member(2, index), 'adam')
      variables = {v.op.name: v for v in tf.global_variables()}
    sharding.check_center_is_on_ps(variables.values())
    shards = {'a/part_0', 'a/part_1', 'b/part_0', 'b/part_1', 'global_step'}
    assert shards <= variables.keys()
    for whole in 'ab':
      halves = [variables[f'{whole}/part_{i}'] for i in range(2)]
      assert min(sharding.count_bytes_per_ps(halves, 2)) == 4
    found.append([(name, v.device) for name, v in variables.items()])
  # The workers agree on what is shared.
  assert found[0] == found[1]


@pytest.mark.daily(
  but=[
    'ad_psgd',
    'async_sgd',
    'easgd',
    'ring_allreduce',
    'sync_sgd',
  ]
)
@pytest.mark.slow
@each_strategy
def test_what_the_loss_does_not_reach_stays_and_rows_move(
  make_cluster, set_flags, name
):
  set_flags('--communication_period=2')
  cluster = make_cluster(count_ps(name, 2), 1)
  member, ones = cluster.worker(0), tf.ones_initializer()
  with tf.Graph().as_default():
    with tf.device(member.device_setter()):
      global_step = tf.train.get_or_create_global_step()
      rule = registry.load(STRATEGIES, name).make(member)
      with sharding.sharded(member.num_ps), rule.scope():
        unused, frozen, rows = (
          tf.get_variable(each, [4, 2], initializer=ones)
          for each in ('unused', 'frozen', 'rows')
        )
      read = [tf.convert_to_tensor(x) for x in (unused, frozen, rows)]
      seen = tf.reduce_sum(tf.stop_gradient(frozen))
      loss = tf.reduce_sum(tf.gather(rows, [1, 1, 2])) * seen

      def make_decaying(is_local=False, rate_factor=None):
        del is_local, rate_factor
        return optimizers.make_optimizer('adamw', 0.1, weight_decay=0.5)

      update = rule.minimize(loss, make_decaying, global_step)
    found = [v.op.name for v in tf.global_variables() + tf.local_variables()]
    # Neither a slot nor a sum nor what a rule keeps.
    kept = {x for x in found if re.search('unused|frozen', x)}
    assert kept <= {
      f'{before}{each}{shard}'
      for before in ('', 'local_copy/')
      for each in ('unused', 'frozen')
      for shard in ('', '/part_0', '/part_1')
    }
    with cluster.make_session(0, rule.hooks(in_process.NoStop())) as session:
      for _ in range(4):
        session.run(update.train_op)
      unused_v, frozen_v, rows_v = session.run(read)
  assert unused_v.tolist() == frozen_v.tolist() == [[1, 1]] * 4
  first, second, third, fourth = rows_v[:, 0]
  assert third < 0.8 < first == fourth < 1  # Both decay, one moves as well.
  assert second < 0.8


@each_strategy
def test_a_loss_that_reaches_nothing_is_refused(set_flags, name):
  set_flags()
  with tf.Graph().as_default():
    member = make_member(count_ps(name, 1), 0)
    with tf.device(member.device_setter()):
      global_step = tf.train.get_or_create_global_step()
      rule = registry.load(STRATEGIES, name).make(member)
      with rule.scope():
        tf.get_variable('unused', [2])
      with pytest.raises(cli.UsageError, match='^the loss has no gradient .*$'):
        rule.minimize(tf.constant(1.0), make_optimizers('sgd', 1), global_step)


@pytest.mark.slow
@each_case('placement')
def test_each_variable_is_where_the_rule_declares_it(name, case):
  make_rule = find_rule(name).make_with(case.settings)
  for index in range(2):
    worker = stepper.Worker(
      stepper.NoSessions(), index, make_rule, 5, optimizer=case.optimizer
    )
    assert worker.variables() == place(case, index)


@pytest.mark.daily(but=['downpour-0'])
@pytest.mark.slow
@each_case('traffic')
def test_a_step_moves_the_bytes_that_the_rule_declares(
  make_stepper, name, case
):
  made = make_stepper(2, 2, find_rule(name).make_with(case.settings), size=5)
  found = read_traffic(made, len(case.moved), case.is_together)
  assert found == case.moved


@pytest.mark.slow
@each_strategy_in_time
def test_a_step_tells_the_global_step_and_the_staleness(
  tf_session, set_flags, name
):
  set_flags()
  rule, update, _, _ = build(name, make_member(count_ps(name, 1), 0))
  train_op, staleness, *_ = update
  assert (train_op.dtype, train_op.shape) == (tf.int64, [])
  if staleness is not None:
    assert (staleness.dtype, staleness.shape) == (tf.int64, [])
  assert rule.batches_per_update >= 1
  ops = tf.get_default_graph().get_operations()
  assert any(op.name.startswith(f'{name}/') for op in ops)


@each_with_ps
def test_several_workers_need_a_ps(set_flags, name):
  set_flags()
  with pytest.raises(cli.UsageError, match='^2 workers .*--ps_hosts.*$'):
    registry.load(STRATEGIES, name).make(make_member(0, 1))


@pytest.mark.parametrize(
  'word',
  [
    *('--block_momentum=-0.1', '--block_momentum=1.1'),
    *('--block_learning_rate=-1', '--dc_lambda=-1', '--delayed_nesterov=-1'),
    *('--dc_decay=-0.1', '--dc_decay=1.1', '--n_fetch=0', '--n_push=0'),
    *('--max_staleness=-1', '--moving_rate=-0.1', '--moving_rate=1.1'),
    *('--easgd_momentum=-0.1', '--easgd_momentum=1.1'),
    '--ssp_bound=-1',
  ],
)
def test_a_flag_out_of_its_bounds_is_refused(set_flags, word):
  with pytest.raises(flags.IllegalFlagValueError, match=f'^flag {word}: '):
    set_flags(word)
