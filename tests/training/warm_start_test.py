"""warm_start: what comes over from another model, and what is refused."""

import re
import shutil

import keras
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist import runtime
from distmnist.cluster import cluster
from distmnist.common import cli, partial_names
from distmnist.exchange.center import center
from distmnist.logdir import checkpoint_reader, checkpoints
from distmnist.nn import layers
from distmnist.tables import first_rows, key_map, new_rows, sparse_table
from distmnist.training import warm_start
from distmnist.transport import fed_initial_values, sharding
from tests.support.runner import SMALL, read_report

ROWS = np.arange(35, dtype=np.float32).reshape(7, 5)


@pytest.fixture
def source(tmp_path):
  """Returns the log directory of a run of a model of its own."""
  with tf.Graph().as_default(), tf.Session() as session:
    tf.train.get_or_create_global_step()
    rows = tf.get_variable('net/rows', initializer=ROWS)
    tf.get_variable('head/w', initializer=np.ones([5, 3], np.float32))
    tf.train.MomentumOptimizer(0.1, 0.9).minimize(tf.reduce_sum(rows))
    session.run(tf.global_variables_initializer())
    tf.train.Saver().save(session, str(tmp_path / 'run' / 'model.ckpt-7'))
  return str(tmp_path / 'run')


def make_feed():
  values, _ = fed_initial_values.load_first()
  return fed_initial_values.make_feed(values)


def begin(num_outputs=3, num_ps=2):
  """Returns {name: value} of a new model's first values."""
  with tf.Graph().as_default(), tf.Session() as session:
    global_step = tf.train.get_or_create_global_step()
    with sharding.sharded(num_ps):
      rows = tf.get_variable('net/rows', ROWS.shape)
      head = tf.get_variable('head/w', [5, num_outputs])
    center = [v for v in tf.global_variables() if v is not global_step]
    warm_start.give(center)
    backup = tf.Variable(tf.global_variables()[-1].initial_value)
    step = tf.train.AdamOptimizer().minimize(tf.reduce_sum(rows))
    del step
    session.run(tf.global_variables_initializer(), make_feed())
    values = {'rows': tf.convert_to_tensor(rows), 'backup': backup}
    values |= {'head': tf.convert_to_tensor(head), 'step': global_step}
    return session.run(values)


@pytest.mark.slow
def test_the_values_come_and_neither_the_step_nor_slots(set_flags, source):
  set_flags(f'--warm_start={source}')
  warm_start.check(None, False)
  found = begin()
  np.testing.assert_array_equal(found['rows'], ROWS)
  np.testing.assert_array_equal(found['head'], np.ones([5, 3]))
  assert found['step'] == 0
  # What begins with a variable's first value begins with the one that came.
  assert np.isin(found['backup'], 1).all()


@pytest.mark.slow
def test_another_head_begins_anew(set_flags, source, caplog):
  set_flags(f'--warm_start={source}')
  found = begin(num_outputs=4)
  np.testing.assert_array_equal(found['rows'], ROWS)
  assert not np.isin(found['head'], 1).any()
  assert 'net/rows; anew: head/w' in caplog.text


@pytest.mark.slow
def test_a_pattern_chooses(set_flags, source):
  set_flags(f'--warm_start={source}:head/.*')
  warm_start.check(None, False)
  found = begin()
  assert not np.isin(found['rows'][1:], ROWS).any()
  np.testing.assert_array_equal(found['head'], np.ones([5, 3]))


def test_a_run_that_goes_on_reads_nothing(set_flags, source):
  set_flags(f'--warm_start={source}')
  with tf.Graph().as_default():
    warm_start.give([tf.get_variable('net/rows', ROWS.shape)])
    shutil.rmtree(source)
    assert fed_initial_values.make_feed() == {}


@pytest.mark.slow
def test_a_keras_file_and_a_saved_model_are_sources(set_flags, tmp_path):
  with runtime.eagerly():
    model = keras.Sequential([keras.Input([7])], name='net')
    model.add(keras.layers.Dense(5, use_bias=False, name='rows'))
    model.set_weights([ROWS])
    model.save(tmp_path / 'net.keras')
    [weight] = model.weights
  with tf.Graph().as_default(), tf.Session() as session:
    x = tf.placeholder(tf.float32, [None, 7])
    y = x @ tf.get_variable(weight.path, initializer=ROWS)
    session.run(tf.global_variables_initializer())
    saved = str(tmp_path / 'saved')
    tf.saved_model.simple_save(session, saved, {'x': x}, {'y': y})
  for path in (str(tmp_path / 'net.keras'), saved):
    set_flags(f'--warm_start={path}')
    warm_start.check(None, False)
    with tf.Graph().as_default(), tf.Session() as session:
      rows = tf.get_variable(weight.path, ROWS.shape)
      warm_start.give([rows])
      session.run(rows.initializer, make_feed())
      np.testing.assert_array_equal(session.run(rows), ROWS)


