# docker build -t thinkalike .                                                           CPU
# docker build -t thinkalike --build-arg TORCH=https://download.pytorch.org/whl/cu128 .   CUDA: run with --gpus all
# docker run --rm -v "$PWD:/data" thinkalike train model=gelu-3l-mini model@target=solu-3l-mini
FROM python:3.11-slim

ARG TORCH=https://download.pytorch.org/whl/cpu

RUN apt-get update \
    && apt-get install --yes --no-install-recommends git \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/thinkalike
COPY pyproject.toml setup.py MANIFEST.in constraints.txt README.md LICENSE ./
RUN pip install --no-cache-dir --index-url "$TORCH" "$(grep '^torch==' constraints.txt)"
COPY conf conf
COPY src src
RUN pip install --no-cache-dir --constraint constraints.txt .

RUN useradd --create-home reader && mkdir /data && chown reader /data
USER reader
ENV THINKALIKE_CACHE=/data/.cache/thinkalike HF_HOME=/data/.cache/huggingface
WORKDIR /data
ENTRYPOINT ["thinkalike"]
CMD ["--help"]
