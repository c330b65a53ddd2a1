"""python -m distmnist.report."""

import pytest

from distmnist import report
from distmnist.common import cli
from distmnist.watching import html_report, metrics_file


@pytest.fixture
def folder(tmp_path, set_flags):
  set_flags(f'--logdir={tmp_path}')
  ps = metrics_file.Writer(str(tmp_path), 'ps 0', 'a', host='h', pid=1)
  ps.write('sample', state='serving')
  return tmp_path


def test_it_prints_where_the_page_is(folder, capsys):
  report.main()
  assert capsys.readouterr().out == f'{folder}/report.html\n'
  assert (folder / 'report.html').is_file()


def test_a_folder_of_another_user_is_told(folder, monkeypatch):
  def write(logdir):
    raise PermissionError(13, 'Permission denied')

  monkeypatch.setattr(html_report, 'write', write)
  with pytest.raises(cli.RunError, match='cannot be written: Permission den'):
    report.main()