KEYS = np.random.default_rng(1).choice(2**40, 50, replace=False)
VALUES = np.random.default_rng(2).normal(size=[50, 2]).astype(np.float32)


def begin_table(dtype, capacity, first, save=lambda session: None):
  """Returns ({key: row} of a new table, the rows that other keys share)."""
  with tf.Graph().as_default(), tf.Session() as session:
    made = layers.NewRows(capacity, first=first)
    tf.train.get_or_create_global_step()
    with center.Center(cluster.Cluster()).scope():
      layers.embedding(tf.placeholder(dtype, [None]), made, 2, 'user')
    [part] = key_map.get_all(tf.get_default_graph())
    warm_start.give([part.rows, part.keys])
    first_rows.build(lambda *_: [], '/cpu:0', of_all=True)
    values, rows = fed_initial_values.load_first()
    session.run(
      tf.global_variables_initializer(), fed_initial_values.make_feed(values)
    )
    key_map.fill(session)
    first_rows.put_all(session, rows)
    save(session)
    keys, rows = session.run([part.keys, part.rows])
  at = np.flatnonzero(keys >= new_rows.LOWEST_KEY)
  shared = rows[new_rows.COMMON_ROW :: made.rows_in_bucket]
  return {keys[i]: rows[i] for i in at}, shared


@pytest.mark.slow
def test_a_table_comes_key_by_key_whatever_its_room(set_flags, tmp_path):
  path = str(tmp_path / 'run' / 'model.ckpt-7')

  def save(session):
    [part] = key_map.get_all(session.graph)
    shared = tf.range(0, part.rows.shape[0], part.new_rows.rows_in_bucket)
    session.run(sparse_table.set_rows(part.rows, shared, tf.fill([60, 2], 5.0)))
    tf.train.Saver().save(session, path)

  set_flags()
  begin_table(tf.int64, 100, (KEYS, VALUES), save)
  set_flags(f'--warm_start={tmp_path}/run')
  for capacity in 1000, 60:
    other = KEYS[:5], VALUES[:5] * 0
    found, shared = begin_table(tf.int64, capacity, other)
    assert found.keys() == set(KEYS.tolist())
    np.testing.assert_array_equal([found[key] for key in KEYS], VALUES)
    assert (shared == 5).all()
  with pytest.raises(cli.UsageError, match=r"table 'user' .* are no text"):
    begin_table(tf.string, 100, None)
  set_flags(f'--warm_start={tmp_path}/run:others')
  with pytest.raises(cli.UsageError, match='no variable'):
    begin_table(tf.int64, 100, None)


@pytest.mark.slow
def test_a_table_in_one_piece_is_read_in_slices(
  set_flags, tmp_path, monkeypatch
):
  set_flags()
  path = str(tmp_path / 'model.ckpt-7')
  begin_table(
    *(tf.int64, 100, (KEYS, VALUES)),
    lambda session: tf.train.Saver().save(session, path),
  )
  monkeypatch.setattr(partial_names, 'SLICE_BYTES', 1000)
  with checkpoint_reader.Reader(path) as reader:
    source = warm_start.StoredRows(path, reader, 'user', 'whole numbers')
    num_rows = reader.shapes['user/rows'][0]
  sizes, found = [], {}

  def read_rows(reader, name, first, size):
    value = read(reader, name, first, size)
    sizes.append(value.nbytes)
    return value

  read = checkpoint_reader.Reader.read_rows
  monkeypatch.setattr(checkpoint_reader.Reader, 'read_rows', read_rows)
  for keys, rows in source.read():
    found |= zip(keys.tolist(), rows, strict=True)
  assert max(sizes) <= 1000 and sum(sizes) == num_rows * (8 + 8)
  assert found.keys() == set(KEYS.tolist())
  np.testing.assert_array_equal([found[key] for key in KEYS], VALUES)


