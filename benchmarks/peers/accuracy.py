"""Test accuracy of what a run has saved, oldest first, until one suffices.

  python benchmarks/peers/accuracy.py NET DATA TARGET FILE ...

A FILE is a snapshot of a peer (.npz) or the prefix of a TensorFlow checkpoint.
All peers are judged by this one program, after their run. It prints a JSON
list of accuracies, one per file; the last is the first that reached TARGET.
"""

import json
import pathlib
import sys

import common
import numpy as np
import tensorflow as tf
import tf_nets


def load_weights(path, names):
  """Returns a dict of name -> array."""
  if path.endswith('.npz'):
    with np.load(path) as file:
      return {name: file[name] for name in names}
  reader = tf.train.load_checkpoint(path)
  return {name: reader.get_tensor(name) for name in names}


def main(net, data, target, *paths):
  shapes = common.NETS[net].shapes
  variables = {n: tf.Variable(tf.zeros(s)) for n, s in shapes.items()}
  predict = tf_nets.make_predict(net, variables)
  found = []
  for path in paths:
    for name, value in load_weights(path, shapes).items():
      variables[name].assign(value)
    found.append(common.compute_accuracy(predict, pathlib.Path(data)))
    if found[-1] >= float(target):
      break
  print(json.dumps(found))


if __name__ == '__main__':
  main(*sys.argv[1:])
