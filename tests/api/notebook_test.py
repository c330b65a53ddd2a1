"""Plain lines where there is no notebook, and a curve where there is."""

import sys
import types

import pytest

from distmnist.api import notebook


def make_ipython(shell):
  return types.SimpleNamespace(get_ipython=lambda: shell)


@pytest.mark.parametrize('shell', [None, types.SimpleNamespace()])
def test_a_terminal_has_plain_lines(monkeypatch, shell):
  monkeypatch.setitem(sys.modules, 'IPython', make_ipython(shell))
  assert notebook.make_on_line(notebook.Curve()) is print


def test_a_cell_has_one_picture_that_grows(monkeypatch, capsys):
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
    return len(curve.steps)

  ipython = make_ipython(types.SimpleNamespace(kernel=True))
  ipython.version_info = 9, 0  # Matplotlib looks at it.
  ipython.display = types.SimpleNamespace(display=show, Image=make_image)
  monkeypatch.setitem(sys.modules, 'IPython', ipython)
  monkeypatch.setattr(notebook, '_SECS', 0)
  curve = notebook.Curve()
  on_line = notebook.make_on_line(curve)
  lines = [
    *('starting', 'step 1/9  loss 3', 'step 5/9  loss 2', 'step 9/9  loss 1'),
    'report  here',
  ]
  for line in lines:
    curve.take(line)
    on_line(line)
  # One point is not yet a curve.
  assert drawn == [('new', 2), ('update', 3)]
  assert capsys.readouterr().out.splitlines() == lines


_CELL = """
from distmnist.api import notebook
curve = notebook.Curve()
on_line = notebook.make_on_line(curve)
for line in 'step 1/9  loss 3', 'step 5/9  loss 2', 'total time  1 s':
  curve.take(line)
  on_line(line)
"""


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore')  # Jupyter's own.
def test_a_real_cell_shows_a_picture():
  pytest.importorskip('matplotlib')
  nbformat = pytest.importorskip('nbformat')
  nbclient = pytest.importorskip('nbclient')
  cells = [nbformat.v4.new_code_cell(_CELL)]
  found = nbformat.v4.new_notebook(cells=cells)
  nbclient.NotebookClient(found, timeout=120).execute()
  shown = [o for o in found.cells[0].outputs if o.output_type != 'stream']
  assert len(shown) == 1 and 'image/png' in shown[0].data


def test_lines_with_a_step_have_the_loss():
  curve = notebook.Curve()
  for line, is_point in (
    ('distmnist.launch: 1 ps and 2 workers on this machine', False),
    ('step 1/80  epoch 0.03  loss 0.8341', True),
    (
      'step 80/80  epoch 2.00  loss 2.73e-02  6.71 ms/step  18 examples/s',
      True,
    ),
    ('final loss          0.0273', False),
  ):
    assert curve.take(line) == is_point
  assert (curve.steps, curve.losses) == ([1, 80], [0.8341, 0.0273])


def test_it_is_drawn():
  pytest.importorskip('matplotlib')
  curve = notebook.Curve()
  curve.take('step 1/80  epoch 0.03  loss 0.8341')
  axes = curve.plot()
  assert axes.get_xlabel() == 'global step'
  assert curve.plot(axes) is axes and len(axes.lines) == 2
