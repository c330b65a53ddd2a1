"""answer_times: a slow store is reported, and not too often."""

from distmnist.storage import answer_times


def test_slow_answers_are_added_up_and_said_now_and_then(logged):
  now = 100.0
  times = answer_times.AnswerTimes(lambda: now)
  for _ in range(20):
    times.note('s3://b/quick', 0.2)
  for _ in range(4):
    times.note('s3://b/x', 1.0)
  assert logged == []
  times.note('s3://b/y', 1.25)
  assert logged == [
    's3://b/y: the store has answered after 1.2 s; 5 slow answers have taken '
    '5 s so far'
  ]
  for _ in range(20):
    times.note('s3://b/x', 1.0)
  assert len(logged) == 1
  now += 31
  times.note('s3://b/z', 2.0)
  assert logged[1:] == [
    's3://b/z: the store has answered after 2.0 s; 26 slow answers have taken '
    '27 s so far'
  ]
  now += 31
  times.note('s3://b/z', 2.0)
  assert len(logged) == 2
