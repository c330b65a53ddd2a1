"""Deltas: an earlier export and a delta are the whole later export."""

import errno
import json
import os
import pathlib
import sys
import types

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist import export
from distmnist.common import cli, owner, partial_names
from distmnist.nn import layers
from distmnist.serving import delta, delta_writer, saved_model
from distmnist.tables import key_hash, new_rows
from distmnist.training.problems import problem as problem_lib

parquet = pytest.importorskip(
  'pyarrow.parquet', reason='pyarrow is not installed'
)
SPEC = {
  'user': tf.TensorSpec([], tf.int64),
  'item': tf.TensorSpec([], tf.int64),
}
NUM_ITEMS, WIDTH = 130, 3
MARK = new_rows.MARKS['whole numbers']


@pytest.fixture(autouse=True)
def default_flags(set_flags):
  set_flags()


def make_problem(capacity=60):
  def build(x, is_training):
    del is_training
    users = layers.embedding(x['user'], layers.NewRows(capacity), WIDTH, 'user')
    items = layers.embedding(x['item'], NUM_ITEMS, WIDTH, 'item')
    total = tf.reduce_sum(users * items, 1)
    for name, dtype, shape in (
      *(('scale', tf.float32, []), ('half', tf.float16, [5])),
      *(('brain', tf.bfloat16, [2, 3, 2]), ('is_on', tf.bool, [2])),
    ):
      weight = tf.get_variable(
        name, shape, dtype, tf.zeros_initializer(), trainable=dtype != tf.bool
      )
      total += tf.reduce_sum(tf.cast(weight, tf.float32))
    return total

  module = types.SimpleNamespace(build=build, loss=None)
  return problem_lib.Problem(module)


class State:
  """The variables of the model after some steps, as a checkpoint has them."""

  def __init__(self, capacity=60, seed=0):
    self.in_bucket = layers.NewRows(capacity).rows_in_bucket
    self.rng = np.random.default_rng(seed)
    size = 60 * self.in_bucket
    self.arrays = {
      'global_step': np.array(0, np.int64),
      'user/rows': np.zeros([size, WIDTH], np.float32),
      'user/keys': np.full([size], new_rows.FREE),
      'item/rows': self.draw(180, WIDTH),
    }
    self.arrays['user/keys'][:: self.in_bucket] = MARK
    self.train_dense()

  def draw(self, *shape):
    return self.rng.normal(size=shape).astype(np.float32)

  def train_dense(self):
    brain = tf.bfloat16.as_numpy_dtype
    self.arrays |= {
      'scale': self.draw(1)[0],
      'half': self.draw(5).astype(np.float16),
      'brain': self.draw(2, 3, 2).astype(brain),
      'is_on': self.rng.random(2) < 0.5,
    }

  def add(self, *keys):
    """Gives keys rows of their own."""
    with tf.Graph().as_default(), tf.Session() as session:
      buckets = session.run(key_hash.find_buckets(np.array(keys), 60))
    for key, bucket in zip(keys, buckets, strict=True):
      begin = bucket * self.in_bucket
      block = self.arrays['user/keys'][begin : begin + self.in_bucket]
      [free, *_] = np.flatnonzero(block[2:] == new_rows.FREE) + 2
      self.set(begin + free, key)
    return self

  def set(self, position, key):
    self.arrays['user/keys'][position] = key
    self.arrays['user/rows'][position] = self.draw(WIDTH)

  def find(self, key):
    [position] = np.flatnonzero(self.arrays['user/keys'] == key)
    return position

  def evict(self, key, by):
    """Gives the row of a key to another one of its bucket."""
    self.set(self.find(key), by)
    return self

  def step(self, *keys):
    """Trains the rows of some keys, an item and all dense variables."""
    for key in keys:
      self.set(self.find(key), key)
    self.arrays['item/rows'][int(self.rng.integers(180))] *= -1
    self.train_dense()
    self.arrays['global_step'] = self.arrays['global_step'] + 1
    return self

  def save(self, run):
    """Writes a checkpoint of this step; returns its path."""
    path = f'{run}/model.ckpt-{self.arrays["global_step"]}'
    write_checkpoint(path, self.arrays)
    return path


