"""SavedModels of images, and as others have them."""

import numpy as np
import tensorflow.compat.v1 as tf

from distmnist.nn import layers
from distmnist.serving import saved_model


def write_brightest(export_dir, image_shape=(2, 3, 1)):
  """Writes a model whose class is the brightest value; returns the bytes."""
  with tf.Graph().as_default(), tf.Session() as session:
    images = tf.placeholder(tf.uint8, [None, *image_shape])
    scale = tf.get_variable('scale', initializer=0.1)
    logits = scale * layers.flatten(tf.cast(images, tf.float32))
    session.run(scale.initializer)
    return saved_model.write(
      str(export_dir),
      session,
      tf.train.Saver([scale]),
      {'images': images},
      {
        'classes': tf.argmax(logits, axis=1),
        'probabilities': tf.nn.softmax(logits),
      },
    )


def make_images(classes, image_shape=(2, 3, 1)):
  """Returns images of `write_brightest`'s classes, 9 against 0."""
  images = np.zeros([len(classes), np.prod(image_shape)], np.uint8)
  images[np.arange(len(classes)), classes] = 9
  return images.reshape(-1, *image_shape)


def write_other(export_dir):
  """Writes a SavedModel as others have them: x -> y."""
  with tf.Graph().as_default(), tf.Session() as session:
    x = tf.placeholder(tf.uint8, [None, 4], 'x')
    signature = tf.saved_model.predict_signature_def({'x': x}, {'y': x + x})
    builder = tf.saved_model.Builder(str(export_dir))
    builder.add_meta_graph_and_variables(
      session, ['serve'], {'serving_default': signature}
    )
    builder.save()


def write_output(export_dir, make):
  """Writes a SavedModel of float32 x [n] -> y, which is make(x)."""
  with tf.Graph().as_default(), tf.Session() as session:
    x = tf.placeholder(tf.float32, [None], 'x')
    scale = tf.get_variable('scale', initializer=1.0)
    session.run(scale.initializer)
    saver = tf.train.Saver([scale])
    saved_model.write(
      str(export_dir), session, saver, {'x': x}, {'y': make(scale * x)}
    )
