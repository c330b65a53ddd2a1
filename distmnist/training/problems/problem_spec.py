"""What a problem's SavedModel takes and returns: see problem.py."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import tensorflow.compat.v1 as tf

from distmnist.common import cli
from distmnist.data import split as split_lib
from distmnist.training.problems import problem_data, problem_module

if TYPE_CHECKING:
  from distmnist.training.problems import problem as problem_lib

# Their Python code is not in a graph.
_PYTHON_OPS = 'PyFunc', 'PyFuncStateless', 'EagerPyFunc'


def find(problem: problem_lib.Problem) -> Any:
  """Returns the nest of tf.TensorSpec of one example's x.

  It comes from the problem's `spec`, or else from the training data.

  Raises:
    cli.UsageError: `spec` returned something else, or the data are wrong.
  """
  spec = _call(problem)
  if spec is not None:
    return spec
  try:
    return problem_data.load_train_split(problem).spec.x
  except cli.UsageError as error:
    raise cli.UsageError(
      f'{error}; where the data are not at hand, a function spec() in the '
      'problem says what an example is'
    ) from error


def check(problem: problem_lib.Problem, loaded: Any) -> None:
  """Checks that `spec`, if there is one, matches the data.

  Args:
    loaded: nest of tf.TensorSpec of one example's x as it was loaded.

  Raises:
    cli.UsageError: they differ.
  """
  spec = _call(problem)
  if spec is None:
    return
  try:
    tf.nest.assert_same_structure(spec, loaded)
    fits = all(
      said.dtype == found.dtype and said.shape.is_compatible_with(found.shape)
      for said, found in zip(
        tf.nest.flatten(spec), tf.nest.flatten(loaded), strict=True
      )
    )
  except (ValueError, TypeError):
    fits = False
  if not fits:
    raise problem.error(
      f'spec() says {_describe(spec)} of an example, but the training data have'
      f' {_describe(loaded)}'
    )


def build(
  problem: problem_lib.Problem, spec: Any
) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
  """Builds the serving graph: no loss, no labels, any number of examples.

  Args:
    spec: nest of tf.TensorSpec, as from `find`.

  Returns:
    (inputs, outputs), {name: tensor [n, ...]} each. An input has the name of
    its TensorSpec, else of its path in the nest, or x if it is the only one.

  Raises:
    cli.UsageError: a function of the problem fails, or returns what cannot be
      served.
  """
  inputs = {}
  for path, leaf in split_lib.walk(spec):
    name = leaf.name or path or 'x'
    if name in inputs:
      raise problem.error(f'spec() has two inputs called {name!r}')
    op_name = re.sub(r'[^A-Za-z0-9.]', '_', name)
    inputs[name] = tf.placeholder(
      leaf.dtype, [None, *leaf.shape], op_name.lstrip('_') or None
    )
  x = tf.nest.pack_sequence_as(spec, list(inputs.values()))
  try:
    x, _ = problem.preprocess(x, None, is_training=False)
  except cli.UsageError as error:
    raise cli.UsageError(
      f'{error}; an export has no labels: preprocess() is called with y=None, '
      'and has to take that'
    ) from error
  outputs = _name_outputs(problem, problem.build(x, is_training=False))
  _check_graph(problem)
  # TensorFlow Serving refuses an input that is returned unchanged.
  fed = {id(tensor) for tensor in inputs.values()}
  return inputs, {
    name: tf.identity(tensor) if id(tensor) in fed else tensor
    for name, tensor in outputs.items()
  }


def _call(problem: problem_lib.Problem) -> Any:
  """Returns the nest that `spec` returns, or None if there is no `spec`."""
  spec = problem.call_optional('spec')
  if spec is None:
    return None
  leaves = tf.nest.flatten(spec)
  for leaf in leaves:
    if not isinstance(leaf, tf.TensorSpec) or leaf.shape.rank is None:
      raise problem.error(
        f'spec() gave {problem_module.shorten(leaf)}: expected a tf.TensorSpec '
        'of one example, of a known rank, or a nest of them'
      )
  if not leaves:
    raise problem.error('spec() gave nothing: expected what x is')
  return spec


def _describe(spec: Any) -> str:
  return split_lib.describe_specs(
    {leaf.name or path or 'x': leaf for path, leaf in split_lib.walk(spec)}
  )


def _name_outputs(
  problem: problem_lib.Problem, built: Any
) -> dict[str, tf.Tensor]:
  """Returns {name: tensor [n, ...]} for what the model has built."""
  leaves = {path or 'outputs': leaf for path, leaf in split_lib.walk(built)}
  outputs = problem.call_optional('serve', built, default=leaves)
  if not isinstance(outputs, dict) or not outputs:
    raise problem.error(
      f'serve() gave {problem_module.shorten(outputs)}: expected a dict of name'
      ' -> tensor [n, ...]'
    )
  for name, tensor in outputs.items():
    if not isinstance(name, str) or not tf.is_tensor(tensor):
      raise problem.error(
        f'{problem_module.shorten(tensor)} cannot be served as {name!r}: '
        'expected a str -> tensor [n, ...], see serve(outputs)'
      )
    if not isinstance(tensor, (tf.Tensor, tf.Variable)):
      raise problem.error(
        f'the output {name!r} is a {type(tensor).__name__}: expected a dense '
        'tensor [n, ...], as from tf.sparse.to_dense or to_tensor() in '
        'serve(outputs)'
      )
    if tensor.shape.rank == 0 or tensor.shape[:1].is_fully_defined():
      raise problem.error(
        f'the output {name!r} has the shape {tensor.shape}, whatever the number'
        ' of examples: expected [n, ...]; serve(outputs) says what is served'
      )
  return outputs


def _check_graph(problem: problem_lib.Problem) -> None:
  for op in tf.get_default_graph().get_operations():
    if op.type in _PYTHON_OPS:
      raise problem.error(
        f'the graph calls Python ({op.name}), which is not in a SavedModel: '
        'do without tf.py_function where is_training is False'
      )
