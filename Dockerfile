# The image of the tasks of --launcher=kubernetes, built in this folder:
#
#   docker build -t NAME .
#   docker build -t NAME --build-arg EXTRA=[gpu] .    # with CUDA, some GB more
FROM python:3.11-slim

# What is large comes first, and stays when the code alone changes.
WORKDIR /distmnist
COPY setup.py pyproject.toml README.md ./
COPY distmnist/__init__.py distmnist/
ARG EXTRA=
RUN pip install --no-cache-dir -e ".$EXTRA" && useradd --uid 1000 distmnist
COPY distmnist distmnist
COPY configs configs

# For what is written where no flag says; all but /tmp may be read-only.
ENV HOME=/tmp
# What the GPUs are for, where there are any.
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 1000:1000
CMD ["python", "-m", "distmnist.launch", "--help"]
