"""What a SavedModel takes and gives, in words."""


def describe(tensors):
  """Returns 'x float32 [n, 2], lengths int64 [n]' for {name: tensor}.

  Args:
    tensors: dict of name -> what has dtype and shape, such as a tf.TensorSpec.
      The first dimension of a shape counts the examples.
  """
  return ', '.join(
    f'{name} {tensor.dtype.name} {_describe_shape(tensor.shape)}'
    for name, tensor in tensors.items()
  )


def _describe_shape(shape):
  if shape.rank is None:
    return 'of any shape'
  sizes = ['?' if size is None else str(size) for size in shape.as_list()]
  if sizes[:1] == ['?']:
    sizes[0] = 'n'
  return f'[{", ".join(sizes)}]'
