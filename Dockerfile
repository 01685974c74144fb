# SPDX-License-Identifier: Apache-2.0
# An image that trains: `docker build -t harness .`. For GPUs: `--build-arg BASE=nvidia/cuda:12.8.1-devel-ubuntu24.04 --build-arg
# TORCH='torch>=2.10'`: the devel image has nvcc, which Adam on the GPU and offload to NVMe are compiled with. TORCH is what pip
# installs; PIP_EXTRA_INDEX_URL may name an index with CPU builds. All steps are in launch/image-steps.
ARG BASE=debian:12-slim
FROM ${BASE}
ARG TORCH=torch==2.13.0
ARG PIP_EXTRA_INDEX_URL=
COPY . /opt/harness/source
RUN TORCH="${TORCH}" PIP_EXTRA_INDEX_URL="${PIP_EXTRA_INDEX_URL}" /opt/harness/source/launch/image-steps
ENV PATH=/opt/harness/venv/bin:$PATH
WORKDIR /work
CMD ["harness", "doctor"]