def write_checkpoint(path, arrays):
  with tf.Graph().as_default(), tf.Session() as session:
    save = tf.raw_ops.SaveV2(
      prefix=path,
      tensor_names=list(arrays),
      shape_and_slices=[''] * len(arrays),
      tensors=[tf.constant(array) for array in arrays.values()],
    )
    session.run(save)


def of_same_bucket(keys):
  """Returns two of these keys that have one bucket."""
  with tf.Graph().as_default(), tf.Session() as session:
    buckets = session.run(key_hash.find_buckets(np.array(keys), 60))
  first = {}
  for key, bucket in zip(keys, buckets.tolist(), strict=True):
    if bucket in first:
      return first[bucket], key
    first[bucket] = key
  raise AssertionError('none')


def make_run(folder):
  """Returns the path of a log directory, which a training has had."""
  folder.mkdir()
  with owner.owned('--logdir', str(folder)):
    pass
  return str(folder)


@pytest.fixture
def run(tmp_path):
  return make_run(tmp_path / 'run')


def export_whole(path, folder, capacity=60):
  export.export(
    *(make_problem(capacity), SPEC, path, str(folder)),
    delta_writer.describe(path),
  )
  return str(folder)


def export_since(set_flags, since, path, folder, capacity=60, flag=None):
  """Returns what delta.json says of the variables."""
  set_flags(f'--since={since}', *([flag] if flag else []))
  base = delta_writer.find_base(os.path.dirname(path))
  about, num_bytes = export.export_delta(
    *(make_problem(capacity), SPEC, path, str(folder)),
    *(delta_writer.describe(path), base),
  )
  assert num_bytes == sum(
    file.stat().st_size for file in folder.rglob('*') if file.is_file()
  )
  return about


def read_variables(export_dir):
  reader = tf.train.load_checkpoint(f'{export_dir}/variables/variables')
  names = reader.get_variable_to_shape_map()
  return {name: reader.get_tensor(name) for name in names}


def assert_same(found, expected):
  assert found.keys() == expected.keys()
  for name, array in expected.items():
    assert found[name].dtype == array.dtype, name
    assert found[name].shape == array.shape, name
    assert found[name].tobytes() == array.tobytes(), name


def predict(export_dir):
  """Returns the outputs for keys, some of them unknown, and all items."""
  users = np.arange(300) % 100
  items = np.arange(300) % NUM_ITEMS
  found = saved_model.Model(str(export_dir)).run({'user': users, 'item': items})
  return found['outputs']


def check_is(export_dir, whole):
  """Checks that a SavedModel is another one, to the bit."""
  assert_same(read_variables(export_dir), read_variables(whole))
  np.testing.assert_array_equal(predict(export_dir), predict(whole))
  files = [
    sorted(
      p.relative_to(each).as_posix() for p in pathlib.Path(each).rglob('*')
    )
    for each in (export_dir, whole)
  ]
  assert files[0] == files[1]
  records = [
    json.loads(pathlib.Path(each, delta.RECORD_FILE).read_text())
    for each in (export_dir, whole)
  ]
  assert records[0] == records[1]


