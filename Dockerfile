# The image of the tasks of --launcher=kubernetes, built in this folder:
#
#   docker build -t NAME .
#   docker build -t NAME --build-arg EXTRA=[gpu] .    # with CUDA, some GB more
#
# A tag may be another image tomorrow. To build from the same one each time, give
# its digest, which `docker buildx imagetools inspect python:3.11-slim` prints:
#
#   docker build -t NAME --build-arg BASE=python:3.11-slim@sha256:... .
#
# Run by hand it wants `docker run --init`: a Python that is process 1 does not hear
# SIGTERM before train has its handlers. In Kubernetes the manifests see to that.
ARG BASE=python:3.11-slim
FROM $BASE

# What is large comes first, and stays when the code alone changes.
WORKDIR /distmnist
COPY setup.py constraints.txt pyproject.toml README.md LICENSE ./
COPY distmnist/__init__.py distmnist/
COPY configs configs
ARG EXTRA=
RUN pip install --no-cache-dir -c constraints.txt -e ".$EXTRA" && \
    useradd --uid 1000 distmnist
COPY distmnist distmnist

# For what is written where no flag says; all but /tmp may be read-only.
ENV HOME=/tmp
# What the GPUs are for, where there are any.
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 1000:1000
CMD ["python", "-m", "distmnist.launch", "--help"]