@pytest.mark.parametrize(
  'value, more, message',
  [
    ('{run}:nothing.*', [], 'no variable of .*model.ckpt-7 matches nothing'),
    ('{run}:head/(', [], 'head/. is no regular expression: '),
    (
      '{run}/nowhere',
      [],
      'is no model: expected a log directory, a checkpoint',
    ),
    ('{run}', ['--resume={run}'], '--resume=.* is given, too'),
  ],
)
def test_what_gives_no_values_is_refused(
  set_flags, source, value, more, message
):
  given = value.format(run=source)
  set_flags(f'--warm_start={given}', *(w.format(run=source) for w in more))
  with pytest.raises(
    cli.UsageError, match=f'^--warm_start={re.escape(given)}: .*{message}'
  ):
    warm_start.check(None, False)


def test_a_wrong_pattern_is_told_the_variables_alone(set_flags, source):
  path = f'{source}/model.ckpt-7'
  names = [name for name, _ in tf.train.list_variables(path)]
  assert {'global_step', 'net/rows/Momentum'} < {*names}
  set_flags(f'--warm_start={source}:nothing')
  with pytest.raises(cli.UsageError) as caught:
    warm_start.check(None, False)
  assert str(caught.value).split()[-2:] == ['head/w,', 'net/rows']


def test_a_broken_file_is_no_source(set_flags, tmp_path):
  (tmp_path / 'net.keras').write_text('no model')
  set_flags(f'--warm_start={tmp_path}/net.keras')
  with pytest.raises(cli.UsageError, match='cannot be read as a Keras model'):
    warm_start.check(None, False)


def test_a_damaged_checkpoint_is_no_source(set_flags, source, tmp_path):
  [data] = (tmp_path / 'run').glob('*.data-*')
  data.write_bytes(data.read_bytes()[:-9])
  set_flags(f'--warm_start={source}')
  with pytest.raises(cli.RunError, match='none of the checkpoints'):
    warm_start.check(None, False)


@pytest.mark.slow
def test_a_shape_that_a_pattern_names_has_to_fit(set_flags, source):
  set_flags(f'--warm_start={source}:head/w')
  with pytest.raises(
    cli.UsageError, match=r'float32 of shape \[5, 3\], and the model has float'
  ):
    begin(num_outputs=4)


@pytest.mark.daily
@pytest.mark.slow
def test_all_rules_begin_with_it_and_need_it_once(
  tasks, make_real_cluster, tmp_path
):
  [ps], workers = make_real_cluster(1, 1).start_all(
    *SMALL, '--train_steps=40', f'--logdir={tmp_path}/first'
  )
  assert tasks.wait(ps, *workers) == [0, 0]
  expected = read_report(tmp_path / 'first')
  warm = f'--warm_start={tmp_path}/first'
  for rule, num_ps in ('easgd', 1), ('dc_asgd', 2), ('ring_allreduce', 0):
    logdir = tmp_path / rule
    words = *SMALL, f'--strategy={rule}', '--learning_rate=0', warm
    words += (f'--logdir={logdir}',)
    ps, workers = make_real_cluster(num_ps, 2).start_all(
      *words, '--train_steps=4'
    )
    assert tasks.wait(*ps, *workers) == [0] * (num_ps + 2)
    assert read_report(logdir)['test_metrics'] == pytest.approx(
      expected['test_metrics'], rel=1e-6
    )
  shutil.rmtree(tmp_path / 'first')
  ps, workers = make_real_cluster(0, 2).start_all(*words, '--train_steps=8')
  assert tasks.wait(*workers) == [0, 0]
  assert read_report(logdir)['global_step'] == 8


def test_a_path_may_have_a_colon(set_flags, source, tmp_path):
  shutil.move(source, tmp_path / '10:20')
  set_flags(f'--warm_start={tmp_path}/10:20/model.ckpt-7')
  warm_start.check(None, False)
  set_flags(f'--warm_start={tmp_path}/10:20/model.ckpt-7:head/.*')
  warm_start.check(None, False)


@pytest.mark.slow
def test_all_values_are_of_one_checkpoint(set_flags, source, monkeypatch):
  set_flags(f'--warm_start={source}')
  reads = []
  find_usable = checkpoints.find_usable
  monkeypatch.setattr(
    checkpoints,
    'find_usable',
    lambda *args, **kwargs: reads.append(1) or find_usable(*args, **kwargs),
  )
  begin()
  assert reads == [1]


def test_what_is_moved_aside_is_no_source(set_flags, source, tmp_path):
  for path in source, f'{source}/model.ckpt-7':
    set_flags(f'--warm_start={path}')
    with pytest.raises(cli.UsageError, match='expected another --logdir'):
      warm_start.check(source, True)
  warm_start.check(str(tmp_path), False)
