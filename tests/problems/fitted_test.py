"""fitted: what a call of fit hands over, which split is which, what resumes."""

import os
import re
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from absl import flags

from distmnist import runtime
from distmnist.api import keras_groups, keras_optimizer
from distmnist.common import cli
from distmnist.data import array_folder
from distmnist.nn import groups
from distmnist.problems import fitted
from distmnist.training.problems import keras_problem, problem

A, B = np.arange(6).reshape(3, 2), np.array(['x', 'yy', ''])


@pytest.fixture
def folder(tmp_path, set_flags):
  set_flags(f'--fitted_dir={tmp_path}')
  return str(tmp_path)


@pytest.mark.daily
@pytest.mark.slow
def test_the_tasks_train_by_tensorflow_whatever_the_caller_s_backend_is():
  code = (
    'from distmnist.problems import fitted; import keras;'
    'print(keras.backend.backend())'
  )
  done = subprocess.run(
    [sys.executable, '-c', code],
    env=os.environ | {'KERAS_BACKEND': 'jax'},
    capture_output=True,
    text=True,
    timeout=300,
  )
  assert done.stdout == 'tensorflow\n', done.stderr


def test_without_a_folder_the_flag_for_it_is_named(set_flags):
  set_flags()
  with pytest.raises(cli.UsageError, match='--fitted_dir'):
    fitted.load('train')


@pytest.mark.slow
def test_a_split_is_what_the_call_has_called_so(folder):
  array_folder.write(folder, {'train': (A, B), 'test': (A[:1], B[:1])})
  assert fitted.load('validation') is None
  assert fitted.load('train')[1].tolist() == B.tolist()
  assert len(fitted.load('test')[0]) == 1


X = np.arange(10, dtype='f').reshape(5, 2)
SPLITS = {'train': ({'x': X}, X[:, :1])}


@pytest.fixture(autouse=True)
def eager():
  with runtime.eagerly():
    yield


def make(units=4, activation=None, loss='mse'):
  """Returns a new model; Keras gives its layers names of their own."""
  given = keras.Input([2], name='x')
  # Named like its setting.
  hidden = keras.layers.Dense(units, activation, name=activation)(given)
  both = keras.layers.Concatenate()([keras.layers.Dropout(0.5)(hidden), given])
  model = keras.Model(given, keras.layers.Dense(1)(both))
  model.compile('adam', loss, metrics=['mae'])
  return model


@pytest.mark.skipif(os.geteuid() != 0, reason='only root can give a file away')
@pytest.mark.slow
@pytest.mark.parametrize(
  'part', ['model.keras', 'groups.json', '', 'modules.json']
)
def test_a_model_of_another_user_is_loaded_only_if_it_is_named(
  tmp_path, set_flags, monkeypatch, part
):
  folder = tmp_path / 'fitted'
  told = {groups.Group('', ''): [0]}
  fitted.fill(str(folder), make(), SPLITS, is_resumed=False, groups=told)
  set_flags(f'--fitted_dir={folder}')
  monkeypatch.setattr('sys.argv', ['evaluate'])
  os.chown(folder / part, 12345, 12345)
  with pytest.raises(cli.UsageError, match=r'another user \(uid 12345\)'):
    fitted.make_model()
  monkeypatch.setattr('sys.argv', ['train', f'--fitted_dir={folder}'])
  assert fitted.make_model().count_params()


@pytest.mark.slow
def test_the_same_call_goes_on_with_the_first_ones_model(tmp_path):
  folder = str(tmp_path / 'fitted')
  fitted.fill(folder, make(), SPLITS, is_resumed=False)
  kept = (tmp_path / 'fitted' / 'model.keras').read_bytes()
  more = SPLITS | {'validation': SPLITS['train']}
  fitted.fill(folder, make(), more, is_resumed=True)
  assert (tmp_path / 'fitted' / 'model.keras').read_bytes() == kept
  assert array_folder.load(folder, 'validation')[0]['x'].tolist() == X.tolist()
  assert os.listdir(tmp_path) == ['fitted']


