"""other_names: what a checkpoint has under another name is found there."""

import tensorflow.compat.v1 as tf

from distmnist.logdir import other_names


def test_each_has_its_own_name_or_another_or_none(tf_session, tmp_path):
  with tf.Graph().as_default(), tf.Session() as session:
    saved = [tf.Variable(i, name=f'saved/{i}') for i in (1.0, 2.0)]
    session.run([v.initializer for v in saved])
    path = tf.train.Saver(saved).save(session, f'{tmp_path}/model.ckpt')
  own = tf.Variable(7.0, name='saved/1.0')
  other, lost, plain = (
    tf.Variable(7.0, name=name) for name in ('other', 'lost', 'plain')
  )
  other_names.add(own, lambda names: None)
  other_names.add(other, lambda names: max(names))
  other_names.add(lost, lambda names: None)
  variables = [own, other, lost, plain]
  assert other_names.choose(variables) == [own, other, lost]
  assert other_names.choose_lost(path, variables) == [lost]
  tf_session.run(tf.global_variables_initializer())
  other_names.load(tf_session, path, variables)
  assert tf_session.run(variables) == [1, 2, 7, 7]
