# CPU by default. With a GPU, whose wheels of torch bring Triton, a C compiler too, which Triton asks to start its kernels:
#   docker build --build-arg TORCH="torch==2.13.0+cu130" --build-arg TORCH_INDEX=<index of CUDA wheels> \
#       --build-arg COMPILER="gcc libc6-dev" .
# Without it plain torch does the kernels' work, with one warning; `kvlab doctor` in the container says what is missing.
# Python.h comes with this Python, which Debian does not package.
FROM python:3.11-slim

ARG TORCH="torch==2.13.0"
ARG TORCH_INDEX="https://download.pytorch.org/whl/cpu"
ARG COMPILER=""

RUN apt-get update \
    && apt-get install -y --no-install-recommends chromium ${COMPILER} \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 kvlab

WORKDIR /opt/kvlab
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY kvlab kvlab
COPY app app
COPY assets assets

RUN pip install --no-cache-dir ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} "$TORCH" \
    && grep -v '^torch==' constraints.txt > /tmp/constraints.txt \
    && pip install --no-cache-dir -c /tmp/constraints.txt . \
    && rm /tmp/constraints.txt

USER kvlab
WORKDIR /home/kvlab
# A lab of people: it starts with a lab file mounted as /home/kvlab/lab.toml (docs/shared-lab.md).
RUN mkdir runs models
VOLUME /home/kvlab/runs
EXPOSE 8501
HEALTHCHECK CMD python -c "import urllib.request; urllib.request.urlopen('http://localhost:8501/_stcore/health')"
CMD ["kvlab", "app", "--lab", "/home/kvlab/lab.toml", "--runs", "/home/kvlab/runs", "--port", "8501", "--host", "0.0.0.0", "--headless"]
