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
  ],
)
def test_what_does_not_fit_or_is_damaged_changes_nothing(tmp_path, harm):
  arrays, folder = make_arrays(), write(tmp_path / 'delta')
  harm(arrays, tmp_path / 'delta')
  before = {name: array.copy() for name, array in arrays.items()}
  with pytest.raises((ValueError, OSError)):
    delta.apply(arrays, folder)
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