@pytest.mark.parametrize(
  'settings, y, said',
  [
    ({'units': 5}, X[:, :1], 'another model'),
    ({'activation': 'relu'}, X[:, :1], 'another model'),
    ({'loss': 'mae'}, X[:, :1], 'another model'),
    ({}, X[:, 1:], r'other examples \(x, y or weights\)'),
    ({}, X[:, 0], r'other examples \(x, y or weights\)'),
  ],
)
@pytest.mark.slow
def test_another_call_is_refused_and_changes_nothing(
  tmp_path, settings, y, said
):
  folder = str(tmp_path / 'fitted')
  fitted.fill(folder, make(), SPLITS, is_resumed=False)
  splits = {'train': ({'x': X}, y)}
  with pytest.raises(ValueError, match=f'has the training of {said}: expected'):
    fitted.fill(folder, make(**settings), splits, is_resumed=True)
  assert array_folder.load(folder, 'train')[1].tolist() == X[:, :1].tolist()
  # Nothing was trained yet: the first call may have been a mistake.
  fitted.fill(folder, make(**settings), splits, is_resumed=False)
  assert array_folder.load(folder, 'train')[1].tolist() == y.tolist()


@pytest.mark.slow
def test_other_weights_are_other_examples(tmp_path):
  folder, weights = str(tmp_path / 'fitted'), np.ones(5, 'f')
  weighted = {'train': (*SPLITS['train'], weights)}
  fitted.fill(folder, make(), weighted, is_resumed=False)
  fitted.fill(folder, make(), weighted, is_resumed=True)
  for other in SPLITS, {'train': (*SPLITS['train'], 2 * weights)}:
    with pytest.raises(ValueError, match='other examples'):
      fitted.fill(folder, make(), other, is_resumed=True)


@pytest.mark.slow
def test_names_of_the_users_own_count(tmp_path):
  folder = str(tmp_path / 'fitted')
  fitted.fill(folder, make(activation='tanh'), SPLITS, is_resumed=False)
  fitted.fill(folder, make(activation='tanh'), SPLITS, is_resumed=True)
  with pytest.raises(ValueError, match='has the training of another model'):
    fitted.fill(folder, make(activation='relu'), SPLITS, is_resumed=True)


def test_what_cannot_be_written_leaves_nothing(tmp_path):
  splits = {'train': ({'x': X}, np.array([None] * 5))}
  with pytest.raises(ValueError, match='an array has NoneType objects'):
    fitted.fill(str(tmp_path / 'fitted'), make(), splits, False)
  assert os.listdir(tmp_path) == []


def double(x):
  return 2 * x


def make_with_a_layer_of(module):
  class Half(keras.layers.Layer):
    def call(self, x):
      return x / 2

  Half.__module__ = module
  keras.saving.register_keras_serializable('fitted_test')(Half)
  model = keras.Sequential([keras.Input([2]), Half(), keras.layers.Dense(1)])
  model.compile('sgd', 'mse')
  return model


@pytest.mark.slow
def test_the_tasks_import_what_registers_a_layer(tmp_path, monkeypatch):
  imported = []
  monkeypatch.setattr(fitted.importlib, 'import_module', imported.append)
  model = make_with_a_layer_of('their.layers')
  fitted.fill(str(tmp_path), model, SPLITS, is_resumed=False)
  assert imported == ['their.layers']


@pytest.mark.slow
def test_a_layer_of_the_program_itself_is_refused(tmp_path):
  model = make_with_a_layer_of('__main__')
  with pytest.raises(ValueError, match='model: Half is defined in the program'):
    fitted.fill(str(tmp_path / 'fitted'), model, SPLITS, is_resumed=False)
  assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(
  'layer, said',
  [
    (
      lambda: keras.layers.Lambda(lambda x: 2 * x),
      '`Lambda` layer whose `func',
    ),
    (lambda: keras.layers.Lambda(double), "Could not locate function 'double'"),
    (
      lambda: keras.layers.Dense(2, double),
      "Could not locate function 'double'",
    ),
  ],
)
def test_code_of_the_callers_own_is_refused_before_anything_starts(
  tmp_path, layer, said
):
  model = keras.Sequential([keras.Input([2]), layer(), keras.layers.Dense(1)])
  model.compile('sgd', 'mse')
  with pytest.raises(ValueError, match='^the tasks cannot load this ') as why:
    fitted.fill(str(tmp_path / 'fitted'), model, SPLITS, is_resumed=False)
  assert said in str(why.value) and '\n' not in str(why.value)
  assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_groups_are_those_of_places_by_the_names_that_are_given(folder):
  assert fitted.find_groups(['a', 'b.c', 'd']) == ()
  group = groups.Group('whatever', "groups['x']", 2.0, 'adam')
  for is_resumed, told in (False, [1]), (True, [0, 1]):
    fitted.fill(folder, make(), SPLITS, is_resumed, groups={group: told})
    [found] = fitted.find_groups(['a', 'b.c', 'd'])
    assert found._replace(pattern=group.pattern) == group
    names = 'a', 'b.c', 'b.c/rows', 'bxc', 'd'
    members = [name for name in names if re.fullmatch(found.pattern, name)]
    assert members == ['a'][: len(told) - 1] + ['b.c', 'b.c/rows']


