"""A compressed CSV file of 500 MB trains with the memory of a window."""

import gzip
import subprocess
import sys

import pytest

pytest.importorskip('pyarrow', reason='pyarrow is not installed')

_NUM_ROWS = 1_000_000
_READ = """
import sys
import numpy as np
from absl import flags
from pyarrow import csv as _
from distmnist.data import data_order, streamed
from distmnist.readers import csv

def measure(name):
  with open('/proc/self/status') as file:
    [line] = [line for line in file if line.startswith(name)]
  return int(line.split()[1]) >> 10

flags.FLAGS(['read', *sys.argv[2:]])
reader = csv.Reader(sys.argv[1], x={'id': 'id', 'text': 'text'}, y='y')
before = measure('VmRSS')
examples = streamed.Streamed(reader)
order = data_order.Order(examples.num_examples, 0, None, examples.blocks)
total = 0
for first in range(0, examples.num_examples, 1000):
  row = order.find_images(np.arange(first, first + 1000))
  total += int(examples.take(np.append(first, row))[0].sum())
print(total, measure('VmHWM') - before)
"""


@pytest.mark.daily
@pytest.mark.slow
def test_memory_is_that_of_a_window_not_of_the_file(tmp_path):
  text = b','.join([b'some words of a text that all lines have'] * 12)
  with gzip.open(tmp_path / 'a.csv.gz', 'wb', compresslevel=1) as file:
    file.write(b'id,text,y\n')
    for first in range(0, _NUM_ROWS, 10_000):
      numbers = range(first, first + 10_000)
      file.write(b''.join(b'%d,"%s",%d\n' % (i, text, i % 2) for i in numbers))
  out = subprocess.check_output(
    [
      *(sys.executable, '-c', _READ, f'{tmp_path}/a.csv.gz'),
      *(f'--data_cache={tmp_path}/cache', '--data_cache_gb=2'),
    ],
    text=True,
    timeout=280,
  )
  total, peak_mib = map(int, out.split())
  assert total == _NUM_ROWS * (_NUM_ROWS - 1) // 2
  [made] = (tmp_path / 'cache').glob('*.rows')
  assert made.stat().st_size > 500e6
  # A window's lines, and the pages around them that the system maps.
  assert peak_mib < 300
