"""Plain lines where there is no notebook, and a picture where there is."""

import sys
import types

import pytest

from distmnist.api import notebook
from distmnist.watching import learning_curve, metrics_file
from tests.support.background import wait_until
from tests.support.paths import REPO


def make_ipython(shell):
  return types.SimpleNamespace(get_ipython=lambda: shell)


def write_points(writer, *points):
  for step, loss in points:
    writer.write(
      'means', step=step, epoch=1, steps=1, metrics={'loss': float(loss)}
    )


def make_cell(folder):
  return notebook.Cell(str(folder), learning_curve.Curve(str(folder)))


@pytest.mark.parametrize('shell', [None, types.SimpleNamespace()])
def test_a_terminal_has_plain_lines(monkeypatch, capsys, tmp_path, shell):
  monkeypatch.setitem(sys.modules, 'IPython', make_ipython(shell))
  cell = make_cell(tmp_path)
  for line in ('step 1/9  epoch 0.11', 'report  here'):
    cell.take(line)
  cell.close()
  assert capsys.readouterr().out == 'step 1/9  epoch 0.11\nreport  here\n'


@pytest.mark.slow
def test_a_cell_has_one_picture_that_grows(monkeypatch, capsys, tmp_path):
  pytest.importorskip('matplotlib')
  drawn = []

  class Handle:
    def update(self, picture):
      drawn.append(('update', picture))

  def show(picture, display_id):
    drawn.append(('new', picture))
    return Handle()

  def make_image(data, format):
    assert data.startswith(b'\x89PNG') and format == 'png'
    return len(cell._curve.find_points())

  ipython = make_ipython(types.SimpleNamespace(kernel=True))
  ipython.version_info = 9, 0  # Matplotlib looks at it.
  ipython.display = types.SimpleNamespace(display=show, Image=make_image)
  monkeypatch.setitem(sys.modules, 'IPython', ipython)
  monkeypatch.setattr(notebook, '_SECS', 0.01)
  writer = metrics_file.Writer(str(tmp_path), 'worker 0', 'a', host='h', pid=1)
  cell = make_cell(tmp_path)
  cell.take('step 1/9  epoch 0.11')
  write_points(writer, (1, 3))  # One point is not yet a curve.
  write_points(writer, (5, 2))
  wait_until(lambda: ('new', 2) in drawn, lambda: f'no picture: {drawn}')
  for line in (
    *('step 5/9  epoch 0.55', 'step 5: validation loss 3', 'report  here'),
  ):
    cell.take(line)
  write_points(writer, (9, 1))
  cell.close()
  assert drawn[-1] == ('update', 3)
  # How far the run is says the picture.
  assert capsys.readouterr().out.splitlines() == [
    *('step 1/9  epoch 0.11', 'step 5: validation loss 3', 'report  here')
  ]


@pytest.mark.daily
@pytest.mark.slow
@pytest.mark.filterwarnings('ignore')  # Jupyter's own.
def test_the_code_of_the_page_shows_a_curve_in_a_real_kernel(tmp_path):
  pytest.importorskip('matplotlib')
  nbformat = pytest.importorskip('nbformat')
  nbclient = pytest.importorskip('nbclient')
  shown = []  # The kinds of the messages that have a picture.

  class Client(nbclient.NotebookClient):
    def process_message(self, msg, cell, cell_index):
      if 'image/png' in msg['content'].get('data', ()):
        shown.append(msg['msg_type'])
      return super().process_message(msg, cell, cell_index)

  code = (REPO / 'docs' / 'python.md').read_text().split('```python\n')[1]
  cells = [
    code.split('```')[0],
    'report.plot()',
    'report',
    "print(len(report.curve.find_points()), len(report.history['loss']))",
  ]
  book = nbformat.v4.new_notebook(
    cells=[nbformat.v4.new_code_cell(cell) for cell in cells]
  )
  Client(
    book, timeout=300, resources={'metadata': {'path': str(tmp_path)}}
  ).execute()
  for cell in book.cells[:3]:
    pictures = [o for o in cell.outputs if 'image/png' in o.get('data', ())]
    assert len(pictures) == 1, cell.source
  assert shown[0] == 'display_data' and 'update_display_data' in shown
  points, epochs = map(int, book.cells[3].outputs[0].text.split())
  # Far more than one each 2 s, as lines come.
  assert points > 20 and epochs == 10