def make_pair(name):
  """Returns a layer whose paths are those of any other after loading."""
  inner = keras.layers.GRU(3, return_sequences=True, name='rnn')
  return keras.layers.Bidirectional(inner, name=name)


@keras.saving.register_keras_serializable('fitted_test')
class Block(keras.layers.Layer):
  """A layer whose inner layers Keras numbers."""

  def __init__(self, **settings):
    super().__init__(**settings)
    self._inner = [keras.layers.Dense(2), keras.layers.Dense(2)]

  def build(self, shape):
    for layer in self._inner:
      layer.build(shape)

  def call(self, x):
    for layer in self._inner:
      x = layer(x)
    return x


@pytest.mark.parametrize(
  'make_layer, shape',
  [
    (make_pair, [4, 2]),
    (lambda n: Block(name=n), [2]),
  ],
)
@pytest.mark.slow
def test_groups_have_the_same_variables_in_the_tasks(
  tmp_path, set_flags, monkeypatch, make_layer, shape
):
  monkeypatch.setattr(fitted, '_find_modules', lambda path: [])
  monkeypatch.setattr('sys.argv', ['train', f'--fitted_dir={tmp_path}/fitted'])
  set_flags(f'--fitted_dir={tmp_path}/fitted')
  layers = [keras.Input(shape), make_layer('one'), make_layer('two')]
  model = keras.Sequential(layers)
  model.compile('sgd', 'mse')
  given = keras_groups.parse({'two/.*': {'learning_rate': 0}})
  chosen = keras_groups.choose(given, model)
  places = keras_groups.find_places(chosen)
  fitted.fill(f'{tmp_path}/fitted', model, SPLITS, False, groups=places)
  keras.utils.clear_session()  # A task counts its layers anew.
  module = keras_problem.KerasModule(fitted, fitted.make_model())
  found = problem.Problem(module, 'fitted')
  with tf.Graph().as_default():
    found.build(tf.placeholder(tf.float32, [5, *shape]), is_training=True)
    names = [v.op.name for v in tf.trainable_variables()]
  has_group = [bool(groups.find(found.groups, name)) for name in names]
  assert has_group == [group is not None for group in chosen]
  assert has_group == [False] * (len(names) // 2) + [True] * (len(names) // 2)


SCHEDULES = keras.optimizers.schedules


@pytest.mark.slow
@pytest.mark.parametrize(
  'schedule',
  [
    SCHEDULES.CosineDecay(0.1, 9, warmup_target=0.5, warmup_steps=3),
    SCHEDULES.CosineDecayRestarts(0.1, 4),
    SCHEDULES.ExponentialDecay(0.1, 3, 0.5, staircase=True),
    SCHEDULES.InverseTimeDecay(0.1, 3, 0.5),
    SCHEDULES.PiecewiseConstantDecay([3, 7], [0.1, 0.2, 0.3]),
    SCHEDULES.PolynomialDecay(0.1, 9, power=2),
  ],
  ids=lambda schedule: type(schedule).__name__,
)
def test_the_rate_is_that_of_the_compiled_schedule(folder, schedule):
  model = make()
  model.compile(keras.optimizers.SGD(schedule), 'mse')
  rate = keras_optimizer.read_schedule(model)
  folder = os.path.join(folder, 'fitted')
  fitted.fill(folder, model, SPLITS, False, rate)
  flags.FLAGS.fitted_dir = folder
  with tf.Graph().as_default(), tf.Session() as session:
    step = tf.placeholder(tf.int64, [])
    built = fitted.learning_rate(step, None)
    found = [session.run(built, {step: t}) for t in range(12)]
  expected = [float(schedule(t)) for t in range(12)]
  assert found == pytest.approx(expected, rel=1e-6, abs=1e-8)


@pytest.mark.slow
def test_a_number_is_no_schedule(folder):
  model = make()
  assert keras_optimizer.read_schedule(model) is None
  fitted.fill(os.path.join(folder, 'fitted'), model, SPLITS, False)
  assert fitted.learning_rate(None, None) is None