# A slice has some rows of the table, or all of them.
@pytest.mark.slow
@pytest.mark.parametrize(
  ('since', 'slice_bytes'),
  [
    ('checkpoint', 100),
    ('export', 100),
    pytest.param('step', 2**25, marks=pytest.mark.daily),
  ],
)
def test_an_export_and_a_delta_are_the_later_export(
  run, tmp_path, set_flags, monkeypatch, since, slice_bytes
):
  monkeypatch.setattr(partial_names, 'SLICE_BYTES', slice_bytes)
  old, new = of_same_bucket(range(40, 80))
  state = State().add(*range(20), old)
  # 0 is not -0, and of what is not a number there are many.
  state.arrays['user/rows'][state.find(4), :2] = 0, np.nan
  first = state.save(run)
  base = export_whole(first, tmp_path / 'base')
  before = {
    k: state.arrays['user/rows'][state.find(k)] for k in (*range(20), old)
  }
  nan = np.array(0x7FC00001, np.uint32).view(np.float32)
  state.step(0, 3).evict(old, new).add(90, 91)
  state.arrays['user/rows'][state.find(4), :2] = -0.0, nan
  state.arrays['user/rows'][state.in_bucket] += (
    1  # One that unknown keys share.
  )
  last = state.save(run)
  whole = export_whole(last, tmp_path / 'whole')
  given = {'checkpoint': first, 'export': base, 'step': '0'}[since]
  about = export_since(set_flags, given, last, tmp_path / 'delta')
  assert about['user/rows']['rows'] == 7  # 0, 3, 4, new, 90, 91 and the shared.
  assert about['user/keys']['rows'] == 3
  assert about['user/keys']['gone'] == 1
  assert about['item/rows']['rows'] == 1
  delta.apply_to_model(base, str(tmp_path / 'delta'), str(tmp_path / 'new'))
  check_is(tmp_path / 'new', whole)
  # As one does who holds keys and rows.
  folder = tmp_path / 'delta' / 'variables' / 'user'
  rows, keys = (
    parquet.ParquetFile(folder / f'{name}.parquet').read().to_pydict()
    for name in ('rows', 'keys')
  )
  for key, position in zip(keys['values'], keys['position'], strict=True):
    if position == -1:
      del before[key]
  for key, row in zip(rows['key'], rows['values'], strict=True):
    if key >= new_rows.LOWEST_KEY:
      before[key] = np.array(row, np.float32)
  expected = {k: state.arrays['user/rows'][state.find(k)] for k in before}
  assert before.keys() == {*range(20), new, 90, 91}
  np.testing.assert_equal(before, expected)
  items = (
    parquet.ParquetFile(
      tmp_path / 'delta' / 'variables' / 'item' / 'rows.parquet'
    )
    .read()
    .to_pydict()
  )
  [key], [position] = items['key'], items['position']
  assert position == key % 60 * 3 + key // 60


@pytest.mark.slow
def test_deltas_follow_each_other_and_one_of_nothing_changes_nothing(
  run, tmp_path, set_flags
):
  state = State().add(*range(30))
  base = export_whole(state.save(run), tmp_path / '0')
  since, model = base, base
  for step in 1, 2:
    path = state.step(step, 2 * step).add(50 + step).save(run)
    export_since(set_flags, since, path, tmp_path / f'delta {step}')
    since = str(tmp_path / f'delta {step}')
    delta.apply_to_model(model, since, str(tmp_path / f'model {step}'))
    model = str(tmp_path / f'model {step}')
    check_is(model, export_whole(path, tmp_path / f'whole {step}'))
  # All steps at once.
  export_since(set_flags, base, path, tmp_path / 'all')
  delta.apply_to_model(base, str(tmp_path / 'all'), str(tmp_path / 'at once'))
  check_is(tmp_path / 'at once', model)
  # An export that a delta has made is one.
  about = export_since(set_flags, model, path, tmp_path / 'nothing')
  assert [x['rows'] for x in about.values() if 'rows' in x] == [0, 0, 0]
  delta.apply_to_model(model, str(tmp_path / 'nothing'), str(tmp_path / 'same'))
  check_is(tmp_path / 'same', model)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('since', 'slice_bytes'),
  [
    ('checkpoint', 100),
    pytest.param('export', 2**25, marks=pytest.mark.daily),
  ],
)
def test_a_table_that_has_become_larger(
  run, tmp_path, set_flags, monkeypatch, since, slice_bytes
):
  monkeypatch.setattr(partial_names, 'SLICE_BYTES', slice_bytes)
  state = State().add(*range(20))
  first = state.save(run)
  base = export_whole(first, tmp_path / 'base')
  grown = State(capacity=900)
  for name in 'user/keys', 'user/rows':
    blocks = grown.arrays[name].reshape(60, grown.in_bucket, -1)
    before = state.arrays[name].reshape(60, state.in_bucket, -1)
    blocks[:, : state.in_bucket] = before
  path = grown.step(2).add(*range(100, 200)).save(run)
  whole = export_whole(path, tmp_path / 'whole', 900)
  about = export_since(
    *(set_flags, base if since == 'export' else first, path),
    *(tmp_path / 'delta', 900),
  )
  assert about['user/rows']['rows'] == 101
  assert about['user/keys']['gone'] == 0
  delta.apply_to_model(base, str(tmp_path / 'delta'), str(tmp_path / 'new'))
  check_is(tmp_path / 'new', whole)


