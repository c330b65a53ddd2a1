"""Where the repository, its tests and their programs lie."""

import pathlib

SUPPORT = pathlib.Path(__file__).resolve().parent
TESTS = SUPPORT.parent
REPO = TESTS.parent
# For a process that runs fake_train and the like by `python -m`.
PYTHONPATH = f'{REPO}:{SUPPORT}'
