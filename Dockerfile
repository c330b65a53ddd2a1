# The image for the tasks of --launcher=kubernetes; build it in this folder:
#
#   docker build -t NAME .
#   docker build -t NAME --build-arg EXTRA=[gpu] .    # with CUDA, a few GB more
#
# A tag may name another image tomorrow. To build from the same one each time,
# give its digest, as `docker buildx imagetools inspect python:3.11-slim` prints:
#
#   docker build -t NAME --build-arg BASE=python:3.11-slim@sha256:... .
#
# Run by hand, it needs `docker run --init`: as process 1, Python ignores SIGTERM
# until train has set its handlers. In Kubernetes the manifests see to that.
ARG BASE=python:3.11-slim
FROM $BASE

# The large layers come first, and stay when only the code changes.
WORKDIR /distmnist
COPY setup.py constraints.txt pyproject.toml README.md LICENSE ./
COPY distmnist/__init__.py distmnist/
# setup.py runs it.
COPY distmnist/common/commit.py distmnist/common/
COPY configs configs
ARG EXTRA=
RUN pip install --no-cache-dir -c constraints.txt -e ".$EXTRA" && \
    useradd --uid 1000 distmnist
COPY distmnist distmnist

# For files whose place no flag sets; all but /tmp may be read-only.
ENV HOME=/tmp
# What the GPUs are used for, if there are any.
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 1000:1000
CMD ["python", "-m", "distmnist.launch", "--help"]