def cut(path):
  data = pathlib.Path(path).read_bytes()
  pathlib.Path(path).write_bytes(data[: len(data) // 2])


def damage_values(run, tmp_path):
  del tmp_path
  cut(f'{run}/model.ckpt-0.data-00000-of-00001')
  return f'{run}/model.ckpt-0'


def damage_index(run, tmp_path):
  del tmp_path
  cut(f'{run}/model.ckpt-0.index')
  return f'{run}/model.ckpt-0'


def damage_export(run, tmp_path):
  folder = export_whole(f'{run}/model.ckpt-0', tmp_path / 'base')
  cut(f'{folder}/variables/variables.data-00000-of-00001')
  return folder


def of_another_run(run, tmp_path):
  del run
  return State().save(make_run(tmp_path / 'other'))


def export_another_run(run, tmp_path):
  return export_whole(of_another_run(run, tmp_path), tmp_path / 'base')


def end_of_a_delta(step=0, name='model.ckpt-0', of=None):
  """Returns what makes the base a delta that leads to a checkpoint."""

  def write(run, tmp_path):
    about = {'run': of or owner.find_run(run), 'to_step': step}
    text = json.dumps(about | {'checkpoint': name})
    (tmp_path / 'delta.json').write_text(text)
    return str(tmp_path)

  return write


def name_nothing(run, tmp_path):
  del tmp_path
  return f'{run}/model.ckpt-77'


def name_a_later_one(run, tmp_path):
  del tmp_path
  return State().step().step().step().save(run)


def with_(**arrays):
  """Returns what makes the base one that has other variables."""

  def change(run, tmp_path):
    del tmp_path
    state = State()
    for name, array in arrays.items():
      state.arrays.pop(name)
      if array is not None:
        state.arrays[name] = array
    return state.save(run)

  return change


@pytest.mark.parametrize(
  ('make', 'text'),
  [
    (damage_values, 'is not whole: '),
    (damage_index, 'is not whole: '),
    pytest.param(damage_export, 'is not whole: ', marks=pytest.mark.slow),
    (of_another_run, 'is not of the run of '),
    pytest.param(
      *(export_another_run, 'is not of the run of '), marks=pytest.mark.slow
    ),
    (name_nothing, 'was not found '),
    (lambda run, tmp_path: run, 'is neither a checkpoint nor a folder '),
    (end_of_a_delta(77, 'model.ckpt-77'), 'leads to model.ckpt-77 '),
    (end_of_a_delta(5), 'leads to model.ckpt-0 of step 5'),
    (end_of_a_delta(of='another'), 'is not of the run of '),
    (name_a_later_one, 'is of step 3, and '),
    (with_(half=None), 'has no half: '),
    (with_(half=np.zeros(5, np.float32)), 'has half in float32, and it is'),
    (
      with_(**{'user/rows': np.zeros([900, 2], np.float32)}),
      r'has user/rows with shape \[900, 2\], and it is now \[900, 3\]',
    ),
    (
      with_(**{'user/rows': None, 'user/keys': None}),
      'has no user/(rows|keys): it is of another model; export the whole',
    ),
  ],
)
def test_what_no_delta_can_begin_with_is_refused_in_a_line(
  run, tmp_path, set_flags, make, text
):
  State().save(run)
  path = State().step().save(run)
  given = make(run, tmp_path)
  before = sorted(os.listdir(tmp_path))
  with pytest.raises(cli.RunError, match=f'^--since=[^ ]* {text}') as caught:
    export_since(set_flags, given, path, tmp_path / 'delta')
  assert '\n' not in str(caught.value)
  assert sorted(os.listdir(tmp_path)) == before


@pytest.mark.parametrize(
  ('number', 'is_passing'), [(errno.EIO, True), (errno.EACCES, False)]
)
def test_a_failure_to_read_does_not_make_it_another_run(
  run, tmp_path, set_flags, monkeypatch, number, is_passing
):
  path, given = State().save(run), end_of_a_delta()(run, tmp_path)
  set_flags(f'--since={given}')
  assert delta_writer.find_base(run).run == owner.find_run(run)

  def fail(path):
    raise OSError(number, os.strerror(number), path)

  monkeypatch.setattr(delta_writer.paths, 'read_text', fail)
  for read in (
    lambda: delta_writer.describe(path),
    lambda: delta_writer.find_base(run),
  ):
    with pytest.raises(cli.RunError) as caught:
      read()
    assert isinstance(caught.value, cli.PassingError) == is_passing


def test_a_folder_that_no_training_has_had_has_exports_too(tmp_path, set_flags):
  set_flags('--since=models/1')
  (tmp_path / 'copy').mkdir()
  path = State().step().save(str(tmp_path / 'copy'))
  record = delta_writer.describe(path)
  assert record == {'run': None, 'step': 1, 'checkpoint': 'model.ckpt-1'}
  variables = 'models/1/variables/variables'
  base = delta_writer.Base(variables, 0, None, True)
  delta_writer.check(base, path, record)
  for other in base._replace(run='a'), base._replace(is_export=False):
    with pytest.raises(cli.RunError, match='is not of the run of'):
      delta_writer.check(other, path, record)


@pytest.mark.parametrize('shape', [[0], [0, 3], [3, 0], [2, 0, 4]])
def test_a_variable_without_numbers_stays_one(tmp_path, shape):
  array = np.zeros(shape, np.float32)
  delta_writer._write_whole(str(tmp_path / 'w.parquet'), array)
  about = {'dtype': 'float32', 'shape': shape, 'file': 'w.parquet'}
  (tmp_path / 'delta.json').write_text(json.dumps({'variables': {'w': about}}))
  arrays = {'w': array}
  delta.apply(arrays, str(tmp_path))
  assert arrays['w'] is not array
  assert arrays['w'].shape == tuple(shape)


@pytest.mark.slow
def test_a_table_does_not_become_smaller(run, tmp_path, set_flags):
  State(capacity=900).save(run)
  path = State().step().save(run)
  with pytest.raises(cli.RunError, match='with shape .* it is now'):
    export_since(set_flags, '0', path, tmp_path / 'delta')


def test_without_pyarrow_it_is_said_what_to_install(set_flags, monkeypatch):
  monkeypatch.setitem(sys.modules, 'pyarrow.parquet', None)
  set_flags('--since=7')
  with pytest.raises(cli.UsageError, match=r"pip install 'distmnist\[data\]'"):
    delta_writer.find_base('run')


@pytest.mark.daily
@pytest.mark.slow
def test_averages_of_weights_are_what_is_exported(run, tmp_path, set_flags):
  paths = []
  for _ in range(2):
    state = State(seed=len(paths))
    state.arrays['global_step'] = np.array(len(paths), np.int64)
    for name in 'scale', 'half', 'brain', 'user/rows', 'item/rows':
      average = state.arrays[name] + 1
      state.arrays[f'{name}/ExponentialMovingAverage'] = average
    paths.append(state.save(run))
  set_flags('--ema_decay=0.5')
  whole = [
    export_whole(path, tmp_path / str(i)) for i, path in enumerate(paths)
  ]
  for i, since in enumerate([paths[0], whole[0]]):
    folder = tmp_path / f'delta {i}'
    export_since(set_flags, since, paths[1], folder, flag='--ema_decay=0.5')
    delta.apply_to_model(whole[0], str(folder), str(tmp_path / f'new {i}'))
    check_is(tmp_path / f'new {i}', whole[1])
