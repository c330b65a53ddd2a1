"""The distmnist package."""

import pathlib
import re

import setuptools

HERE = pathlib.Path(__file__).parent
VERSION = re.search(
  r"__version__ = '(.+)'", (HERE / 'distmnist' / '__init__.py').read_text()
).group(1)

setuptools.setup(
  name='distmnist',
  version=VERSION,
  description='Classic parameter-server training that starts, ends, survives',
  long_description=(HERE / 'README.md').read_text(),
  long_description_content_type='text/markdown',
  packages=setuptools.find_packages(include=['distmnist', 'distmnist.*']),
  python_requires='>=3.10',
  install_requires=[
    'tensorflow>=2.16',
    'numpy',
    'absl-py',
    'pooch',  # downloads with hashes, atomically
    'tqdm',  # pooch's progress bar
    'tensorboard',  # not among TensorFlow's own requirements any more
  ],
  extras_require={
    'bench': ['torch', 'matplotlib'],  # the peers in benchmarks/peers
    'gpu': ['tensorflow[and-cuda]>=2.16'],
    'plots': ['matplotlib'],
    'spark': ['pyspark>=4.0'],  # with Java 17
    'test': [
      'pytest',
      'pytest-timeout',
      'pytest-xdist',
      'hypothesis',
      'psutil',
      'ruff',
      'kubernetes-validate',  # the schemas of Kubernetes; brings PyYAML
      'jsonschema',
      'pyyaml',
      'matplotlib',
    ],
  },
  entry_points={
    'console_scripts': [
      'distmnist-train = distmnist.train:run',
      'distmnist-evaluate = distmnist.evaluate:run',
      'distmnist-export = distmnist.export:run',
      'distmnist-predict = distmnist.predict:run',
      'distmnist-launch = distmnist.launch:run',
      'distmnist-sweep = distmnist.sweep:run',
    ]
  },
)
