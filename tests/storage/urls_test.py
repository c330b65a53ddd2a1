"""urls: which paths are addresses, and which of them can be used."""

import os

import pytest

from distmnist.storage import urls


def test_an_address_is_taken_as_it_is():
  assert urls.is_remote('s3://b/run') and not urls.is_remote('/a/s3:/b')
  assert urls.expand('s3://b/~/run') == 's3://b/~/run'
  assert urls.expand('~/run') == os.path.expanduser('~/run')
  assert urls.expand('s3://b/run/') == 's3://b/run'
  assert urls.expand('hdfs:///') == 'hdfs:///'
  assert urls.normalize('s3://b/run/') == 's3://b/run'
  assert urls.normalize('.') == os.getcwd()


@pytest.mark.parametrize(
  'path, said',
  [
    ('run', None),
    ('s3://bucket/run', None),
    ('s3://bucket', None),
    ('hdfs:///run', None),
    ('hdfs://host:8020/run', None),
    ('gs://', 'expected gs://BUCKET/FOLDER'),
    ('s3:///run', 'expected s3://BUCKET/FOLDER'),
    (
      'ftp://host/run',
      'expected a path, or an address that starts with gs://, hdfs://, s3://',
    ),
  ],
)
def test_what_is_wrong_with_an_address_is_said(path, said):
  assert urls.find_mistake(path) == said
