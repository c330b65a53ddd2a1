"""delta: arrays that a program holds become those of a later export."""

import json
import subprocess
import sys

import numpy as np
import pytest

from distmnist.serving import delta
from tests.support.paths import REPO

pa = pytest.importorskip('pyarrow', reason='pyarrow is not installed')


def write(folder, **columns):
  """Writes a delta of a table `t` and a weight `w`, as its page says."""
  from pyarrow import parquet  # noqa: PLC0415  Where there is pyarrow.

  (folder / 'model').mkdir(parents=True)
  rows = {'position': [3, 0], 'key': [9, 7], 'values': [[1.0, 2.0], [3.0, 4.0]]}
  lists = pa.list_(pa.float32(), 2)
  parquet.write_table(
    pa.table(rows | columns).cast(
      pa.schema(
        [('position', pa.int64()), ('key', pa.int64()), ('values', lists)]
      )
    ),
    folder / 't.parquet',
  )
  bits = np.array([1.5, -0.0], np.float32).view(np.uint32) >> 16
  parquet.write_table(
    pa.table({'values': bits.astype(np.uint16)}), folder / 'w.parquet'
  )
  (folder / 'delta.json').write_text(
    json.dumps(
      {
        'run': 'a',
        'from_step': 1,
        'to_step': 2,
        'variables': {
          't': {'dtype': 'float32', 'shape': [4, 2], 'file': 't.parquet'},
          'w': {'dtype': 'bfloat16', 'shape': [2], 'file': 'w.parquet'},
        },
      }
    )
  )
  return str(folder)


def make_arrays():
  import ml_dtypes  # noqa: PLC0415  It comes with TensorFlow.

  table = np.zeros([4, 2], np.float32)
  return {'t': table, 'w': np.zeros([2], ml_dtypes.bfloat16), 'x': np.ones(1)}


def test_rows_of_tables_change_in_place_and_others_are_replaced(tmp_path):
  arrays = make_arrays()
  table = arrays['t']
  delta.apply(arrays, write(tmp_path / 'delta'))
  assert arrays['t'] is table
  assert table.tolist() == [[3, 4], [0, 0], [0, 0], [1, 2]]
  assert arrays['w'].view(np.uint16).tolist() == [0x3FC0, 0x8000]
  assert arrays['x'].tolist() == [1]


def protect_a_later_table(arrays, folder):
  about = json.loads((folder / 'delta.json').read_text())
  about['variables']['u'] = about['variables']['t']
  (folder / 'delta.json').write_text(json.dumps(about))
  arrays['u'] = np.zeros([4, 2], np.float32)
  arrays['u'].flags.writeable = False


def damage_a_page(arrays, folder):
  """Changes a number in the file of a variable."""
  from pyarrow import parquet  # noqa: PLC0415  Where there is pyarrow.

  del arrays
  path, values = folder / 'w.parquet', np.full(2, 0x2211, np.uint16)
  parquet.write_table(
    *(pa.table({'values': values}), path),
    use_dictionary=False,
    compression='none',
    write_statistics=False,
    write_page_checksum=True,
  )
  content = path.read_bytes()
  assert content.count(b'\x11\x22') == 2
  path.write_bytes(content.replace(b'\x11\x22', b'\x33\x22'))


@pytest.mark.parametrize(
  'harm',
  [
    lambda arrays, folder: arrays.pop('w'),
    lambda arrays, folder: arrays.update(w=np.zeros(2, np.float16)),
    lambda arrays, folder: arrays.update(t=np.zeros([3, 2], np.float32)),
    lambda arrays, folder: arrays.update(t=np.zeros([4, 1], np.float32)),
    lambda arrays, folder: (folder / 'w.parquet').write_bytes(b'PAR1'),
    lambda arrays, folder: (folder / 'w.parquet').unlink(),
    lambda arrays, folder: (folder / 'delta.json').write_text('{"variab'),
    lambda arrays, folder: (folder / 'delta.json').unlink(),
    protect_a_later_table,
    damage_a_page,
  ],
)
def test_what_does_not_fit_or_is_damaged_changes_nothing(tmp_path, harm):
  arrays, folder = make_arrays(), write(tmp_path / 'delta')
  harm(arrays, tmp_path / 'delta')
  before = {name: array.copy() for name, array in arrays.items()}
  with pytest.raises((ValueError, FileNotFoundError)) as caught:
    delta.apply(arrays, folder)
  assert '\n' not in str(caught.value)
  np.testing.assert_equal(arrays, before)


@pytest.mark.parametrize(('run', 'step'), [('a', 7), ('b', 1)])
def test_another_model_than_a_delta_begins_with_is_refused(tmp_path, run, step):
  record = tmp_path / 'old' / delta.RECORD_FILE
  record.parent.mkdir(parents=True)
  record.write_text(json.dumps({'run': run, 'step': step}))
  folder = write(tmp_path / 'delta')
  with pytest.raises(ValueError, match='goes from step 1 to 2 of a run, but '):
    delta.apply_to_model(str(tmp_path / 'old'), folder, str(tmp_path / 'new'))
  assert not (tmp_path / 'new').exists()


def test_a_model_is_written_without_a_gpu(tmp_path, monkeypatch):
  import tensorflow.compat.v1 as tf  # noqa: PLC0415  Others are without it.

  found, make = [], tf.Session

  def record(*args, config=None, **kwargs):
    found.append(config)
    return make(*args, config=config, **kwargs)

  monkeypatch.setattr(tf, 'Session', record)
  delta._save({'x': np.ones(3)}, str(tmp_path / 'variables'))
  [config] = found
  assert dict(config.device_count) == {'GPU': 0}
  reader = tf.train.load_checkpoint(str(tmp_path / 'variables'))
  assert reader.get_tensor('x').tolist() == [1, 1, 1]


@pytest.mark.slow
def test_a_program_that_holds_arrays_needs_no_tensorflow():
  said = subprocess.run(
    [
      *(sys.executable, '-c'),
      'import sys; from distmnist.serving import delta; '
      "print('tensorflow' in sys.modules)",
    ],
    cwd=REPO,
    capture_output=True,
    text=True,
    check=True,
  )
  assert said.stdout == 'False\n'
