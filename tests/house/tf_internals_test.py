"""The house: only tf_internals touches what is private in TensorFlow."""

import ast
import functools

import pytest

import distmnist.runtime  # noqa: F401  TensorFlow, quiet and in graph mode.

# isort: split
import tensorflow.compat.v1 as tf  # noqa: F401  For the bases of classes.

from tests.support.paths import REPO

PACKAGE = REPO / 'distmnist'
# What the class tf.train.Optimizer leaves to its subclasses.
OF_OPTIMIZERS = {
  *('_create_slots', '_get_or_make_slot_with_initializer', '_use_locking'),
  *('_create_non_slot_variable', '_get_non_slot_variable'),
}
# Of Python itself, and of PySpark and fsspec.
OF_OTHERS = {
  *('_asdict', '_fields', '_replace'),
  *('_exit', '_getframe', '_current_frames'),
  *('_gateway', '_jsc', '_temp_dir', '_strip_protocol'),
}
PUBLIC = 'tensorflow', 'tensorflow.compat.v1', 'keras'


parse = functools.cache(ast.parse)


def find_private(source, ours):
  """Yields (line, what) for the private parts that a module touches.

  Args:
    source: str, of the module.
    ours: set of the private names that distmnist defines.
  """
  for node in ast.walk(parse(source)):
    found = []
    if isinstance(node, ast.Import):
      found = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.module:
      found = [node.module]
    if found:
      found = [
        name
        for name in found
        if name.split('.')[0] in ('tensorflow', 'keras') and name not in PUBLIC
      ]
    elif isinstance(node, ast.Attribute) and is_private(node.attr):
      of = ast.unparse(node.value)
      is_own = of in ('self', 'cls', 'super()') and node.attr in ours
      if not is_own and node.attr not in OF_OTHERS:
        found = [f'{of}.{node.attr}']
    elif isinstance(node, ast.Call) and find_last(node.func).endswith('attr'):
      names = [ast.unparse(x).strip('\'"') for x in node.args[1:2]]
      found = [n for n in names if is_private(n) and n not in OF_OTHERS]
    elif isinstance(node, ast.ClassDef):
      found = find_overridden(node)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
      found = ['libtensorflow'] * node.value.startswith('libtensorflow')
    yield from ((node.lineno, what) for what in found)


def find_last(node):
  """Returns the last word of a name, such as `b` of `a.b`; '' of others."""
  return getattr(node, 'attr', getattr(node, 'id', ''))


def is_private(name):
  return name.startswith('_') and not name.startswith('__') and name != '_'


def find_overridden(node):
  """Returns the private methods of TensorFlow that a class replaces."""
  bases = [ast.unparse(base) for base in node.bases]
  # By the name of the module, as in `tf.train.Optimizer`.
  bases = [eval(base) for base in bases if base.startswith('tf.')]  # noqa: S307
  return [
    f'{node.name}.{x.name}'
    for x in node.body
    if isinstance(x, ast.FunctionDef) and is_private(x.name)
    if any(hasattr(base, x.name) for base in bases)
  ]


def find_ours():
  """Returns the set of private names that a module of distmnist defines."""
  ours = set()
  for path in PACKAGE.rglob('*.py'):
    for node in ast.walk(parse(path.read_text('utf-8'))):
      if isinstance(node, ast.FunctionDef | ast.ClassDef):
        ours.add(node.name)
      elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        ours.add(node.id)
      elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        ours.add(node.attr)
  return ours


@pytest.mark.slow
def test_no_other_module_touches_private_parts():
  ours, found = find_ours(), []
  for path in sorted(PACKAGE.rglob('*.py')):
    name = path.relative_to(PACKAGE).as_posix()
    if name == 'tf_internals.py':
      continue
    found += [
      f'{name}:{n}: {what}'
      for n, what in find_private(path.read_text('utf-8'), ours)
      if what.rpartition('.')[2] not in OF_OPTIMIZERS
    ]
  assert found == []


@pytest.mark.parametrize(
  'source',
  [
    'from tensorflow.python.framework import ops',
    'import tensorflow.core.protobuf.config_pb2',
    'from keras.src import backend',
    "op._set_attr('seed', 1)",
    'x = session._config',
    'class A(tf.train.AdamOptimizer):\n  def _prepare(self):\n    pass',
    'class A(tf.train.AdamOptimizer):\n  def f(self):\n    return self._lr_t',
    "getattr(model, '_compile_config', None)",
    "ctypes.CDLL('libtensorflow_framework.so.2')",
  ],
)
def test_each_way_to_touch_one_is_seen(source):
  assert [*find_private(source, {'_prepare', '_own'})]


@pytest.mark.parametrize(
  'source',
  [
    'import tensorflow.compat.v1 as tf',
    'from keras import layers',
    'self._own = 1',
    'os._exit(0)',
    'update._replace(train_op=op)',
    "getattr(model, '__file__')",
    'class A(tf.train.SessionRunHook):\n  def _own(self):\n    pass',
  ],
)
def test_what_is_public_or_ours_is_none(source):
  assert not [*find_private(source, {'_own'})]
